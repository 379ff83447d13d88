//! The hooks of all pods of the node as a value: takes in passes and ends of rounds, and decides which rounds are due.
//!
//! Time and random numbers are passed in, and nothing here waits, starts a process or touches a file.
//!
//! Invariants:
//! 1. Each hook of each pod is in `hooks` as long as it may fire. Its timer, if it has one, is then in `timers`.
//! 2. A started round keeps its place in the queue of the node until its end is reported, even if its hook is removed
//!    meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use fastrand::Rng;
use jiff::Timestamp;
use larder_on_change::{DigestKey, HookId, HookState, Outcome, RoundId, RoundQueue};
use larder_pods::StoredPod;
use smol_str::SmolStr;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    content::{Content, PartContent, PartKey},
    observer::Past,
    pod_hooks::PodHooks,
    record::Record,
    round::{Attempt, AttemptEnd, AttemptReport},
    tracked::{RunningRound, TrackedHook},
};

/// Most restarts of a container within [`RESTART_WINDOW`] (rule R4).
const MAX_RESTARTS: usize = 5;
const RESTART_WINDOW: Duration = Duration::from_mins(10);
/// The hooks of all pods.
#[derive(Debug)]
pub(super) struct Schedule {
    pods: BTreeMap<SmolStr, Box<PodSchedule>>,
    /// The pod of each hook, and its index there.
    hooks: HashMap<HookId, (SmolStr, usize)>,
    timers: BTreeSet<(Instant, HookId)>,
    queue: RoundQueue,
    last_id: u64,
    rng: Rng,
    /// The agent ends: no further round begins.
    is_closed: bool,
}

/// A pod with hooks.
#[derive(Debug)]
pub(super) struct PodSchedule {
    pod: Arc<StoredPod>,
    pub(super) hooks: Arc<PodHooks>,
    present: Arc<Content>,
    /// The parts that are known only from the files on disk at the start. Takes no memory once it is empty.
    unconfirmed: Vec<PartKey>,
    pub(super) tracked: Box<[TrackedHook]>,
    /// Whether the record on disk may be out of date.
    is_dirty: bool,
    /// A pass is about to change the content.
    is_changing: bool,
    /// The record on disk says so: it covers attempts that begin when the content has changed.
    is_announced: bool,
    /// The restarts of containers within [`RESTART_WINDOW`].
    restarts: Vec<(SmolStr, Instant)>,
}

impl PodSchedule {
    /// Whether no hook fires any more (rule F9).
    fn is_ending(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some() || self.pod.is_terminal()
    }
}

/// A round of a hook that still exists has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) pod: Arc<StoredPod>,
    pub(super) hook: String,
    pub(super) action: String,
    /// Whether the pod has an event about the hook's failure.
    pub(super) was_reported: bool,
    /// Whether it is the first failure, or one with another reason.
    pub(super) is_news: bool,
}

impl Schedule {
    /// A schedule without hooks; at most `parallelism` rounds run at the same time.
    pub(super) fn new(parallelism: usize, rng: Rng) -> Self {
        Self {
            pods: BTreeMap::new(),
            hooks: HashMap::new(),
            timers: BTreeSet::new(),
            queue: RoundQueue::new(parallelism),
            last_id: 0,
            rng,
            is_closed: false,
        }
    }

    /// From now on no round begins.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Limits the rounds that run at the same time from now on.
    pub(super) fn set_parallelism(&mut self, parallelism: usize) {
        self.queue.set_parallelism(parallelism);
    }

    /// The pod, if it has hooks.
    pub(super) fn pod(&self, uid: &str) -> Option<&PodSchedule> {
        self.pods.get(uid).map(|pod| &**pod)
    }

    /// The hooks of all pods.
    pub(super) fn tracked_hooks(&self) -> impl Iterator<Item = &TrackedHook> {
        self.pods.values().flat_map(|pod| &pod.tracked)
    }

    /// The content of a pod, as far as this agent delivered it.
    pub(super) fn content_of(&self, uid: &str) -> Arc<Content> {
        match self.pods.get(uid) {
            None => Arc::default(),
            Some(pod) if pod.unconfirmed.is_empty() => Arc::clone(&pod.present),
            Some(pod) => {
                let is_confirmed = |part: &PartKey| !pod.unconfirmed.contains(part);
                Arc::new(pod.present.retain(is_confirmed))
            }
        }
    }

    /// The record of a pod, if the one on disk may be out of date; from now on it counts as written. `keeps_key` says
    /// whether the next agent has the same key.
    pub(super) fn record(
        &mut self,
        uid: &str,
        key: &DigestKey,
        keeps_key: bool,
    ) -> Option<Vec<u8>> {
        let pod = self.pods.get_mut(uid)?;
        if !std::mem::take(&mut pod.is_dirty) {
            return None;
        }
        pod.is_announced = pod.is_changing;
        let hooks = pod.hooks.hooks.iter().zip(&pod.tracked);
        let record = hooks.map(|(hook, tracked)| {
            let lacks_notification = tracked.pending().changed_at.is_some() && !keeps_key;
            (hook, tracked, pod.is_changing || lacks_notification)
        });
        Some(Record::new(key, record).text())
    }

    /// The content of a pod is about to change. Returns whether the pod is known.
    pub(super) fn announce_change(&mut self, uid: &str) -> bool {
        let Some(pod) = self.pods.get_mut(uid) else {
            return false;
        };
        pod.is_changing = true;
        pod.is_dirty = true;
        true
    }

    /// Whether the record on disk covers those of `attempts` that are of this pod, which began with the pass that has just
    /// ended: it says that their outcome is unknown as long as the disk has the content of that pass. Every pass that
    /// changes the content of these hooks is announced, so the record then says that the outcome is unknown in any case.
    pub(super) fn covers(&self, uid: &str, attempts: &[Attempt]) -> bool {
        let mut of_pod = attempts.iter().filter(|attempt| attempt.uid() == uid);
        let pod = self.pods.get(uid);
        pod.is_some_and(|pod| pod.is_announced && !pod.is_changing)
            && of_pod.clone().next().is_some()
            && of_pod.all(|attempt| attempt.hook().fires_at_once())
    }

    /// The record could not be written.
    pub(super) fn record_again(&mut self, uid: &str) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.is_dirty = true;
            pod.is_announced = false;
        }
    }

    /// The pod's metadata or status has changed.
    pub(super) fn updated(&mut self, uid: &str, pod: &Arc<StoredPod>) {
        let Some(found) = self.pods.get_mut(uid) else {
            return;
        };
        found.pod = Arc::clone(pod);
        if found.is_ending() {
            self.rest(uid);
        }
    }

    /// No hook of the pod fires any more.
    pub(super) fn forget(&mut self, uid: &str) {
        self.rest(uid);
        self.pods.remove(uid);
    }

    /// Until when a round has to wait because one of these containers was restarted too often, and why (rule R4).
    pub(super) fn restart_limit(
        &mut self,
        uid: &str,
        names: &[SmolStr],
        now: Instant,
        time: Timestamp,
    ) -> Option<(Instant, String)> {
        let pod = self.pods.get_mut(uid)?;
        pod.restarts.retain(|(_, at)| *at + RESTART_WINDOW > now);
        names.iter().find_map(|name| {
            let restarts = pod.restarts.iter();
            let of_container: Vec<_> = restarts.filter(|(found, _)| found == name).collect();
            let excess = of_container.len().checked_sub(MAX_RESTARTS)?;
            let until = of_container[excess].1 + RESTART_WINDOW;
            let at = time + (until - now);
            let reason = format!(
                "container {name} was restarted {MAX_RESTARTS} times within 10 min, waiting until {}",
                at.strftime("%H:%M:%SZ")
            );
            Some((until, reason))
        })
    }

    /// The containers were restarted.
    pub(super) fn restarted(&mut self, uid: &str, names: &[SmolStr], now: Instant) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.restarts
                .extend(names.iter().map(|name| (name.clone(), now)));
        }
    }

    /// Gives the pod `hooks`. Hooks that it had before keep their engines.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call, with all facts of a pass"
    )]
    pub(super) fn take_hooks(
        &mut self,
        uid: &SmolStr,
        pod: &Arc<StoredPod>,
        hooks: Arc<PodHooks>,
        past: Option<Past>,
        parts: &[(PartKey, Arc<PartContent>)],
        key: &DigestKey,
        time: Timestamp,
    ) {
        if let Some(known) = self.pods.get_mut(uid)
            && Arc::ptr_eq(&known.hooks, &hooks)
        {
            return;
        }
        let arrived = Content::default().with(parts.iter().cloned());
        let known = self.pods.remove(uid);
        let (mut old, old_hooks, present, restarts) = match known {
            None => (Vec::new(), None, Content::default(), Vec::new()),
            Some(known) => {
                let known = *known;
                for tracked in &known.tracked {
                    self.hooks.remove(&tracked.id);
                }
                let tracked = known.tracked.into_iter().map(Some).collect();
                let present = (*known.present).clone();
                (tracked, Some(known.hooks), present, known.restarts)
            }
        };
        let past = past.unwrap_or_else(|| Past {
            content: Content::default(),
            record: None,
        });
        // If the pod had hooks under this agent, its past does not count: new hooks start from the present content
        // (rule P5).
        let own_past = old_hooks.is_none().then_some(&past);
        let mut tracked = Vec::with_capacity(hooks.hooks.len());
        for (index, hook) in hooks.hooks.iter().enumerate() {
            let known = old_hooks.iter().flat_map(|hooks| &hooks.hooks);
            let position = known.into_iter().position(|known| known.is_same(hook));
            let kept = position.and_then(|position| old[position].take());
            let kept = kept.unwrap_or_else(|| {
                self.last_id += 1;
                TrackedHook::new(HookId(self.last_id), hook, own_past, &arrived, key, time)
            });
            self.hooks.insert(kept.id, (uid.clone(), index));
            tracked.push(kept);
        }
        for dropped in old.into_iter().flatten() {
            self.retire(&dropped);
        }
        let present = present.with(
            past.content
                .parts()
                .map(|(part, content)| (part.clone(), Arc::clone(content))),
        );
        let present = present.retain(|part| hooks.look_at_part(part));
        let unconfirmed = match &old_hooks {
            None => present.parts().map(|(part, _)| part.clone()).collect(),
            Some(_) => Vec::new(),
        };
        let pod = PodSchedule {
            pod: Arc::clone(pod),
            hooks,
            present: Arc::new(present),
            unconfirmed,
            tracked: tracked.into(),
            is_dirty: true,
            is_changing: false,
            is_announced: false,
            restarts,
        };
        self.pods.insert(uid.clone(), Box::new(pod));
    }

    /// Takes in the parts of a pass.
    pub(super) fn pass(
        &mut self,
        uid: &SmolStr,
        parts: Vec<(PartKey, Arc<PartContent>)>,
        key: &DigestKey,
        now: Instant,
        time: Timestamp,
    ) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        if pod.is_ending() {
            return;
        }
        pod.is_dirty |= std::mem::take(&mut pod.is_changing);
        let before = Arc::clone(&pod.present);
        let arrived: BTreeSet<_> = parts.iter().map(|(part, _)| part).collect();
        let unconfirmed = std::mem::take(&mut pod.unconfirmed).into_iter();
        let (confirmed, unconfirmed): (BTreeSet<_>, BTreeSet<_>) =
            unconfirmed.partition(|part| arrived.contains(part));
        pod.unconfirmed = unconfirmed.into_iter().collect();
        if !parts.is_empty() {
            pod.present = Arc::new(before.with(parts));
        }
        let mut ids = Vec::with_capacity(pod.tracked.len());
        for (hook, tracked) in pod.hooks.hooks.iter().zip(&mut pod.tracked) {
            let notified = tracked.engine.notified();
            tracked.passed(hook, &before, &pod.present, &confirmed, key, now);
            tracked.note_state(time);
            pod.is_dirty |= tracked.engine.notified() != notified;
            ids.push(tracked.id);
        }
        for id in ids {
            self.reschedule(id);
        }
    }

    /// Sets the timer of a hook to the next deadline of its engine.
    fn reschedule(&mut self, id: HookId) {
        let Some((tracked, _)) = Self::tracked(&mut self.pods, &self.hooks, id) else {
            return;
        };
        let wakes_at = tracked.engine.wakes_at();
        let before = tracked.pending().timer;
        if before != wakes_at {
            tracked.pending_mut().timer = wakes_at;
        }
        tracked.settle();
        if before == wakes_at {
            return;
        }
        if let Some(at) = before {
            self.timers.remove(&(at, id));
        }
        if let Some(at) = wakes_at {
            self.timers.insert((at, id));
        }
    }

    fn tracked<'a>(
        pods: &'a mut BTreeMap<SmolStr, Box<PodSchedule>>,
        hooks: &HashMap<HookId, (SmolStr, usize)>,
        id: HookId,
    ) -> Option<(&'a mut TrackedHook, SmolStr)> {
        let (uid, index) = hooks.get(&id)?;
        let pod = pods.get_mut(uid)?;
        Some((pod.tracked.get_mut(*index)?, uid.clone()))
    }

    /// Advances the time, and begins the rounds that are due and may run. Also returns when to call it again.
    pub(super) fn due(&mut self, now: Instant, time: Timestamp) -> (Vec<Attempt>, Option<Instant>) {
        if self.is_closed {
            return (Vec::new(), None);
        }
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.remove(&(at, id));
            let random = self.rng.f64();
            let Some((tracked, _)) = Self::tracked(&mut self.pods, &self.hooks, id) else {
                continue;
            };
            tracked.pending_mut().timer = None;
            if let Some(since) = tracked.engine.advance(now, random) {
                self.queue.push(id, since);
            } else {
                self.reschedule(id);
            }
        }
        let mut attempts = Vec::new();
        while let Some(id) = self.queue.pop() {
            match self.begin(id, time) {
                Some(attempt) => attempts.push(attempt),
                // The content changed back while the hook was queued, or the hook was removed.
                None => self.queue.finished(id),
            }
        }
        (attempts, self.timers.first().map(|(at, _)| *at))
    }

    fn begin(&mut self, id: HookId, time: Timestamp) -> Option<Attempt> {
        let (uid, index) = self.hooks.get(&id)?;
        let (index, pod) = (*index, self.pods.get_mut(uid)?);
        let tracked = pod.tracked.get_mut(index)?;
        let round = tracked.engine.start()?;
        let random = self.rng.u128(..);
        let cancel = CancellationToken::new();
        let pending = tracked.pending_mut();
        let round_id = *pending
            .round
            .get_or_insert_with(|| RoundId::from_random(random));
        pending.running = Some(RunningRound {
            content: Arc::clone(&pod.present),
            cancel: cancel.clone(),
        });
        let changed_at = pending.changed_at;
        tracked.note_state(time);
        pod.is_dirty = true;
        Some(Attempt {
            id,
            pod: Arc::clone(&pod.pod),
            hooks: Arc::clone(&pod.hooks),
            index,
            round: round_id,
            number: round.attempt,
            content: Arc::clone(&pod.present),
            notified: tracked.notified().map(Arc::clone),
            changed_at,
            is_recorded: false,
            pod_facts: None,
            cancel,
        })
    }

    /// Takes in the end of a round; `None` if its hook is gone.
    pub(super) fn ended(
        &mut self,
        report: &AttemptReport,
        now: Instant,
        time: Timestamp,
    ) -> Option<Ended> {
        self.queue.finished(report.id);
        let random = self.rng.f64();
        let (uid, index) = self.hooks.get(&report.id)?;
        let (index, pod) = (*index, self.pods.get_mut(uid)?);
        let hook = &pod.hooks.hooks[index];
        let tracked = &mut pod.tracked[index];
        let running = tracked.pending_mut().running.take();
        let mut is_news = false;
        let was_reported = tracked.is_reported;
        match &report.end {
            AttemptEnd::Succeeded => {
                tracked.engine.finished(Outcome::Succeeded, now, random);
                // Parts that were missing until now belong to it.
                let content =
                    running.map_or(Arc::clone(&report.content), |running| running.content);
                tracked.succeeded(content, time);
                tracked.is_reported = false;
                let is_idle = tracked.engine.state() == HookState::Idle;
                tracked.pending_mut().changed_at = (!is_idle).then_some(now);
            }
            AttemptEnd::Failed(reason) => {
                tracked.engine.finished(Outcome::Failed, now, random);
                is_news = tracked.pending().reason != *reason;
                if tracked.engine.is_uncertain() {
                    tracked.pending_mut().reason.clone_from(reason);
                    tracked.is_reported = true;
                } else {
                    // `onFailure: Ignore`.
                    tracked.succeeded(Arc::clone(&report.content), time);
                }
                if tracked.engine.failures() == 0 {
                    tracked.pending_mut().round = None;
                }
            }
            AttemptEnd::Deferred(until, reason) => {
                tracked.engine.defer(*until);
                tracked.pending_mut().reason.clone_from(reason);
            }
            AttemptEnd::Interrupted => {
                tracked.engine.finished(Outcome::Interrupted, now, random);
            }
        }
        tracked.note_state(time);
        pod.is_dirty = true;
        let ended = Ended {
            pod: Arc::clone(&pod.pod),
            hook: hook.hook.name.clone(),
            action: hook.action(),
            was_reported,
            is_news,
        };
        self.reschedule(report.id);
        Some(ended)
    }

    /// Ends the running and due rounds of a pod, but keeps the records of its hooks.
    fn rest(&mut self, uid: &str) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        let mut tracked = std::mem::take(&mut pod.tracked);
        for hook in &mut tracked {
            self.retire(hook);
            hook.pending_mut().timer = None;
            hook.settle();
        }
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.tracked = tracked;
        }
    }

    /// Ends the running and due rounds of a hook.
    fn retire(&mut self, tracked: &TrackedHook) {
        if let Some(running) = &tracked.pending().running {
            running.cancel.cancel();
        } else {
            // The place of a running round becomes free when it has ended.
            self.queue.finished(tracked.id);
        }
        if let Some(at) = tracked.pending().timer {
            self.timers.remove(&(at, tracked.id));
        }
        self.hooks.remove(&tracked.id);
    }
}
