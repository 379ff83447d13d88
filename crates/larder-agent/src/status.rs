//! The agent's status: the document behind `/status` and `larder status`.
//!
//! The comments on the fields of pods are also their description in `docs/openapi.json`.
//!
//! Invariant of [`AgentStatus`]: names, states, times and reasons; never a value of an object. Reasons are the
//! kubelet's messages, which name keys and paths only (P5).

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
pub use larder_hooks::HookStatus;
use larder_objects::ObjectKey;
use larder_pods::ResolvedPodUid;
use larder_projection::{ContainerKind, ContainerView};
use serde::{Deserialize, Serialize};

/// Version of the status document.
pub const STATUS_VERSION: u32 = 1;

/// The agent and everything it serves. `Objects` is `()` where the objects are not needed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentStatus<Pods = Vec<PodStatus>, Objects = Vec<ObjectStatus>> {
    /// Version of this document, [`STATUS_VERSION`]: it grows when a field goes or changes its meaning.
    #[serde(default)]
    pub version: u32,
    /// Name of the node.
    pub node: String,
    /// The root directory, absolute.
    pub root_dir: String,
    /// When this agent started.
    pub started: Timestamp,
    /// Change detection strategy.
    pub change_detection: String,
    /// Watch scope, as configured.
    pub watch_scope: String,
    /// Under `Auto`, the scope of each namespace with references, by kind and namespace.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub watch_scopes: Vec<WatchScopeStatus>,
    /// Pod sources that have not reported yet; nothing is removed while the list is not empty.
    pub silent_sources: Vec<String>,
    /// Current problems of manifests, sources, objects that are not known to be current, annotations and the checkpoint.
    pub problems: Vec<String>,
    /// What each of `problems` means for a wait until everything is delivered, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub problem_kinds: Vec<ProblemKind>,
    /// What is no problem, but may be unexpected, such as pods of another node.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
    /// The checkpoint; `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub checkpoint: Option<CheckpointStatus>,
    /// The mode `Beside`; `None` in the mode `Serve`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub beside: Option<BesideStatus>,
    /// The pods, by namespace and name.
    pub pods: Pods,
    /// The objects that pods reference, by kind, namespace and name.
    pub objects: Objects,
}

/// What a problem means for a wait until everything is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProblemKind {
    /// Part of the desired state is not carried out, or is not known to the agent: rejected manifests, sources that
    /// cannot be read, invalid annotations.
    Undone,
    /// Objects may have changed unnoticed. What is in place may be out of date.
    Stale,
    /// Work of the agent waits for a disk.
    Waiting,
    /// A mirror pod is missing. Everything is delivered all the same.
    MirrorPod,
    /// Copies for the next start are not kept, or not usable. Everything is delivered all the same.
    Checkpoint,
}

impl<Pods, Objects> AgentStatus<Pods, Objects> {
    /// The problems, each with its kind. Those of an agent that names no kinds may be anything.
    pub fn problems_by_kind(&self) -> impl Iterator<Item = (ProblemKind, &str)> {
        self.problem_kinds
            .iter()
            .copied()
            .chain(std::iter::repeat(ProblemKind::Undone))
            .zip(self.problems.iter().map(String::as_str))
    }
}

/// The agent and how far the delivery of its pods is: a small part of [`AgentStatus`].
pub type AgentOverview = AgentStatus<Vec<PodOverview>, ()>;

impl AgentOverview {
    /// Number of the pods that were tried.
    pub fn tried(&self) -> usize {
        self.pods
            .iter()
            .filter(|pod| pod.delivery.phase != Phase::Waiting)
            .count()
    }
}

/// One pod, without its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodOverview {
    /// Namespace and name.
    pub key: ObjectKey,
    /// UID under which its directory is found.
    pub uid: ResolvedPodUid,
    /// How far the delivery is.
    pub delivery: Delivery,
    /// Number of its volumes.
    pub volumes: usize,
}

/// The mode `Beside`: an ordinary kubelet writes the volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BesideStatus {
    /// larder's user name at the API server; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub identity: String,
    /// The permissions that the mode uses.
    pub rights: Vec<RightStatus>,
    /// Version of the kubelet; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub kubelet_version: String,
    /// Root directory of the kubelet.
    pub kubelet_root_dir: String,
    /// How long the kubelet serves copies of objects if it caches them.
    pub ttl_secs: u64,
    /// Whether volumes in memory are visible to larder; `None` until one was examined.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub disk_visible: Option<bool>,
    /// Whether this is a dry run, which touches no pod.
    pub dry_run: bool,
    /// Why no pod is touched at present; empty if pods are touched.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub problem: String,
}

/// A permission that the mode `Beside` uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RightStatus {
    /// Verb and resource, as in `patch pods/status`.
    pub right: String,
    /// Whether it is granted; `None` if that is unknown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub granted: Option<bool>,
}

/// Something that a container sees only after a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OutdatedStatus {
    /// `env` or `subPath`.
    pub kind: String,
    /// Name of the variable, or path of the mount.
    pub name: String,
    /// The object that has changed, as in `ConfigMap app`.
    pub object: String,
    /// Since when it is out of date.
    pub since: Timestamp,
}

/// How the referenced objects of one kind in one namespace are watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchScopeStatus {
    /// `ConfigMap` or `Secret`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// `Object` or `Namespace`.
    pub scope: String,
    /// Why.
    pub reason: String,
}

/// The sealed copies on disk for a start while the API server is unreachable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// Source of the sealing key.
    pub key: String,
    /// Whether that source is a file on this machine. Then a stolen disk includes the key.
    pub key_beside_data: bool,
    /// Number of copies.
    pub entries: usize,
    /// When it was last written.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub written: Option<Timestamp>,
    /// Time of the oldest freshness check among all copies.
    #[serde(rename = "oldestConfirmed", skip_serializing_if = "Option::is_none")]
    pub oldest_verification: Option<Timestamp>,
    /// The files that did not open at the start, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub rejected: Vec<String>,
    /// Reason why the checkpoint cannot be opened or written; empty if it can.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub problem: String,
    /// The copies in use; `None` once the API server has reported the pods of the node.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub serving: Option<ServingStatus>,
}

/// The copies of the checkpoint that are in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServingStatus {
    /// Start of the agent; the API server has not answered since.
    pub away_since: Timestamp,
    /// Number of pods.
    pub pods: usize,
    /// When the checkpoint was written.
    pub as_of: Timestamp,
}

/// One pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID under which its directory is found.
    pub uid: String,
    /// Source of the pod: `api`, `manifests`, `file` or `http`.
    pub source: String,
    /// UID of its mirror pod; static pods only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mirror: Option<String>,
    /// Deadline of its deletion; it is served until it has ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub deletion_timestamp: Option<Timestamp>,
    /// How far the delivery is.
    #[serde(flatten)]
    pub delivery: Delivery,
    /// What the work on its volumes waits for, if that is not over after a second.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub waits_for: Option<DiskWaitStatus>,
    /// Its directory.
    pub path: String,
    /// Its volumes, in the order of the pod.
    pub volumes: Vec<VolumeStatus>,
    /// Its containers, in the order of the pod: init, regular, ephemeral.
    pub containers: Vec<ContainerStatus>,
    /// Its hooks: those of its annotations, then those of the configuration.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub on_change: Vec<HookStatus>,
}

/// What work on volumes waits for, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DiskWaitStatus {
    /// What it waits for.
    pub what: WaitsFor,
    /// Since when.
    pub since: Timestamp,
}

/// What work on volumes waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WaitsFor {
    /// The answer of the disk, or of the file system that is mounted there.
    Disk,
    /// A turn: other pods are served.
    Turn,
    /// A thread: other pods of the namespace have those that there are for it.
    Thread,
}

impl WaitsFor {
    /// For the reason of a delivery.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Disk => "waiting for the disk, which does not answer",
            Self::Turn => "waiting for a turn at the disk",
            Self::Thread => {
                "waiting for a thread: work on the disk has those that the namespace may have"
            }
        }
    }
}

/// A pod and its status: the document behind `/pods/NAMESPACE/NAME`. It has the pod's own values and none of an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ServedPod {
    /// Its status.
    pub status: PodStatus,
    /// The pod as the agent serves it: as in the API of Kubernetes.
    #[cfg_attr(test, schemars(with = "serde_json::Map<String, serde_json::Value>"))]
    pub pod: Pod,
}

impl ServedPod {
    /// The environment of a container that can start: this and the volumes that it mounts are in place.
    ///
    /// # Errors
    ///
    /// The first part that it waits for; `None` while its parts are not known.
    pub fn delivered(&self, container: &Container) -> Result<&ContainerStatus, Option<&Delivery>> {
        let mut environments = self.status.containers.iter();
        let environment = environments
            .find(|part| part.name == container.name)
            .ok_or(None)?;
        let view = ContainerView::new(container, ContainerKind::Regular);
        let mut parts = self
            .status
            .volumes
            .iter()
            .filter(|volume| view.volumes().any(|name| name == volume.name))
            .map(|volume| &volume.delivery);
        let waiting = parts.find(|part| !part.phase.is_in_place());
        let own = Some(&environment.delivery).filter(|part| !part.phase.is_in_place());
        waiting
            .or(own)
            .map_or(Ok(environment), |part| Err(Some(part)))
    }
}

/// One volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// `spec.volumes[].name`.
    pub name: String,
    /// `configMap`, `secret`, `projected` or `downwardAPI`.
    #[serde(rename = "type")]
    pub type_: String,
    /// Its directory.
    pub path: String,
    /// How far the delivery is.
    #[serde(flatten)]
    pub delivery: Delivery,
    /// When its content last changed, if it has since this agent started.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_swap: Option<Timestamp>,
    /// Number of its files, when it was last delivered.
    pub files: usize,
    /// Its content is from a checkpoint of that time, and may be out of date.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stale_as_of: Option<Timestamp>,
    /// Paths of the files that hooks do not react to, by the annotation of their object.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub left_out: Vec<String>,
    /// What readers of its files may not expect; empty if there is nothing.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub note: String,
    /// Beside a kubelet: time from the last change to its verified content, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verified_in_ms: Option<u64>,
    /// What running containers see of it through mounts with `subPath`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub sub_paths: Vec<SubPathStatus>,
}

/// A mount with `subPath` of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct SubPathStatus {
    /// Name of the container.
    pub container: String,
    /// Its `mountPath`.
    pub mount_path: String,
    /// What the container sees.
    pub state: SubPathState,
    /// Why it sees other content than the volume has, and what would change that.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub reason: String,
    /// Since when it is to be looked at.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub waiting_since: Option<Timestamp>,
    /// When larder last replaced the mount.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub replaced_at: Option<Timestamp>,
    /// How long after the arrival of the change that was, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub took_ms: Option<u64>,
}

/// What a container sees through a mount with `subPath`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SubPathState {
    /// No running container was found.
    Unknown,
    /// The present content.
    Live,
    /// The volume or the running containers have changed, and the container is yet to be looked at.
    Waiting,
    /// The content of its start, or of the last replacement.
    Pinned,
}

/// The environment of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus {
    /// Name of the container.
    pub name: String,
    /// A file of mode 0600 with its variables: one JSON object with a string for each name. Empty beside a kubelet.
    pub path: String,
    /// How far the delivery is.
    #[serde(flatten)]
    pub delivery: Delivery,
    /// When its variables last changed, if they have under this agent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_swap: Option<Timestamp>,
    /// Its content is from a checkpoint of that time, and may be out of date.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stale_as_of: Option<Timestamp>,
    /// Names of the variables that hooks do not react to, by the annotation of their object.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub left_out: Vec<String>,
    /// Beside a kubelet: what the container sees only after a restart.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub outdated: Vec<OutdatedStatus>,
}

/// How far the delivery of something is, since when, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// The phase.
    pub phase: Phase,
    /// Start of the phase.
    pub since: Timestamp,
    /// What it waits for, or the error; empty when delivered.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub reason: String,
}

/// The phases of a delivery. Ordered by how much they need attention: the phase of a pod is the greatest of its parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Phase {
    /// In place and up to date.
    Delivered,
    /// The pod has ended; its volumes are gone.
    Ended,
    /// The settings or the pod itself exclude it, so nothing of it is read.
    Excluded,
    /// Nothing of it is delivered; the reason says why.
    Held,
    /// In place, but an object that it reads may have changed unnoticed. A container can start with it.
    Stale,
    /// Something has not been read yet.
    #[default]
    Waiting,
    /// Failed, and will be retried. The last good copy stays in place.
    Failing,
    /// The pod is gone; its volumes are being torn down.
    Removing,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Self; 8] = [
        Self::Delivered,
        Self::Ended,
        Self::Excluded,
        Self::Held,
        Self::Stale,
        Self::Waiting,
        Self::Failing,
        Self::Removing,
    ];

    /// Whether content is in place, so that a container can start with it.
    pub const fn is_in_place(self) -> bool {
        matches!(self, Self::Delivered | Self::Stale)
    }

    /// The JSON text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "Delivered",
            Self::Ended => "Ended",
            Self::Excluded => "Excluded",
            Self::Held => "Held",
            Self::Stale => "Stale",
            Self::Waiting => "Waiting",
            Self::Failing => "Failing",
            Self::Removing => "Removing",
        }
    }
}

impl Delivery {
    /// The delivery that begins at `now`.
    pub fn new(phase: Phase, reason: impl Into<String>, now: Timestamp) -> Self {
        Self {
            phase,
            since: now,
            reason: reason.into(),
        }
    }

    /// Moves on to `phase`; `since` stays while nothing changes. Returns whether something did.
    pub fn update(&mut self, phase: Phase, reason: &str, now: Timestamp) -> bool {
        if self.phase == phase && self.reason == reason {
            return false;
        }
        *self = Self::new(phase, reason, now);
        true
    }
}

/// One ConfigMap or Secret that pods refer to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectStatus {
    /// `ConfigMap` or `Secret`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Its state in the manager.
    pub state: String,
    /// Version of what is served; empty when nothing is.
    pub resource_version: String,
    /// Time since it was last known to be in sync: zero while it is watched.
    pub age_secs: u64,
    /// Why it cannot be read now; empty when it can.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub error: String,
    /// The pods that refer to it, as `namespace/name`, sorted.
    pub pods: Vec<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn container_can_start_once_its_own_parts_are_delivered() {
        let part = |name: &str, phase: &str| {
            json!({"name": name, "type": "configMap", "path": "", "files": 0, "phase": phase,
                "since": "2026-01-01T00:00:00Z", "reason": name})
        };
        let delivered = |volume: &str, other: &str, environment: &str| {
            let served: ServedPod = serde_json::from_value(json!({
                "status": {
                    "namespace": "n", "name": "p", "uid": "u", "source": "api", "phase": "Waiting",
                    "since": "2026-01-01T00:00:00Z", "path": "",
                    "volumes": [part("mounted", volume), part("other", other)],
                    "containers": [part("main", environment)],
                },
                "pod": {},
            }))
            .unwrap();
            let of = |name: &str| {
                let container: Container = serde_json::from_value(
                    json!({"name": name, "volumeMounts": [{"name": "mounted", "mountPath": "/m"}]}),
                )
                .unwrap();
                let found = served.delivered(&container);
                let name = found.map(|found| found.name.clone());
                name.map_err(|part| part.map(|part| part.reason.clone()))
            };
            assert_eq!(of("unknown"), Err(None));
            of("main")
        };
        let waits_for = |name: &str| Err(Some(name.to_owned()));
        assert_eq!(
            delivered("Waiting", "Delivered", "Failing"),
            waits_for("mounted")
        );
        assert_eq!(
            delivered("Delivered", "Waiting", "Failing"),
            waits_for("main")
        );
        for in_place in ["Delivered", "Stale"] {
            assert_eq!(
                delivered(in_place, "Failing", in_place),
                Ok("main".to_owned())
            );
        }
    }
}
