//! The handle of all hooks of the node, and the task that starts their rounds.
//!
//! `schedule` makes the decisions. This module has the clock, the lock, the records on disk and the running rounds.
//!
//! Invariants:
//! 1. The lock of the schedule is held for computations only, never across a wait, a file or a process.
//! 2. A record is written from a snapshot that is taken while no other record of the pod is being written, so the last
//!    one wins.
//! 3. A worker may hand over a pass of a pod that was forgotten meanwhile. The worker forgets it, before it tears the
//!    pod down.
//! 4. A round without a quiet period begins with the pass that makes it due: the worker's thread takes it from the
//!    schedule, and the task runs its steps. If they only send signals, the worker's thread polls the round once before:
//!    neither a switch of threads nor a write lies between a swap and a signal to a known process. Such a poll waits for
//!    nothing and starts nothing. Whatever would have to wait, such as a search, is left to the task.

mod report;

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    path::PathBuf,
    sync::{Arc, OnceLock},
    task::{self, Poll, Waker},
    time::Duration,
};

use fastrand::Rng;
use futures::{FutureExt as _, future::BoxFuture};
use k8s_openapi::api::core::v1::Pod;
use larder_actions::{exec::Machine, processes::Processes};
use larder_objects::chain;
use larder_on_change::DigestKey;
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
use tracing::warn;

use super::{
    OnChangeConfig,
    content::{Content, PartContent, PartKey},
    key,
    metrics::RoundMetrics,
    observer::{Observer, Past},
    pod_hooks::{HookSources, PodHooks, ProgramHook},
    record::Record,
    round::{Attempt, AttemptReport},
    schedule::Schedule,
};
use crate::{clock::Clock, events::Events, root_dir::HOOK_RECORD};

/// Time that running steps get when the agent shuts down (rule T9).
const DRAIN: Duration = Duration::from_secs(5);
/// Records of different pods that may be written at the same time.
const WRITERS: usize = 16;

/// The shared state of [`OnChange`].
pub(crate) struct OnChangeParts<'a> {
    pub(crate) config: OnChangeConfig,
    pub(crate) program: Vec<ProgramHook>,
    /// Where larder writes volumes, and the records of hooks.
    pub(crate) host: Arc<VolumeHost>,
    /// Where a kubelet runs the pods and writes their volumes; `None` if larder does.
    pub(crate) kubelet: Option<Arc<VolumeHost>>,
    pub(crate) processes: Processes,
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
    kubelet: Option<Arc<VolumeHost>>,
    clock: Clock,
    events: Option<Arc<Events>>,
    metrics: RoundMetrics,
    processes: Processes,
    /// The digest key, and a directory in memory; made for the first pod with hooks.
    memory: OnceLock<(DigestKey, Option<PathBuf>)>,
    machine: OnceLock<Machine>,
    schedule: Mutex<Schedule>,
    /// Rounds that began with a pass, for the task.
    begun: Mutex<Vec<BegunRound>>,
    /// Notified when a round may be due earlier than the task expects, or has begun.
    wake: Notify,
    /// Notified when the hooks of pods may have changed.
    reloaded: Notify,
    /// Held while a record is written, each for a share of the pods.
    writers: [Mutex<()>; WRITERS],
    hasher: RandomState,
    /// Whether every round has ended after the shutdown.
    drained: watch::Sender<bool>,
}

/// A round that began with a pass.
enum BegunRound {
    Running(BoxFuture<'static, AttemptReport>),
    Ended(AttemptReport),
}

impl fmt::Debug for OnChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnChange")
    }
}

impl OnChange {
    pub(crate) fn new(parts: OnChangeParts<'_>) -> Self {
        let OnChangeParts {
            config,
            program,
            host,
            kubelet,
            processes,
            clock,
            events,
            registry,
            rng,
        } = parts;
        let schedule = Schedule::new(config.parallelism, rng);
        Self(Arc::new(Shared {
            metrics: RoundMetrics::register(registry),
            sources: HookSources::new(config, program),
            host,
            kubelet,
            clock,
            events,
            processes,
            memory: OnceLock::new(),
            machine: OnceLock::new(),
            schedule: Mutex::new(schedule),
            begun: Mutex::default(),
            wake: Notify::new(),
            reloaded: Notify::new(),
            writers: std::array::from_fn(|_| Mutex::new(())),
            hasher: RandomState::new(),
            drained: watch::Sender::new(false),
        }))
    }

    /// The hooks of `pod`, which was `before` with these hooks. Reports new errors of annotations.
    pub(crate) fn hooks(
        &self,
        pod: &StoredPod,
        decoded: Option<&Pod>,
        before: Option<(&StoredPod, Option<&Arc<PodHooks>>)>,
    ) -> Option<Arc<PodHooks>> {
        let hooks = self.0.sources.hooks(pod, decoded, before)?;
        self.report_errors(pod, &hooks, before.and_then(|(_, hooks)| hooks));
        Some(hooks)
    }

    /// The same for an unchanged pod, after [a reload](Self::reload).
    pub(crate) fn reloaded_hooks(
        &self,
        pod: &StoredPod,
        before: Option<&Arc<PodHooks>>,
    ) -> Option<Arc<PodHooks>> {
        let hooks = self.0.sources.current(pod, None, before)?;
        self.report_errors(pod, &hooks, before);
        Some(hooks)
    }

    /// Replaces the settings of hooks. The task that waits for [`reloaded`](Self::reloaded) then hands each pod its
    /// [new hooks](Self::reloaded_hooks).
    pub(crate) fn reload(&self, config: &OnChangeConfig) {
        if *self.0.sources.config() == *config {
            return;
        }
        self.0.schedule.lock().set_parallelism(config.parallelism);
        self.0.sources.reload(config.clone());
        self.0.reloaded.notify_one();
        self.0.wake.notify_one();
    }

    /// Waits until the settings of hooks have changed. Cancel-safe.
    pub(crate) async fn reloaded(&self) {
        self.0.reloaded.notified().await;
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

    /// The pod's metadata or status has changed.
    pub(crate) fn updated(&self, pod: &Arc<StoredPod>) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.0.schedule.lock().updated(uid, pod);
    }

    /// No hook of the pod fires any more: it has terminated or was removed.
    pub(crate) fn forget(&self, uid: &str) {
        self.0.schedule.lock().forget(uid);
    }

    /// The pod has no hooks any more; others start from the content of that time (rule P5). Waits for the disk.
    pub(crate) fn drop_hooks(&self, uid: &str) {
        self.forget(uid);
        let _writer = self.writer(uid).lock();
        if let Err(error) = self.0.host.remove_pod_file(uid, HOOK_RECORD) {
            warn!(
                pod.uid = uid,
                error = chain(&error),
                "failed to remove the record of hooks"
            );
        }
    }

    /// Starts rounds when they are due. Returns after `shutdown`, when running steps have ended or their time is up;
    /// then [`drained`](Self::drained) returns.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut rounds: JoinSet<AttemptReport> = JoinSet::new();
        let mut writes: JoinSet<()> = JoinSet::new();
        loop {
            let next = self.start_due(&mut rounds, &mut writes);
            let sleep = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            // Every arm is cancel-safe. Shutdown comes first, so that no round begins after it.
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
        // Rounds whose pass was faster than the shutdown.
        self.0.schedule.lock().close();
        self.start_due(&mut rounds, &mut writes);
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

    pub(super) fn key(&self) -> DigestKey {
        self.memory().0.clone()
    }

    /// Whether the next agent has the same key.
    pub(super) fn keeps_key(&self) -> bool {
        self.memory().1.is_some()
    }

    fn memory(&self) -> &(DigestKey, Option<PathBuf>) {
        let load = || key::load(&self.0.sources.config().key_dirs);
        self.0.memory.get_or_init(load)
    }

    pub(super) fn host(&self) -> &VolumeHost {
        &self.0.host
    }

    /// The volumes that pods read.
    pub(super) fn volumes(&self) -> &VolumeHost {
        self.0.kubelet.as_deref().unwrap_or(&self.0.host)
    }

    /// Whether a kubelet runs the pods: then the status of a pod has the IDs of its containers.
    pub(super) fn has_kubelet(&self) -> bool {
        self.0.kubelet.is_some()
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

    /// The content of a pod, as far as this agent delivered it.
    pub(super) fn content_of(&self, uid: &str) -> Arc<Content> {
        self.0.schedule.lock().content_of(uid)
    }

    /// A pass is over: these parts of the pod are in place. `decoded` is the same pod, if it is at hand; `past` is given
    /// if the hooks are new to the worker. Waits for the disk after the first delivery.
    pub(super) fn passed(
        &self,
        pod: &Arc<StoredPod>,
        decoded: Option<&Pod>,
        hooks: Arc<PodHooks>,
        past: Option<Past>,
        parts: Vec<(PartKey, Arc<PartContent>)>,
    ) {
        let uid = SmolStr::new(pod.metadata.uid.as_deref().unwrap_or_default());
        let key = self.key();
        let mut schedule = self.0.schedule.lock();
        let (now, time) = (Instant::now(), self.0.clock.now());
        schedule.take_hooks(&uid, pod, hooks, past, &parts, &key, time);
        schedule.pass(&uid, parts, &key, now, time);
        let (due, _) = schedule.due(now, time);
        let is_covered = schedule.covers(&uid, &due);
        drop(schedule);
        // Before the first step. Nothing is written between an announced swap and a signal.
        if !is_covered {
            self.write_record(&uid);
        }
        let begun = due.into_iter().map(|mut attempt| {
            attempt.is_recorded = attempt.uid() == uid;
            let decoded = decoded.filter(|_| Arc::ptr_eq(&attempt.pod, pod));
            self.begin(attempt, decoded)
        });
        let begun: Vec<_> = begun.collect();
        self.0.begun.lock().extend(begun);
        self.0.wake.notify_one();
    }

    /// Begins a round on the thread of a pass: sends its signals, if that is all that it does (invariant 4).
    fn begin(&self, mut attempt: Attempt, decoded: Option<&Pod>) -> BegunRound {
        if !attempt.only_signals() {
            return BegunRound::Running(attempt.run(self.clone()).boxed());
        }
        if let Some(pod) = decoded {
            attempt.take_facts(self, pod);
        }
        let mut round = attempt.run(self.clone()).boxed();
        // A round that waits is polled again by the task, whatever it waits for.
        match round.poll_unpin(&mut task::Context::from_waker(Waker::noop())) {
            Poll::Ready(report) => BegunRound::Ended(report),
            Poll::Pending => BegunRound::Running(round),
        }
    }

    /// What the record of a pod says; `None` if there is none that can be read. Waits for the disk.
    pub(super) fn read_record(&self, uid: &str) -> Option<Record> {
        match self.0.host.read_pod_file(uid, HOOK_RECORD) {
            Ok(None) => None,
            Ok(Some(text)) => {
                let record = Record::read(&text);
                if record.is_none() {
                    warn!(
                        pod.uid = uid,
                        "record of hooks is malformed, comparing with the files on disk"
                    );
                }
                record
            }
            Err(error) => {
                warn!(
                    pod.uid = uid,
                    error = chain(&error),
                    "failed to read the record of hooks, comparing with the files on disk"
                );
                None
            }
        }
    }

    /// Content of the pod is about to change. So the record says first that the application may be notified of it, or may
    /// lack a notification. `earlier` is the record of an earlier agent, which counts until the first pass is over. Waits
    /// for the disk.
    pub(super) fn announce_change(&self, uid: &str, earlier: Option<&Record>) {
        if self.0.schedule.lock().announce_change(uid) {
            self.write_record(uid);
        } else if let Some(earlier) = earlier {
            self.replace_earlier_record(uid, &earlier.as_uncertain());
        }
    }

    /// Replaces the record of an earlier agent before the first pass over the pod is over. Waits for the disk.
    pub(super) fn replace_earlier_record(&self, uid: &str, record: &Record) {
        let _writer = self.writer(uid).lock();
        self.replace_record(uid, &record.text());
    }

    /// Writes the record of a pod, unless it is up to date. Waits for the disk.
    pub(super) fn write_record(&self, uid: &str) {
        let _writer = self.writer(uid).lock();
        let (key, keeps_key) = (self.key(), self.keeps_key());
        let record = self.0.schedule.lock().record(uid, &key, keeps_key);
        if let Some(text) = record
            && !self.replace_record(uid, &text)
        {
            self.0.schedule.lock().record_again(uid);
        }
    }

    /// Returns whether the record was written.
    fn replace_record(&self, uid: &str, text: &[u8]) -> bool {
        let written = self.0.host.write_pod_file(uid, HOOK_RECORD, text);
        if let Err(error) = &written {
            warn!(
                pod.uid = uid,
                error = chain(error),
                "failed to write the record of hooks, a restart of the agent may repeat a round"
            );
        }
        written.unwrap_or(false)
    }

    fn writer(&self, uid: &str) -> &Mutex<()> {
        let hash = self.0.hasher.hash_one(uid);
        let index = hash % WRITERS as u64;
        &self.0.writers[usize::try_from(index).unwrap_or_default()]
    }

    /// Until when a round has to wait because one of these containers was restarted too often, and why (rule R4).
    pub(super) fn restart_limit(&self, uid: &str, names: &[SmolStr]) -> Option<(Instant, String)> {
        let (now, time) = (Instant::now(), self.0.clock.now());
        self.0.schedule.lock().restart_limit(uid, names, now, time)
    }

    /// The containers were restarted.
    pub(super) fn restarted(&self, uid: &str, names: &[SmolStr]) {
        self.0.schedule.lock().restarted(uid, names, Instant::now());
    }

    /// Starts the rounds that are due. Returns when to call it again.
    fn start_due(
        &self,
        rounds: &mut JoinSet<AttemptReport>,
        writes: &mut JoinSet<()>,
    ) -> Option<Instant> {
        let begun = std::mem::take(&mut *self.0.begun.lock());
        for round in begun {
            match round {
                BegunRound::Running(round) => {
                    rounds.spawn(round);
                }
                // It may make room for others, and its hook may be due again.
                BegunRound::Ended(report) => self.finish(report, writes),
            }
        }
        let (now, time) = (Instant::now(), self.0.clock.now());
        let (due, next) = self.0.schedule.lock().due(now, time);
        for attempt in due {
            rounds.spawn(attempt.run(self.clone()));
        }
        next
    }

    /// A round has ended.
    fn finish(&self, report: AttemptReport, writes: &mut JoinSet<()>) {
        let (now, time) = (Instant::now(), self.0.clock.now());
        let ended = self.0.schedule.lock().ended(&report, now, time);
        let Some(ended) = ended else { return };
        self.report(&report, &ended, time);
        let (on_change, uid) = (self.clone(), report.uid);
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
