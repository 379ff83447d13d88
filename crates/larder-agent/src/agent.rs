//! The agent as a whole: who feeds the reconciler, and who may look.
//!
//! Building and running are two steps. [`Agent::build`] opens what can fail; [`Agent::run`] owns every task and ends them all.

use std::{collections::BTreeMap, fmt, sync::Arc};

use futures::{FutureExt as _, future::OptionFuture};
use jiff::Timestamp;
use kube::Client;
use larder::{
    ConfigMapManager, ManagerConfig, ManagerMetrics, ObjectChange, ObjectManager, SecretManager,
    pods::{
        Operation, PodManager, PodMerge, PodSource, PodUid, PodUpdate, ResolvedPodUid,
        identity::is_mirror_pod,
        source::{ApiSource, SourceEvent, SourceReport},
    },
};
use larder_objects::{Kind, Object};
use larder_projection::disk::{DiskError, Memory, PodOnDisk, VolumeHost};
use parking_lot::Mutex;
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::{
    blocking::blocking,
    chain::chain,
    clock,
    config::Config,
    ender::Ender,
    facts::{Facts, follow_facts},
    metrics::Metrics,
    reconcile::{Board, Reconciler, Shared},
    root_dir::RootDir,
    status::{AgentStatus, ObjectStatus},
    tokens::Tokens,
};

/// Reports of sources that may wait to be read. A source that is faster waits.
const REPORTS: usize = 16;

/// Who ends a pod that the API server has marked as deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodEnd {
    /// Whoever runs its containers: a kubelet, a provider. The agent serves the pod until it is gone.
    Elsewhere,
    /// The agent itself, at once: nobody runs containers. For the embedded API server.
    Agent,
}

/// An agent that is ready to run.
pub struct Agent {
    config: Config,
    client: Client,
    pod_end: PodEnd,
    facts: watch::Sender<Facts>,
    handle: AgentHandle,
    /// Locked as long as the agent lives.
    _root: RootDir,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Looks at a running agent. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct AgentHandle {
    shared: Arc<Shared>,
    sources: Arc<Mutex<Sources>>,
    registry: Arc<Registry>,
    about: Arc<About>,
}

/// What does not change while the agent runs.
#[derive(Debug)]
struct About {
    node: String,
    started: Timestamp,
    change_detection: String,
}

/// What the sources have said of themselves.
#[derive(Debug, Default)]
struct Sources {
    silent: Vec<PodSource>,
    problems: BTreeMap<PodSource, Vec<String>>,
    /// Of those who feed the API server.
    others: Vec<watch::Receiver<Arc<[String]>>>,
}

/// All that wakes the agent.
enum Event {
    Report(SourceReport),
    Object(Kind, ObjectChange),
    Facts,
    /// The directories of the last run were listed.
    Scanned(Result<Vec<PodOnDisk>, DiskError>),
    WorkerLeft,
    Shutdown,
}

impl Agent {
    /// Prepares an agent that serves the pods of `config.node_name` at the API server of `client` on `host`, whose directory
    /// `root` has locked. Metrics are added to `registry`, whose prefix is the caller's.
    ///
    /// # Errors
    ///
    /// A setting cannot be used.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn build(
        config: Config,
        root: RootDir,
        host: VolumeHost,
        client: Client,
        pod_end: PodEnd,
        mut registry: Registry,
    ) -> Result<Self, larder::ConfigError> {
        let managers = ManagerConfig {
            strategy: config.change_detection,
            sync_frequency: config.sync_frequency,
            ..ManagerConfig::default()
        };
        let counters = ManagerMetrics::default();
        counters.register(&mut registry);
        let facts = watch::Sender::new(Facts::default());
        let shared = Shared {
            config_maps: ConfigMapManager::with_metrics(client.clone(), &managers, &counters)?,
            secrets: SecretManager::with_metrics(client.clone(), &managers, &counters)?,
            tokens: Tokens::new(client.clone()),
            facts: facts.subscribe(),
            host: Arc::new(host),
            metrics: Metrics::register(&mut registry),
            board: Board::default(),
            sync_frequency: config.sync_frequency,
        };
        let about = About {
            node: config.node_name.clone(),
            started: clock::now(),
            change_detection: config.change_detection.to_string(),
        };
        let handle = AgentHandle {
            shared: Arc::new(shared),
            sources: Arc::default(),
            registry: Arc::new(registry),
            about: Arc::new(about),
        };
        Ok(Self {
            config,
            client,
            pod_end,
            facts,
            handle,
            _root: root,
        })
    }

    /// A handle to look at the agent with.
    pub fn handle(&self) -> AgentHandle {
        self.handle.clone()
    }

    /// Serves until `shutdown`. Then every pass under way is finished, and the volumes stay as they are.
    pub async fn run(self, shutdown: CancellationToken) {
        if let Memory::Directory { in_memory: false } = self.handle.shared.host.memory() {
            warn!(
                path = %self.handle.shared.host.path().display(),
                "Secrets are kept on disk: this process may not mount a tmpfs, and the root directory is not in memory"
            );
        }
        let (reports, mut inbox) = mpsc::channel(REPORTS);
        let mut sources = JoinSet::new();
        let expected = [PodSource::Api];
        let api = ApiSource::new(self.client.clone(), self.config.node_name.clone());
        sources.spawn(api.run(reports.clone()));
        let node_name = self.config.node_name.clone();
        sources.spawn(follow_facts(
            self.client.clone(),
            node_name,
            self.facts.clone(),
        ));
        drop(reports);

        let shared = self.handle.shared.clone();
        let mut config_maps = shared.config_maps.subscribe();
        let mut secrets = shared.secrets.subscribe();
        let mut facts = shared.facts.clone();
        let mut pods = Pods {
            manager: PodManager::default(),
            merge: PodMerge::new(expected),
            reconciler: Reconciler::new(shared.clone(), shutdown.clone()),
            handle: self.handle.clone(),
            ender: Ender::new((self.pod_end == PodEnd::Agent).then(|| self.client.clone())),
            ready: false,
        };
        pods.tell_silent();
        // What an earlier agent left is looked for once, as soon as all sources have reported.
        let mut scan = OptionFuture::default();
        loop {
            // Every arm is cancel-safe.
            let event = tokio::select! {
                biased;
                () = shutdown.cancelled() => Event::Shutdown,
                Some(report) = inbox.recv() => Event::Report(report),
                Some(change) = config_maps.next() => Event::Object(Kind::ConfigMap, change),
                Some(change) = secrets.next() => Event::Object(Kind::Secret, change),
                Ok(()) = facts.changed() => Event::Facts,
                Some(found) = &mut scan => Event::Scanned(found),
                () = pods.reconciler.worker_left() => Event::WorkerLeft,
            };
            match event {
                Event::Shutdown => break,
                Event::Report(report) => pods.report(report),
                Event::Object(kind, change) => pods.reconciler.object_changed(kind, &change.key),
                Event::Facts => pods.reconciler.facts_changed(),
                Event::Scanned(found) => {
                    scan = OptionFuture::default();
                    pods.sweep(found);
                }
                Event::WorkerLeft => {}
            }
            if pods.becomes_ready() {
                let host = shared.host.clone();
                scan = Some(blocking(move || host.scan()).boxed()).into();
            }
        }
        sources.shutdown().await;
        pods.reconciler.drain().await;
    }
}

/// The pods of the node: what the sources report, and what becomes of it.
struct Pods {
    manager: PodManager,
    merge: PodMerge,
    reconciler: Reconciler,
    ender: Ender,
    handle: AgentHandle,
    /// All sources have reported, and what an earlier agent left is being looked for.
    ready: bool,
}

impl Pods {
    fn report(&mut self, report: SourceReport) {
        match report.event {
            SourceEvent::Pods(pods) => {
                let merged = self.merge.merge(report.source, pods, clock::now());
                for duplicate in merged.duplicates {
                    warn!(error = %duplicate, "pod not served");
                }
                for update in merged.updates {
                    self.update(update);
                }
                self.tell_silent();
            }
            SourceEvent::Problems(problems) => {
                let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
                for problem in &problems {
                    warn!(source = %report.source, %problem, "pods are not followed, the last known ones stay");
                }
                self.handle
                    .sources
                    .lock()
                    .problems
                    .insert(report.source, problems);
            }
        }
    }

    fn update(&mut self, update: PodUpdate) {
        for pod in update.pods {
            let uid = ResolvedPodUid::new(PodUid::of(&pod).as_str());
            match update.operation {
                Operation::Remove => {
                    self.manager.remove_pod(&pod);
                    // Until all sources have reported, the pod may just not have been named yet by the one that has it now.
                    if self.ready && !is_mirror_pod(&pod) {
                        self.reconciler.remove(&uid);
                    }
                }
                Operation::Add | Operation::Update | Operation::Delete | Operation::Reconcile => {
                    self.manager.update_pod(pod.clone());
                    if is_mirror_pod(&pod) {
                        continue;
                    }
                    if pod.metadata.deletion_timestamp.is_some() {
                        self.ender.end(&pod);
                    }
                    self.reconciler.serve(&pod);
                }
            }
        }
    }

    fn tell_silent(&self) {
        self.handle.sources.lock().silent = self.merge.silent_sources().collect();
    }

    /// Whether what an earlier agent left can be looked for now, for the first time.
    fn becomes_ready(&mut self) -> bool {
        let first = !self.ready && self.merge.all_sources_seen();
        self.ready |= first;
        first
    }

    /// Removes what belongs to no pod that a source knows.
    fn sweep(&mut self, on_disk: Result<Vec<PodOnDisk>, DiskError>) {
        let known = |uid: &ResolvedPodUid| self.manager.pod_by_uid(uid).is_some();
        let mut gone = self.reconciler.served();
        match on_disk {
            Ok(found) => gone.extend(found.iter().map(|pod| ResolvedPodUid::new(&pod.uid))),
            Err(error) => error!(
                error = chain(&error),
                "cannot look for what an earlier agent left"
            ),
        }
        gone.retain(|uid| !known(uid));
        for uid in gone {
            self.reconciler.remove(&uid);
        }
    }
}

impl AgentHandle {
    /// Shows also the problems of somebody else, such as a directory of manifests.
    pub fn show_problems_of(&self, problems: watch::Receiver<Arc<[String]>>) {
        self.sources.lock().others.push(problems);
    }

    /// Whether every source has reported and every pod has been looked at.
    pub fn is_ready(&self) -> bool {
        self.sources.lock().silent.is_empty() && self.shared.board.is_settled()
    }

    /// Everything there is to tell.
    pub fn status(&self) -> AgentStatus {
        let sources = self.sources.lock();
        let silent_sources = sources.silent.iter().map(ToString::to_string).collect();
        let others: Vec<_> = sources
            .others
            .iter()
            .map(|problems| problems.borrow().clone())
            .collect();
        let others = others.iter().flat_map(|problems| problems.iter());
        let problems = sources
            .problems
            .values()
            .flatten()
            .chain(others)
            .cloned()
            .collect();
        drop(sources);
        let objects = objects(&self.shared.config_maps)
            .chain(objects(&self.shared.secrets))
            .collect();
        AgentStatus {
            node: self.about.node.clone(),
            root_dir: self.shared.host.path().display().to_string(),
            started: self.about.started,
            change_detection: self.about.change_detection.clone(),
            silent_sources,
            problems,
            pods: self.shared.board.pods(),
            objects,
        }
    }

    /// All metrics, as Prometheus reads them.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("text is written to memory");
        text
    }
}

fn objects<K: Object>(manager: &ObjectManager<K>) -> impl Iterator<Item = ObjectStatus> {
    manager.objects().into_iter().map(|object| ObjectStatus {
        kind: K::KIND.to_string(),
        namespace: object.key.namespace.to_string(),
        name: object.key.name.to_string(),
        state: object.state.as_str().to_owned(),
        resource_version: object.version.to_string(),
        age_secs: object.age.as_secs(),
        error: object
            .failure
            .map(|failure| chain(&*failure))
            .unwrap_or_default(),
        pods: object
            .pods
            .iter()
            .map(|pod| format!("{}/{}", pod.namespace, pod.name))
            .collect(),
    })
}
