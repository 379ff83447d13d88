//! The hooks of all pods of the node, and the task that starts their rounds.
//!
//! Invariants:
//! 1. The lock of the schedule is held for computations only, never across a wait, a file or a process.
//! 2. A record is written from a snapshot that is taken while no other record of the pod is being written, so the last
//!    one wins.
//! 3. What a worker hands over for a pod that was forgotten meanwhile is forgotten by the worker itself, before it
//!    tears the pod down.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    hash::{BuildHasher as _, RandomState},
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use fastrand::Rng;
use k8s_openapi::api::core::v1::Pod;
use larder_objects::chain;
use larder_on_change::{
    DigestKey, HookId, HookState, Outcome, RoundQueue,
    action::{RoundId, exec::Machine, processes::Processes},
};
use larder_pods::StoredPod;
use larder_projection::disk::VolumeHost;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use smol_str::SmolStr;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    OnChangeConfig,
    content::{Content, PartContent, PartKey},
    key,
    metrics::RoundMetrics,
    observer::{Observer, Past},
    pod_hooks::{HookSources, PodHooks, ProgramHook},
    record::Record,
    round::{Attempt, AttemptEnd, AttemptReport},
    tracked::{RunningRound, TrackedHook},
};
use crate::{
    clock::Clock,
    events::{Events, HookEvent},
    status::HookStatus,
};

/// Time that running steps get when the agent ends (rule T9).
const DRAIN: Duration = Duration::from_secs(5);
/// Most restarts of a container within [`RESTART_WINDOW`] (rule R4).
const MAX_RESTARTS: usize = 5;
const RESTART_WINDOW: Duration = Duration::from_mins(10);
/// Records that may be written at once, of different pods.
const WRITERS: usize = 16;

/// What [`OnChange`] is made of.
pub(crate) struct OnChangeParts<'a> {
    pub(crate) config: OnChangeConfig,
    pub(crate) program: Vec<ProgramHook>,
    pub(crate) host: Arc<VolumeHost>,
    pub(crate) clock: Clock,
    pub(crate) events: Option<Arc<Events>>,
    pub(crate) registry: &'a mut Registry,
    pub(crate) rng: Rng,
}

/// The hooks of all pods. Cloning shares them.
#[derive(Clone)]
pub(crate) struct OnChange(Arc<Shared>);

struct Shared {
    sources: HookSources,
    host: Arc<VolumeHost>,
    clock: Clock,
    events: Option<Arc<Events>>,
    metrics: RoundMetrics,
    processes: Processes,
    /// The key of all digests, and a directory in memory; made for the first pod with hooks.
    memory: OnceLock<(DigestKey, Option<PathBuf>)>,
    machine: OnceLock<Machine>,
    schedule: Mutex<Schedule>,
    /// Something may be due earlier than the task waits for.
    wake: Notify,
    /// Held while a record is written, each for a share of the pods.
    writers: [Mutex<()>; WRITERS],
    hasher: RandomState,
    /// Whether every round has ended after the shutdown.
    drained: watch::Sender<bool>,
}

impl fmt::Debug for OnChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnChange")
    }
}

/// The mutable half.
struct Schedule {
    pods: BTreeMap<SmolStr, PodSchedule>,
    /// The pod of each hook, and its index there.
    hooks: HashMap<HookId, (SmolStr, usize)>,
    timers: BTreeSet<(Instant, HookId)>,
    queue: RoundQueue,
    last_id: u64,
    rng: Rng,
}

/// A pod with hooks.
struct PodSchedule {
    pod: Arc<StoredPod>,
    hooks: Arc<PodHooks>,
    present: Arc<Content>,
    /// The parts of which only what was on disk at the start is known.
    unconfirmed: BTreeSet<PartKey>,
    tracked: Box<[TrackedHook]>,
    /// The record on disk is older than what it should say.
    is_dirty: bool,
    /// The restarts of containers within [`RESTART_WINDOW`].
    restarts: Vec<(SmolStr, Instant)>,
}

impl PodSchedule {
    /// Whether no hook fires any more (rule F9).
    fn is_ending(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some() || self.pod.is_terminal()
    }
}

impl OnChange {
    pub(crate) fn new(parts: OnChangeParts<'_>) -> Self {
        let OnChangeParts {
            config,
            program,
            host,
            clock,
            events,
            registry,
            rng,
        } = parts;
        let queue = RoundQueue::new(config.parallelism);
        Self(Arc::new(Shared {
            metrics: RoundMetrics::register(registry),
            sources: HookSources { config, program },
            host,
            clock,
            events,
            processes: Processes::default(),
            memory: OnceLock::new(),
            machine: OnceLock::new(),
            schedule: Mutex::new(Schedule {
                pods: BTreeMap::new(),
                hooks: HashMap::new(),
                timers: BTreeSet::new(),
                queue,
                last_id: 0,
                rng,
            }),
            wake: Notify::new(),
            writers: std::array::from_fn(|_| Mutex::new(())),
            hasher: RandomState::new(),
            drained: watch::Sender::new(false),
        }))
    }

    /// The hooks of `pod`, which was `before` with these hooks. Annotations with an error that is new are reported.
    pub(crate) fn hooks(
        &self,
        pod: &StoredPod,
        decoded: Option<&Pod>,
        before: Option<(&StoredPod, Option<&Arc<PodHooks>>)>,
    ) -> Option<Arc<PodHooks>> {
        let hooks = self.0.sources.hooks(pod, decoded, before)?;
        let known = before.and_then(|(_, hooks)| hooks);
        if known.is_some_and(|known| Arc::ptr_eq(known, &hooks)) {
            return Some(hooks);
        }
        let known: &[String] = known.map_or(&[], |known| &known.errors);
        for error in hooks.errors.iter().filter(|error| !known.contains(error)) {
            let metadata = &pod.metadata;
            let name = metadata.name.as_deref().unwrap_or_default();
            let namespace = metadata.namespace.as_deref().unwrap_or_default();
            warn!(
                pod = format!("{namespace}/{name}"),
                error, "invalid hooks, keeping the last valid ones"
            );
            self.post(pod, HookEvent::Invalid, error);
        }
        Some(hooks)
    }

    /// Follows a pass over `pod`. The hooks are new to the worker if `is_new`.
    pub(crate) fn observer(
        &self,
        pod: &Arc<StoredPod>,
        hooks: &Arc<PodHooks>,
        is_new: bool,
    ) -> Observer {
        Observer::new(self.clone(), Arc::clone(pod), Arc::clone(hooks), is_new)
    }

    /// The pod has other metadata or another status.
    pub(crate) fn updated(&self, pod: &Arc<StoredPod>) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let mut schedule = self.0.schedule.lock();
        let Some(found) = schedule.pods.get_mut(uid) else {
            return;
        };
        found.pod = Arc::clone(pod);
        if found.is_ending() {
            schedule.rest(uid);
        }
    }

    /// No hook of the pod fires any more: it has ended or is gone.
    pub(crate) fn forget(&self, uid: &str) {
        let mut schedule = self.0.schedule.lock();
        schedule.rest(uid);
        schedule.pods.remove(uid);
    }

    /// The pod has no hooks any more; others start from the content of that time (rule P5). Waits for the disk.
    pub(crate) fn drop_hooks(&self, uid: &str) {
        self.forget(uid);
        let _writer = self.writer(uid).lock();
        if let Err(error) = self.0.host.remove_record(uid) {
            warn!(
                pod.uid = uid,
                error = chain(&error),
                "failed to remove the record of hooks"
            );
        }
    }

    /// The states of the pod's hooks, and the errors of its annotations.
    pub(crate) fn statuses(&self, uid: &str) -> Vec<HookStatus> {
        let schedule = self.0.schedule.lock();
        let Some(pod) = schedule.pods.get(uid) else {
            return Vec::new();
        };
        let hooks = pod.hooks.hooks.iter().zip(&pod.tracked);
        let hooks = hooks.map(|(hook, tracked)| HookStatus {
            name: hook.hook.name.clone(),
            action: hook.action(),
            place: hook.place.to_string(),
            state: tracked.engine.state().name().to_owned(),
            since: Some(tracked.since),
            reason: match (&*tracked.reason, &hook.note) {
                ("", Some(note)) => note.to_string(),
                (reason, _) => reason.to_owned(),
            },
            attempts: tracked.engine.failures(),
            last_success: tracked.last_success,
        });
        let errors = pod.hooks.errors.iter().map(|error| HookStatus {
            name: String::new(),
            action: String::new(),
            place: error.split(": ").next().unwrap_or_default().to_owned(),
            state: "Invalid".to_owned(),
            since: None,
            reason: error
                .split_once(": ")
                .map_or(error.as_str(), |(_, problem)| problem)
                .to_owned(),
            attempts: 0,
            last_success: None,
        });
        hooks.chain(errors).collect()
    }

    /// Starts rounds when they are due. Ends after `shutdown`, when running steps have ended or their time is over;
    /// then [`drained`](Self::drained) returns.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut rounds: JoinSet<AttemptReport> = JoinSet::new();
        let mut writes: JoinSet<()> = JoinSet::new();
        loop {
            let (due, next) = self.due();
            for attempt in due {
                rounds.spawn(attempt.run());
            }
            let sleep = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            // Every arm is cancel-safe. Shutdown goes first, so that no round begins after it.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(ended) = rounds.join_next() => {
                    self.finish(resumed(ended), &mut writes);
                }
                Some(ended) = writes.join_next() => resumed(ended),
                () = self.0.wake.notified() => {}
                () = sleep => {}
            }
        }
        let drain = async {
            while let Some(ended) = rounds.join_next().await {
                self.finish(resumed(ended), &mut writes);
            }
        };
        if timeout(DRAIN, drain).await.is_err() {
            warn!(
                "rounds of hooks still running at the shutdown deadline, the next start continues with their changes"
            );
        }
        rounds.shutdown().await;
        while let Some(ended) = writes.join_next().await {
            resumed(ended);
        }
        self.0.drained.send_replace(true);
        // The end of a task is an error while the agent runs.
        std::future::pending::<()>().await;
    }

    /// Waits until every round has ended, after the shutdown.
    pub(crate) async fn drained(&self) {
        // The sender lives as long as this does.
        let _ = self
            .0
            .drained
            .subscribe()
            .wait_for(|drained| *drained)
            .await;
    }

    /// Brings the metrics up to date that count hooks: how many fail, and how many have yet to tell of the present
    /// content.
    pub(crate) fn count_hooks(&self) {
        let schedule = self.0.schedule.lock();
        let (mut failing, mut pending) = (0, 0);
        for hook in schedule.pods.values().flat_map(|pod| &pod.tracked) {
            failing += usize::from(hook.is_reported);
            pending += usize::from(hook.engine.state() != HookState::Idle);
        }
        self.0.metrics.set_hooks(failing, pending);
    }

    pub(super) fn key(&self) -> DigestKey {
        self.memory().0.clone()
    }

    fn memory(&self) -> &(DigestKey, Option<PathBuf>) {
        let directories = &self.0.sources.config.key_dirs;
        self.0.memory.get_or_init(|| key::load(directories))
    }

    pub(super) fn host(&self) -> &VolumeHost {
        &self.0.host
    }

    pub(super) fn metrics(&self) -> &RoundMetrics {
        &self.0.metrics
    }

    pub(super) fn processes(&self) -> &Processes {
        &self.0.processes
    }

    /// Starts commands on this machine.
    pub(super) fn machine(&self) -> &Machine {
        self.0.machine.get_or_init(|| {
            let memory = self.memory().1.clone();
            Machine::new(memory.unwrap_or_else(std::env::temp_dir))
        })
    }

    /// The content of a pod, as far as it was delivered by this agent.
    pub(super) fn content_of(&self, uid: &str) -> Arc<Content> {
        let schedule = self.0.schedule.lock();
        match schedule.pods.get(uid) {
            None => Arc::default(),
            Some(pod) if pod.unconfirmed.is_empty() => Arc::clone(&pod.present),
            Some(pod) => {
                let is_confirmed = |part: &PartKey| !pod.unconfirmed.contains(part);
                Arc::new(pod.present.retain(is_confirmed))
            }
        }
    }

    /// A pass is over: these parts of the pod are in place. `past` is given if the hooks are new to the worker. Waits
    /// for the disk after the first delivery.
    pub(super) fn passed(
        &self,
        pod: &Arc<StoredPod>,
        hooks: Arc<PodHooks>,
        past: Option<Past>,
        parts: Vec<(PartKey, Arc<PartContent>)>,
    ) {
        let uid = SmolStr::new(pod.metadata.uid.as_deref().unwrap_or_default());
        let key = self.key();
        let mut schedule = self.0.schedule.lock();
        let (now, time) = (Instant::now(), self.0.clock.now());
        schedule.take_hooks(&uid, pod, hooks, past, &parts, &key, time);
        let is_dirty = schedule.pass(&uid, parts, &key, now, time);
        drop(schedule);
        self.0.wake.notify_one();
        if is_dirty {
            self.write_record(&uid);
        }
    }

    /// Writes the record of a pod, unless it is up to date. Waits for the disk.
    pub(super) fn write_record(&self, uid: &str) {
        let _writer = self.writer(uid).lock();
        let text = {
            let key = self.key();
            let mut schedule = self.0.schedule.lock();
            let Some(pod) = schedule.pods.get_mut(uid) else {
                return;
            };
            if !std::mem::take(&mut pod.is_dirty) {
                return;
            }
            Record::new(&key, pod.hooks.hooks.iter().zip(&pod.tracked)).text()
        };
        if let Err(error) = self.0.host.write_record(uid, &text) {
            warn!(
                pod.uid = uid,
                error = chain(&error),
                "failed to write the record of hooks, a restart of the agent may repeat a round"
            );
            if let Some(pod) = self.0.schedule.lock().pods.get_mut(uid) {
                pod.is_dirty = true;
            }
        }
    }

    fn writer(&self, uid: &str) -> &Mutex<()> {
        let hash = self.0.hasher.hash_one(uid);
        let index = hash % WRITERS as u64;
        &self.0.writers[usize::try_from(index).unwrap_or_default()]
    }

    /// Until when a round has to wait because one of these containers was restarted too often, and why (rule R4).
    pub(super) fn restart_limit(&self, uid: &str, names: &[SmolStr]) -> Option<(Instant, String)> {
        let mut schedule = self.0.schedule.lock();
        let pod = schedule.pods.get_mut(uid)?;
        let now = Instant::now();
        pod.restarts.retain(|(_, at)| *at + RESTART_WINDOW > now);
        names.iter().find_map(|name| {
            let restarts = pod.restarts.iter();
            let of_container: Vec<_> = restarts.filter(|(found, _)| found == name).collect();
            let excess = of_container.len().checked_sub(MAX_RESTARTS)?;
            let until = of_container[excess].1 + RESTART_WINDOW;
            let at = self.0.clock.now() + (until - now);
            let reason = format!(
                "container {name} was restarted {MAX_RESTARTS} times within 10 min, waiting until {}",
                at.strftime("%H:%M:%SZ")
            );
            Some((until, reason))
        })
    }

    /// The containers were restarted.
    pub(super) fn restarted(&self, uid: &str, names: &[SmolStr]) {
        if let Some(pod) = self.0.schedule.lock().pods.get_mut(uid) {
            let now = Instant::now();
            pod.restarts
                .extend(names.iter().map(|name| (name.clone(), now)));
        }
    }

    /// The rounds to begin now, and when to look again.
    fn due(&self) -> (Vec<Attempt>, Option<Instant>) {
        let mut schedule = self.0.schedule.lock();
        let (now, time) = (Instant::now(), self.0.clock.now());
        let due = schedule.due(self, now, time);
        let next = schedule.timers.first().map(|(at, _)| *at);
        (due, next)
    }

    /// A round has ended.
    fn finish(&self, report: AttemptReport, writes: &mut JoinSet<()>) {
        let mut schedule = self.0.schedule.lock();
        schedule.queue.finished(report.id);
        let (now, time) = (Instant::now(), self.0.clock.now());
        let ended = schedule.ended(&report, now, time);
        drop(schedule);
        let Some(ended) = ended else { return };
        self.tell(&report, &ended, time);
        let (on_change, uid) = (self.clone(), report.uid);
        writes.spawn_blocking(move || on_change.write_record(&uid));
    }

    /// Logs how a round has ended, and posts events.
    fn tell(&self, report: &AttemptReport, ended: &Ended, time: jiff::Timestamp) {
        let Ended {
            pod,
            hook,
            action,
            was_reported,
            is_news,
        } = ended;
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let shown = format!("{}/{}", text(namespace), text(name));
        let (changes, took) = (&report.summary, report.took);
        for container in &report.restarted {
            let what = match changes.as_str() {
                "" => "first delivery",
                changes => changes,
            };
            let message = format!("container {container}: {what}");
            self.post(pod, HookEvent::Restarted, &message);
        }
        match &report.end {
            AttemptEnd::Succeeded => {
                self.0.metrics.succeeded(time);
                info!(
                    pod = shown,
                    hook,
                    action,
                    changes,
                    ?took,
                    "application notified of a change"
                );
                if *was_reported {
                    self.post(pod, HookEvent::Succeeded, &format!("hook {hook} succeeded"));
                }
            }
            AttemptEnd::Failed(reason) => {
                if *is_news {
                    warn!(
                        pod = shown,
                        hook,
                        action,
                        changes,
                        ?took,
                        error = reason,
                        "failed to notify application of a change"
                    );
                } else {
                    debug!(
                        pod = shown,
                        hook,
                        action,
                        changes,
                        ?took,
                        error = reason,
                        "failed to notify application of a change"
                    );
                }
                self.post(pod, HookEvent::Failed, &format!("hook {hook}: {reason}"));
            }
            AttemptEnd::Deferred(_, reason) => {
                info!(pod = shown, hook, action, reason, "round waits");
            }
            AttemptEnd::Interrupted => {}
        }
    }

    fn post(&self, pod: &StoredPod, event: HookEvent, message: &str) {
        if let Some(events) = &self.0.events {
            events.of_hook(&pod.metadata, event, message, self.0.clock.now());
        }
    }
}

/// A panic of a task resumes here. No task is aborted but by dropping the set.
fn resumed<T>(ended: Result<T, tokio::task::JoinError>) -> T {
    match ended {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// A round of a hook that still exists has ended.
struct Ended {
    pod: Arc<StoredPod>,
    hook: String,
    action: String,
    /// The pod had an event that the hook fails.
    was_reported: bool,
    /// It is the first failure, or one with another reason.
    is_news: bool,
}

impl Schedule {
    /// Sees to it that the pod has `hooks`. Hooks that it had before keep their engines.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call, with all that a pass knows"
    )]
    fn take_hooks(
        &mut self,
        uid: &SmolStr,
        pod: &Arc<StoredPod>,
        hooks: Arc<PodHooks>,
        past: Option<Past>,
        parts: &[(PartKey, Arc<PartContent>)],
        key: &DigestKey,
        time: jiff::Timestamp,
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
        // The past of a pod that had hooks under this agent is no past: new hooks start from the present content (rule
        // P5).
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
            Some(_) => BTreeSet::new(),
        };
        let pod = PodSchedule {
            pod: Arc::clone(pod),
            hooks,
            present: Arc::new(present),
            unconfirmed,
            tracked: tracked.into(),
            is_dirty: true,
            restarts,
        };
        self.pods.insert(uid.clone(), pod);
    }

    /// Takes in the parts of a pass; returns whether the record is to be written.
    fn pass(
        &mut self,
        uid: &SmolStr,
        parts: Vec<(PartKey, Arc<PartContent>)>,
        key: &DigestKey,
        now: Instant,
        time: jiff::Timestamp,
    ) -> bool {
        let Some(pod) = self.pods.get_mut(uid) else {
            return false;
        };
        if pod.is_ending() {
            return false;
        }
        let before = Arc::clone(&pod.present);
        let keys = parts.iter().map(|(part, _)| part);
        let confirmed = keys.filter_map(|part| pod.unconfirmed.take(part)).collect();
        if !parts.is_empty() {
            pod.present = Arc::new(before.with(parts));
        }
        let mut ids = Vec::with_capacity(pod.tracked.len());
        for (hook, tracked) in pod.hooks.hooks.iter().zip(&mut pod.tracked) {
            let told = tracked.engine.told();
            tracked.passed(hook, &before, &pod.present, &confirmed, key, now);
            tracked.note_state(time);
            pod.is_dirty |= tracked.engine.told() != told;
            ids.push(tracked.id);
        }
        let is_dirty = pod.is_dirty;
        for id in ids {
            self.reschedule(id);
        }
        is_dirty
    }

    /// Sets the timer of a hook to the time at which its engine wants to be looked at.
    fn reschedule(&mut self, id: HookId) {
        let Some((tracked, _)) = Self::tracked(&mut self.pods, &self.hooks, id) else {
            return;
        };
        let wakes_at = tracked.engine.wakes_at();
        let before = std::mem::replace(&mut tracked.timer, wakes_at);
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
        pods: &'a mut BTreeMap<SmolStr, PodSchedule>,
        hooks: &HashMap<HookId, (SmolStr, usize)>,
        id: HookId,
    ) -> Option<(&'a mut TrackedHook, SmolStr)> {
        let (uid, index) = hooks.get(&id)?;
        let pod = pods.get_mut(uid)?;
        Some((pod.tracked.get_mut(*index)?, uid.clone()))
    }

    /// Lets time pass, and begins the rounds that are due and that may run.
    fn due(&mut self, on_change: &OnChange, now: Instant, time: jiff::Timestamp) -> Vec<Attempt> {
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.remove(&(at, id));
            let random = self.rng.f64();
            let Some((tracked, _)) = Self::tracked(&mut self.pods, &self.hooks, id) else {
                continue;
            };
            tracked.timer = None;
            if let Some(since) = tracked.engine.advance(now, random) {
                self.queue.push(id, since);
            } else {
                self.reschedule(id);
            }
        }
        let mut attempts = Vec::new();
        while let Some(id) = self.queue.pop() {
            match self.begin(on_change, id, time) {
                Some(attempt) => attempts.push(attempt),
                // There and back while it was in the queue, or gone.
                None => self.queue.finished(id),
            }
        }
        attempts
    }

    fn begin(
        &mut self,
        on_change: &OnChange,
        id: HookId,
        time: jiff::Timestamp,
    ) -> Option<Attempt> {
        let (uid, index) = self.hooks.get(&id)?;
        let (index, pod) = (*index, self.pods.get_mut(uid)?);
        let tracked = pod.tracked.get_mut(index)?;
        let round = tracked.engine.start()?;
        let random = self.rng.u128(..);
        let round_id = *tracked
            .round
            .get_or_insert_with(|| RoundId::from_random(random));
        let cancel = CancellationToken::new();
        tracked.running = Some(Box::new(RunningRound {
            content: Arc::clone(&pod.present),
            cancel: cancel.clone(),
        }));
        tracked.note_state(time);
        pod.is_dirty = true;
        Some(Attempt {
            on_change: on_change.clone(),
            id,
            pod: Arc::clone(&pod.pod),
            hooks: Arc::clone(&pod.hooks),
            index,
            round: round_id,
            number: round.attempt,
            content: Arc::clone(&pod.present),
            told: tracked.told().map(Arc::clone),
            changed_at: tracked.changed_at,
            cancel,
        })
    }

    /// Takes in the end of a round; `None` if its hook is gone.
    fn ended(
        &mut self,
        report: &AttemptReport,
        now: Instant,
        time: jiff::Timestamp,
    ) -> Option<Ended> {
        let random = self.rng.f64();
        let (uid, index) = self.hooks.get(&report.id)?;
        let (index, pod) = (*index, self.pods.get_mut(uid)?);
        let hook = &pod.hooks.hooks[index];
        let tracked = &mut pod.tracked[index];
        let running = tracked.running.take();
        let mut is_news = false;
        let was_reported = tracked.is_reported;
        match &report.end {
            AttemptEnd::Succeeded => {
                tracked.engine.finished(Outcome::Succeeded, now, random);
                // What was missing until now has become part of it.
                let content =
                    running.map_or(Arc::clone(&report.content), |running| running.content);
                tracked.succeeded(content, time);
                tracked.is_reported = false;
                tracked.changed_at = match tracked.engine.state() {
                    HookState::Idle => None,
                    _ => Some(now),
                };
            }
            AttemptEnd::Failed(reason) => {
                tracked.engine.finished(Outcome::Failed, now, random);
                is_news = *tracked.reason != **reason;
                if tracked.engine.is_uncertain() {
                    tracked.reason = reason.as_str().into();
                    tracked.is_reported = true;
                } else {
                    // `onFailure: Ignore`.
                    tracked.succeeded(Arc::clone(&report.content), time);
                }
                if tracked.engine.failures() == 0 {
                    tracked.round = None;
                }
            }
            AttemptEnd::Deferred(until, reason) => {
                tracked.engine.defer(*until);
                tracked.reason = reason.as_str().into();
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

    /// Ends what runs or is due for a pod, without forgetting what its hooks have told of.
    fn rest(&mut self, uid: &str) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        let mut tracked = std::mem::take(&mut pod.tracked);
        for hook in &mut tracked {
            self.retire(hook);
            hook.timer = None;
        }
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.tracked = tracked;
        }
    }

    /// Ends what runs or is due for a hook.
    fn retire(&mut self, tracked: &TrackedHook) {
        if let Some(running) = &tracked.running {
            running.cancel.cancel();
        } else {
            // The place of a running round becomes free when it has ended.
            self.queue.finished(tracked.id);
        }
        if let Some(at) = tracked.timer {
            self.timers.remove(&(at, tracked.id));
        }
        self.hooks.remove(&tracked.id);
    }
}
