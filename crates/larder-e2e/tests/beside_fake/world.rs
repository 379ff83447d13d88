//! A node under test: the embedded API server, the fake kubelet, and larder beside it.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use larder_agent::{
    agent::{Agent, AgentHandle, Health},
    beside::BesideConfig,
    clock::Clock,
    config::{Config, Flags, Host},
    on_change::PodChange,
    root_dir::RootDir,
    status::{AgentStatus, Phase, VolumeStatus},
};
use larder_apiserver::{ApiKind, ApiServer, AuditLog, AuditRecord, Fault, Options, User, Verb};
use larder_e2e::{
    NodeAuthorizer,
    fake_kubelet::{FakeKubelet, KubeletOptions, ObjectStrategy, USER_AGENT},
    pods::PodBuilder,
};
use larder_kubelet::{kubelet_dir::Mounts, swaps::SwapDetection};
use larder_on_change::{
    Hook, Paths,
    parse::{ConfiguredHook, PodSelector},
};
use larder_projection::{VolumeKind, disk::VolumeHost};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

pub(crate) const NODE: &str = "node-1";
/// larder's user at the API server.
pub(crate) const USER: &str = "system:node:node-1";
/// Longest wait before a test fails.
const PATIENCE: Duration = Duration::from_mins(5);
/// Polling intervals for events that are due soon, and later.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const LATER_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest wait that counts as soon.
const SOON: Duration = Duration::from_secs(2);

/// Deviations of a node from the default.
pub(crate) struct Setup {
    pub(crate) strategy: ObjectStrategy,
    /// `node.alpha.kubernetes.io/ttl` of the Node.
    pub(crate) ttl: Option<u32>,
    pub(crate) seed: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            strategy: ObjectStrategy::Watch,
            ttl: Some(0),
            seed: 1,
        }
    }
}

pub(crate) struct World {
    pub(crate) server: ApiServer,
    pub(crate) kubelet: FakeKubelet,
    seed: u64,
    clock: Clock,
    /// The lead of larder's wall clock over the true time, in seconds.
    clock_offset: Arc<AtomicI64>,
    /// The kubelet's root directory.
    volumes: TempDir,
    /// The directory of the lock.
    lock: TempDir,
    /// Where the key of hooks is.
    memory: TempDir,
    /// What larder takes for `/proc`.
    pub(crate) processes: TempDir,
    /// A hook for all pods of each larder that is started from now on. It reports its rounds.
    pub(crate) hook: Option<(Hook, mpsc::UnboundedSender<PodChange>)>,
    /// The hooks in the configuration of each larder that is started from now on.
    pub(crate) configured: Vec<ConfiguredHook>,
    pub(crate) dry_run: bool,
    larders: Vec<Larder>,
}

/// A running larder, which ends when it is dropped.
struct Larder {
    handle: AgentHandle,
    shutdown: CancellationToken,
    task: JoinSet<()>,
    root: TempDir,
}

impl World {
    /// A node with a kubelet and larder.
    pub(crate) async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    pub(crate) async fn with(setup: Setup) -> Self {
        let mut world = Self::without_larder(setup).await;
        world.start_larder();
        world
    }

    /// The same, before larder is started.
    pub(crate) async fn without_larder(setup: Setup) -> Self {
        let options = Options::default()
            .audit(AuditLog::in_memory())
            .authorization(NodeAuthorizer);
        let server = ApiServer::new(options);
        let ttl = setup.ttl.map(|ttl| ttl.to_string());
        let annotations = ttl.map(|ttl| json!({"node.alpha.kubernetes.io/ttl": ttl}));
        let metadata = json!({"name": NODE, "annotations": annotations});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
        server.apply(&node).unwrap();
        let (start, start_wall) = (Instant::now(), Clock::system().now());
        let clock_offset = Arc::new(AtomicI64::new(0));
        let offset = Arc::clone(&clock_offset);
        let clock = Clock::new(move || {
            let offset = SignedDuration::from_secs(offset.load(Ordering::Relaxed));
            start_wall + start.elapsed() + offset
        });
        let volumes = tempfile::tempdir().unwrap();
        let mut options =
            KubeletOptions::new(NODE, volumes.path(), move || start_wall + start.elapsed());
        options.strategy = setup.strategy;
        options.seed = setup.seed;
        Self {
            kubelet: FakeKubelet::start(&server, options).await.unwrap(),
            server,
            seed: setup.seed,
            clock,
            clock_offset,
            volumes,
            lock: tempfile::tempdir().unwrap(),
            memory: tempfile::tempdir_in("/dev/shm").unwrap(),
            processes: tempfile::tempdir().unwrap(),
            hook: None,
            configured: Vec::new(),
            dry_run: false,
            larders: Vec::new(),
        }
    }

    /// Starts larder beside the kubelet, or another one.
    pub(crate) fn start_larder(&mut self) {
        self.start_larder_in(tempfile::tempdir().unwrap());
    }

    /// Kills the larder that was started first, and starts it again over its root directory.
    pub(crate) async fn restart_larder(&mut self) {
        self.restart_larder_after(async |_| {}).await;
    }

    /// The same, with something that happens in between.
    pub(crate) async fn restart_larder_after(&mut self, meanwhile: impl AsyncFnOnce(&Self)) {
        let mut larder = self.larders.remove(0);
        larder.task.shutdown().await;
        meanwhile(self).await;
        self.start_larder_in(larder.root);
    }

    /// The root directory of the larder that was started first.
    pub(crate) fn larder_root(&self) -> PathBuf {
        self.larders[0].root.path().to_owned()
    }

    fn start_larder_in(&mut self, root: TempDir) {
        let host = Host {
            name: NODE.to_owned(),
            uid: 1000,
            runtime_dir: None,
            temp_dir: "/tmp".into(),
        };
        let flags = Flags {
            root_dir: Some(root.path().to_owned()),
            ..Flags::default()
        };
        let (mut config, _) = Config::load(None, flags, &host).unwrap();
        let mut beside = BesideConfig::new(self.volumes.path());
        beside.mounts = Mounts::NotExpected;
        beside.swaps = SwapDetection::Polling;
        beside.lock_dir = self.lock.path().into();
        beside.processes = self.processes.path().into();
        beside.dry_run = self.dry_run;
        config.beside = Some(beside);
        config.on_change.hooks.clone_from(&self.configured);
        config.on_change.key_dirs = vec![self.memory.path().to_owned()];
        let locked = RootDir::lock(&config.root_dir).unwrap();
        let host = VolumeHost::open_without_mounts(locked.path()).unwrap();
        let user = User {
            name: USER.to_owned(),
            groups: vec!["system:nodes".to_owned()],
        };
        let client = Client::new(self.server.service_as(user), "default");
        let mut builder = Agent::builder(config, locked, host, client)
            .clock(self.clock.clone())
            .seed(self.seed);
        if let Some((hook, rounds)) = self.hook.clone() {
            let all = PodSelector::Names(Paths::default());
            builder = builder.on_change(all, hook, move |change| {
                // A test may end before its larder.
                let _ = rounds.send(change);
                std::future::ready(Ok(()))
            });
        }
        let agent = builder.build().unwrap();
        let (handle, mut task) = (agent.handle(), JoinSet::new());
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        task.spawn(async move {
            agent.run(stop).await.unwrap();
        });
        self.larders.push(Larder {
            handle,
            shutdown,
            task,
            root,
        });
    }

    /// The kubelet's root directory.
    pub(crate) fn kubelet_root(&self) -> PathBuf {
        self.volumes.path().to_owned()
    }

    /// Shuts down the larder that was started first, as SIGTERM does.
    pub(crate) async fn stop_larder(&mut self) {
        let mut larder = self.larders.remove(0);
        larder.shutdown.cancel();
        larder.task.join_next().await.unwrap().unwrap();
    }

    /// Kills the larder that was started first.
    pub(crate) async fn kill_larder(&mut self) {
        let mut larder = self.larders.remove(0);
        larder.task.shutdown().await;
    }

    /// Sets larder's wall clock ahead or back by this time.
    pub(crate) fn set_clock_ahead(&self, seconds: i64) {
        self.clock_offset.store(seconds, Ordering::Relaxed);
        self.clock.jumped();
    }

    /// Creates or replaces an object.
    pub(crate) fn apply(&self, object: &Value) {
        self.server.apply(object).unwrap();
    }

    pub(crate) fn config_map(&self, name: &str, data: &[(&str, &str)]) {
        self.apply(&object("ConfigMap", name, data));
    }

    pub(crate) fn secret(&self, name: &str, data: &[(&str, &str)]) {
        let mut secret = object("Secret", name, data);
        secret["stringData"] = secret["data"].take();
        self.apply(&secret);
    }

    pub(crate) fn delete(&self, kind: ApiKind, name: &str) {
        self.server.delete(kind, "default", name).unwrap();
    }

    /// Creates a pod and waits until larder has verified its volumes and its last sync was 3 s ago.
    pub(crate) async fn run(&self, pod: PodBuilder) {
        self.run_all([pod]).await;
    }

    pub(crate) async fn run_all(&self, pods: impl IntoIterator<Item = PodBuilder>) {
        let pods: Vec<_> = pods.into_iter().map(PodBuilder::build).collect();
        for pod in &pods {
            self.apply(pod);
        }
        for pod in &pods {
            let name = pod["metadata"]["name"].as_str().unwrap();
            self.until_delivered(name).await;
        }
        sleep(Duration::from_secs(4)).await;
        assert_eq!(self.touches(), 0, "pods that start are not touched");
    }

    pub(crate) fn status(&self) -> AgentStatus {
        self.larders.last().unwrap().handle.status()
    }

    pub(crate) fn health(&self) -> Health {
        self.larders.last().unwrap().handle.health()
    }

    pub(crate) fn metrics(&self) -> String {
        self.larders.last().unwrap().handle.metrics()
    }

    pub(crate) fn volume(&self, pod: &str, volume: &str) -> Option<VolumeStatus> {
        let pods = self.status().pods;
        let pod = pods.into_iter().find(|found| found.name == pod)?;
        pod.volumes.into_iter().find(|found| found.name == volume)
    }

    /// Phase and reason of a volume.
    pub(crate) fn phase(&self, pod: &str, volume: &str) -> Option<(Phase, String)> {
        let delivery = self.volume(pod, volume)?.delivery;
        Some((delivery.phase, delivery.reason))
    }

    /// Waits until `look` returns a value; returns the time that it took.
    pub(crate) async fn until(&self, what: &str, mut look: impl FnMut() -> bool) -> Duration {
        let start = Instant::now();
        while !look() {
            assert!(
                start.elapsed() < PATIENCE,
                "waited in vain for {what}; larder's status: {:#?}; the kubelet's journal: {:#?}",
                self.status(),
                self.kubelet.journal(),
            );
            let is_soon = start.elapsed() < SOON;
            sleep(if is_soon {
                POLL_INTERVAL
            } else {
                LATER_POLL_INTERVAL
            })
            .await;
        }
        start.elapsed()
    }

    /// Waits until larder has verified all volumes of a pod.
    pub(crate) async fn until_delivered(&self, pod: &str) -> Duration {
        let is_delivered = || {
            let pods = self.status().pods;
            let pod = pods.iter().find(|found| found.name == pod);
            pod.is_some_and(|pod| {
                let mut volumes = pod.volumes.iter();
                volumes.all(|volume| volume.delivery.phase == Phase::Delivered)
            })
        };
        self.until(&format!("{pod} to be delivered"), is_delivered)
            .await
    }

    /// Waits until a volume has this phase and a reason that contains `reason`.
    pub(crate) async fn until_phase(&self, pod: &str, volume: &str, phase: Phase, reason: &str) {
        let has_phase = || {
            let found = self.phase(pod, volume);
            found.is_some_and(|(found, text)| found == phase && text.contains(reason))
        };
        let what = format!("{pod}/{volume} to be {phase:?} with {reason:?}");
        self.until(&what, has_phase).await;
    }

    /// Waits until a file of a volume has this content.
    pub(crate) async fn until_file(
        &self,
        pod: &str,
        volume: &str,
        file: &str,
        text: &str,
    ) -> Duration {
        let what = format!("{pod}/{volume}/{file} to be {text:?}");
        let shows = || self.file(pod, volume, file).as_deref() == Some(text);
        self.until(&what, shows).await
    }

    /// Directory of a volume.
    pub(crate) fn path(&self, pod: &str, volume: &str) -> PathBuf {
        let kinds = [
            VolumeKind::ConfigMap,
            VolumeKind::Secret,
            VolumeKind::Projected,
            VolumeKind::DownwardApi,
        ];
        let mut paths = kinds
            .map(|kind| self.kubelet.volume_path(&uid(pod), kind, volume))
            .into_iter();
        let of_none = self.volumes.path().join("none");
        paths.find(|path| path.exists()).unwrap_or(of_none)
    }

    /// Writes a file into an `emptyDir` of a pod, as a container does.
    pub(crate) fn write_env_file(&self, pod: &str, volume: &str, file: &str, text: &str) {
        let pod = self.volumes.path().join("pods").join(uid(pod));
        let volume = pod.join("volumes/kubernetes.io~empty-dir").join(volume);
        fs::create_dir_all(&volume).unwrap();
        fs::write(volume.join(file), text).unwrap();
    }

    /// The content of a file for a reader.
    pub(crate) fn file(&self, pod: &str, volume: &str, file: &str) -> Option<String> {
        fs::read_to_string(self.path(pod, volume).join(file)).ok()
    }

    /// The PATCHes of pods so far, which are larder's.
    pub(crate) fn patches(&self) -> Vec<AuditRecord> {
        let mut records = self.server.audit().records();
        records.retain(|record| {
            record.verb == "patch"
                && record.path.contains("/pods/")
                && record.user_agent != USER_AGENT
        });
        records
    }

    pub(crate) fn touches(&self) -> usize {
        self.patches().len()
    }

    /// The PATCHes of one pod.
    pub(crate) fn touches_of(&self, pod: &str) -> usize {
        let path = format!("/api/v1/namespaces/default/pods/{pod}/status");
        let patches = self.patches();
        patches.iter().filter(|patch| patch.path == path).count()
    }

    /// Times of the answers to the PATCHes, since the first PATCH.
    pub(crate) fn touch_times(&self) -> Vec<Duration> {
        let at = |record: &AuditRecord| record.time.parse::<Timestamp>().unwrap();
        let times: Vec<_> = self.patches().iter().map(at).collect();
        let since_first = |time: &Timestamp| time.duration_since(times[0]).try_into().unwrap();
        times.iter().map(since_first).collect()
    }

    /// The value of the annotation of a pod.
    pub(crate) fn refresh(&self, pod: &str) -> Option<String> {
        let pod = self.server.get(ApiKind::Pod, "default", pod)?;
        let value = pod.pointer("/metadata/annotations/larder.dev~1refresh")?;
        value.as_str().map(str::to_owned)
    }

    /// The value of a metric.
    pub(crate) fn metric(&self, line: &str) -> Option<f64> {
        let metrics = self.metrics();
        let mut lines = metrics.lines().filter_map(|found| found.strip_prefix(line));
        lines.next()?.trim().parse().ok()
    }
}

/// A fault of larder's PATCHes alone.
pub(crate) fn on_touch() -> Fault {
    Fault::on(Verb::Patch).user(USER).resource("pods")
}

fn object(kind: &str, name: &str, data: &[(&str, &str)]) -> Value {
    let data: serde_json::Map<_, _> = data
        .iter()
        .map(|(key, text)| ((*key).to_owned(), json!(text)))
        .collect();
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "data": data})
}

pub(crate) fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// UID of the pod of this name.
pub(crate) fn uid(pod: &str) -> String {
    format!("uid-of-{pod}")
}

/// A pod of the node with one container, `main`.
pub(crate) fn pod(name: &str) -> PodBuilder {
    PodBuilder::new(NODE, name)
        .set("/metadata/uid", json!(uid(name)))
        .set("/metadata/annotations", json!({}))
}
