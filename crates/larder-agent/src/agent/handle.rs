//! The handle to a running agent.

use std::{collections::BTreeMap, fmt, mem, sync::Arc};

use fastrand::Rng;
use jiff::Timestamp;
use larder::ObjectManager;
use larder_objects::{Object, chain};
use larder_pods::{
    PodSource, Pods, ResolvedPodUid, StoredPod, identity::is_static_pod, mirror::MirrorProblems,
};
use larder_watch::NodeContext;
use parking_lot::Mutex;
use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    registry::Registry,
};
use serde::{Serialize, Serializer};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    annotations::{AnnotationProblem, misspelled, problem_of_object},
    beside::Beside,
    checkpoint::CheckpointBoard,
    config::Config,
    delivery::{
        journal::Journal,
        pod_statuses::{PodStatusEntry, add_paths},
        worker::{DeliveryNode, WorkerFactory},
    },
    freshness::{Unproven, overview},
    metrics::ProbeAnswers,
    reconcile::Reconciler,
    status::{
        AgentOverview, AgentStatus, Delivery, HookStatus, ObjectStatus, PodStatus, ProblemKind,
        STATUS_VERSION, ServedPod, WatchScopeStatus,
    },
};

/// Number of waiting pods that `/healthz` names; the others are counted.
const NAMED_PODS: usize = 10;
/// The source of pods of an embedded API server, in the status.
const MANIFESTS: &str = "manifests";

/// Shows the state of a running agent. Cloning is cheap.
#[derive(Clone)]
pub struct AgentHandle {
    pub(super) node: Arc<DeliveryNode>,
    /// `None` in the mode `Serve`.
    pub(super) beside: Option<Arc<Beside>>,
    pub(super) checkpoint: Arc<CheckpointBoard>,
    /// Shared by all managers and collections.
    pub(super) node_context: NodeContext,
    pub(super) pods: Pods,
    pub(super) sources: Arc<Mutex<Sources>>,
    pub(super) registries: Arc<[Registry; 2]>,
    /// The part of the status that does not change while the agent runs.
    pub(super) constant: Arc<AgentStatus<(), ()>>,
}

impl fmt::Debug for AgentHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentHandle")
            .field("registries", &self.registries)
            .finish_non_exhaustive()
    }
}

/// Whether the agent works; from [`AgentHandle::health`].
///
/// For liveness probes and watchdogs, which restart an agent that stays unhealthy. So it reports only problems that a
/// restart may fix. An unreachable API server or a missing object is not one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// The problems, one line each, sorted; empty while the agent works.
    pub problems: Vec<String>,
    /// What waits for a disk for more than a second, one line each: work of the agent itself, then pods. A problem only
    /// where nothing can be delivered for it.
    pub waiting: Vec<String>,
}

impl Health {
    /// Whether the agent works.
    pub fn is_healthy(&self) -> bool {
        self.problems.is_empty()
    }
}

/// The state of the sources.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// Whether all have reported and their pods have a status.
    pub(super) ready: bool,
    pub(super) silent: Vec<PodSource>,
    pub(super) problems: BTreeMap<PodSource, Vec<(ProblemKind, String)>>,
    /// Pods that wait for a UID that another pod has, as text.
    pub(super) rejected: Vec<String>,
    /// That the API server has no Node of the agent's name, as text.
    pub(super) missing_node: Option<String>,
    /// Problems of the feeds of the API server.
    pub(super) feeds: Vec<watch::Receiver<Arc<[String]>>>,
    /// Their notes.
    pub(super) notes: Vec<watch::Receiver<Arc<[String]>>>,
    /// What of them waits for a disk.
    pub(super) waits: Vec<watch::Receiver<Arc<[String]>>>,
    pub(super) mirrors: Option<watch::Receiver<MirrorProblems>>,
}

/// Deadline of the deletion, and UID of the mirror pod.
pub(super) type ApiPodState = (Option<Timestamp>, Option<String>);

impl AgentHandle {
    /// A reconciler with the workers of the agent's mode.
    pub(super) fn reconciler(
        &self,
        wants_trust_bundles: watch::Sender<bool>,
        rng: Rng,
        shutdown: CancellationToken,
    ) -> Reconciler {
        let node = Arc::clone(&self.node);
        let factory: Arc<dyn WorkerFactory> = match &self.beside {
            None => node.clone(),
            Some(beside) => beside.clone(),
        };
        Reconciler::new(factory, node, wants_trust_bundles, rng, shutdown)
    }

    /// Notes whether the API server has the Node `name`. Without it no pod is bound to the node, mostly because its name
    /// is another one.
    pub(super) fn note_node(&self, name: &str, is_there: bool) {
        let note = (!is_there)
            .then(|| format!("the API server has no Node {name:?}, so it binds no pods to it"));
        let known = mem::replace(&mut self.sources.lock().missing_node, note.clone());
        if let Some(note) = note.filter(|_| known.is_none()) {
            warn!(note, "the name of the node may be wrong");
        }
    }

    /// Adds the problems of a feed of the API server, such as `feed::Feed`, to the status.
    pub fn show_problems_of(&self, problems: watch::Receiver<Arc<[String]>>) {
        self.sources.lock().feeds.push(problems);
    }

    /// Adds what a feed of the API server waits for to the health. Its problems name that, too.
    pub fn show_waits_of(&self, waits: watch::Receiver<Arc<[String]>>) {
        self.sources.lock().waits.push(waits);
    }

    /// Adds the notes of a feed of the API server to the status.
    pub fn show_notes_of(&self, notes: watch::Receiver<Arc<[String]>>) {
        self.sources.lock().notes.push(notes);
    }

    /// Whether the agent works. Each watch must show that it is alive: by an answer, event or bookmark that is younger
    /// than its timeout, or by a failure that the status shows. The root directory must be at its path.
    ///
    /// Sends no request and does not wait, so it may be called every second. Background tasks are not checked: one that
    /// ends unexpectedly ends [`Agent::run`](super::Agent::run).
    pub fn health(&self) -> Health {
        let silent = self.node_context.silent_watches();
        let mut problems: Vec<_> = silent.iter().map(ToString::to_string).collect();
        problems.extend(self.displaced().map(|(_, why)| why));
        problems.extend(self.node.waits.problem());
        problems.sort_unstable();
        Health {
            problems,
            waiting: self.waiting(),
        }
    }

    /// What waits for a disk: the agent, its manifests, its pods.
    fn waiting(&self) -> Vec<String> {
        let mut waiting = self.node.waits.texts();
        for waits in &self.sources.lock().waits {
            waiting.extend(waits.borrow().iter().cloned());
        }
        let mut pods = self
            .node
            .statuses
            .sorted()
            .into_iter()
            .filter_map(|pod| Some(format!("pod {}: {}", pod.name, pod.wait()?)));
        waiting.extend(pods.by_ref().take(NAMED_PODS));
        match pods.count() {
            0 => {}
            others => waiting.push(format!("and {others} more pods")),
        }
        waiting
    }

    /// Whether every source has reported and every pod was tried.
    pub fn is_ready(&self) -> bool {
        self.sources.lock().ready && self.node.statuses.is_settled()
    }

    /// When the agent started, and the current time, both by its clock.
    pub(crate) fn started_and_now(&self) -> (Timestamp, Timestamp) {
        (self.constant.started, self.node.now())
    }

    /// Follows the number of the last change of a pod's status.
    pub fn pod_changes(&self) -> watch::Receiver<u64> {
        self.journal().subscribe()
    }

    /// The changes of pods.
    pub(crate) fn journal(&self) -> &Journal {
        &self.node.statuses.journal
    }

    /// Applies the agent's own fields of `config` that can be [reloaded](crate::config::RELOADED_FIELDS):
    /// `syncFrequency`, from the next repair pass of each pod on, and the settings of hooks. An unchanged hook keeps
    /// the record of its notifications. Watches and volumes are not affected.
    pub fn reload(&self, config: &Config) {
        *self.node.inputs.sync_frequency.lock() = config.sync_frequency;
        self.node.on_change.reload(&config.on_change);
    }

    /// The status of the agent and of everything it serves.
    pub fn status(&self) -> AgentStatus {
        let (entries, unproven) = (self.node.statuses.sorted(), self.unproven());
        let pods = entries
            .iter()
            .map(|entry| self.pod_status(entry, &unproven));
        self.status_with(pods.collect(), self.object_statuses().collect(), &unproven)
    }

    /// The status of the agent, and how far its pods are.
    pub fn overview(&self) -> AgentOverview {
        let (entries, unproven) = (self.node.statuses.sorted(), self.unproven());
        let pods = entries.iter().map(|entry| overview(entry, &unproven));
        self.status_with(pods.collect(), (), &unproven)
    }

    /// The [status](AgentHandle::status) in a form to be serialized. `show` may hide fields of a pod.
    pub(crate) fn status_document(
        &self,
        show: fn(PodStatus) -> PodStatus,
    ) -> AgentStatus<impl Serialize, impl Serialize> {
        let pods = Listed(move || self.pod_statuses().map(show));
        let objects = Listed(|| self.object_statuses());
        self.status_with(pods, objects, &self.unproven())
    }

    /// The status of the agent with these lists.
    fn status_with<Pods, Objects>(
        &self,
        pods: Pods,
        objects: Objects,
        unproven: &Unproven,
    ) -> AgentStatus<Pods, Objects> {
        let sources = self.sources.lock();
        let silent_sources = sources.silent.iter().map(ToString::to_string).collect();
        let notes = sources
            .notes
            .iter()
            .flat_map(|notes| notes.borrow().to_vec())
            .chain(sources.missing_node.clone())
            .collect();
        drop(sources);
        let problems = self.problems(unproven).into_iter();
        let (problem_kinds, problems) = problems.unzip();
        let constant = &self.constant;
        AgentStatus {
            version: STATUS_VERSION,
            node: constant.node.clone(),
            root_dir: constant.root_dir.clone(),
            started: constant.started,
            change_detection: constant.change_detection.clone(),
            watch_scope: constant.watch_scope.clone(),
            watch_scopes: watch_scopes(&self.node.inputs.config_maps)
                .chain(watch_scopes(&self.node.inputs.secrets))
                .collect(),
            silent_sources,
            problems,
            problem_kinds,
            notes,
            checkpoint: self.checkpoint.status(),
            beside: self.beside.as_ref().map(|beside| beside.status()),
            pods,
            objects,
        }
    }

    /// The current problems, each with its kind.
    fn problems(&self, unproven: &Unproven) -> Vec<(ProblemKind, String)> {
        let sources = self.sources.lock();
        let mut problems: Vec<_> = sources.problems.values().flatten().cloned().collect();
        let mut undone = sources.rejected.clone();
        for feed in &sources.feeds {
            undone.extend(feed.borrow().iter().cloned());
        }
        let mirrors = sources
            .mirrors
            .as_ref()
            .map(|mirrors| mirror_problems(&mirrors.borrow()));
        drop(sources);
        let checkpoint = self.checkpoint.status().unwrap_or_default();
        let unwritten = (!checkpoint.problem.is_empty()).then_some(checkpoint.problem);
        let checkpoint = unwritten.into_iter().chain(checkpoint.rejected);
        let beside = self.beside.as_ref().map(|beside| beside.status().problem);
        undone.extend(beside.filter(|problem| !problem.is_empty()));
        undone.extend(self.node.root.lock().texts());
        undone.extend(self.node.disk.problem());
        undone.extend(self.node.sub_paths.node.problem());
        undone.extend(self.invalid_hooks());
        undone.extend(self.misspelled_annotations());
        undone.extend(invalid_marks(&self.node.inputs.config_maps));
        undone.extend(invalid_marks(&self.node.inputs.secrets));
        let all = [
            (ProblemKind::Undone, undone),
            (ProblemKind::Waiting, self.node.waits.texts()),
            (ProblemKind::Stale, unproven.problems().collect()),
            (ProblemKind::MirrorPod, mirrors.unwrap_or_default()),
            (
                ProblemKind::Checkpoint,
                checkpoint
                    .map(|text| format!("checkpoint: {text}"))
                    .collect(),
            ),
        ];
        for (kind, texts) in all {
            problems.extend(texts.into_iter().map(|text| (kind, text)));
        }
        problems
    }

    /// The annotations whose hooks are not valid, as problems.
    fn invalid_hooks(&self) -> impl Iterator<Item = String> {
        self.node.statuses.sorted().into_iter().flat_map(|pod| {
            self.node
                .on_change
                .statuses(pod.uid.as_str())
                .into_iter()
                .filter(HookStatus::is_invalid)
                .map(move |hook| format!("pod {}: {}: {}", pod.name, hook.place, hook.reason))
        })
    }

    /// The annotations that larder would ignore without a word, as problems.
    fn misspelled_annotations(&self) -> impl Iterator<Item = String> {
        self.node.statuses.sorted().into_iter().flat_map(|entry| {
            let pod = self.pods.pod_by_uid(&entry.uid);
            let annotations = pod.and_then(|pod| pod.metadata.annotations.clone());
            let found = misspelled(&annotations.unwrap_or_default()).into_iter();
            found.map(move |found| {
                let AnnotationProblem { key, problem } = found;
                format!("pod {}: annotation {key}: {problem}", entry.name)
            })
        })
    }

    /// What is not known to be current now, or is not in place.
    fn unproven(&self) -> Unproven {
        // Beside a kubelet, the volumes are in another directory.
        let displaced = self.displaced().filter(|_| self.beside.is_none());
        Unproven::of(&self.node.inputs).displaced(displaced)
    }

    /// Why the root directory is not at its path, and since when.
    fn displaced(&self) -> Option<(Timestamp, String)> {
        self.node.root.lock().displaced.clone()
    }

    /// The statuses of all pods, by namespace and name. They are made one at a time.
    pub fn pod_statuses(&self) -> impl Iterator<Item = PodStatus> {
        let (entries, unproven) = (self.node.statuses.sorted(), self.unproven());
        entries
            .into_iter()
            .map(move |entry| self.pod_status(&entry, &unproven))
    }

    /// The statuses of pods by their UIDs; `None` for each that has none.
    pub(crate) fn statuses_of<'a>(
        &self,
        uids: impl Iterator<Item = &'a ResolvedPodUid>,
    ) -> impl Iterator<Item = Option<PodStatus>> {
        let unproven = self.unproven();
        uids.map(move |uid| {
            let entry = self.node.statuses.get(uid)?;
            Some(self.pod_status(&entry, &unproven))
        })
    }

    fn pod_status(&self, entry: &PodStatusEntry, unproven: &Unproven) -> PodStatus {
        let mut status = entry.status();
        unproven.show(&entry.parts(), &mut status);
        self.add_paths(&mut status);
        status.on_change = self.node.on_change.statuses(&status.uid);
        if self.node.has_manifests && status.source == PodSource::Api.as_str() {
            MANIFESTS.clone_into(&mut status.source);
        }
        if let Some(pod) = self.pods.pod_by_uid(&entry.uid) {
            (status.deletion_timestamp, status.mirror) = self.api_state(&pod);
        }
        status
    }

    /// The statuses of all objects. They are made one at a time.
    fn object_statuses(&self) -> impl Iterator<Item = ObjectStatus> {
        let inputs = &self.node.inputs;
        objects(&inputs.config_maps).chain(objects(&inputs.secrets))
    }

    /// The state of a pod at the API server that status shows besides the delivery: the deadline of its deletion, and
    /// the UID of its mirror pod. Each change of it must be noted in the journal.
    pub(super) fn api_state(&self, pod: &StoredPod) -> ApiPodState {
        let deleted = pod.metadata.deletion_timestamp.as_ref();
        let is_static = is_static_pod(&pod.metadata);
        let mirror = is_static
            .then(|| self.pods.mirror_pod_by_pod(pod))
            .flatten()
            .and_then(|mirror| mirror.metadata.uid.clone());
        (deleted.map(|time| time.0), mirror)
    }

    fn add_paths(&self, status: &mut PodStatus) {
        let uid = status.uid.clone();
        let beside = self.beside.as_ref();
        let host = beside.map_or(&self.node.host, |beside| &beside.volumes);
        add_paths(status, |kind, name| host.volume_path(&uid, kind, name));
        if beside.is_some() {
            return;
        }
        for container in &mut status.containers {
            let path = self.node.host.environment_path(&uid, &container.name);
            container.path = path.display().to_string();
        }
    }

    /// The pod with this name, if the agent serves it; of several, the one that is not being removed.
    pub fn served_pod(&self, namespace: &str, name: &str) -> Option<ServedPod> {
        let (entries, unproven) = (self.node.statuses.sorted(), self.unproven());
        entries
            .into_iter()
            .filter(|pod| pod.name.namespace == namespace && pod.name.name == name)
            .filter_map(|entry| {
                let pod = self.pods.pod_by_uid(&entry.uid)?.decode();
                let status = self.pod_status(&entry, &unproven);
                Some(ServedPod { status, pod })
            })
            .min_by_key(|served| served.status.delivery.phase)
    }

    /// The state of the pod with this name, also if its specification is unknown.
    pub(crate) fn status_of_named(&self, namespace: &str, name: &str) -> Option<Delivery> {
        let mut entries = self.node.statuses.sorted().into_iter();
        let named = entries.find(|pod| pod.name.namespace == namespace && pod.name.name == name)?;
        Some(named.status().delivery)
    }

    /// All metrics in Prometheus' text format.
    pub fn metrics(&self) -> String {
        self.node.on_change.count_hooks();
        let pods = self.node.statuses.sorted();
        if let Some(beside) = &self.beside {
            beside.observe();
        }
        let unproven = self.unproven();
        let phases = pods
            .iter()
            .map(|pod| overview(pod, &unproven).delivery.phase);
        let answers = ProbeAnswers {
            healthy: self.health().is_healthy(),
            ready: self.is_ready(),
        };
        let problems = self.problems(&unproven).len();
        self.node.metrics.observe(phases, problems, answers);
        let mut text = String::new();
        self.registries
            .iter()
            .try_for_each(|registry| encode_registry(&mut text, registry))
            .and_then(|()| encode_eof(&mut text))
            .expect("text is written to memory");
        text
    }
}

/// A list whose items are made when they are serialized, so that not all are in memory at once.
struct Listed<Items>(Items);

impl<Items, Iter> Serialize for Listed<Items>
where
    Items: Fn() -> Iter,
    Iter: Iterator<Item: Serialize>,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// The objects whose annotation about hooks means nothing, as problems.
fn invalid_marks<K: Object>(manager: &ObjectManager<K>) -> impl Iterator<Item = String> {
    manager.known().into_iter().filter_map(|known| {
        let AnnotationProblem { key, problem } = problem_of_object(known.object?.metadata())?;
        let (kind, object) = (K::TYPE.kind, known.key);
        Some(format!("{kind} {object}: annotation {key}: {problem}"))
    })
}

fn mirror_problems(mirrors: &MirrorProblems) -> Vec<String> {
    let problems = mirrors.iter().map(|(pod, error)| {
        let (namespace, name, error) = (&pod.namespace, &pod.name, chain(error));
        format!("mirror pod of {namespace}/{name}: {error}")
    });
    problems.collect()
}

fn watch_scopes<K: Object>(manager: &ObjectManager<K>) -> impl Iterator<Item = WatchScopeStatus> {
    manager.scopes().into_iter().map(|scope| WatchScopeStatus {
        kind: K::TYPE.kind.to_owned(),
        namespace: scope.namespace.to_string(),
        scope: scope.choice.scope.to_string(),
        reason: scope.choice.reason,
    })
}

fn objects<K: Object>(manager: &ObjectManager<K>) -> impl Iterator<Item = ObjectStatus> {
    manager.objects().into_iter().map(|object| ObjectStatus {
        kind: K::TYPE.kind.to_owned(),
        namespace: object.key.namespace.to_string(),
        name: object.key.name.to_string(),
        state: object.state.as_str().to_owned(),
        resource_version: object.version.to_string(),
        age_secs: object.age.as_secs(),
        error: object
            .failure
            .map(|failure| chain(&*failure.error))
            .unwrap_or_default(),
        pods: object
            .pods
            .iter()
            .map(|pod| format!("{}/{}", pod.namespace, pod.name))
            .collect(),
    })
}
