//! Building an agent: everything that can fail before it runs.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use fastrand::Rng;
use futures::FutureExt as _;
use jiff::Timestamp;
use kube::Client;
use larder::{ChangeLog, ConfigMapManager, ManagerConfig, ManagerMetrics, NodeTtl, SecretManager};
use larder_containers::{processes::Processes, subpaths::SubPathNode};
use larder_files::operation_error::OperationError;
use larder_hooks::{HookNode, OnChange, PodChange, ProgramHook};
use larder_inputs::{
    certificates::{self, Certificates, SourceId},
    clock::Clock,
    cluster_state::{ClusterFreshness, ClusterState},
    tokens::Tokens,
};
use larder_kubelet::backoff::RETRY;
use larder_objects::manifest::{HiddenObjects, KeptObjects};
use larder_on_change::{
    Hook,
    parse::{ConfiguredHook, PodSelector},
};
use larder_pods::events::Events;
use larder_pods::{
    PodManager, PodMetrics, PodSource, ResolvedPodUid,
    source::{HttpSource, HttpSourceError},
    static_pod::StaticPods,
};
use larder_projection::disk::{DiskError, VolumeHost};
use larder_watch::{CollectionFreshness, NodeContext};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};

use super::{Agent, AgentHandle, handle::Sources};
use crate::{
    beside::{Beside, OverlapError},
    checkpoint::{CheckpointBoard, ClusterId},
    config::{Config, PodUrl},
    delivery::{
        inputs::NodeInputs, pod_statuses::PodStatuses, readers::ObjectReaders,
        sub_path_settings::SubPathSettings, worker::DeliveryNode,
    },
    disk_turns::DiskTurns,
    metrics::Metrics,
    root_dir::RootDir,
    status::AgentStatus,
    waits::Waits,
};

/// The component that deletes a pod after the API server has marked it as deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodDeletion {
    /// The component that runs its containers: a kubelet, a provider. The agent serves the pod until it is gone, and
    /// posts events.
    External,
    /// The agent, immediately: no containers run, and no user reads events. For the embedded API server.
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
    KubeletDir(#[source] OperationError),
    /// The directories of the mode `Beside`.
    #[error("invalid directories of the mode Beside")]
    Overlap(#[source] OverlapError),
    /// The root directory cannot be searched for volumes of the mode `Serve`, before the mode `Beside` uses it.
    #[error("cannot read the root directory")]
    RootDir(#[source] DiskError),
    /// The root directory holds volumes of the mode `Serve`. The mode `Beside` neither updates nor removes them, and a
    /// container may still use them.
    #[error(
        "the root directory {} holds volumes of {pods} pods from the mode Serve: choose another rootDir, or, when no \
         container uses them, unmount and remove pods and by-name in it",
        path.display()
    )]
    ServedVolumes {
        /// `rootDir`.
        path: PathBuf,
        /// Number of pods that have volumes there.
        pods: usize,
    },
}

/// What an agent is given, from its builder to its end.
pub(super) struct Given {
    pub(super) config: Config,
    /// Locked while the agent lives.
    pub(super) root: RootDir,
    pub(super) client: Client,
    pub(super) pod_deletion: PodDeletion,
    pub(super) rng: Rng,
    pub(super) hidden: Option<watch::Receiver<Arc<HiddenObjects>>>,
    pub(super) kept: Option<watch::Receiver<Arc<KeptObjects>>>,
}

impl Given {
    /// What is known of the cluster before anything is read.
    fn cluster_state(&self) -> ClusterState {
        let hidden = self.hidden.as_ref();
        ClusterState {
            hidden: hidden.map_or_else(Arc::default, |hidden| Arc::clone(&hidden.borrow())),
            ..ClusterState::default()
        }
    }
}

/// What pods read of the API server, and what issues their certificates.
struct GatheredInputs {
    inputs: NodeInputs,
    issuer: certificates::Issuer,
    certificates: mpsc::UnboundedReceiver<SourceId>,
}

/// Builds an [`Agent`]; made by [`Agent::builder`].
#[must_use = "a builder does nothing until `build`"]
#[expect(missing_debug_implementations, reason = "it holds a client")]
pub struct AgentBuilder {
    given: Given,
    host: VolumeHost,
    clock: Clock,
    registry: Registry,
    hooks: Vec<ProgramHook>,
    cluster: Option<ClusterId>,
}

impl Agent {
    /// Prepares an agent that serves the pods of `config.node_name`, from the API server of `client`, on `host`, whose
    /// directory `root` has locked.
    pub fn builder(
        config: Config,
        root: RootDir,
        host: VolumeHost,
        client: Client,
    ) -> AgentBuilder {
        AgentBuilder {
            given: Given {
                config,
                root,
                client,
                pod_deletion: PodDeletion::External,
                rng: Rng::new(),
                hidden: None,
                kept: None,
            },
            host,
            clock: Clock::system(),
            registry: Registry::default(),
            hooks: Vec::new(),
            cluster: None,
        }
    }
}

impl AgentBuilder {
    /// Sets the component that deletes pods. Defaults to [`PodDeletion::External`]. Has no effect beside a kubelet,
    /// which deletes its pods.
    pub fn pod_deletion(mut self, pod_deletion: PodDeletion) -> Self {
        if self.given.config.beside.is_none() {
            self.given.pod_deletion = pod_deletion;
        }
        self
    }

    /// Sets the wall clock, for tests. Defaults to the [machine's](Clock::system).
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the registry that metrics are added to, with a prefix of the caller's choice. Metrics of the kubelet keep
    /// their names, without that prefix. Defaults to an empty registry without a prefix.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Seeds every random choice, so that a test can be repeated. Defaults to a random seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.given.rng = Rng::with_seed(seed);
        self
    }

    /// For an API server that is filled from manifests. `hidden` are the objects that rejected manifests may hold, so
    /// the server may lack them although an earlier run had them. Meanwhile such an object counts as unknown, not as
    /// missing: its pod's files on disk stay, and no volume is rewritten without it if it is optional.
    pub fn hidden_objects(mut self, hidden: watch::Receiver<Arc<HiddenObjects>>) -> Self {
        self.given.hidden = Some(hidden);
        self
    }

    /// For an API server that is filled from manifests. `kept` are the objects of which it has an earlier version, since
    /// their newest manifest is rejected: what is delivered of them counts as stale.
    pub fn kept_objects(mut self, kept: watch::Receiver<Arc<KeptObjects>>) -> Self {
        self.given.kept = Some(kept);
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
            selected: ConfiguredHook {
                pods,
                hook: Arc::new(hook),
            },
            handler: Arc::new(move |change| handler(change).boxed()),
        });
        self
    }

    /// Binds the configured checkpoint to this cluster. An embedded API server has no cluster, and needs no checkpoint.
    pub fn cluster(mut self, cluster: ClusterId) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// Builds the agent.
    ///
    /// # Errors
    ///
    /// A setting of the managers or of the source of static pods is invalid. In the mode `Beside`: the kubelet's root
    /// directory cannot be read, or overlaps with a directory of the agent.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn build(mut self) -> Result<Agent, BuildError> {
        let now = self.clock.now();
        let node_ttl = NodeTtl::default();
        let node_context = NodeContext::with_seed(self.given.rng.u64(..));
        let http = http_source(&self.given.config, &self.given.root)?;
        let manager = PodManager::default();
        let pod_metrics = PodMetrics::new(manager.reader());
        // Under the kubelet's own names, which dashboards use.
        let mut kubelets = Registry::with_prefix("kubelet");
        pod_metrics.register(&mut kubelets);
        let cluster_state = watch::Sender::new(self.given.cluster_state());
        let gathered = self.inputs(&node_ttl, &node_context, &cluster_state)?;
        let metrics = Metrics::register(&mut self.registry, now);
        let events = self.events(&metrics);
        let beside = self.beside()?;
        let statuses = Arc::new(PodStatuses::new(now));
        let host = Arc::new(self.host.with_pod_files(&[larder_hooks::RECORD]));
        let volumes = beside.as_ref().map_or(&host, |beside| &beside.volumes);
        let processes = processes(&self.given.config, volumes);
        let sub_paths = SubPathSettings {
            updates: self.given.config.sub_path_updates,
            node: Arc::new(SubPathNode::new(processes.clone(), &mut self.registry)),
        };
        let known = Arc::clone(&statuses);
        let hook_node = HookNode {
            host: Arc::clone(&host),
            kubelet: beside.as_ref().map(|beside| Arc::clone(&beside.volumes)),
            processes,
            serves_manifests: self.given.hidden.is_some(),
            clock: self.clock,
            events: events.clone(),
            changed: Arc::new(move |uid: &str| known.note_change(&ResolvedPodUid::new(uid))),
        };
        let (config, rng) = (self.given.config.on_change.clone(), self.given.rng.fork());
        let on_change = OnChange::new(config, self.hooks, hook_node, &mut self.registry, rng);
        let checkpoint = self.given.config.checkpoint.clone().zip(self.cluster);
        let mut keys = checkpoint.iter().flat_map(|(config, _)| &config.keys);
        let checkpoint_board = CheckpointBoard::new(keys.next(), &mut self.registry);
        let constant = constant_status(&self.given.config, &host, now);
        let handle = AgentHandle {
            node: Arc::new(DeliveryNode {
                waits: Waits::new(gathered.inputs.clock.clone()),
                inputs: Arc::new(gathered.inputs),
                readers: ObjectReaders::default(),
                statuses,
                events,
                metrics,
                host,
                root: Mutex::default(),
                disk: DiskTurns::of_machine(),
                on_change,
                has_manifests: self.given.hidden.is_some(),
                sub_paths,
            }),
            beside,
            checkpoint: Arc::new(checkpoint_board),
            node_context,
            pods: manager.reader(),
            // It counts as silent until its first report, so that an agent that has just started never looks like one
            // without pods.
            sources: Arc::new(Mutex::new(Sources {
                silent: vec![PodSource::Api],
                ..Sources::default()
            })),
            registries: Arc::new([self.registry, kubelets]),
            constant: Arc::new(constant),
        };
        Ok(Agent {
            given: self.given,
            http,
            cluster_state,
            node_ttl,
            manager,
            pod_metrics,
            handle,
            issuer: gathered.issuer,
            certificates: gathered.certificates,
            checkpoint,
        })
    }

    fn inputs(
        &mut self,
        node_ttl: &NodeTtl,
        node_context: &NodeContext,
        cluster: &watch::Sender<ClusterState>,
    ) -> Result<GatheredInputs, BuildError> {
        // The feed of an embedded server logs edits, with their files.
        let change_log = match self.given.hidden {
            Some(_) => ChangeLog::Off,
            None => ChangeLog::Keys,
        };
        let managers = managers(&self.given.config, node_ttl, node_context).change_log(change_log);
        let counters = ManagerMetrics::default();
        counters.register(&mut self.registry);
        let client = self.given.client.clone();
        let (held, issuer, certificates) = Certificates::new(
            client.clone(),
            self.clock.clone(),
            &self.given.config.node_name,
            RETRY,
            self.given.rng.fork(),
            node_context,
        );
        let inputs = NodeInputs {
            config_maps: ConfigMapManager::with_metrics(client.clone(), &managers, &counters)
                .map_err(BuildError::Config)?,
            secrets: SecretManager::with_metrics(client.clone(), &managers, &counters)
                .map_err(BuildError::Config)?,
            tokens: Tokens::new(client, self.clock.clone(), RETRY, self.given.rng.fork()),
            certificates: held,
            cluster: cluster.subscribe(),
            cluster_freshness: ClusterFreshness::default(),
            pod_freshness: CollectionFreshness::default(),
            kept_pods: Mutex::default(),
            max_ages: Mutex::default(),
            sync_frequency: self.given.config.sync_frequency.into(),
            clock: self.clock.clone(),
        };
        Ok(GatheredInputs {
            inputs,
            issuer,
            certificates,
        })
    }

    /// Events about pods; none if the pods come from manifests, whose API server is in this process.
    fn events(&self, metrics: &Metrics) -> Option<Arc<Events>> {
        let client = self.given.client.clone();
        let events = || Events::new(client, &self.given.config.node_name, metrics.count_events());
        (self.given.pod_deletion == PodDeletion::External).then(|| Arc::new(events()))
    }

    /// The state that workers share in the mode `Beside`.
    fn beside(&mut self) -> Result<Option<Arc<Beside>>, BuildError> {
        let Some(settings) = self.given.config.beside.clone() else {
            return Ok(None);
        };
        settings
            .check_directories(&self.given.config.root_dir)
            .map_err(BuildError::Overlap)?;
        check_root_dir(&self.host)?;
        let beside = Beside::new(
            settings,
            &self.given.config.root_dir,
            &self.given.config.node_name,
            self.given.client.clone(),
            self.clock.clone(),
            &mut self.registry,
            self.given.rng.fork(),
        );
        Ok(Some(Arc::new(beside.map_err(BuildError::KubeletDir)?)))
    }
}

/// Keeps the mode `Beside` away from a root directory with volumes, which would never be updated or removed again.
fn check_root_dir(host: &VolumeHost) -> Result<(), BuildError> {
    let mut served = host.scan().map_err(BuildError::RootDir)?;
    served.retain(|pod| !pod.volumes.is_empty());
    if served.is_empty() {
        return Ok(());
    }
    Err(BuildError::ServedVolumes {
        path: host.path().to_owned(),
        pods: served.len(),
    })
}

/// The processes of the node, as hooks find them: by what they mount of `volumes`.
fn processes(config: &Config, volumes: &VolumeHost) -> Processes {
    let proc = config
        .beside
        .as_ref()
        .map_or(Path::new("/proc"), |beside| &beside.processes);
    Processes::new(proc, volumes.path())
}

/// The part of the status that does not change while an agent runs.
fn constant_status(config: &Config, host: &VolumeHost, started: Timestamp) -> AgentStatus<(), ()> {
    AgentStatus {
        node: config.node_name.clone(),
        root_dir: host.path().display().to_string(),
        started,
        change_detection: config.change_detection.to_string(),
        watch_scope: config.watch_scope.to_string(),
        ..AgentStatus::default()
    }
}

/// The configuration of both managers.
fn managers(config: &Config, node_ttl: &NodeTtl, node_context: &NodeContext) -> ManagerConfig {
    ManagerConfig::default()
        .strategy(config.change_detection)
        .watch_scope(config.watch_scope)
        .sync_frequency(config.sync_frequency)
        .node_ttl(node_ttl.clone())
        .max_requests_in_flight(config.max_requests_in_flight)
        .node_context(node_context)
}

/// The source of static pods at `staticPodURL`.
fn http_source(config: &Config, root: &RootDir) -> Result<Option<HttpSource>, BuildError> {
    let Some(url) = config.static_pod_url.as_ref().map(PodUrl::as_str) else {
        return Ok(None);
    };
    let headers = config.static_pod_url_headers.values();
    let period = config.http_check_frequency;
    let source = HttpSource::new(url, headers, period, static_pods(config))
        .map_err(BuildError::StaticPodUrl)?;
    Ok(Some(source.remembering(root.manifests(PodSource::Http))))
}

/// How the pods of files and of `staticPodURL` are read.
pub(super) fn static_pods(config: &Config) -> StaticPods {
    StaticPods::new(&config.node_name, config.static_pod_api_references)
}

#[cfg(test)]
mod tests {
    use larder_projection::{File, Payload, Value, VolumeKind, VolumePath, disk::PodVolume};

    use super::*;

    #[test]
    fn beside_a_kubelet_no_root_directory_with_served_volumes_is_used() {
        let root = tempfile::tempdir().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        let file = File {
            data: Value::Borrowed(b"1"),
            mode: 0o644,
            owner: None,
        };
        let files = [(VolumePath::parse("key").unwrap(), file)];
        let payload: Payload<'_> = files.into_iter().collect();
        let volume = PodVolume::new("u", "keys", VolumeKind::ConfigMap);
        host.set_up(&volume, &payload, jiff::Timestamp::UNIX_EPOCH)
            .unwrap();
        let error = check_root_dir(&host).unwrap_err().to_string();
        assert!(
            error.contains("holds volumes of 1 pods from the mode Serve"),
            "{error}"
        );
        host.tear_down("u", VolumeKind::ConfigMap, "keys").unwrap();
        // What else is kept about a pod is no volume.
        assert!(check_root_dir(&host).is_ok());
    }
}
