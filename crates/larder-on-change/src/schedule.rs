//! The hooks of all pods of the node as a value: takes passes and ends of rounds, and decides which rounds are due.
//!
//! Time and random numbers are passed in, and nothing here waits, starts a process or touches a file.
//!
//! Invariants:
//! 1. Each hook of each pod is in `hooks` as long as it may fire. Its timer, if it has one, is then in `timers`.
//! 2. A started round keeps its place in the queue of the node until its end is reported or it gives the place up, even
//!    if its hook is removed meanwhile.
//! 3. The attempts that [`Schedule::due`] returns have begun, which [`Schedule::record`] shows from then on. Their
//!    owner stores that record before the first step. So the application is notified of each change at least once,
//!    across any crash (rule P4).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, LazyLock},
    time::Duration,
};

use fastrand::Rng;
use jiff::Timestamp;
use larder_objects::PodIdentity;
use smol_str::SmolStr;
use tokio::time::Instant;

use crate::{
    changes::PodChange,
    content::{Content, PartContent, PartTags},
    digest::DigestKey,
    engine::{AttemptEnd, HookState},
    part::PartKey,
    pod_hooks::{Place, PodHook, PodHooks},
    queue::{HookId, OF_POD, RoundQueue},
    record::{Past, Record},
    round_id::RoundId,
    tracked::{Now, RoundControl, TrackedHook},
};

/// Most restarts of a container within [`RESTART_WINDOW`] (rule R4).
const MAX_RESTARTS: usize = 5;
const RESTART_WINDOW: Duration = Duration::from_mins(10);

/// Of an application that was never notified.
static EMPTY: LazyLock<Content> = LazyLock::new(Content::default);

/// The hooks of all pods. Its owner keeps a `P` for each pod, which attempts get a copy of.
#[derive(Debug)]
pub struct Schedule<P> {
    pods: BTreeMap<SmolStr, Box<PodSchedule<P>>>,
    /// The pod of each hook, and its index there.
    hooks: HashMap<HookId, (SmolStr, usize)>,
    timers: BTreeSet<(Instant, HookId)>,
    queue: RoundQueue,
    last_id: u64,
    /// `None` if no pause is random.
    rng: Option<Rng>,
}

/// A pod with hooks.
#[derive(Debug)]
pub struct PodSchedule<P> {
    pod: P,
    hooks: Arc<PodHooks>,
    present: Arc<Content>,
    /// The parts that are known only from the files on disk at the start. Takes no memory once it is empty.
    unconfirmed: Vec<PartKey>,
    tracked: Box<[TrackedHook]>,
    /// No hook fires any more (rule F9).
    is_ending: bool,
    /// Whether the record on disk may be out of date.
    is_dirty: bool,
    /// A pass is about to change the content, or has changed it.
    is_changing: bool,
    /// The restarts of containers within [`RESTART_WINDOW`].
    restarts: Vec<(SmolStr, Instant)>,
}

impl<P> PodSchedule<P> {
    /// Its hooks, and the annotations with errors.
    pub fn hooks(&self) -> &PodHooks {
        &self.hooks
    }

    /// Each of its hooks with its state.
    pub fn tracked(&self) -> impl Iterator<Item = (&PodHook, &TrackedHook)> {
        self.hooks.hooks.iter().zip(&self.tracked)
    }
}

/// An attempt of a round, which has begun.
#[derive(Debug)]
pub struct Attempt<P> {
    /// The hook.
    pub id: HookId,
    /// UID of the pod.
    pub uid: SmolStr,
    /// What the schedule's owner keeps for the pod.
    pub pod: P,
    hooks: Arc<PodHooks>,
    index: usize,
    /// All attempts of a round have the same.
    pub round: RoundId,
    /// 1 for the first attempt of the round.
    pub number: u32,
    /// The content that the application is notified of.
    pub content: Arc<Content>,
    /// The content of the last success, if it is known.
    pub baseline: Option<Arc<Content>>,
    /// Arrival of the first change that the application was not yet notified of.
    pub changed_at: Option<Instant>,
    /// How the schedule controls the attempt.
    pub control: Arc<RoundControl>,
}

impl<P> Attempt<P> {
    /// Its hook.
    pub fn hook(&self) -> &PodHook {
        &self.hooks.hooks[self.index]
    }

    /// The description that its steps get. The directories of volumes are the caller's to add.
    pub fn change(&self, pod: PodIdentity) -> PodChange {
        let baseline = self.baseline.as_deref().unwrap_or(&EMPTY);
        PodChange {
            pod,
            hook: self.hook().hook.name.clone(),
            round: self.round,
            attempt: self.number,
            changes: self.content.changes_since(baseline, self.hook()),
        }
    }
}

/// A round of a hook that still exists has ended.
#[derive(Debug)]
pub struct Ended<P> {
    /// What the schedule's owner keeps for the pod.
    pub pod: P,
    /// Name of the hook.
    pub hook: String,
    /// Its action, in short.
    pub action: String,
    /// Whether the pod has an event about the hook's failure.
    pub was_reported: bool,
    /// Whether it is the first failure, or one with another reason.
    pub is_news: bool,
    /// The hook's state from now on.
    pub state: HookState,
}

impl<P: Clone> Schedule<P> {
    /// The schedule of a node, without hooks; at most `parallelism` rounds run at the same time.
    pub fn new(parallelism: usize, rng: Rng) -> Self {
        Self::with_queue(RoundQueue::new(parallelism, OF_POD), Some(rng))
    }

    /// The schedule of one application. All rounds that are due run at the same time. Without `rng`, no pause is random.
    pub fn of_one(rng: Option<Rng>) -> Self {
        Self::with_queue(RoundQueue::new(usize::MAX, usize::MAX), rng)
    }

    fn with_queue(queue: RoundQueue, rng: Option<Rng>) -> Self {
        Self {
            pods: BTreeMap::new(),
            hooks: HashMap::new(),
            timers: BTreeSet::new(),
            queue,
            last_id: 0,
            rng,
        }
    }

    /// Limits the rounds that run at the same time from now on.
    pub fn set_parallelism(&mut self, parallelism: usize) {
        self.queue.set_parallelism(parallelism);
    }

    /// The pod, if it has hooks.
    pub fn pod(&self, uid: &str) -> Option<&PodSchedule<P>> {
        self.pods.get(uid).map(|pod| &**pod)
    }

    /// The number of annotations with errors, of all pods.
    pub fn invalid_annotations(&self) -> usize {
        self.pods.values().map(|pod| pod.hooks.errors.len()).sum()
    }

    /// The hooks of all pods.
    pub fn tracked_hooks(&self) -> impl Iterator<Item = &TrackedHook> {
        self.pods.values().flat_map(|pod| &pod.tracked)
    }

    /// The content of a pod, as far as this agent delivered it.
    pub fn delivered(&self, uid: &str) -> Arc<Content> {
        match self.pods.get(uid) {
            None => Arc::default(),
            Some(pod) if pod.unconfirmed.is_empty() => Arc::clone(&pod.present),
            Some(pod) => {
                let is_confirmed = |part: &PartKey| !pod.unconfirmed.contains(part);
                Arc::new(pod.present.retain(is_confirmed))
            }
        }
    }

    /// The record of a pod, if the one on disk may be out of date; from now on it counts as written.
    pub fn record(&mut self, uid: &str, key: &DigestKey) -> Option<Record> {
        let pod = self.pods.get_mut(uid)?;
        if !std::mem::take(&mut pod.is_dirty) {
            return None;
        }
        let records = pod
            .hooks
            .hooks
            .iter()
            .zip(&pod.tracked)
            .map(|(hook, tracked)| tracked.record(hook, pod.is_changing, key));
        Some(Record::new(key, records, &pod.present))
    }

    /// A part of a pod is about to be written with content of these tags. Returns whether a record has to be stored before:
    /// the next agent, which has another key, could not know that the application lacks a notification (rule P4).
    pub fn announce(&mut self, uid: &str, part: &PartKey, tags: &PartTags) -> bool {
        let Some(pod) = self.pods.get_mut(uid) else {
            return false;
        };
        let has_news = |now: &Arc<PartContent>| tags.after(&now.tags) != now.tags;
        if pod.is_changing || !pod.present.get(part).is_none_or(has_news) {
            return false;
        }
        pod.is_changing = true;
        pod.is_dirty = true;
        true
    }

    /// The record could not be written.
    pub fn record_again(&mut self, uid: &str) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.is_dirty = true;
        }
    }

    /// What the owner keeps for a pod with hooks.
    pub fn pod_mut(&mut self, uid: &str) -> Option<&mut P> {
        self.pods.get_mut(uid).map(|pod| &mut pod.pod)
    }

    /// No hook of the pod fires any more, because it is being deleted or has ended (rule F9). Their records stay.
    pub fn end(&mut self, uid: &str) {
        let Some(mut pod) = self.pods.remove(uid) else {
            return;
        };
        pod.is_ending = true;
        for hook in &mut pod.tracked {
            self.retire(hook);
            hook.pending_mut().timer = None;
            hook.settle();
        }
        self.pods.insert(uid.into(), pod);
    }

    /// The pod is gone, or has no hooks any more.
    pub fn forget(&mut self, uid: &str) {
        self.end(uid);
        self.pods.remove(uid);
    }

    /// Until when a round has to wait because one of these containers was restarted too often, and why (rule R4).
    pub fn restart_limit(
        &mut self,
        uid: &str,
        names: &[SmolStr],
        now: Now,
    ) -> Option<(Instant, String)> {
        let pod = self.pods.get_mut(uid)?;
        pod.restarts
            .retain(|(_, at)| *at + RESTART_WINDOW > now.instant);
        names.iter().find_map(|name| {
            let restarts = pod.restarts.iter();
            let of_container: Vec<_> = restarts.filter(|(found, _)| found == name).collect();
            let excess = of_container.len().checked_sub(MAX_RESTARTS)?;
            let until = of_container[excess].1 + RESTART_WINDOW;
            let at = now.time + (until - now.instant);
            let reason = format!(
                "container {name} was restarted {MAX_RESTARTS} times within 10 min, waiting until {}",
                at.strftime("%H:%M:%SZ")
            );
            Some((until, reason))
        })
    }

    /// The containers were restarted.
    pub fn restarted(&mut self, uid: &str, names: &[SmolStr], now: Instant) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.restarts
                .extend(names.iter().map(|name| (name.clone(), now)));
        }
    }

    /// Gives the pod `hooks`, before the first pass with them. Hooks that it had before keep their engines.
    pub fn adopt(
        &mut self,
        uid: &SmolStr,
        pod: P,
        hooks: Arc<PodHooks>,
        past: &Past,
        key: &DigestKey,
        time: Timestamp,
    ) {
        let known = self.pods.get(uid);
        if known.is_some_and(|known| Arc::ptr_eq(&known.hooks, &hooks)) {
            return;
        }
        let known = self.pods.remove(uid).map(|known| {
            let hooks = Some(known.hooks);
            (hooks, known.tracked, known.present, known.restarts)
        });
        let (old_hooks, old, present, restarts) = known.unwrap_or_default();
        let notified = past.notified_content(key);
        let mut old: Vec<_> = old.into_iter().map(Some).collect();
        // If the pod had hooks under this agent, its past does not count: new hooks start from the present content
        // (rule P5).
        let own_past = old_hooks.is_none().then_some(past);
        let mut tracked = Vec::with_capacity(hooks.hooks.len());
        for (index, hook) in hooks.hooks.iter().enumerate() {
            let kept = old_hooks
                .iter()
                .flat_map(|hooks| &hooks.hooks)
                .position(|known| known.is_same(hook))
                .and_then(|position| old[position].take())
                .unwrap_or_else(|| {
                    self.last_id += 1;
                    let past = own_past.map(|past| (past, &notified));
                    TrackedHook::new(HookId(self.last_id), hook, past, key, time)
                });
            self.hooks.insert(kept.id, (uid.clone(), index));
            tracked.push(kept);
        }
        for dropped in old.into_iter().flatten() {
            self.retire(&dropped);
        }
        let on_disk = notified
            .parts()
            .map(|(part, content)| (part.clone(), Arc::clone(content)));
        let present = present
            .with(on_disk)
            .retain(|part| hooks.selects_part(part));
        let unconfirmed = match &old_hooks {
            None => present.parts().map(|(part, _)| part.clone()).collect(),
            Some(_) => Vec::new(),
        };
        let pod = PodSchedule {
            pod,
            hooks,
            present: Arc::new(present),
            unconfirmed,
            tracked: tracked.into(),
            is_ending: false,
            is_dirty: true,
            is_changing: false,
            restarts,
        };
        self.pods.insert(uid.clone(), Box::new(pod));
    }

    /// A pass is over: these parts are in place, and every other one that was due has failed (rule F1). Returns whether a
    /// hook is in another state now.
    pub fn pass(
        &mut self,
        uid: &str,
        parts: Vec<(PartKey, Arc<PartContent>)>,
        key: &DigestKey,
        now: Now,
    ) -> bool {
        let Some(pod) = self.pods.get_mut(uid).filter(|pod| !pod.is_ending) else {
            return false;
        };
        let mut has_news = false;
        pod.is_dirty |= std::mem::take(&mut pod.is_changing);
        let before = Arc::clone(&pod.present);
        let arrived: BTreeSet<_> = parts.iter().map(|(part, _)| part).collect();
        let unconfirmed = std::mem::take(&mut pod.unconfirmed).into_iter();
        let (confirmed, unconfirmed): (BTreeSet<_>, BTreeSet<_>) =
            unconfirmed.partition(|part| arrived.contains(part));
        pod.unconfirmed = unconfirmed.into_iter().collect();
        if !parts.is_empty() {
            pod.present = Arc::new(before.with(parts));
            pod.is_dirty |= !pod.present.with_left_out().eq(before.with_left_out());
        }
        let mut ids = Vec::with_capacity(pod.tracked.len());
        for (hook, tracked) in pod.hooks.hooks.iter().zip(&mut pod.tracked) {
            let notified = tracked.engine.notified();
            tracked.passed(hook, &before, &pod.present, &confirmed, key, now.instant);
            has_news |= tracked.note_state(now.time);
            pod.is_dirty |= tracked.engine.notified() != notified;
            ids.push(tracked.id);
        }
        for id in ids {
            self.reschedule(id);
        }
        has_news
    }

    /// Sets the timer of a hook to the next deadline of its engine.
    fn reschedule(&mut self, id: HookId) {
        let Some((tracked, ..)) = self.tracked(id) else {
            return;
        };
        let wakes_at = tracked.engine.wakes_at();
        let before = tracked.pending().timer;
        if before != wakes_at {
            tracked.pending_mut().timer = wakes_at;
        }
        tracked.settle();
        if let Some(at) = before {
            self.timers.remove(&(at, id));
        }
        self.timers.extend(wakes_at.map(|at| (at, id)));
    }

    /// The hook, with the UID of its pod, and whether an annotation has defined it; `None` if it is gone.
    fn tracked(&mut self, id: HookId) -> Option<(&mut TrackedHook, &SmolStr, bool)> {
        let (uid, index) = self.hooks.get(&id)?;
        let pod = self.pods.get_mut(uid)?;
        let place = &pod.hooks.hooks.get(*index)?.place;
        let is_annotated = matches!(place, Place::Annotation(_));
        Some((pod.tracked.get_mut(*index)?, uid, is_annotated))
    }

    /// Advances the time, and begins the attempts that are due and may run. Also returns when to call it again.
    pub fn due(&mut self, now: Now) -> (Vec<Attempt<P>>, Option<Instant>) {
        while let Some(&(at, id)) = self.timers.first()
            && at <= now.instant
        {
            self.timers.remove(&(at, id));
            let random = self.random(0.0);
            let Some((tracked, uid, is_annotated)) = self.tracked(id) else {
                continue;
            };
            tracked.pending_mut().timer = None;
            if let Some(since) = tracked.engine.advance(now.instant, random) {
                let uid = uid.clone();
                self.queue.push(id, &uid, since, is_annotated);
            } else {
                self.reschedule(id);
            }
        }
        let mut attempts = Vec::new();
        while let Some(id) = self.queue.pop() {
            let running = self
                .tracked(id)
                .and_then(|(tracked, ..)| tracked.pending().running.as_ref());
            if let Some(running) = running {
                running.place.notify_one();
                continue;
            }
            match self.begin(id, now.time) {
                Some(attempt) => attempts.push(attempt),
                // The content changed back while the hook was queued, or the hook was removed.
                None => self.queue.finished(id),
            }
        }
        (attempts, self.timers.first().map(|(at, _)| *at))
    }

    /// A random number in [0, 1), or `fixed`.
    fn random(&mut self, fixed: f64) -> f64 {
        self.rng.as_mut().map_or(fixed, Rng::f64)
    }

    fn begin(&mut self, id: HookId, time: Timestamp) -> Option<Attempt<P>> {
        let (uid, index) = self.hooks.get(&id)?;
        let (index, pod) = (*index, self.pods.get_mut(uid)?);
        let tracked = pod.tracked.get_mut(index)?;
        let number = tracked.engine.start(Arc::clone(&pod.present))?;
        let random = self
            .rng
            .as_mut()
            .map_or_else(|| fastrand::u128(..), |rng| rng.u128(..));
        let control = Arc::<RoundControl>::default();
        let pending = tracked.pending_mut();
        let round_id = *pending
            .round
            .get_or_insert_with(|| RoundId::from_random(random));
        pending.running = Some(Arc::clone(&control));
        let changed_at = pending.changed_at;
        tracked.note_restart();
        tracked.note_state(time);
        pod.is_dirty = true;
        Some(Attempt {
            id,
            uid: uid.clone(),
            pod: pod.pod.clone(),
            hooks: Arc::clone(&pod.hooks),
            index,
            round: round_id,
            number,
            content: Arc::clone(&pod.present),
            baseline: tracked.engine.baseline.clone(),
            changed_at,
            control,
        })
    }

    /// The hook's attempt waits for something that needs no place among the running rounds.
    pub fn yield_place(&mut self, id: HookId) {
        self.queue.finished(id);
    }

    /// The hook's attempt needs a place again, and waits until it [is placed](RoundControl::placed).
    pub fn claim_place(&mut self, id: HookId, now: Instant) {
        if let Some((_, uid, is_annotated)) = self.tracked(id) {
            let uid = uid.clone();
            self.queue.push(id, &uid, now, is_annotated);
        }
    }

    /// Takes in the end of an attempt; `None` if its hook is gone.
    pub fn ended(&mut self, id: HookId, end: &AttemptEnd, now: Now) -> Option<Ended<P>> {
        self.queue.finished(id);
        let random = self.random(1.0);
        let (uid, index) = self.hooks.get(&id)?;
        let (index, pod) = (*index, self.pods.get_mut(uid)?);
        let hook = &pod.hooks.hooks[index];
        let tracked = &mut pod.tracked[index];
        tracked.pending_mut().running.take()?;
        let mut is_news = false;
        let was_reported = tracked.has_failed;
        tracked.engine.finished(end, now.instant, random);
        match end {
            AttemptEnd::Failed { reason, output, .. } => {
                is_news = tracked.pending().reason != *reason;
                tracked.pending_mut().reason.clone_from(reason);
                tracked.pending_mut().output.clone_from(output);
                tracked.has_failed = true;
                if tracked.engine.failures() == 0 {
                    tracked.pending_mut().round = None;
                }
            }
            AttemptEnd::Deferred(_, reason) => tracked.pending_mut().reason.clone_from(reason),
            AttemptEnd::Succeeded | AttemptEnd::Interrupted => {}
        }
        // Also after a failure with `onFailure: Ignore`.
        if !tracked.engine.is_uncertain() {
            tracked.succeeded(now);
        }
        tracked.note_state(now.time);
        pod.is_dirty = true;
        let ended = Ended {
            state: tracked.state(),
            pod: pod.pod.clone(),
            hook: hook.hook.name.clone(),
            action: hook.action(),
            was_reported,
            is_news,
        };
        self.reschedule(id);
        Some(ended)
    }

    /// Ends the running and due rounds of a hook.
    fn retire(&mut self, tracked: &TrackedHook) {
        if let Some(running) = &tracked.pending().running {
            running.cancel.notify_one();
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

#[cfg(test)]
mod tests;
