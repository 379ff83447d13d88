//! Work on disks: each pod's runs on a thread of its own, and takes turns with that of other pods.
//!
//! The [schedule] decides whose turn it is, and has the invariants. This module gives it threads and a clock. Work has
//! the points of [`larder_files::pause`] in it, and gives way there. It may compute, read and write, as long as it comes
//! to a point every few milliseconds. A file system that does not answer costs the pod's one thread. Neither
//! other pods nor the end of the process wait for it.

mod schedule;

use std::{
    any::Any,
    cell::Cell,
    collections::HashMap,
    future::pending,
    num::NonZero,
    ops::RangeInclusive,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    thread::{self, Thread},
};

use larder_files::pause;
use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    time::{Instant, sleep_until},
};
use tracing::Span;

use self::schedule::{AtPause, Grant, Limits, SLICE, STUCK_AFTER, Schedule, StepId, StepState};
use crate::status::WaitsFor;

/// Threads for steps that have begun: far more than run, since only those count that were interrupted, or that hang.
const MAX_THREADS: usize = 64;
/// Turns of a node. More would not make a disk faster; with one, a step that hangs would delay others by 50 ms each time.
const TURNS: RangeInclusive<usize> = 2..=8;

/// The turns of a node. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct DiskTurns(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Wakes [`DiskTurns::lend_turns`] when it has something to wait for.
    waits: Notify,
}

/// Held for a few lines, never while a step works.
struct State {
    schedule: Schedule,
    /// The work of queued steps.
    queued: HashMap<StepId, QueuedWork>,
    /// The threads of paused steps.
    paused: HashMap<StepId, Thread>,
    /// Whether `lend_turns` sleeps until something waits.
    is_idle: bool,
}

struct QueuedWork {
    runtime: Handle,
    work: Box<dyn FnOnce() + Send>,
}

/// A step of a pod, from its request to its end. Dropped before it has begun, it never begins; dropped later, it ends by
/// itself.
#[must_use = "a step that is dropped may never begin"]
pub(crate) struct DiskStep<T> {
    turns: DiskTurns,
    id: StepId,
    result: oneshot::Receiver<Result<T, Box<dyn Any + Send>>>,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepProgress {
    /// It works, or pauses for a moment.
    Working,
    /// It waits, since the time.
    Waiting(WaitsFor, Instant),
}

impl DiskTurns {
    /// Turns for as much work at a time as there are processors.
    pub(crate) fn of_machine() -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        Self::new(Limits {
            turns: processors.clamp(*TURNS.start(), *TURNS.end()),
            threads: MAX_THREADS,
        })
    }

    fn new(limits: Limits) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                schedule: Schedule::new(limits),
                queued: HashMap::new(),
                paused: HashMap::new(),
                is_idle: true,
            }),
            waits: Notify::new(),
        }))
    }

    /// Requests a step of a pod in `namespace`. A pod has one at a time.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub(crate) fn step<T: Send + 'static>(
        &self,
        namespace: &SmolStr,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> DiskStep<T> {
        let (sender, result) = oneshot::channel();
        let turns = self.clone();
        let span = Span::current();
        let runtime = Handle::current();
        // Both at once: a step that is known without its work would get a turn and never begin.
        let id = self.change(|state| {
            let id = state.schedule.add(namespace, Instant::now());
            let ended = EndedStep(turns.clone(), id);
            let begin = move || {
                let _ended = ended;
                let _span = span.entered();
                let pausing = PausingStep::new(turns, id);
                let done = catch_unwind(AssertUnwindSafe(|| {
                    pause::at_points(move || pausing.pause(), work)
                }));
                // The worker of a pod that is gone has dropped the receiver.
                let _ = sender.send(done);
            };
            let work = Box::new(begin);
            state.queued.insert(id, QueuedWork { runtime, work });
            id
        });
        DiskStep {
            turns: self.clone(),
            id,
            result,
        }
    }

    /// Lends the turns of stuck steps to others. Runs until dropped.
    pub(crate) async fn lend_turns(self) {
        loop {
            self.change(|state| state.schedule.lend(Instant::now()));
            let next = {
                let mut state = self.0.state.lock();
                let next = state.schedule.next_lending();
                state.is_idle = next.is_none();
                next
            };
            match next {
                Some(at) => sleep_until(at).await,
                None => self.0.waits.notified().await,
            }
        }
    }

    /// Says so when steps have so many threads that a namespace may get none.
    pub(crate) fn problem(&self) -> Option<String> {
        let (taken, all) = self.threads();
        (taken * 2 >= all).then(|| {
            format!("{taken} of {all} threads for work on disks are taken: a pod keeps its own while its disk does not answer")
        })
    }

    /// Number of threads that steps have, of how many.
    fn threads(&self) -> (usize, usize) {
        self.0.state.lock().schedule.threads()
    }

    /// Changes the state, and then lets those steps go on that have turns.
    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.0.state.lock();
        let changed = change(&mut state);
        let begun = state.grant();
        if state.is_idle && state.schedule.next_lending().is_some() {
            state.is_idle = false;
            self.0.waits.notify_one();
        }
        drop(state);
        for QueuedWork { runtime, work } in begun {
            // The step says by itself how it ended.
            drop(runtime.spawn_blocking(work));
        }
        changed
    }

    /// The pause point of a step: returns when it may go on.
    fn pause(&self, id: StepId) {
        let paused = self.change(|state| {
            let paused = state.schedule.pause_point(id, Instant::now());
            if paused == AtPause::Wait {
                state.paused.insert(id, thread::current());
            }
            paused
        });
        if paused == AtPause::Wait {
            while self.0.state.lock().paused.contains_key(&id) {
                thread::park();
            }
        }
    }
}

impl State {
    /// Lets those paused steps go on that have turns; returns the work of those that begin.
    fn grant(&mut self) -> Vec<QueuedWork> {
        let mut begun = Vec::new();
        while let Some(grant) = self.schedule.grant(Instant::now()) {
            match grant {
                Grant::Begin(id) => begun.extend(self.queued.remove(&id)),
                Grant::Resume(id) => {
                    if let Some(thread) = self.paused.remove(&id) {
                        thread.unpark();
                    }
                }
            }
        }
        begun
    }
}

/// The thread of a step.
struct PausingStep {
    turns: DiskTurns,
    id: StepId,
    /// When the schedule was last asked.
    asked: Cell<Instant>,
}

impl PausingStep {
    fn new(turns: DiskTurns, id: StepId) -> Self {
        Self {
            turns,
            id,
            asked: Instant::now().into(),
        }
    }

    /// Asks the schedule from time to time: between two small files it costs more than the files.
    fn pause(&self) {
        if self.asked.get().elapsed() >= SLICE / 2 {
            self.turns.pause(self.id);
            self.asked.set(Instant::now());
        }
    }
}

/// Ends a step when its work is dropped: done, panicked, or never begun.
struct EndedStep(DiskTurns, StepId);

impl Drop for EndedStep {
    fn drop(&mut self) {
        let Self(turns, id) = self;
        turns.change(|state| state.schedule.remove(*id));
    }
}

impl<T> DiskStep<T> {
    /// Waits for the end of the step. A panic of its work resumes here. Cancel-safe.
    pub(crate) async fn ended(&mut self) -> T {
        match (&mut self.result).await {
            Ok(Ok(done)) => done,
            Ok(Err(panic)) => resume_unwind(panic),
            // The runtime shuts down, and this future with it.
            Err(_) => pending().await,
        }
    }

    /// What the step does.
    pub(crate) fn progress(&self) -> StepProgress {
        let state = self.turns.0.state.lock();
        let (what, since) = match state.schedule.state(self.id) {
            Some(StepState::Queued { since }) if state.schedule.has_thread_for(self.id) => {
                (WaitsFor::Turn, since)
            }
            Some(StepState::Queued { since }) => (WaitsFor::Thread, since),
            Some(StepState::Stuck { since }) => (WaitsFor::Disk, since),
            // It still has its turn, as no other step waits for one.
            Some(StepState::Running { paused_at, .. }) if paused_at.elapsed() >= STUCK_AFTER => {
                (WaitsFor::Disk, paused_at)
            }
            Some(StepState::Running { .. } | StepState::Paused { .. }) | None => {
                return StepProgress::Working;
            }
        };
        StepProgress::Waiting(what, since)
    }
}

impl<T> Drop for DiskStep<T> {
    fn drop(&mut self) {
        let withdrawn = self.turns.0.state.lock().queued.remove(&self.id);
        // Without the lock, which the end of a step takes.
        drop(withdrawn);
    }
}

#[cfg(test)]
mod tests;
