//! A fake kubelet that handles the content of volumes, for tests without root and containers.
//!
//! It follows the pods of its node on an embedded API server. Between a change of a pod and its files, it has the same
//! stages and delays as a kubelet 1.36 (`docs/spec/beside-kubelet.md`, section 2):
//!
//! | # | stage | where | waits |
//! | --: | --- | --- | --- |
//! | 1 | a pod differs in more than its status | `pods` | 10 ms, the way through the API server |
//! | 3 | its worker has one slot for the next state | `worker` | a sync in progress |
//! | 4 | the runtime must have been listed since the end of its last sync | `worker` | until the next listing, 1 s apart |
//! | 5 | the sync marks the pod; first mounts and containers may make it long | `worker` | |
//! | 6 | the populator flags the volumes of marked pods | `volumes` | 0 to 100 ms |
//! | 7 | the reconciler sets flagged volumes up, each with the objects of that moment | `volumes`, `objects` | 0 to 100 ms |
//!
//! Volumes are directories: nothing is mounted. Tokens are fixed texts, and pod certificates fail. All other content is
//! computed and written by larder's own code.
//!
//! Invariants:
//! 1. Under paused time, the same seed and the same calls lead to the same times.
//! 2. Once dropped or killed, it does nothing more, and leaves its directory unchanged.
//! 3. Tests can distinguish its requests from larder's by its user agent, [`USER_AGENT`].

mod desired;
mod journal;
mod node;
mod objects;
mod pods;
mod volumes;
mod worker;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use fastrand::Rng;
use http::{HeaderValue, Request, header};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Client, client::Body};
use larder_apiserver::{ApiKind, ApiServer};
use larder_objects::{
    Kind::{ConfigMap, Secret},
    SecretBytes, StableHash,
};
use larder_projection::{
    Inputs, Need, NodeFacts, VolumeKind, containers, disk::VolumeHost, env_files,
};
use parking_lot::Mutex;
use serde::Deserialize as _;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::ServiceExt as _;

pub use self::journal::{Happening, Stage};
pub use self::objects::ObjectStrategy;
use self::{desired::Workers, objects::Objects, volumes::Volumes};

/// Marks the requests of the fake.
pub const USER_AGENT: &str = "kubelet/fake";

/// Delay of a changed pod or object on its way through the API server.
const API_LATENCY: Duration = Duration::from_millis(10);
/// Time between two listings of all containers (kubelet 1.36, `pkg/kubelet/pleg/generic.go`).
const LISTING_PERIOD: Duration = Duration::from_secs(1);

/// The settings of a kubelet.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a clock has none")]
#[non_exhaustive]
pub struct KubeletOptions {
    /// Name of its node.
    pub node: String,
    /// Its root directory.
    pub root: PathBuf,
    /// Change detection strategy for ConfigMaps and Secrets. Defaults to `Watch`, like a kubelet.
    pub strategy: ObjectStrategy,
    /// Seed of all random times. Defaults to 1.
    pub seed: u64,
    /// The wall clock.
    pub now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl KubeletOptions {
    /// The kubelet of `node`, with its volumes below `root`.
    pub fn new(
        node: &str,
        root: &Path,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Self {
        Self {
            node: node.to_owned(),
            root: root.to_owned(),
            strategy: ObjectStrategy::Watch,
            seed: 1,
            now: Arc::new(now),
        }
    }
}

/// A running kubelet.
#[expect(missing_debug_implementations, reason = "a client has none")]
pub struct FakeKubelet {
    kubelet: Arc<KubeletContext>,
    /// The process; empty while it is down.
    process: JoinSet<()>,
}

/// The state that outlives the process, and the state that its tasks share.
struct KubeletContext {
    options: KubeletOptions,
    server: ApiServer,
    client: Client,
    host: VolumeHost,
    journal: Mutex<Vec<Happening>>,
    faults: Mutex<KubeletFaults>,
    /// Whether the process is stopped, as by SIGSTOP.
    stopped: watch::Sender<bool>,
    objects: Objects,
    volumes: Volumes,
    workers: Workers,
    /// When the last complete listing of all containers began.
    listed: watch::Sender<Option<Instant>>,
    rng: Mutex<Rng>,
}

/// The faults from now on.
#[derive(Default)]
struct KubeletFaults {
    /// Delay of objects, in addition to the time through the API server.
    object_lag: Duration,
    /// The next pass of the populator over a pod flags nothing.
    loses_flags: bool,
    /// Volumes, by pod and name, whose next write fails.
    failing_writes: Vec<(String, String)>,
}

impl FakeKubelet {
    /// Starts a kubelet, which registers its node and serves its pods.
    ///
    /// # Errors
    ///
    /// Its root directory cannot be created, or the API server does not answer.
    pub async fn start(server: &ApiServer, options: KubeletOptions) -> anyhow::Result<Self> {
        let service = server.service().map_request(|mut request: Request<Body>| {
            let agent = HeaderValue::from_static(USER_AGENT);
            request.headers_mut().insert(header::USER_AGENT, agent);
            request
        });
        let rng = Mutex::new(Rng::with_seed(options.seed));
        let kubelet = KubeletContext {
            server: server.clone(),
            client: Client::new(service, "default"),
            host: VolumeHost::open_without_mounts(&options.root)?,
            journal: Mutex::default(),
            faults: Mutex::default(),
            stopped: watch::Sender::new(false),
            objects: Objects::default(),
            volumes: Volumes::default(),
            workers: Workers::default(),
            listed: watch::Sender::new(None),
            rng,
            options,
        };
        let mut fake = Self {
            kubelet: Arc::new(kubelet),
            process: JoinSet::new(),
        };
        fake.start_again().await?;
        Ok(fake)
    }

    /// Starts the process again after [`Self::kill`]. Its only state is on disk and at the API server.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        let kubelet = &self.kubelet;
        kubelet.volumes.forget();
        kubelet.listed.send_replace(None);
        kubelet.objects.forget();
        let config_maps = kubelet.objects.list(kubelet, ConfigMap).await?;
        let secrets = kubelet.objects.list(kubelet, Secret).await?;
        let pods = pods::list(kubelet).await?;
        node::register(kubelet).await?;
        let process = &mut self.process;
        for (kind, listed) in [(ConfigMap, config_maps), (Secret, secrets)] {
            process.spawn(objects::follow(Arc::clone(kubelet), kind, listed));
        }
        process.spawn(pods::follow(Arc::clone(kubelet), pods));
        process.spawn(volumes::populate(Arc::clone(kubelet)));
        process.spawn(volumes::reconcile(Arc::clone(kubelet)));
        process.spawn(list_containers(Arc::clone(kubelet)));
        process.spawn(node::renew_lease(Arc::clone(kubelet)));
        Ok(())
    }

    /// Ends the process as SIGKILL does.
    pub async fn kill(&mut self) {
        self.process.shutdown().await;
        self.kubelet.workers.forget();
    }

    /// Sets the Node to not ready, as the node lifecycle controller does when the lease is not renewed.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn lose_node(&self) -> anyhow::Result<()> {
        node::set_ready(&self.kubelet, "Unknown").await
    }

    /// Stops the process, as SIGSTOP does. Time still passes for it.
    pub fn stop(&self) {
        self.kubelet.stopped.send_replace(true);
    }

    /// Continues the process, as SIGCONT does.
    pub fn resume(&self) {
        self.kubelet.stopped.send_replace(false);
    }

    /// Shows objects to the kubelet later than pods, by this delay.
    pub fn lag_objects(&self, lag: Duration) {
        self.kubelet.faults.lock().object_lag = lag;
    }

    /// The next time a marked pod is populated, none of its volumes is flagged.
    pub fn lose_flags(&self) {
        self.kubelet.faults.lock().loses_flags = true;
    }

    /// The next write of this volume fails, so the volume is torn down under its containers and set up again.
    pub fn fail_write(&self, pod: &str, volume: &str) {
        let write = (pod.to_owned(), volume.to_owned());
        self.kubelet.faults.lock().failing_writes.push(write);
    }

    /// The containers of the pod of this name exit with 0 and are not restarted.
    pub fn finish(&self, pod: &str) {
        self.kubelet.workers.finish(pod);
    }

    /// The containers of the pod of this name exit and are started again, with [other IDs](container_id).
    pub fn restart(&self, pod: &str) {
        self.kubelet.workers.restart(pod);
    }

    /// All events, in order.
    pub fn journal(&self) -> Vec<Happening> {
        self.kubelet.journal.lock().clone()
    }

    /// Number of syncs of the pod of this name.
    pub fn syncs(&self, pod: &str) -> usize {
        self.kubelet.count(pod, |stage| *stage == Stage::Sync)
    }

    /// Directory of a volume of the pod with this UID.
    pub fn volume_path(&self, uid: &str, kind: VolumeKind, volume: &str) -> PathBuf {
        self.kubelet.host.volume_path(uid, kind, volume)
    }
}

impl KubeletContext {
    /// Sleeps, and then until the process runs.
    async fn sleep(&self, time: Duration) {
        sleep(time).await;
        self.runs().await;
    }

    /// Waits until the process is not stopped.
    async fn runs(&self) {
        let mut stopped = self.stopped.subscribe();
        // The sender lives as long as `self`.
        let _ = stopped.wait_for(|stopped| !stopped).await;
    }

    fn now(&self) -> Timestamp {
        (self.options.now)()
    }

    /// A time in `range`, in microseconds.
    fn random_micros(&self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_micros(self.rng.lock().u64(range))
    }

    /// `time`, lengthened by up to half of it (kubelet 1.36, `workerResyncIntervalJitterFactor`).
    fn jittered(&self, time: Duration) -> Duration {
        time.mul_f64(1.0 + 0.5 * self.rng.lock().f64())
    }

    fn note(&self, pod: &Pod, stage: Stage) {
        let (at, pod) = (Instant::now(), pod.metadata.name.clone());
        let pod = pod.unwrap_or_default();
        self.journal.lock().push(Happening { at, pod, stage });
    }

    fn count(&self, pod: &str, counts: impl Fn(&Stage) -> bool) -> usize {
        let journal = self.journal.lock();
        let fits = |happening: &&Happening| happening.pod == pod && counts(&happening.stage);
        journal.iter().filter(fits).count()
    }

    fn node(&self) -> Node {
        let node = self.server.get(ApiKind::Node, "", &self.options.node);
        let node = node.map(Node::deserialize);
        node.and_then(Result::ok).unwrap_or_default()
    }

    /// The inputs of a projection of `pod`, as the kubelet sees them now.
    fn inputs(&self, pod: &Pod, needs: &BTreeSet<Need>) -> Inputs {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let node = self.node();
        let lag = self.faults.lock().object_lag + API_LATENCY;
        let reader = self.objects.reader(self.options.strategy, &node, lag);
        let mut inputs = Inputs {
            config_maps: reader.read(ConfigMap, namespace, needs),
            secrets: reader.read(Secret, namespace, needs),
            node: Some(Arc::new(NodeFacts::new(&node))),
            services: Some(Arc::new([])),
            ..Inputs::default()
        };
        for need in needs {
            if let Need::Token(request) = need {
                let token = Arc::new(SecretBytes::new(b"token".to_vec()));
                inputs.tokens.insert(request.clone(), Ok(token));
            }
        }
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.host
            .read_env_files(uid, env_files(containers(pod)), &mut inputs);
        inputs
    }
}

/// The ID of a container of the pod with this UID, after so many restarts.
pub fn container_id(pod_uid: &str, container: &str, restarts: u32) -> String {
    // Like an ID in form, and another one for each container.
    let hash = StableHash::EMPTY.with(format!("{pod_uid}/{container}/{restarts}"));
    hash.to_string().repeat(2)
}

/// Stage 4: lists all containers again and again.
async fn list_containers(kubelet: Arc<KubeletContext>) {
    loop {
        let began = Instant::now();
        let took = kubelet.random_micros(1_000..4_000);
        kubelet.sleep(took).await;
        kubelet.listed.send_replace(Some(began));
        kubelet.sleep(LISTING_PERIOD).await;
    }
}

#[cfg(test)]
mod tests;
