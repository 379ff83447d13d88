//! Which step works on the disk now: the decisions of [`super::DiskTurns`], without threads and clocks.
//!
//! A *step* is one piece of work of one pod, from beginning to end. A *turn* is the right to run; a step that runs holds
//! one, and gives way at its pause points. A *thread* is what a step keeps from its beginning to its end, with or without
//! a turn.
//!
//! ```text
//!           grant                 pause point after SLICE, others wait
//!  Queued ─────────► Running ◄────────────────────────────────────────► Paused
//!                      │ ▲ grant                                          ▲
//!      no pause point  └─┼──────────────► Stuck ──────────────────────────┘
//!      for STUCK_AFTER   └─────────────────────────────── at its next pause point
//! ```
//!
//! Invariants:
//! 1. At most [`Limits::turns`] steps are `Running`. While a turn is free, no step waits that could begin or go on.
//! 2. Namespaces take turns, and so do the pods of a namespace. So a namespace waits for at most one slice of each other
//!    one, however many pods and files that has.
//! 3. A step that reaches no pause point, because the disk does not answer, holds its turn for [`STUCK_AFTER`] at most.
//!    It keeps only the thread.
//! 4. A namespace may have as many threads as are still free. So one namespace alone gets at most half of
//!    [`Limits::threads`], and any other one finds some.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use smol_str::SmolStr;
use tokio::time::Instant;

/// Time for which a step runs on while others wait.
pub(super) const SLICE: Duration = Duration::from_millis(2);
/// A step that has reached no pause point for this time is stuck.
pub(super) const STUCK_AFTER: Duration = Duration::from_millis(50);

/// What the node has for steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) turns: usize,
    pub(super) threads: usize,
}

/// The identity of a step; later steps have greater ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StepId(u64);

/// Where a step is, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepState {
    /// Has not begun: it has neither thread nor turn.
    Queued { since: Instant },
    /// Has a turn since `since`; its last pause point was at `paused_at`.
    Running { since: Instant, paused_at: Instant },
    /// Has reached no pause point since `since`; its turn was given to another step.
    Stuck { since: Instant },
    /// Waits at a pause point for a turn.
    Paused { since: Instant },
}

/// A turn that was given to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// It begins, on a thread of its own.
    Begin(StepId),
    /// It goes on, on its thread.
    Resume(StepId),
}

/// What a step does at a pause point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtPause {
    /// It goes on.
    Continue,
    /// It waits for [`Grant::Resume`].
    Wait,
}

#[derive(Debug)]
struct Step {
    namespace: SmolStr,
    state: StepState,
}

/// The steps of one namespace. Each queue is in the order of arrival.
#[derive(Debug, Default)]
struct OfNamespace {
    queued: VecDeque<(u64, StepId)>,
    paused: VecDeque<(u64, StepId)>,
    /// Steps that have begun.
    threads: usize,
}

/// All steps.
#[derive(Debug)]
pub(super) struct Schedule {
    limits: Limits,
    steps: BTreeMap<StepId, Step>,
    namespaces: HashMap<SmolStr, OfNamespace>,
    /// The namespaces with a step that waits, in the order of their next turns.
    order: VecDeque<SmolStr>,
    running: usize,
    threads: usize,
    /// Number of steps, and of waits, so far.
    arrivals: u64,
}

impl Schedule {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            steps: BTreeMap::new(),
            namespaces: HashMap::new(),
            order: VecDeque::new(),
            running: 0,
            threads: 0,
            arrivals: 0,
        }
    }

    /// Adds a step of a pod in `namespace`.
    pub(super) fn add(&mut self, namespace: &SmolStr, now: Instant) -> StepId {
        let id = StepId(self.arrivals);
        let step = Step {
            namespace: namespace.clone(),
            state: StepState::Queued { since: now },
        };
        self.steps.insert(id, step);
        self.wait(id, namespace, |of| &mut of.queued);
        id
    }

    /// Gives a free turn to the next step that can use it. To be called until it returns `None`, after every other call
    /// that changes something.
    pub(super) fn grant(&mut self, now: Instant) -> Option<Grant> {
        if self.running >= self.limits.turns {
            return None;
        }
        let free = self.limits.threads - self.threads;
        let next = self.order.iter().position(|namespace| {
            let of = &self.namespaces[namespace];
            !of.paused.is_empty() || of.may_begin(free)
        });
        let namespace = self.order.remove(next?)?;
        let of = self.namespaces.get_mut(&namespace)?;
        let grant = of.take_next(free)?;
        if matches!(grant, Grant::Begin(_)) {
            of.threads += 1;
            self.threads += 1;
        }
        if of.waits() {
            self.order.push_back(namespace);
        }
        let (Grant::Begin(id) | Grant::Resume(id)) = grant;
        self.set(
            id,
            StepState::Running {
                since: now,
                paused_at: now,
            },
        );
        self.running += 1;
        Some(grant)
    }

    /// The step `id`, which has a thread, has reached a pause point.
    pub(super) fn pause_point(&mut self, id: StepId, now: Instant) -> AtPause {
        let Some(step) = self.steps.get_mut(&id) else {
            return AtPause::Continue;
        };
        match &mut step.state {
            StepState::Running { since, paused_at } => {
                *paused_at = now;
                if now - *since < SLICE || self.order.is_empty() {
                    return AtPause::Continue;
                }
                self.running -= 1;
            }
            StepState::Stuck { .. } => {}
            StepState::Queued { .. } | StepState::Paused { .. } => return AtPause::Wait,
        }
        step.state = StepState::Paused { since: now };
        let namespace = step.namespace.clone();
        self.wait(id, &namespace, |of| &mut of.paused);
        AtPause::Wait
    }

    /// Takes their turns from the steps that are stuck.
    pub(super) fn lend(&mut self, now: Instant) {
        for step in self.steps.values_mut() {
            if let StepState::Running { paused_at, .. } = step.state
                && now - paused_at >= STUCK_AFTER
            {
                step.state = StepState::Stuck { since: paused_at };
                self.running -= 1;
            }
        }
    }

    /// When [`Self::lend`] has to be called next; `None` while no step waits or none runs.
    pub(super) fn next_lending(&self) -> Option<Instant> {
        if self.order.is_empty() {
            return None;
        }
        self.steps
            .values()
            .filter_map(|step| match step.state {
                StepState::Running { paused_at, .. } => Some(paused_at),
                _ => None,
            })
            .min()
            .map(|paused_at| paused_at + STUCK_AFTER)
    }

    /// The step has ended, or its pod no longer wants it. One that has begun ends only by itself.
    pub(super) fn remove(&mut self, id: StepId) {
        let Some(step) = self.steps.remove(&id) else {
            return;
        };
        let Some(of) = self.namespaces.get_mut(&step.namespace) else {
            return;
        };
        let is_other = |(_, other): &(u64, StepId)| *other != id;
        match step.state {
            StepState::Queued { .. } => of.queued.retain(is_other),
            StepState::Running { .. } => self.running -= 1,
            StepState::Paused { .. } => of.paused.retain(is_other),
            StepState::Stuck { .. } => {}
        }
        if !matches!(step.state, StepState::Queued { .. }) {
            of.threads -= 1;
            self.threads -= 1;
        }
        if !of.waits() {
            self.order.retain(|namespace| *namespace != step.namespace);
        }
        if of.is_idle() {
            self.namespaces.remove(&step.namespace);
        }
    }

    /// Where the step is; `None` once it has ended.
    pub(super) fn state(&self, id: StepId) -> Option<StepState> {
        self.steps.get(&id).map(|step| step.state)
    }

    /// Whether a step of the same namespace as `id` could begin.
    pub(super) fn has_thread_for(&self, id: StepId) -> bool {
        let free = self.limits.threads - self.threads;
        self.steps
            .get(&id)
            .and_then(|step| self.namespaces.get(&step.namespace))
            .is_none_or(|of| of.threads < free)
    }

    /// Number of threads that steps have, of how many.
    pub(super) fn threads(&self) -> (usize, usize) {
        (self.threads, self.limits.threads)
    }

    fn set(&mut self, id: StepId, state: StepState) {
        if let Some(step) = self.steps.get_mut(&id) {
            step.state = state;
        }
    }

    /// Lets the step wait in a queue of its namespace.
    fn wait(
        &mut self,
        id: StepId,
        namespace: &SmolStr,
        queue: impl FnOnce(&mut OfNamespace) -> &mut VecDeque<(u64, StepId)>,
    ) {
        let of = self.namespaces.entry(namespace.clone()).or_default();
        if !of.waits() {
            self.order.push_back(namespace.clone());
        }
        queue(of).push_back((self.arrivals, id));
        self.arrivals += 1;
    }
}

impl OfNamespace {
    fn waits(&self) -> bool {
        !self.queued.is_empty() || !self.paused.is_empty()
    }

    fn is_idle(&self) -> bool {
        !self.waits() && self.threads == 0
    }

    /// Whether a step is queued that may have one of the `free` threads (invariant 4).
    fn may_begin(&self, free: usize) -> bool {
        !self.queued.is_empty() && self.threads < free
    }

    /// The step that has waited longest, of those that can go on.
    fn take_next(&mut self, free: usize) -> Option<Grant> {
        let queued = self.queued.front().filter(|_| self.threads < free);
        match (queued, self.paused.front()) {
            (Some(queued), Some(paused)) if paused.0 < queued.0 => self.resume(),
            (Some(_), _) => self.queued.pop_front().map(|(_, id)| Grant::Begin(id)),
            (None, _) => self.resume(),
        }
    }

    fn resume(&mut self) -> Option<Grant> {
        self.paused.pop_front().map(|(_, id)| Grant::Resume(id))
    }
}

#[cfg(test)]
mod tests;
