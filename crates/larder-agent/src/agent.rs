//! The agent as a whole: who feeds the reconciler, and who may look.
//!
//! Building and running are two steps. [`Agent::build`] opens what can fail; [`Agent::run`] owns every task and ends them all.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt, fs, io, mem,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, future::OptionFuture};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use larder::{
    ConfigMapManager, ManagerConfig, ManagerMetrics, NodeTtl, ObjectChange, ObjectManager,
    SecretManager,
    pods::{
        Operation, PodManager, PodMerge, PodMetrics, PodSource, PodUid, Pods, ResolvedPodUid,
        identity::{is_mirror_pod, is_static_pod},
        lifecycle::{HeldBecause, PodLife, PodLifecycle, Step},
        mirror::{MirrorClient, MirrorProblems, MirrorReconciler, MirrorScope},
        source::{ApiSource, FileSource, HttpSource, HttpSourceError, SourceEvent, SourceReport},
        static_pod::StaticPods,
    },
};
use larder_objects::{Kind, Object, ObjectKey, chain};
use larder_projection::disk::{DiskError, Memory, PodOnDisk, VolumeHost};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    registry::Registry,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    blocking::blocking,
    certificates::{self, Certificates, SourceId},
    clock::Clock,
    config::Config,
    ender::Ender,
    events::Events,
    facts::{Facts, follow_facts, follow_gaps, follow_trust_bundles},
    metrics::Metrics,
    node,
    reconcile::{Board, Reconciler, Shared},
    root_dir::RootDir,
    status::{AgentStatus, ObjectStatus, PodStatus, ServedPod, WatchScopeStatus},
    tokens::Tokens,
};

/// Bounds of the delay between two attempts to register the Node; up to as much again is added by chance.
const REGISTRATION: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Reports of sources that may wait to be read. A source that is faster waits.
const REPORTS: usize = 16;

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

/// Looks at a running agent. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct AgentHandle {
    shared: Arc<Shared>,
    pods: Pods,
    sources: Arc<Mutex<Sources>>,
    registries: Arc<[Registry; 2]>,
    about: Arc<About>,
}

/// What does not change while the agent runs.
#[derive(Debug)]
struct About {
    node: String,
    started: Timestamp,
    change_detection: String,
    watch_scope: String,
}

/// What the sources have said of themselves.
#[derive(Debug, Default)]
struct Sources {
    /// All have reported, and what they reported is on the board.
    ready: bool,
    silent: Vec<PodSource>,
    problems: BTreeMap<PodSource, Vec<String>>,
    /// Of those who feed the API server.
    others: Vec<watch::Receiver<Arc<[String]>>>,
    mirrors: Option<watch::Receiver<MirrorProblems>>,
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
        let managers = ManagerConfig {
            strategy: config.change_detection,
            watch_scope: config.watch_scope,
            sync_frequency: config.sync_frequency,
            node_ttl: node_ttl.clone(),
            max_watches: config.max_watches,
            max_requests_in_flight: config.max_requests_in_flight,
            ..ManagerConfig::default()
        };
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
            Certificates::new(client.clone(), clock.clone(), &config.node_name);
        let shared = Shared {
            config_maps: ConfigMapManager::with_metrics(client.clone(), &managers, &counters)
                .map_err(BuildError::Config)?,
            secrets: SecretManager::with_metrics(client.clone(), &managers, &counters)
                .map_err(BuildError::Config)?,
            tokens: Tokens::new(client.clone(), clock.clone()),
            certificates,
            events: (pod_end == PodEnd::Elsewhere)
                .then(|| Arc::new(Events::new(client.clone(), &config.node_name))),
            facts: facts.subscribe(),
            wants_trust_bundles: watch::Sender::new(false),
            host: Arc::new(host),
            metrics: Metrics::register(&mut registry),
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
    pub async fn run(mut self, shutdown: CancellationToken) {
        if let Memory::Directory { in_memory: false } = self.handle.shared.host.memory() {
            warn!(
                path = %self.handle.shared.host.path().display(),
                "Secrets are kept on disk: this process may not mount a tmpfs, and the root directory is not in memory"
            );
        }
        self.tidy().await;
        let (reports, mut inbox) = mpsc::channel(REPORTS);
        let mut tasks = JoinSet::new();
        let expected = self.start_sources(reports, &mut tasks);
        let mirrors = self.start_mirrors(&mut tasks);

        let shared = self.handle.shared.clone();
        let mut config_maps = shared.config_maps.subscribe();
        let mut secrets = shared.secrets.subscribe();
        let mut facts = shared.facts.clone();
        let mut jumps = shared.clock.jumps();
        tasks.spawn(shared.clock.clone().follow_machine());
        if let Some(events) = shared.events.clone() {
            tasks.spawn(async move { events.run().await });
        }
        let may_have_gaps = self.gaps.is_some();
        if let Some(gaps) = self.gaps {
            tasks.spawn(follow_gaps(gaps, self.facts.clone()));
        }
        let late_pods =
            may_have_gaps.then(|| ApiSource::new(self.client.clone(), &self.config.node_name));
        let mut certificates = self.issuer.changes();
        tasks.spawn(self.issuer.run());
        let mut node = NodePods {
            manager: self.manager,
            merge: PodMerge::new(expected),
            lifecycle: PodLifecycle::new(true),
            registered: HashMap::new(),
            reconciler: Reconciler::new(shared.clone(), shutdown.clone()),
            ender: Ender::new((self.pod_end == PodEnd::Agent).then_some(self.client)),
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
        loop {
            // Every arm is cancel-safe.
            let event = tokio::select! {
                biased;
                () = shutdown.cancelled() => Event::Shutdown,
                Some(report) = inbox.recv() => Event::Report(report),
                Some(change) = config_maps.next() => Event::Object(Kind::ConfigMap, change),
                Some(change) = secrets.next() => Event::Object(Kind::Secret, change),
                Ok(()) = facts.changed() => Event::Facts,
                Some(source) = certificates.recv() => Event::Certificate(source),
                Ok(()) = jumps.changed() => Event::ClockJumped,
                Some(found) = &mut scan => Event::Scanned(found),
                uid = node.reconciler.volumes_gone() => Event::VolumesGone(uid),
            };
            match event {
                Event::Shutdown => break,
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
        }
        tasks.shutdown().await;
        node.reconciler.drain().await;
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
        tasks: &mut JoinSet<()>,
    ) -> Vec<PodSource> {
        let (client, node_name) = (&self.client, &self.config.node_name);
        tasks.spawn(follow_facts(
            client.clone(),
            node_name.clone(),
            self.facts.clone(),
            self.node_ttl.clone(),
        ));
        tasks.spawn(follow_trust_bundles(
            client.clone(),
            self.handle.shared.wants_trust_bundles.subscribe(),
            self.facts.clone(),
        ));
        let mut expected = vec![PodSource::Api];
        tasks.spawn(ApiSource::new(client.clone(), node_name).run(reports.clone()));
        if let Some(path) = &self.config.static_pod_path {
            let period = self.config.file_check_frequency;
            let file = FileSource::new(path, period, static_pods(&self.config))
                .remembering(self.root.manifests(PodSource::File));
            tasks.spawn(file.run(reports.clone()));
            expected.push(PodSource::File);
        }
        if let Some(http) = self.http.take() {
            tasks.spawn(http.run(reports));
            expected.push(PodSource::Http);
        }
        expected
    }

    /// Starts what keeps the mirror pods, and the Node if that is wanted.
    fn start_mirrors(&self, tasks: &mut JoinSet<()>) -> watch::Sender<MirrorScope> {
        let mut mirrors = MirrorClient::new(self.client.clone(), &self.config.node_name);
        if self.config.register_node {
            mirrors = mirrors.registering(node::of_this_host(&self.config.node_name));
            tasks.spawn(register_node(mirrors.clone()));
        }
        let scope = watch::Sender::new(MirrorScope::default());
        let reconciler = MirrorReconciler::new(mirrors, self.manager.reader(), scope.subscribe());
        self.handle.sources.lock().mirrors = Some(reconciler.problems());
        tasks.spawn(reconciler.run());
        scope
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

/// The pods of the node: what the sources report, and what becomes of it.
struct NodePods {
    manager: PodManager,
    merge: PodMerge,
    lifecycle: PodLifecycle,
    /// The pods as they were registered with the object managers.
    registered: HashMap<ResolvedPodUid, Arc<Pod>>,
    reconciler: Reconciler,
    ender: Ender,
    mirrors: watch::Sender<MirrorScope>,
    metrics: PodMetrics,
    handle: AgentHandle,
    /// All sources have reported.
    ready: bool,
    /// What an earlier agent left is to be looked for once more.
    rescan: bool,
    known: Known,
    /// See [`MirrorScope::epoch`].
    epoch: u64,
}

/// What was known of the API server last.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// There is a Node.
    node: bool,
    /// It may lack objects that there are.
    gaps: bool,
}

impl NodePods {
    fn report(&mut self, report: SourceReport) {
        match report.event {
            SourceEvent::Pods(pods) => {
                let now = self.handle.shared.clock.now();
                let merged = self.merge.merge(report.source, pods, now);
                for duplicate in merged.duplicates {
                    warn!(error = %duplicate, "pod not served");
                }
                for update in merged.updates {
                    for pod in update.pods {
                        self.handle_pod(update.operation, &pod);
                    }
                }
                self.tell();
            }
            SourceEvent::Problems(problems) => {
                let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
                for problem in &problems {
                    warn!(source = %report.source, %problem, "not all pods are seen, those last known stay");
                }
                let count = problems.len();
                let mut sources = self.handle.sources.lock();
                let before = sources.problems.insert(report.source, problems);
                drop(sources);
                let is_better = before.is_some_and(|before| before.len() > count);
                if is_better && report.source == PodSource::Api {
                    self.begin_epoch();
                }
            }
        }
    }

    fn facts_changed(&mut self) {
        self.reconciler.facts_changed();
        let known = {
            let facts = self.handle.shared.facts.borrow();
            Known {
                node: facts.node.is_some(),
                gaps: facts.has_gaps,
            }
        };
        let before = mem::replace(&mut self.known, known);
        if before.gaps && !known.gaps {
            info!("every manifest can be read now, or is gone");
            self.reconciler.any_object_changed();
            self.rescan = true;
        }
        if known.node && !before.node {
            self.begin_epoch();
        }
    }

    /// The API server or the Node is back, as far as can be seen.
    fn begin_epoch(&mut self) {
        self.epoch += 1;
        self.tell();
    }

    fn handle_pod(&mut self, operation: Operation, pod: &Arc<Pod>) {
        if operation == Operation::Remove {
            self.manager.remove_pod(pod);
        } else {
            self.manager.update_pod(pod.clone());
        }
        if operation != Operation::Remove
            && !is_mirror_pod(pod)
            && pod.metadata.deletion_timestamp.is_some()
        {
            self.ender.end(pod);
        }
        let steps = self.lifecycle.handle(operation, pod);
        self.take(steps);
        let uid = ResolvedPodUid::new(PodUid::of(pod).as_str());
        match self.lifecycle.life(&uid) {
            None => self.reconciler.forget(&uid),
            Some(PodLife::Held(because)) => self.reconciler.hold(pod, held(because)),
            Some(PodLife::Served | PodLife::Retiring { .. } | PodLife::Finished) => {}
        }
    }

    fn take(&mut self, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Serve(pod) => {
                    let uid = ResolvedPodUid::new(PodUid::of(&pod).as_str());
                    self.reconciler.serve(&pod);
                    self.registered.insert(uid, pod);
                }
                Step::Retire(pod) => {
                    self.reconciler.retire(&pod);
                }
                Step::Unregister(uid) => {
                    if let Some(pod) = self.registered.remove(&uid) {
                        self.reconciler.unregister(&pod);
                    }
                }
            }
        }
    }

    fn volumes_gone(&mut self, uid: &ResolvedPodUid) {
        let steps = self.lifecycle.volumes_gone(uid);
        self.take(steps);
        if self.lifecycle.life(uid).is_none() {
            self.reconciler.forget(uid);
        }
        self.tell();
    }

    /// Tells everybody who wants to know how things stand.
    fn tell(&self) {
        {
            let mut sources = self.handle.sources.lock();
            sources.ready = self.ready;
            sources.silent = self.merge.silent_sources().collect();
        }
        self.metrics
            .observe(self.lifecycle.working(), self.lifecycle.restarted());
        self.mirrors.send_replace(MirrorScope {
            all_sources_seen: self.ready,
            ending: self.lifecycle.ending_static_pods(),
            epoch: self.epoch,
        });
    }

    /// Whether all sources have reported now, for the first time.
    fn becomes_ready(&mut self) -> bool {
        if self.ready || !self.merge.all_sources_seen() {
            return false;
        }
        self.ready = true;
        let steps = self.lifecycle.all_sources_seen();
        self.take(steps);
        self.tell();
        true
    }

    /// Whether to look once more for what an earlier agent left: nothing is hidden any more.
    fn may_rescan(&mut self) -> bool {
        self.ready && mem::take(&mut self.rescan)
    }

    /// Removes what an earlier agent left of pods that are gone or have ended; as long as the API server has gaps, they only may be.
    fn sweep(&mut self, on_disk: Result<Vec<PodOnDisk>, DiskError>) {
        match on_disk {
            Ok(found) => {
                for pod in found {
                    let uid = ResolvedPodUid::new(pod.uid);
                    if !matches!(
                        self.lifecycle.life(&uid),
                        Some(PodLife::Served | PodLife::Retiring { .. })
                    ) {
                        let name = pod
                            .name
                            .map(|(namespace, name)| ObjectKey::new(namespace, name));
                        let shown = name.as_ref().map(tracing::field::display);
                        if self.known.gaps {
                            warn!(pod = shown, pod.uid = %uid, "{KEPT}");
                            self.reconciler.keep(&uid, name, KEPT);
                            continue;
                        }
                        info!(pod = shown, pod.uid = %uid, "pod went while no agent was there");
                        self.reconciler.clean_up(&uid, name);
                    }
                }
            }
            Err(error) => error!(
                error = chain(&error),
                "cannot look for what an earlier agent left"
            ),
        }
    }
}

/// Why a pod of which only the volumes are known stays, for people.
const KEPT: &str =
    "no manifest has this pod, but not all can be read: its volumes stay as they are";

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

/// Why a pod is not served, for people.
fn held(because: &HeldBecause) -> &'static str {
    match because {
        HeldBecause::NetworkNotReady => "the network of the node is not ready",
        HeldBecause::NameInUse => "another static pod has its name",
        HeldBecause::EndedUnstarted => "it was to end before it could start",
    }
}

impl AgentHandle {
    /// Shows also the problems of somebody else, such as a directory of manifests.
    pub fn show_problems_of(&self, problems: watch::Receiver<Arc<[String]>>) {
        self.sources.lock().others.push(problems);
    }

    /// Whether every source has reported and every pod has been looked at.
    pub fn is_ready(&self) -> bool {
        self.sources.lock().ready && self.shared.board.is_settled()
    }

    /// Everything there is to tell.
    pub fn status(&self) -> AgentStatus {
        let sources = self.sources.lock();
        let silent_sources = sources.silent.iter().map(ToString::to_string).collect();
        let mirrors = sources.mirrors.iter().flat_map(|problems| {
            let problems = problems.borrow();
            let texts = problems.iter().map(|(pod, error)| {
                format!(
                    "mirror pod of {}/{}: {}",
                    pod.namespace,
                    pod.name,
                    chain(error)
                )
            });
            texts.collect::<Vec<_>>()
        });
        let mirrors: Vec<_> = mirrors.collect();
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
            .chain(&mirrors)
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
            watch_scope: self.about.watch_scope.clone(),
            watch_scopes: watch_scopes(&self.shared.config_maps)
                .chain(watch_scopes(&self.shared.secrets))
                .collect(),
            silent_sources,
            problems,
            pods: self.pod_statuses(),
            objects,
        }
    }

    fn pod_statuses(&self) -> Vec<PodStatus> {
        let mut statuses = self.shared.board.pods();
        for status in &mut statuses {
            let pod = self.pods.pod_by_uid(&ResolvedPodUid::new(&*status.uid));
            let Some(pod) = pod else { continue };
            let deleted = pod.metadata.deletion_timestamp.as_ref();
            status.deletion_timestamp = deleted.map(|time| time.0);
            if is_static_pod(&pod) {
                let mirror = self.pods.mirror_pod_by_pod(&pod);
                status.mirror = mirror.and_then(|mirror| mirror.metadata.uid.clone());
            }
        }
        statuses
    }

    /// The pod of this name, if the agent serves it; of several, the one that is not about to go.
    pub fn served_pod(&self, namespace: &str, name: &str) -> Option<ServedPod> {
        let statuses = self.pod_statuses().into_iter();
        let named = statuses.filter(|pod| pod.namespace == namespace && pod.name == name);
        let served = named.filter_map(|status| {
            let pod = self.pods.pod_by_uid(&ResolvedPodUid::new(&*status.uid))?;
            let pod = Arc::unwrap_or_clone(pod);
            Some(ServedPod { status, pod })
        });
        served.min_by_key(|served| served.status.delivery.phase)
    }

    /// All metrics, as Prometheus reads them.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        let written = self
            .registries
            .iter()
            .try_for_each(|registry| encode_registry(&mut text, registry))
            .and_then(|()| encode_eof(&mut text));
        written.expect("text is written to memory");
        text
    }
}

fn watch_scopes<K: Object>(manager: &ObjectManager<K>) -> impl Iterator<Item = WatchScopeStatus> {
    manager.scopes().into_iter().map(|scope| WatchScopeStatus {
        kind: K::KIND.to_string(),
        namespace: scope.namespace.to_string(),
        scope: scope.choice.scope.to_string(),
        reason: scope.choice.reason,
    })
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
