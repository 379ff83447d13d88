//! The handle of all hooks of the node, and the task that starts their rounds.
//!
//! `larder_on_change::Schedule` makes the decisions. This module has the clock, the lock, the records on disk and the
//! running rounds.
//!
//! Invariants:
//! 1. The lock of the schedule is held for computations only, never across a wait, a file or a process.
//! 2. A record is written from a snapshot that is taken while no other record of the pod is being written, so the last
//!    one wins.
//! 3. A worker may hand over a pass of a pod that was removed meanwhile. The worker removes it again before it tears
//!    the pod down.

mod report;

use std::{
    hash::{BuildHasher as _, RandomState},
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use fastrand::Rng;
use futures::future::OptionFuture;
use k8s_openapi::api::core::v1::Pod;
use larder_actions::{exec::Machine, http::Network, metrics::RoundMetrics};
use larder_containers::processes::Processes;
use larder_inputs::clock::Clock;
use larder_objects::chain;
use larder_on_change::{
    Attempt, Content, DigestKey, HookId, HookSources, Now, PartContent, PartKey, PartTags, Past,
    PodHooks, PodOutline, Record, RoundControl, Schedule, has_same_hooks, parse::ConfiguredHook,
};
use larder_pods::StoredPod;
use larder_pods::events::Events;
use larder_projection::disk::VolumeHost;
use larder_transport::registrar::Registrar;
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use smol_str::SmolStr;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    OnChangeConfig,
    hooked_pod::HookedPod,
    key,
    round::{self, AttemptReport, Handler, ProgramHook},
};
use crate::RECORD;

/// Time that running steps get when the agent shuts down (rule T9).
const DRAIN: Duration = Duration::from_secs(5);
/// Records of different pods that may be written at the same time.
const WRITERS: usize = 16;

/// What wakes the task.
enum HooksEvent {
    ShutDown,
    AttemptEnded(AttemptReport),
    /// A record was written.
    Written,
    /// A round may be due earlier.
    ScheduleChanged,
    Due,
}

/// What hooks use of the node.
#[expect(missing_debug_implementations, reason = "it is passed on")]
pub struct HookNode {
    /// Where larder writes volumes, and the records of hooks.
    pub host: Arc<VolumeHost>,
    /// Where a kubelet runs the pods and writes their volumes; `None` if larder does.
    pub kubelet: Option<Arc<VolumeHost>>,
    /// The processes of the node's containers.
    pub processes: Processes,
    /// The API server has its pods from manifests, which state what a kubelet would report.
    pub serves_manifests: bool,
    /// The time.
    pub clock: Clock,
    /// Where failures are reported; `None` reports none.
    pub events: Option<Arc<Events>>,
    /// Called with the UID of a pod when what status shows of its hooks has changed.
    pub changed: Arc<dyn Fn(&str) + Send + Sync>,
}

impl HookNode {
    /// Where the volumes of pods are.
    pub(super) fn volumes(&self) -> &VolumeHost {
        self.kubelet.as_deref().unwrap_or(&self.host)
    }
}

/// The hooks of all pods. Cloning shares them.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "it holds functions and keys")]
pub struct OnChange(Arc<Shared>);

struct Shared {
    node: HookNode,
    /// Replaced by a reload.
    config: Mutex<Arc<OnChangeConfig>>,
    /// The hooks of the program that embeds the agent, and what each calls.
    program: Vec<ConfiguredHook>,
    handlers: Vec<Handler>,
    metrics: RoundMetrics,
    /// The number of annotations whose hooks are not valid.
    invalid: Gauge,
    /// The digest key, and a directory in memory; made for the first pod with hooks.
    memory: OnceLock<(DigestKey, Option<PathBuf>)>,
    machine: OnceLock<Machine>,
    schedule: Mutex<Schedule<HookedPod>>,
    /// Notified when a round may be due earlier than the task expects.
    wake: Notify,
    /// Notified when the hooks of pods may have changed.
    reloaded: Notify,
    /// Held while a record is written, each for a share of the pods.
    writers: [Mutex<()>; WRITERS],
    hasher: RandomState,
    /// Cancelled when every round has ended after the shutdown.
    drained: CancellationToken,
}

impl OnChange {
    /// Hooks as configured, and those of the program.
    pub fn new(
        config: OnChangeConfig,
        program: Vec<ProgramHook>,
        node: HookNode,
        registry: &mut Registry,
        rng: Rng,
    ) -> Self {
        let schedule = Schedule::new(config.parallelism, rng);
        let (program, handlers) = program
            .into_iter()
            .map(|program| (program.selected, program.handler))
            .unzip();
        Self(Arc::new(Shared {
            node,
            config: Mutex::new(Arc::new(config)),
            program,
            handlers,
            metrics: RoundMetrics::register(registry),
            invalid: Registrar(registry).add(
                "on_change_invalid",
                "Annotations whose hooks are not valid: the last valid ones, or none, are in their place",
            ),
            memory: OnceLock::new(),
            machine: OnceLock::new(),
            schedule: Mutex::new(schedule),
            wake: Notify::new(),
            reloaded: Notify::new(),
            writers: std::array::from_fn(|_| Mutex::new(())),
            hasher: RandomState::new(),
            drained: CancellationToken::new(),
        }))
    }

    pub(super) fn node(&self) -> &HookNode {
        &self.0.node
    }

    /// The hooks of `pod`, which was `before` with these hooks; `None` if it has none. Reports new errors of annotations.
    pub fn hooks(
        &self,
        pod: &StoredPod,
        decoded: Option<&Pod>,
        before: Option<(&StoredPod, Option<&Arc<PodHooks>>)>,
    ) -> Option<Arc<PodHooks>> {
        match before {
            Some((previous, hooks))
                if decoded.is_none() && has_same_hooks(&previous.metadata, &pod.metadata) =>
            {
                hooks.cloned()
            }
            _ => self.current_hooks(pod, decoded, before.and_then(|(_, hooks)| hooks)),
        }
    }

    /// The hooks of `pod` by the settings in use, as after [a reload](Self::reload); it had `before` until now.
    pub fn current_hooks(
        &self,
        pod: &StoredPod,
        decoded: Option<&Pod>,
        before: Option<&Arc<PodHooks>>,
    ) -> Option<Arc<PodHooks>> {
        let config = Arc::clone(&self.0.config.lock());
        let sources = HookSources {
            allowed: config.from_pods,
            configured: &config.hooks,
            program: &self.0.program,
        };
        let outline = || match decoded {
            Some(decoded) => PodOutline::of(decoded),
            None => PodOutline::of(&pod.decode()),
        };
        let hooks = sources.hooks_of(&pod.metadata, outline, before.map(|hooks| &**hooks))?;
        self.report_errors(pod, &hooks, before);
        Some(Arc::new(hooks))
    }

    /// Replaces the settings of hooks. The task that waits for [`reloaded`](Self::reloaded) then hands each pod its
    /// [new hooks](Self::current_hooks).
    pub fn reload(&self, config: &OnChangeConfig) {
        {
            let mut current = self.0.config.lock();
            if **current == *config {
                return;
            }
            *current = Arc::new(config.clone());
        }
        self.0.schedule.lock().set_parallelism(config.parallelism);
        self.0.reloaded.notify_one();
        self.0.wake.notify_one();
    }

    /// Waits until the settings of hooks have changed. Cancel-safe.
    pub async fn reloaded(&self) {
        self.0.reloaded.notified().await;
    }

    /// The pod's metadata or status has changed.
    pub fn updated(&self, pod: &Arc<StoredPod>) {
        let uid = pod.uid();
        let mut schedule = self.0.schedule.lock();
        if let Some(known) = schedule.pod_mut(uid) {
            known.pod = Arc::clone(pod);
            if HookedPod::is_ending(pod) {
                schedule.end(uid);
            }
        }
    }

    /// No hook of the pod fires any more: it has terminated or was removed.
    pub fn forget(&self, uid: &str) {
        self.0.schedule.lock().forget(uid);
        (self.0.node.changed)(uid);
    }

    /// The pod has no hooks any more; others start from the content of that time (rule P5). Waits for the disk.
    pub fn drop_hooks(&self, uid: &str) {
        self.forget(uid);
        let _writer = self.writer(uid).lock();
        if let Err(error) = self.0.node.host.remove_pod_file(uid, RECORD) {
            warn!(
                pod.uid = uid,
                error = chain(&error),
                "failed to remove the record of hooks"
            );
        }
    }

    /// Starts rounds when they are due. Returns after `shutdown`, when running steps have ended or their time is up;
    /// then [`drained`](Self::drained) returns.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut rounds: JoinSet<AttemptReport> = JoinSet::new();
        let mut writes: JoinSet<()> = JoinSet::new();
        loop {
            let (due, next) = self.due();
            for attempt in due {
                rounds.spawn(round::run(attempt, self.clone()));
            }
            let sleep = OptionFuture::from(next.map(sleep_until));
            // Every arm is cancel-safe. Shutdown comes first, so that no round begins after it.
            let event = tokio::select! {
                biased;
                () = shutdown.cancelled() => HooksEvent::ShutDown,
                Some(ended) = rounds.join_next() => HooksEvent::AttemptEnded(resumed(ended)),
                Some(ended) = writes.join_next() => { resumed(ended); HooksEvent::Written },
                () = self.0.wake.notified() => HooksEvent::ScheduleChanged,
                Some(()) = sleep => HooksEvent::Due,
            };
            match event {
                HooksEvent::ShutDown => break,
                HooksEvent::AttemptEnded(report) => self.finish(report, &mut writes),
                HooksEvent::Written | HooksEvent::ScheduleChanged | HooksEvent::Due => {}
            }
        }
        let drain = async {
            while let Some(ended) = rounds.join_next().await {
                self.finish(resumed(ended), &mut writes);
            }
        };
        if timeout(DRAIN, drain).await.is_err() {
            warn!(
                "rounds of hooks still running at the shutdown deadline, will retry at the next start"
            );
        }
        rounds.shutdown().await;
        while let Some(ended) = writes.join_next().await {
            resumed(ended);
        }
        self.0.drained.cancel();
        // The end of a task is an error while the agent runs.
        std::future::pending::<()>().await;
    }

    /// Waits until every round has ended, after the shutdown.
    pub async fn drained(&self) {
        self.0.drained.cancelled().await;
    }

    /// The key of digests and tags.
    pub fn key(&self) -> &DigestKey {
        &self.memory().0
    }

    fn memory(&self) -> &(DigestKey, Option<PathBuf>) {
        let load = || key::load(&self.0.config.lock().key_dirs);
        self.0.memory.get_or_init(load)
    }

    pub(super) fn metrics(&self) -> &RoundMetrics {
        &self.0.metrics
    }

    /// The networks of the addresses that manifests may state.
    pub(super) fn allowed_networks(&self) -> Vec<Network> {
        self.0.config.lock().allowed_networks.clone()
    }

    /// Starts commands on this machine.
    pub(super) fn machine(&self) -> &Machine {
        self.0.machine.get_or_init(|| {
            let memory = self.memory().1.clone();
            Machine::new(memory.unwrap_or_else(std::env::temp_dir))
        })
    }

    /// Calls the program that embeds the agent for its hook with this index.
    pub(super) fn handler(&self, index: usize) -> &Handler {
        &self.0.handlers[index]
    }

    /// Gives the pod these hooks, before the first pass with them; `on_disk` is what earlier runs left of it. Waits for
    /// the disk.
    pub(super) fn adopt(
        &self,
        pod: &Arc<StoredPod>,
        hooks: &Arc<PodHooks>,
        on_disk: impl IntoIterator<Item = (PartKey, Arc<PartContent>)>,
    ) {
        let key = self.key();
        let time = self.0.node.clock.now();
        let uid = SmolStr::new(pod.uid());
        let past = Past {
            content: Content::default().with(on_disk),
            record: self.read_record(&uid),
            is_uncertain: false,
        };
        let hooked = HookedPod {
            pod: Arc::clone(pod),
            known_containers: Arc::default(),
        };
        let mut schedule = self.0.schedule.lock();
        schedule.adopt(&uid, hooked, Arc::clone(hooks), &past, key, time);
        if HookedPod::is_ending(pod) {
            schedule.end(&uid);
        }
        drop(schedule);
        (self.0.node.changed)(&uid);
    }

    /// A part of the pod is about to be written with content of these tags. Waits for the disk if the record has to say so
    /// before.
    pub(super) fn announce(&self, uid: &str, part: &PartKey, tags: &PartTags) {
        let is_news = self.0.schedule.lock().announce(uid, part, tags);
        if is_news {
            self.write_record(uid);
        }
    }

    /// A pass is over: these parts of the pod are in place. Waits for the disk if the record has to be written, as after a
    /// first delivery.
    pub(super) fn passed(&self, uid: &str, parts: Vec<(PartKey, Arc<PartContent>)>) {
        let now = self.now();
        let has_news = self.0.schedule.lock().pass(uid, parts, self.key(), now);
        if has_news {
            (self.0.node.changed)(uid);
        }
        self.write_record(uid);
        self.0.wake.notify_one();
    }

    /// The schedule, locked: for computations only.
    pub(super) fn schedule(&self) -> MutexGuard<'_, Schedule<HookedPod>> {
        self.0.schedule.lock()
    }

    pub(super) fn now(&self) -> Now {
        Now {
            instant: Instant::now(),
            time: self.0.node.clock.now(),
        }
    }

    /// What the record of a pod says; `None` if there is none that can be read. Waits for the disk.
    pub(super) fn read_record(&self, uid: &str) -> Option<Record> {
        let read = self
            .0
            .node
            .host
            .read_pod_file(uid, RECORD)
            .inspect_err(|error| {
                warn!(
                    pod.uid = uid,
                    error = chain(error),
                    "failed to read the record of hooks, comparing with the files on disk"
                );
            });
        let record = Record::read(&read.ok()??);
        if record.is_none() {
            warn!(
                pod.uid = uid,
                "record of hooks is malformed, comparing with the files on disk"
            );
        }
        record
    }

    /// Writes the record of a pod, unless it is up to date. Waits for the disk.
    pub(super) fn write_record(&self, uid: &str) {
        let _writer = self.writer(uid).lock();
        let record = self.0.schedule.lock().record(uid, self.key());
        let Some(record) = record else { return };
        let written = self.0.node.host.write_pod_file(uid, RECORD, &record.text());
        if let Err(error) = &written {
            warn!(
                pod.uid = uid,
                error = chain(error),
                "failed to write the record of hooks, a restart of the agent may repeat a round"
            );
        }
        if !written.unwrap_or(false) {
            self.0.schedule.lock().record_again(uid);
        }
    }

    fn writer(&self, uid: &str) -> &Mutex<()> {
        let hash = self.0.hasher.hash_one(uid);
        let index = hash % WRITERS as u64;
        &self.0.writers[usize::try_from(index).unwrap_or_default()]
    }

    /// The hook's attempt waits for something that needs no place among the running rounds of the node.
    pub(super) fn yield_place(&self, hook: HookId) {
        self.0.schedule.lock().yield_place(hook);
        self.0.wake.notify_one();
    }

    /// Waits until the hook's attempt has a place again.
    pub(super) async fn regain_place(&self, hook: HookId, control: &RoundControl) {
        self.0.schedule.lock().claim_place(hook, Instant::now());
        self.0.wake.notify_one();
        control.placed().await;
    }

    /// Begins the attempts that are due. Also returns when to call it again.
    pub(super) fn due(&self) -> (Vec<Attempt<HookedPod>>, Option<Instant>) {
        let (due, next) = self.0.schedule.lock().due(self.now());
        for attempt in &due {
            (self.0.node.changed)(&attempt.uid);
        }
        (due, next)
    }

    /// A round has ended.
    fn finish(&self, report: AttemptReport, writes: &mut JoinSet<()>) {
        let now = self.now();
        let ended = self.0.schedule.lock().ended(report.id, &report.end, now);
        let Some(ended) = ended else { return };
        (self.0.node.changed)(&report.uid);
        self.report(&report, &ended, now.time);
        let on_change = self.clone();
        let uid = report.uid;
        writes.spawn_blocking(move || on_change.write_record(&uid));
    }
}

/// A panic of a task resumes here. No task is aborted but by dropping the set.
fn resumed<T>(ended: Result<T, tokio::task::JoinError>) -> T {
    match ended {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
