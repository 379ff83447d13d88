//! The agent as a whole: the sources that feed the reconciler, and the handle that shows its state.
//!
//! Building and running are two steps: [`AgentBuilder::build`] does what can fail; [`Agent::run`] owns every task and
//! ends them all.

mod handle;
mod node_pods;

use std::{collections::HashSet, fmt, fs, io, sync::Arc, time::Duration};

use fastrand::Rng;
use futures::{FutureExt as _, future::OptionFuture};
use kube::Client;
use larder::{
    ConfigMapManager, ManagerConfig, ManagerMetrics, NodeTtl, ObjectChange, SecretManager,
};
use larder_objects::{Kind, ObjectKey, chain};
use larder_on_change::Hook;
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
    sync::{mpsc, oneshot, watch},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use self::handle::{AgentHandle, Health};
use self::{
    handle::AgentInfo,
    node_pods::{ApiState, NodePods},
};
use crate::{
    beside::{Beside, KubeletDirError},
    blocking::blocking,
    certificates::{self, Certificates, SourceId},
    checkpoint::{
        ApiContact, Checkpoint, CheckpointBoard, CheckpointConfig, CheckpointDir, ClusterId,
        StaleNode,
    },
    clock::Clock,
    config::Config,
    events::Events,
    facts::{Facts, follow_facts, follow_incomplete, follow_trust_bundles},
    metrics::Metrics,
    node,
    on_change::{OnChange, OnChangeParts, PodChange, PodSelector, ProgramHook},
    pod_deleter::PodDeleter,
    reconcile::{AgentContext, Board, Reconciler},
    root_dir::RootDir,
    tasks::{TaskError, Tasks},
    tokens::Tokens,
};

/// Bounds of the delay between two attempts to register the Node; a random part of up to as much is added.
const REGISTRATION: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Reports of sources in the queue. A faster source waits.
const REPORTS: usize = 16;
/// Longest wait for the passes under way after a background task has failed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait for the last write of the checkpoint at the shutdown.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// The component that deletes a pod after the API server has marked it as deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodDeletion {
    /// The component that runs its containers: a kubelet, a provider. The agent serves the pod until it is gone, and
    /// posts events.
    External,
    /// The agent, at once: no containers run, and no user reads events. For the embedded API server.
    ByAgent,
}

/// The agent cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting of the managers.
    #[error("invalid configuration of the object managers")]
    Config(#[source] larder::ConfigError),
    /// `staticPodURL` or `staticPodURLHeader`.
    #[error("invalid staticPodURL or staticPodURLHeader")]
    StaticPodUrl(#[source] HttpSourceError),
    /// The kubelet's root directory, in the mode `Beside`.
    #[error("cannot read the kubelet's root directory")]
    KubeletDir(#[source] KubeletDirError),
}

/// Builds an [`Agent`]; made by [`Agent::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct AgentBuilder {
    config: Config,
    root: RootDir,
    host: VolumeHost,
    client: Client,
    pod_deletion: PodDeletion,
    clock: Clock,
    registry: Registry,
    rng: Rng,
    incomplete: Option<watch::Receiver<bool>>,
    hooks: Vec<ProgramHook>,
    cluster: Option<ClusterId>,
}

impl fmt::Debug for AgentBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentBuilder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl AgentBuilder {
    /// Sets which component deletes pods. Defaults to [`PodDeletion::External`]. Has no effect beside a kubelet, which
    /// deletes its pods.
    pub fn pod_deletion(mut self, pod_deletion: PodDeletion) -> Self {
        if self.config.beside.is_none() {
            self.pod_deletion = pod_deletion;
        }
        self
    }

    /// Sets the wall clock, for tests. Defaults to the [machine's](Clock::system).
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the registry that metrics are added to, with a prefix of the caller's choice. Metrics that the kubelet has
    /// too keep the kubelet's names, without that prefix. Defaults to an empty registry without a prefix.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Seeds every random choice, so that a test can be repeated. Defaults to a random seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.rng = Rng::with_seed(seed);
        self
    }

    /// For an API server that is filled from manifests. `incomplete` is true while a manifest cannot be read, so the
    /// server may lack objects of an earlier run. Meanwhile an object that it lacks counts as unknown, not as missing:
    /// nothing on disk is torn down, and no volume is rewritten without an optional object.
    pub fn incomplete(mut self, incomplete: watch::Receiver<bool>) -> Self {
        self.incomplete = Some(incomplete);
        self
    }

    /// Calls `handler` after each delivered change of a selected pod's content. `hook` sets the filter, the quiet period,
    /// the retries and the timeout, which defaults to none; its steps are not used. A handler that returns an error is
    /// called again. The error is a text without values. The handler is called at least once for each change, also
    /// across restarts of the program.
    pub fn on_change<F, R>(mut self, pods: PodSelector, hook: Hook, handler: F) -> Self
    where
        F: Fn(PodChange) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.hooks.push(ProgramHook {
            pods,
            hook: Arc::new(hook),
            handler: Arc::new(move |change| handler(change).boxed()),
        });
        self
    }

    /// Binds the configured checkpoint to this cluster. Without a cluster there is no checkpoint, because an embedded API
    /// server needs none.
    pub fn cluster(mut self, cluster: ClusterId) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// Builds the agent.
    ///
    /// # Errors
    ///
    /// A setting of the managers or of the source of static pods is invalid.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn build(self) -> Result<Agent, BuildError> {
        let Self {
            config,
            root,
            host,
            client,
            pod_deletion,
            clock,
            mut registry,
            mut rng,
            incomplete,
            hooks,
            cluster,
        } = self;
        let node_ttl = NodeTtl::default();
        let node_context = NodeContext::with_seed(rng.u64(..));
        let managers = managers(&config, &node_ttl, &node_context);
        let counters = ManagerMetrics::default();
        counters.register(&mut registry);
        let http = http_source(&config, &root)?;
        let manager = PodManager::default();
        let pod_metrics = PodMetrics::new(manager.reader());
        // Under the kubelet's own names, which dashboards use.
        let mut kubelets = Registry::with_prefix("kubelet");
        pod_metrics.register(&mut kubelets);
        let facts = initial_facts(incomplete.as_ref());
        let (certificates, issuer) = Certificates::new(
            client.clone(),
            clock.clone(),
            &config.node_name,
            rng.fork(),
            &node_context,
        );
        let metrics = Metrics::register(&mut registry, clock.now());
        let posts_events = pod_deletion == PodDeletion::External;
        let events = posts_events.then(|| {
            let (client, node) = (client.clone(), &config.node_name);
            Arc::new(Events::new(client, node, metrics.clone()))
        });
        let host = Arc::new(host);
        let beside = beside(&config, &client, &clock, &mut registry, &mut rng)?;
        let on_change = OnChange::new(OnChangeParts {
            config: config.on_change.clone(),
            program: hooks,
            host: Arc::clone(&host),
            clock: clock.clone(),
            events: events.clone(),
            registry: &mut registry,
            rng: rng.fork(),
        });
        let context = AgentContext {
            config_maps: ConfigMapManager::with_metrics(client.clone(), &managers, &counters)
                .map_err(BuildError::Config)?,
            secrets: SecretManager::with_metrics(client.clone(), &managers, &counters)
                .map_err(BuildError::Config)?,
            tokens: Tokens::new(client.clone(), clock.clone(), rng.fork()),
            certificates,
            events,
            facts: facts.subscribe(),
            wants_trust_bundles: watch::Sender::new(false),
            host,
            beside,
            metrics,
            on_change,
            board: Board::new(clock.now()),
            checkpoint: CheckpointBoard::default(),
            sync_frequency: config.sync_frequency.into(),
            clock,
        };
        let checkpoint = config.checkpoint.clone().zip(cluster);
        context.checkpoint.start(checkpoint.as_ref(), &mut registry);
        let info = AgentInfo {
            node: config.node_name.clone(),
            started: context.clock.now(),
            change_detection: config.change_detection.to_string(),
            watch_scope: config.watch_scope.to_string(),
        };
        let handle = AgentHandle {
            context: Arc::new(context),
            node_context: node_context.clone(),
            pods: manager.reader(),
            sources: Arc::default(),
            registries: Arc::new([registry, kubelets]),
            info: Arc::new(info),
        };
        Ok(Agent {
            config,
            client,
            node_context,
            pod_deletion,
            http,
            facts,
            node_ttl,
            manager,
            pod_metrics,
            handle,
            issuer,
            incomplete,
            rng,
            root,
            checkpoint,
        })
    }
}

/// An agent that is ready to run.
pub struct Agent {
    config: Config,
    client: Client,
    /// Shared by all managers and collections.
    node_context: NodeContext,
    pod_deletion: PodDeletion,
    http: Option<HttpSource>,
    facts: watch::Sender<Facts>,
    /// For the strategy `Cache`.
    node_ttl: NodeTtl,
    manager: PodManager,
    pod_metrics: PodMetrics,
    handle: AgentHandle,
    issuer: certificates::Issuer,
    incomplete: Option<watch::Receiver<bool>>,
    rng: Rng,
    /// Locked as long as the agent lives.
    root: RootDir,
    checkpoint: Option<(CheckpointConfig, ClusterId)>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Everything that wakes the agent.
enum AgentEvent {
    Report(SourceReport),
    Object(Kind, ObjectKey),
    Facts,
    Certificate(SourceId),
    ClockJumped,
    HooksReloaded,
    /// The API server has not answered in time.
    Stale(Box<StaleNode>),
    /// The directories of the previous run were listed.
    Scanned(Result<Vec<PodOnDisk>, DiskError>),
    VolumesGone(ResolvedPodUid),
    Failed(TaskError),
    Shutdown,
}

impl Agent {
    /// Prepares an agent that serves the pods of `config.node_name` at the API server of `client` on `host`, whose
    /// directory `root` has locked.
    pub fn builder(
        config: Config,
        root: RootDir,
        host: VolumeHost,
        client: Client,
    ) -> AgentBuilder {
        AgentBuilder {
            config,
            root,
            host,
            client,
            pod_deletion: PodDeletion::External,
            clock: Clock::system(),
            registry: Registry::default(),
            rng: Rng::new(),
            incomplete: None,
            hooks: Vec::new(),
            cluster: None,
        }
    }

    /// A handle that shows the agent's state.
    pub fn handle(&self) -> AgentHandle {
        self.handle.clone()
    }

    /// Serves until `shutdown`. Then every pass under way is finished, and the volumes stay as they are.
    ///
    /// # Errors
    ///
    /// A background task ended unexpectedly. The agent then stops as after `shutdown`, and the process should exit: a
    /// new one resumes from the volumes on disk.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), TaskError> {
        // Workers end with this one, which a failure cancels as well.
        let shutdown = shutdown.child_token();
        warn_of_exposed_secrets(&self.handle.context.host);
        self.tidy().await;
        let (reports, mut inbox) = mpsc::channel(REPORTS);
        let mut tasks = Tasks::default();
        let expected = self.start_sources(reports, &mut tasks);
        let mirrors = self.start_mirrors(&mut tasks);

        let context = self.handle.context.clone();
        let mut config_maps = context.config_maps.subscribe();
        let mut secrets = context.secrets.subscribe();
        let mut facts = context.facts.clone();
        let mut jumps = context.clock.jumps();
        tasks.spawn("clock", context.clock.clone().follow_machine());
        tasks.spawn("hooks", context.on_change.clone().run(shutdown.clone()));
        if let Some(events) = context.events.clone() {
            tasks.spawn("events", async move { events.run().await });
        }
        let late_pods = self.follow_manifests(&mut tasks);
        let mut certificates = self.issuer.changes();
        tasks.spawn("pod certificates", self.issuer.run());
        let (contact, changed) = (watch::Sender::default(), watch::Sender::default());
        let mut checkpoint = start_checkpoint(
            self.checkpoint,
            &self.config,
            &self.root,
            &self.handle,
            (contact.subscribe(), changed.subscribe()),
            &mut tasks,
            &shutdown,
        );
        let mut node = NodePods {
            manager: self.manager,
            merge: PodMerge::new(expected),
            lifecycle: PodLifecycle::new(true),
            reconciler: Reconciler::new(context.clone(), self.rng, shutdown.clone()),
            deleter: PodDeleter::new(
                (self.pod_deletion == PodDeletion::ByAgent).then_some(self.client),
            ),
            mirrors,
            metrics: self.pod_metrics,
            handle: self.handle,
            ready: false,
            rescan: false,
            known: ApiState {
                node: false,
                incomplete: context.facts.borrow().incomplete,
            },
            epoch: 0,
            facts: self.facts,
            contact,
            changed,
        };
        node.publish();
        // Volumes of an earlier agent are looked for as soon as all sources have reported.
        let mut scan = OptionFuture::default();
        let result = loop {
            // Every arm is cancel-safe. Shutdown goes first: tasks may end because of it.
            let event = tokio::select! {
                biased;
                () = shutdown.cancelled() => AgentEvent::Shutdown,
                error = tasks.failure() => AgentEvent::Failed(error),
                error = node.deleter.failure() => AgentEvent::Failed(error),
                Some(report) = inbox.recv() => AgentEvent::Report(report),
                change = config_maps.next() => object_event(Kind::ConfigMap, change),
                change = secrets.next() => object_event(Kind::Secret, change),
                Ok(()) = facts.changed() => AgentEvent::Facts,
                Some(source) = certificates.recv() => AgentEvent::Certificate(source),
                Ok(()) = jumps.changed() => AgentEvent::ClockJumped,
                () = context.on_change.reloaded() => AgentEvent::HooksReloaded,
                Some(stale) = checkpoint.stale.recv() => AgentEvent::Stale(Box::new(stale)),
                Some(found) = &mut scan => AgentEvent::Scanned(found),
                ended = node.reconciler.worker_ended() => match ended {
                    Ok(uid) => AgentEvent::VolumesGone(uid),
                    Err(error) => AgentEvent::Failed(error),
                },
            };
            match event {
                AgentEvent::Shutdown => break Ok(()),
                AgentEvent::Failed(error) => break Err(error),
                AgentEvent::Report(report) => node.report(report),
                AgentEvent::Object(kind, key) => node.reconciler.object_changed(kind, &key),
                AgentEvent::Facts => node.facts_changed(),
                AgentEvent::Certificate(source) => node.reconciler.certificate_changed(source),
                AgentEvent::ClockJumped => node.reconciler.clock_jumped(),
                AgentEvent::HooksReloaded => node.reconciler.hooks_changed(),
                AgentEvent::Stale(stale) => node.serve_stale(*stale),
                AgentEvent::Scanned(found) => {
                    scan = OptionFuture::default();
                    node.sweep(found);
                }
                AgentEvent::VolumesGone(uid) => node.volumes_gone(&uid),
            }
            if node.becomes_ready() || node.may_rescan() {
                let found = left_behind(context.host.clone(), late_pods.clone());
                scan = Some(found.boxed()).into();
            }
        };
        shutdown.cancel();
        checkpoint.finish().await;
        end(node.reconciler, &context.on_change, tasks, result).await
    }

    /// Starts the task that follows whether the API server is incomplete. Returns the source of its pods, which is asked
    /// once it is complete.
    fn follow_manifests(&mut self, tasks: &mut Tasks) -> Option<ApiSource> {
        let incomplete = self.incomplete.take()?;
        tasks.spawn(
            "manifests",
            follow_incomplete(incomplete, self.facts.clone()),
        );
        let source = ApiSource::new(self.client.clone(), &self.config.node_name);
        Some(source.with_context(&self.node_context))
    }

    /// Removes leftovers of an earlier agent: links to pods without a directory, and copies of the manifests of a source
    /// that is now disabled.
    async fn tidy(&self) {
        let host = self.handle.context.host.clone();
        let sources = [
            (PodSource::File, self.config.static_pod_path.is_none()),
            (PodSource::Http, self.config.static_pod_url.is_none()),
        ];
        let off = sources.into_iter().filter(|(_, off)| *off);
        let copies: Vec<_> = off.map(|(source, _)| self.root.manifests(source)).collect();
        blocking(move || {
            if let Err(error) = host.prune_names() {
                warn!(error = chain(&error), "failed to remove stale links by name, leaving them");
            }
            for path in copies {
                match fs::remove_dir_all(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        warn!(%error, path = %path.display(), "failed to remove copies of manifests, leaving them");
                    }
                    Ok(()) | Err(_) => {}
                }
            }
        })
        .await;
    }

    /// Starts the tasks that report pods or facts; returns the sources of pods.
    fn start_sources(
        &mut self,
        reports: mpsc::Sender<SourceReport>,
        tasks: &mut Tasks,
    ) -> Vec<PodSource> {
        let (client, node_name) = (&self.client, &self.config.node_name);
        let beside = self.handle.context.beside.as_ref();
        let node_state = beside.map(|beside| beside.kubelet()).unwrap_or_default();
        let facts = follow_facts(
            client.clone(),
            node_name.clone(),
            self.facts.clone(),
            self.node_ttl.clone(),
            node_state,
            self.node_context.clone(),
        );
        tasks.spawn("facts", facts);
        let trust_bundles = follow_trust_bundles(
            client.clone(),
            self.handle.context.wants_trust_bundles.subscribe(),
            self.facts.clone(),
            self.node_context.clone(),
        );
        tasks.spawn("trust bundles", trust_bundles);
        let mut expected = vec![PodSource::Api];
        let source = ApiSource::new(client.clone(), node_name).with_context(&self.node_context);
        tasks.spawn("pod source api", source.run(reports.clone()));
        // Static pods are the kubelet's, and name no objects.
        if let Some(beside) = &self.handle.context.beside {
            beside.start(tasks, &self.node_context, self.rng.fork());
            return expected;
        }
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

    /// Starts the task that keeps the mirror pods, and registers the Node if that is configured.
    fn start_mirrors(&mut self, tasks: &mut Tasks) -> watch::Sender<MirrorScope> {
        let scope = watch::Sender::new(MirrorScope::default());
        // Mirror pods and the Node are the kubelet's.
        if self.handle.context.beside.is_some() {
            return scope;
        }
        let mut mirrors = MirrorClient::new(self.client.clone(), &self.config.node_name);
        if self.config.register_node {
            mirrors = mirrors.registering(node::of_this_host(&self.config.node_name));
            tasks.spawn_finite(
                "node registration",
                register_node(mirrors.clone(), self.rng.fork()),
            );
        }
        let reconciler = MirrorReconciler::new(mirrors, self.manager.reader(), scope.subscribe());
        self.handle.sources.lock().mirrors = Some(reconciler.problems());
        tasks.spawn("mirror pods", reconciler.run());
        scope
    }
}

/// Ends everything after the shutdown: rounds of hooks, tasks, and the passes under way.
async fn end(
    reconciler: Reconciler,
    on_change: &OnChange,
    mut tasks: Tasks,
    result: Result<(), TaskError>,
) -> Result<(), TaskError> {
    // Running steps of hooks get their time, which the task of hooks bounds.
    let drained = timeout(DRAIN_TIMEOUT, on_change.drained());
    if result.is_ok() && drained.await.is_err() {
        warn!("rounds of hooks still running at the shutdown deadline, exiting anyway");
    }
    tasks.shutdown().await;
    let drained = reconciler.drain();
    match result {
        Ok(()) => drained.await,
        // A worker that hangs must not keep a failed agent from exiting.
        Err(error) => Err(timeout(DRAIN_TIMEOUT, drained)
            .await
            .map_or(error, |_| error)),
    }
}

/// What the workers share in the mode `Beside`.
fn beside(
    config: &Config,
    client: &Client,
    clock: &Clock,
    registry: &mut Registry,
    rng: &mut Rng,
) -> Result<Option<Arc<Beside>>, BuildError> {
    let Some(settings) = config.beside.clone() else {
        return Ok(None);
    };
    let (client, clock) = (client.clone(), clock.clone());
    let beside = Beside::new(
        settings,
        &config.node_name,
        client,
        clock,
        registry,
        rng.fork(),
    );
    let beside = beside.map_err(BuildError::KubeletDir)?;
    Ok(Some(Arc::new(beside)))
}

/// The facts before the first report.
fn initial_facts(incomplete: Option<&watch::Receiver<bool>>) -> watch::Sender<Facts> {
    watch::Sender::new(Facts {
        incomplete: incomplete.is_some_and(|incomplete| *incomplete.borrow()),
        ..Facts::default()
    })
}

/// The ends of the checkpoint's task.
struct RunningCheckpoint {
    stale: mpsc::Receiver<StaleNode>,
    /// Ends when the last write is done; `None` if there is no checkpoint.
    finished: Option<oneshot::Receiver<()>>,
}

impl RunningCheckpoint {
    /// Waits for the last write after the shutdown, but not for a disk that hangs.
    async fn finish(self) {
        if let Some(finished) = self.finished {
            // Its sender is dropped, whether or not the write failed, which is in the log.
            let _ = timeout(LAST_WRITE_TIMEOUT, finished).await;
        }
    }
}

/// Starts the task of the checkpoint, if there is one.
fn start_checkpoint(
    settings: Option<(CheckpointConfig, ClusterId)>,
    config: &Config,
    root: &RootDir,
    handle: &AgentHandle,
    (contact, pods_changed): (watch::Receiver<ApiContact>, watch::Receiver<()>),
    tasks: &mut Tasks,
    shutdown: &CancellationToken,
) -> RunningCheckpoint {
    let (sender, stale) = mpsc::channel(1);
    let finished = settings.map(|(settings, cluster)| {
        let (done, finished) = oneshot::channel();
        let checkpoint = Checkpoint {
            config: settings,
            cluster,
            node: config.node_name.clone(),
            directory: CheckpointDir::new(config, root),
            context: Arc::clone(&handle.context),
            pods: handle.pods.clone(),
            pods_changed,
            contact,
            stale: sender,
            done,
        };
        tasks.spawn("checkpoint", checkpoint.run(shutdown.clone()));
        finished
    });
    RunningCheckpoint { stale, finished }
}

/// The change streams of the managers end only if a manager's own task has ended.
fn object_event(kind: Kind, change: Option<ObjectChange>) -> AgentEvent {
    match (kind, change) {
        (kind, Some(change)) => AgentEvent::Object(kind, change.key),
        (Kind::ConfigMap, None) => AgentEvent::Failed(TaskError::ended("ConfigMap manager")),
        (Kind::Secret, None) => AgentEvent::Failed(TaskError::ended("Secret manager")),
    }
}

/// The configuration of both managers.
fn managers(config: &Config, node_ttl: &NodeTtl, node_context: &NodeContext) -> ManagerConfig {
    ManagerConfig::default()
        .strategy(config.change_detection)
        .watch_scope(config.watch_scope)
        .sync_frequency(config.sync_frequency)
        .node_ttl(node_ttl.clone())
        .max_watches(config.max_watches)
        .max_requests_in_flight(config.max_requests_in_flight)
        .node_context(node_context)
}

/// The source of static pods at `staticPodURL`.
fn http_source(config: &Config, root: &RootDir) -> Result<Option<HttpSource>, BuildError> {
    let Some(url) = config.static_pod_url.as_deref() else {
        return Ok(None);
    };
    let headers = config.static_pod_url_headers.values();
    let period = config.http_check_frequency;
    let source = HttpSource::new(url, headers, period, static_pods(config));
    let source = source.map_err(BuildError::StaticPodUrl)?;
    Ok(Some(source.remembering(root.manifests(PodSource::Http))))
}

fn static_pods(config: &Config) -> StaticPods {
    StaticPods::new(&config.node_name, config.static_pod_api_references)
}

/// Creates the Node if there is none, as soon as the API server permits it.
async fn register_node(client: MirrorClient, mut rng: Rng) {
    let mut delay = REGISTRATION.0;
    while let Err(error) = client.node().await {
        warn!(error = chain(&error), "failed to register node, will retry");
        sleep(delay.mul_f64(1.0 + rng.f64())).await;
        delay = (delay * 2).min(REGISTRATION.1);
    }
}

/// The pods on disk that the API server has not bound to this node.
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

/// Warns if Secrets may leave memory.
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
