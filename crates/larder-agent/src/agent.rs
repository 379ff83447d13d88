//! The agent as a whole: who feeds the reconciler, and who may look.
//!
//! Building and running are two steps. [`Agent::build`] opens what can fail; [`Agent::run`] owns every task and ends them all.

mod handle;
mod node_pods;

use std::{
    collections::{HashMap, HashSet},
    fmt, fs, io,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, future::OptionFuture};
use kube::Client;
use larder::{
    ConfigMapManager, ManagerConfig, ManagerMetrics, NodeTtl, ObjectChange, SecretManager,
};
use larder_objects::{Kind, chain};
use larder_pods::{
    PodManager, PodMerge, PodMetrics, PodSource, PodUid, ResolvedPodUid,
    lifecycle::PodLifecycle,
    mirror::{MirrorClient, MirrorReconciler, MirrorScope},
    source::{ApiSource, FileSource, HttpSource, HttpSourceError, SourceReport},
    static_pod::StaticPods,
};
use larder_projection::disk::{DiskError, Memory, PodOnDisk, VolumeHost};
use larder_watch::NodeContext;
use prometheus_client::registry::Registry;
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use self::handle::AgentHandle;
use self::{
    handle::About,
    node_pods::{Known, NodePods},
};
use crate::{
    blocking::blocking,
    certificates::{self, Certificates, SourceId},
    clock::Clock,
    config::Config,
    events::Events,
    facts::{Facts, follow_facts, follow_gaps, follow_trust_bundles},
    metrics::Metrics,
    node,
    pod_deleter::PodDeleter,
    reconcile::{Board, Reconciler, Shared},
    root_dir::RootDir,
    tasks::{TaskError, Tasks},
    tokens::Tokens,
};

/// Bounds of the delay between two attempts to register the Node; up to as much again is added by chance.
const REGISTRATION: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Reports of sources that may wait to be read. A source that is faster waits.
const REPORTS: usize = 16;
/// Longest wait for the passes under way after a background task has failed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Who ends a pod that the API server has marked as deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodEnd {
    /// Whoever runs its containers: a kubelet, a provider. The agent serves the pod until it is gone, and posts events about it.
    Elsewhere,
    /// The agent itself, at once: nobody runs containers, and nobody reads events. For the embedded API server.
    Agent,
}

/// The agent cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting of the managers.
    #[error("the configuration cannot be used")]
    Config(#[source] larder::ConfigError),
    /// `staticPodURL` or `staticPodURLHeader`.
    #[error("the URL of static pods cannot be used")]
    StaticPodUrl(#[source] HttpSourceError),
}

/// An agent that is ready to run.
pub struct Agent {
    config: Config,
    client: Client,
    /// Shared by all managers and collections.
    context: NodeContext,
    pod_end: PodEnd,
    http: Option<HttpSource>,
    facts: watch::Sender<Facts>,
    /// For the strategy `Cache`.
    node_ttl: NodeTtl,
    manager: PodManager,
    pod_metrics: PodMetrics,
    handle: AgentHandle,
    issuer: certificates::Issuer,
    gaps: Option<watch::Receiver<bool>>,
    /// Locked as long as the agent lives.
    root: RootDir,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// All that wakes the agent.
enum Event {
    Report(SourceReport),
    Object(Kind, ObjectChange),
    Facts,
    Certificate(SourceId),
    ClockJumped,
    /// The directories of the last run were listed.
    Scanned(Result<Vec<PodOnDisk>, DiskError>),
    VolumesGone(ResolvedPodUid),
    Failed(TaskError),
    Shutdown,
}

impl Agent {
    /// Prepares an agent that serves the pods of `config.node_name` at the API server of `client` on `host`, whose directory
    /// `root` has locked. `clock` is the [machine's](Clock::system), but in tests. Metrics are added to `registry`, whose prefix is
    /// the caller's; those that the kubelet has too are beside them, under its names.
    ///
    /// # Errors
    ///
    /// A setting of the managers or of the source of static pods cannot be used.
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
        clock: Clock,
        mut registry: Registry,
    ) -> Result<Self, BuildError> {
        let node_ttl = NodeTtl::default();
        let context = NodeContext::default();
        let managers = ManagerConfig::default()
            .strategy(config.change_detection)
            .watch_scope(config.watch_scope)
            .sync_frequency(config.sync_frequency)
            .node_ttl(node_ttl.clone())
            .max_watches(config.max_watches)
            .max_requests_in_flight(config.max_requests_in_flight)
            .node_context(&context);
        let counters = ManagerMetrics::default();
        counters.register(&mut registry);
        let http = config.static_pod_url.as_deref().map(|url| {
            let (headers, period) = (
                config.static_pod_url_headers.values(),
                config.http_check_frequency,
            );
            HttpSource::new(url, headers, period, static_pods(&config))
        });
        let http = http.transpose().map_err(BuildError::StaticPodUrl)?;
        let copies = root.manifests(PodSource::Http);
        let http = http.map(|http| http.remembering(copies));
        let manager = PodManager::default();
        let pod_metrics = PodMetrics::new(manager.reader());
        // Under the kubelet's own names, which dashboards know.
        let mut kubelets = Registry::with_prefix("kubelet");
        pod_metrics.register(&mut kubelets);
        let facts = watch::Sender::new(Facts::default());
        let (certificates, issuer) =
            Certificates::new(client.clone(), clock.clone(), &config.node_name, &context);
        let metrics = Metrics::register(&mut registry);
        let shared = Shared {
            config_maps: ConfigMapManager::with_metrics(client.clone(), &managers, &counters)
                .map_err(BuildError::Config)?,
            secrets: SecretManager::with_metrics(client.clone(), &managers, &counters)
                .map_err(BuildError::Config)?,
            tokens: Tokens::new(client.clone(), clock.clone()),
            certificates,
            events: (pod_end == PodEnd::Elsewhere).then(|| {
                Arc::new(Events::new(
                    client.clone(),
                    &config.node_name,
                    metrics.clone(),
                ))
            }),
            facts: facts.subscribe(),
            wants_trust_bundles: watch::Sender::new(false),
            host: Arc::new(host),
            metrics,
            board: Board::default(),
            sync_frequency: config.sync_frequency,
            clock,
        };
        let about = About {
            node: config.node_name.clone(),
            started: shared.clock.now(),
            change_detection: config.change_detection.to_string(),
            watch_scope: config.watch_scope.to_string(),
        };
        let handle = AgentHandle {
            shared: Arc::new(shared),
            pods: manager.reader(),
            sources: Arc::default(),
            registries: Arc::new([registry, kubelets]),
            about: Arc::new(about),
        };
        Ok(Self {
            config,
            client,
            context,
            pod_end,
            http,
            facts,
            node_ttl,
            manager,
            pod_metrics,
            handle,
            issuer,
            gaps: None,
            root,
        })
    }

    /// For an API server that is filled from manifests: `gaps` says whether it may lack what an earlier run had, since not every
    /// manifest can be read. As long as that is so, what it does not have is unknown and not absent: nothing on disk is taken down, and
    /// nothing is rewritten without an optional object.
    #[must_use]
    pub fn with_gaps(mut self, gaps: watch::Receiver<bool>) -> Self {
        let has_gaps = *gaps.borrow();
        self.facts.send_modify(|facts| facts.has_gaps = has_gaps);
        self.gaps = Some(gaps);
        self
    }

    /// A handle to look at the agent with.
    pub fn handle(&self) -> AgentHandle {
        self.handle.clone()
    }

    /// Serves until `shutdown`. Then every pass under way is finished, and the volumes stay as they are.
    ///
    /// # Errors
    ///
    /// A background task ended unexpectedly. The agent then stops as after `shutdown`, and the process should exit: a new one
    /// resumes from the volumes on disk.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), TaskError> {
        // Workers end with this one, which a failure cancels as well.
        let shutdown = shutdown.child_token();
        warn_of_exposed_secrets(&self.handle.shared.host);
        self.tidy().await;
        let (reports, mut inbox) = mpsc::channel(REPORTS);
        let mut tasks = Tasks::default();
        let expected = self.start_sources(reports, &mut tasks);
        let mirrors = self.start_mirrors(&mut tasks);

        let shared = self.handle.shared.clone();
        let mut config_maps = shared.config_maps.subscribe();
        let mut secrets = shared.secrets.subscribe();
        let mut facts = shared.facts.clone();
        let mut jumps = shared.clock.jumps();
        tasks.spawn("clock", shared.clock.clone().follow_machine());
        if let Some(events) = shared.events.clone() {
            tasks.spawn("events", async move { events.run().await });
        }
        let may_have_gaps = self.gaps.is_some();
        if let Some(gaps) = self.gaps {
            tasks.spawn("manifests", follow_gaps(gaps, self.facts.clone()));
        }
        let late_pods = may_have_gaps.then(|| {
            ApiSource::new(self.client.clone(), &self.config.node_name).with_context(&self.context)
        });
        let mut certificates = self.issuer.changes();
        tasks.spawn("pod certificates", self.issuer.run());
        let mut node = NodePods {
            manager: self.manager,
            merge: PodMerge::new(expected),
            lifecycle: PodLifecycle::new(true),
            registered: HashMap::new(),
            reconciler: Reconciler::new(shared.clone(), shutdown.clone()),
            deleter: PodDeleter::new((self.pod_end == PodEnd::Agent).then_some(self.client)),
            mirrors,
            metrics: self.pod_metrics,
            handle: self.handle,
            ready: false,
            rescan: false,
            known: Known {
                node: false,
                gaps: shared.facts.borrow().has_gaps,
            },
            epoch: 0,
        };
        node.tell();
        // What an earlier agent left is looked for as soon as all sources have reported.
        let mut scan = OptionFuture::default();
        let result = loop {
            // Every arm is cancel-safe. Shutdown goes first: tasks may end because of it.
            let event = tokio::select! {
                biased;
                () = shutdown.cancelled() => Event::Shutdown,
                error = tasks.failure() => Event::Failed(error),
                error = node.deleter.failure() => Event::Failed(error),
                Some(report) = inbox.recv() => Event::Report(report),
                change = config_maps.next() => object_event(Kind::ConfigMap, change),
                change = secrets.next() => object_event(Kind::Secret, change),
                Ok(()) = facts.changed() => Event::Facts,
                Some(source) = certificates.recv() => Event::Certificate(source),
                Ok(()) = jumps.changed() => Event::ClockJumped,
                Some(found) = &mut scan => Event::Scanned(found),
                ended = node.reconciler.worker_ended() => match ended {
                    Ok(uid) => Event::VolumesGone(uid),
                    Err(error) => Event::Failed(error),
                },
            };
            match event {
                Event::Shutdown => break Ok(()),
                Event::Failed(error) => break Err(error),
                Event::Report(report) => node.report(report),
                Event::Object(kind, change) => node.reconciler.object_changed(kind, &change.key),
                Event::Facts => node.facts_changed(),
                Event::Certificate(source) => node.reconciler.certificate_changed(source),
                Event::ClockJumped => node.reconciler.clock_jumped(),
                Event::Scanned(found) => {
                    scan = OptionFuture::default();
                    node.sweep(found);
                }
                Event::VolumesGone(uid) => node.volumes_gone(&uid),
            }
            if node.becomes_ready() || node.may_rescan() {
                let found = left_behind(shared.host.clone(), late_pods.clone());
                scan = Some(found.boxed()).into();
            }
        };
        shutdown.cancel();
        tasks.shutdown().await;
        let drained = node.reconciler.drain();
        match result {
            Ok(()) => drained.await,
            // A worker that hangs must not keep a failed agent from exiting.
            Err(error) => Err(timeout(DRAIN_TIMEOUT, drained)
                .await
                .map_or(error, |_| error)),
        }
    }

    /// Removes what an earlier agent left and nobody needs: links to pods that have no directory (the others will be linked anew),
    /// and copies of the manifests of a source that is off now.
    async fn tidy(&self) {
        let host = self.handle.shared.host.clone();
        let sources = [
            (PodSource::File, self.config.static_pod_path.is_none()),
            (PodSource::Http, self.config.static_pod_url.is_none()),
        ];
        let off = sources.into_iter().filter(|(_, off)| *off);
        let copies: Vec<_> = off.map(|(source, _)| self.root.manifests(source)).collect();
        blocking(move || {
            if let Err(error) = host.prune_names() {
                warn!(error = chain(&error), "links by name not tidied up");
            }
            for path in copies {
                match fs::remove_dir_all(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        warn!(%error, path = %path.display(), "copies of manifests not removed");
                    }
                    Ok(()) | Err(_) => {}
                }
            }
        })
        .await;
    }

    /// Starts whatever reports pods or facts; returns the sources of pods.
    fn start_sources(
        &mut self,
        reports: mpsc::Sender<SourceReport>,
        tasks: &mut Tasks,
    ) -> Vec<PodSource> {
        let (client, node_name) = (&self.client, &self.config.node_name);
        let facts = follow_facts(
            client.clone(),
            node_name.clone(),
            self.facts.clone(),
            self.node_ttl.clone(),
            self.context.clone(),
        );
        tasks.spawn("facts", facts);
        let trust_bundles = follow_trust_bundles(
            client.clone(),
            self.handle.shared.wants_trust_bundles.subscribe(),
            self.facts.clone(),
            self.context.clone(),
        );
        tasks.spawn("trust bundles", trust_bundles);
        let mut expected = vec![PodSource::Api];
        let source = ApiSource::new(client.clone(), node_name).with_context(&self.context);
        tasks.spawn("pod source api", source.run(reports.clone()));
        if let Some(path) = &self.config.static_pod_path {
            let period = self.config.file_check_frequency;
            let file = FileSource::new(path, period, static_pods(&self.config))
                .remembering(self.root.manifests(PodSource::File));
            tasks.spawn("pod source file", file.run(reports.clone()));
            expected.push(PodSource::File);
        }
        if let Some(http) = self.http.take() {
            tasks.spawn("pod source http", http.run(reports));
            expected.push(PodSource::Http);
        }
        expected
    }

    /// Starts what keeps the mirror pods, and the Node if that is wanted.
    fn start_mirrors(&self, tasks: &mut Tasks) -> watch::Sender<MirrorScope> {
        let mut mirrors = MirrorClient::new(self.client.clone(), &self.config.node_name);
        if self.config.register_node {
            mirrors = mirrors.registering(node::of_this_host(&self.config.node_name));
            tasks.spawn_finite("node registration", register_node(mirrors.clone()));
        }
        let scope = watch::Sender::new(MirrorScope::default());
        let reconciler = MirrorReconciler::new(mirrors, self.manager.reader(), scope.subscribe());
        self.handle.sources.lock().mirrors = Some(reconciler.problems());
        tasks.spawn("mirror pods", reconciler.run());
        scope
    }
}

/// A manager tells subscribers the end only if its own task ended.
fn object_event(kind: Kind, change: Option<ObjectChange>) -> Event {
    match (kind, change) {
        (kind, Some(change)) => Event::Object(kind, change),
        (Kind::ConfigMap, None) => Event::Failed(TaskError::ended("ConfigMap manager")),
        (Kind::Secret, None) => Event::Failed(TaskError::ended("Secret manager")),
    }
}

fn static_pods(config: &Config) -> StaticPods {
    StaticPods::new(&config.node_name, config.static_pod_api_references)
}

/// Creates the Node if there is none, as soon as the API server lets it.
async fn register_node(client: MirrorClient) {
    let mut delay = REGISTRATION.0;
    while let Err(error) = client.node().await {
        warn!(
            error = chain(&error),
            "node not registered, will be tried again"
        );
        sleep(delay.mul_f64(1.0 + fastrand::f64())).await;
        delay = (delay * 2).min(REGISTRATION.1);
    }
}

/// The pods on disk of which the API server says nothing that is still on its way.
async fn left_behind(
    host: Arc<VolumeHost>,
    late_pods: Option<ApiSource>,
) -> Result<Vec<PodOnDisk>, DiskError> {
    let bound = match late_pods {
        Some(source) => source.uids().await,
        None => HashSet::new(),
    };
    let mut found = blocking(move || host.scan()).await?;
    found.retain(|pod| !bound.contains(&PodUid::new(pod.uid.as_str())));
    Ok(found)
}

/// Logs where Secrets may end up other than in memory.
fn warn_of_exposed_secrets(host: &VolumeHost) {
    match host.memory() {
        Memory::Directory { in_memory: false } => warn!(
            path = %host.path().display(),
            "Secrets are kept on disk: this process may not mount a tmpfs, and the root directory is not in memory"
        ),
        Memory::Tmpfs { noswap: false } => warn!(
            path = %host.path().display(),
            "Secrets may get into swap space: tmpfs takes no `noswap` here (it needs Linux 6.4, outside of user namespaces)"
        ),
        Memory::Tmpfs { noswap: true } | Memory::Directory { in_memory: true } => {}
    }
}
