//! One pass of one pod on disk: projects each part and writes it. Synchronous, and never interrupted.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Volume};
use larder_objects::{ObjectKey, chain};
use larder_projection::{
    ContainerView, Inputs, Needs, NestedMountPoints, NodeFacts, Unavailable, VolumeKind,
    containers,
    disk::{DiskError, PodVolume, VolumeHost},
    environment, fs_group, memory_limit, nested_mount_points, project, unknown_address,
};

use crate::{
    delivery::plan::{PartKind, PodPlan},
    on_change::Observer,
    root_dir::HOOK_RECORD,
};

/// One delivery and its inputs.
pub(super) struct Job {
    pub(super) plan: Arc<PodPlan>,
    pub(super) inputs: Inputs,
    /// The parts to deliver, by their index in the plan.
    pub(super) parts: Vec<usize>,
    /// Whether to remove everything on disk but the parts of the plan, and to create the pod's link by name.
    pub(super) tidy: bool,
    /// Namespace and name of the pod.
    pub(super) name: ObjectKey,
    pub(super) host: Arc<VolumeHost>,
    pub(super) now: Timestamp,
    /// The observer of the pod's hooks, if it has any.
    pub(super) observer: Option<Observer>,
}

/// The result of a job.
#[derive(Debug)]
pub(super) struct JobReport {
    /// Of each part, in the order of the job.
    pub(super) parts: Vec<Result<Delivered, DeliveryFailure>>,
    /// Why tidying the pod's directory failed; empty on success, `None` if not requested.
    pub(super) tidied: Option<String>,
}

/// A part is in place.
#[derive(Debug)]
pub(super) struct Delivered {
    /// Whether its content differs from before.
    pub(super) swapped: bool,
    /// Number of its files or variables.
    pub(super) files: usize,
}

/// A part could not be delivered.
#[derive(Debug)]
pub(super) struct DeliveryFailure {
    /// The error with its causes; the kubelet's message where it has one.
    pub(super) reason: String,
    /// Whether the content differs from before nevertheless, because only cleaning up failed.
    pub(super) swapped: bool,
    /// Whether an input of the part is missing that only a new status of the pod or the Node brings: nothing failed.
    pub(super) waits: bool,
}

impl DeliveryFailure {
    fn in_projection(error: &dyn std::error::Error) -> Self {
        Self {
            reason: chain(error),
            swapped: false,
            waits: false,
        }
    }

    /// The address at `path` is unknown.
    fn without_address(path: &str) -> Self {
        let holder = if path.starts_with("status.host") {
            "the Node"
        } else {
            "the pod's status"
        };
        Self {
            reason: format!("waiting for {path}: {holder} has no address yet"),
            swapped: false,
            waits: true,
        }
    }

    fn on_disk(error: &DiskError) -> Self {
        Self {
            reason: chain(error),
            swapped: error.is_after_commit(),
            waits: false,
        }
    }
}

/// A pod by the names of its volumes and containers; the first of a name counts, as in its plan. Everything that each
/// volume needs of the whole pod is computed once.
struct PodParts<'a> {
    pod: &'a Pod,
    uid: &'a str,
    volumes: HashMap<&'a str, &'a Volume>,
    containers: HashMap<&'a str, ContainerView<'a>>,
    mount_points: HashMap<&'a str, NestedMountPoints>,
    /// While the Node is unknown the kernel sets the limit: files do not wait for it.
    memory_limit: Option<u64>,
}

impl<'a> PodParts<'a> {
    fn new(pod: &'a Pod, node: Option<&NodeFacts>) -> Self {
        let mut parts = Self {
            pod,
            uid: pod.metadata.uid.as_deref().unwrap_or_default(),
            volumes: HashMap::new(),
            containers: HashMap::new(),
            mount_points: nested_mount_points(pod),
            memory_limit: node.and_then(|node| memory_limit(pod, node)),
        };
        for volume in pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten())
        {
            // The plan omits volumes of types that are not served.
            if VolumeKind::of(volume).is_some() {
                parts.volumes.entry(&volume.name).or_insert(volume);
            }
        }
        for container in containers(pod) {
            parts.containers.entry(container.name).or_insert(container);
        }
        parts
    }
}

impl Job {
    /// Delivers the parts.
    pub(super) fn run(mut self) -> JobReport {
        let pod = self.plan.pod.decode();
        let pod = PodParts::new(&pod, self.inputs.node.as_deref());
        self.read_env_files(&pod);
        let mut observer = self.observer.take();
        if let Some(observer) = &mut observer {
            let parts = self.plan.parts.iter().map(|part| part.kind.observed());
            observer.begin(parts);
        }
        let tidied = self.tidy.then(|| self.tidy_directory(pod.uid));
        let kinds = self.parts.iter().map(|&index| &self.plan.parts[index].kind);
        let parts = kinds
            .map(|kind| match kind {
                PartKind::Volume(name, kind) => self.volume(&pod, name, *kind, observer.as_mut()),
                PartKind::Environment(name, _) => self.environment(&pod, name, observer.as_mut()),
            })
            .collect();
        if let Some(observer) = observer {
            observer.finish();
        }
        JobReport { parts, tidied }
    }

    /// Reads the files that variables come from: in every pass, since other containers write them at any time.
    fn read_env_files(&mut self, pod: &PodParts<'_>) {
        let mut needs = Needs::default();
        for &index in &self.parts {
            if let PartKind::Environment(name, _) = &self.plan.parts[index].kind
                && let Some(container) = pod.containers.get(name.as_str())
            {
                needs.add_container(*container);
            }
        }
        for file in needs.env_files {
            let found = match self.host.read_env_file(pod.uid, &file) {
                Ok(Some(found)) => Ok(Arc::new(found)),
                Ok(None) => Err(Unavailable::NotFound),
                Err(error) => Err(Unavailable::failed(chain(&error))),
            };
            self.inputs.env_files.insert(file, found);
        }
    }

    fn volume(
        &self,
        parts: &PodParts<'_>,
        name: &str,
        kind: VolumeKind,
        observer: Option<&mut Observer>,
    ) -> Result<Delivered, DeliveryFailure> {
        let pod = parts.pod;
        let volume = parts.volumes.get(name);
        let volume = volume.expect("the plan was made from the same specification");
        let projection = project(pod, volume, &self.inputs)
            .map_err(|error| DeliveryFailure::in_projection(&error))?;
        let mount_points = match parts.mount_points.get(name) {
            None => &[],
            Some(Ok(points)) => points.as_slice(),
            Some(Err(error)) => return Err(DeliveryFailure::in_projection(error)),
        };
        let volume = PodVolume {
            pod_uid: parts.uid,
            name,
            kind,
            fs_group: fs_group(pod),
            size_limit: parts.memory_limit,
            mount_points,
        };
        if let Some(observer) = &observer {
            observer.before_volume(name, kind, &projection.payload);
        }
        let set_up = self.host.set_up(&volume, &projection.payload, self.now);
        let swapped = match &set_up {
            Ok(set_up) => Some(set_up.written.swapped),
            Err(error) => error.is_after_commit().then_some(true),
        };
        if let (Some(observer), Some(swapped)) = (observer, swapped) {
            observer.volume(name, kind, &projection.payload, swapped);
        }
        let set_up = set_up.map_err(|error| DeliveryFailure::on_disk(&error))?;
        Ok(Delivered {
            swapped: set_up.written.swapped,
            files: projection.payload.len(),
        })
    }

    fn environment(
        &self,
        parts: &PodParts<'_>,
        name: &str,
        observer: Option<&mut Observer>,
    ) -> Result<Delivered, DeliveryFailure> {
        let container = parts.containers.get(name);
        let container = container.expect("the plan was made from the same specification");
        let node = self.inputs.node.as_deref();
        if let Some(path) = unknown_address(parts.pod, *container, node) {
            return Err(DeliveryFailure::without_address(path));
        }
        let environment = environment(parts.pod, *container, &self.inputs)
            .map_err(|error| DeliveryFailure::in_projection(&error))?;
        let variables: BTreeMap<&str, &[u8]> = environment
            .iter()
            .map(|(name, variable)| (name, &*variable.value))
            .collect();
        if let Some(observer) = &observer {
            observer.before_environment(name, &variables);
        }
        let swapped = self
            .host
            .write_environment(parts.uid, name, &variables)
            .map_err(|error| DeliveryFailure::on_disk(&error))?;
        if let Some(observer) = observer {
            observer.environment(name, &variables, swapped);
        }
        Ok(Delivered {
            swapped,
            files: variables.len(),
        })
    }

    /// Removes parts that the pod no longer has, and creates its link by name; returns the failure. A failure blocks no
    /// delivery.
    fn tidy_directory(&self, uid: &str) -> String {
        let (mut volumes, mut containers) = (Vec::new(), Vec::new());
        for part in &*self.plan.parts {
            match &part.kind {
                PartKind::Volume(name, kind) => volumes.push((*kind, name.as_str())),
                PartKind::Environment(name, _) => containers.push(name.as_str()),
            }
        }
        let mut errors = self
            .host
            .retain(uid, &volumes, &containers)
            .err()
            .unwrap_or_default();
        if self.plan.hooks.is_none() {
            // Records of hooks that were removed while no agent ran.
            errors.extend(self.host.remove_pod_file(uid, HOOK_RECORD).err());
        }
        let link = self
            .host
            .link_pod(&self.name.namespace, &self.name.name, uid);
        errors.extend(link.err());
        let reasons: Vec<_> = errors.iter().map(|error| chain(error)).collect();
        reasons.join(", ")
    }
}
