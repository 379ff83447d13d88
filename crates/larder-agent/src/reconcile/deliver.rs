//! One pass of one pod on disk: projects each part and writes it. Synchronous and whole.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use larder_objects::{ObjectKey, chain};
use larder_pods::StoredPod;
use larder_projection::{
    Inputs, Needs, Unavailable, VolumeKind, containers,
    disk::{DiskError, PodVolume, VolumeHost},
    environment, fs_group, memory_limit, nested_mount_points, project,
};

use super::plan::Target;

/// What to deliver, with all that it takes.
pub(super) struct Job {
    pub(super) pod: Arc<StoredPod>,
    pub(super) inputs: Inputs,
    pub(super) targets: Vec<Target>,
    /// If given, everything else of the pod that is on disk is removed, and its link by name is made.
    pub(super) keep: Option<Vec<Target>>,
    /// Namespace and name of the pod.
    pub(super) name: ObjectKey,
    pub(super) host: Arc<VolumeHost>,
    pub(super) now: Timestamp,
}

/// What came of a job.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Of the targets, in their order.
    pub(super) parts: Vec<Result<Done, Failed>>,
    /// What is wrong with the pod's directory beside them, if that was looked at; empty when nothing is.
    pub(super) upkeep: Option<String>,
}

/// A part is in place.
#[derive(Debug)]
pub(super) struct Done {
    /// Its content is another than before.
    pub(super) swapped: bool,
    /// Number of its files or variables.
    pub(super) files: usize,
}

/// A part is not as it should be.
#[derive(Debug)]
pub(super) struct Failed {
    /// The error with its causes; the kubelet's message where it has one.
    pub(super) reason: String,
    /// Whether the content is another than before all the same, and only tidying up failed.
    pub(super) swapped: bool,
}

impl Failed {
    fn before_the_disk(error: &dyn std::error::Error) -> Self {
        Self {
            reason: chain(error),
            swapped: false,
        }
    }

    fn on_disk(error: &DiskError) -> Self {
        Self {
            reason: chain(error),
            swapped: error.is_after_commit(),
        }
    }
}

impl Job {
    /// Delivers the targets.
    pub(super) fn run(mut self) -> Outcome {
        let pod = self.pod.decode();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.read_env_files(&pod, uid);
        let upkeep = self.keep.as_ref().map(|keep| self.tidy(uid, keep));
        let parts = self.targets.iter().map(|target| match target {
            Target::Volume(name, kind) => self.volume(&pod, uid, name, *kind),
            Target::Environment(name) => self.environment(&pod, uid, name),
        });
        Outcome {
            parts: parts.collect(),
            upkeep,
        }
    }

    /// Reads the files that variables come from: in every pass, since other containers write them at any time.
    fn read_env_files(&mut self, pod: &Pod, uid: &str) {
        let mut needs = Needs::default();
        for container in containers(pod) {
            let is_due = |target: &Target| matches!(target, Target::Environment(name) if name == container.name);
            if self.targets.iter().any(is_due) {
                needs.add_container(container);
            }
        }
        for file in needs.env_files {
            let found = match self.host.read_env_file(uid, &file) {
                Ok(Some(found)) => Ok(Arc::new(found)),
                Ok(None) => Err(Unavailable::NotFound),
                Err(error) => Err(Unavailable::failed(chain(&error))),
            };
            self.inputs.env_files.insert(file, found);
        }
    }

    fn volume(&self, pod: &Pod, uid: &str, name: &str, kind: VolumeKind) -> Result<Done, Failed> {
        let spec = pod.spec.iter();
        let volume = spec
            .flat_map(|spec| spec.volumes.iter().flatten())
            .find(|volume| volume.name == name)
            .expect("targets are made of this pod's volumes");
        let projection =
            project(pod, volume, &self.inputs).map_err(|error| Failed::before_the_disk(&error))?;
        let mount_points =
            nested_mount_points(pod, name).map_err(|error| Failed::before_the_disk(&error))?;
        let volume = PodVolume {
            pod_uid: uid,
            name,
            kind,
            fs_group: fs_group(pod),
            // A node that is not known yet leaves the limit to the kernel: files are not kept waiting for it.
            size_limit: self
                .inputs
                .node
                .as_deref()
                .and_then(|node| memory_limit(pod, node)),
            mount_points: &mount_points,
        };
        let set_up = self
            .host
            .set_up(&volume, &projection.payload, self.now)
            .map_err(|error| Failed::on_disk(&error))?;
        Ok(Done {
            swapped: set_up.written.swapped,
            files: projection.payload.len(),
        })
    }

    fn environment(&self, pod: &Pod, uid: &str, name: &str) -> Result<Done, Failed> {
        let container = containers(pod)
            .find(|container| container.name == name)
            .expect("targets are made of this pod's containers");
        let environment = environment(pod, container, &self.inputs)
            .map_err(|error| Failed::before_the_disk(&error))?;
        let variables: BTreeMap<&str, &[u8]> = environment
            .iter()
            .map(|(name, variable)| (name, &*variable.value))
            .collect();
        let swapped = self
            .host
            .write_environment(uid, name, &variables)
            .map_err(|error| Failed::on_disk(&error))?;
        Ok(Done {
            swapped,
            files: variables.len(),
        })
    }

    /// Removes what the pod no longer has, and makes its link by name; returns what went wrong. Neither keeps anything from
    /// being delivered.
    fn tidy(&self, uid: &str, keep: &[Target]) -> String {
        let (mut volumes, mut kept_containers) = (Vec::new(), Vec::new());
        for target in keep {
            match target {
                Target::Volume(name, kind) => volumes.push((*kind, name.as_str())),
                Target::Environment(name) => kept_containers.push(name.as_str()),
            }
        }
        let mut errors = self
            .host
            .retain(uid, &volumes, &kept_containers)
            .err()
            .unwrap_or_default();
        let link = self
            .host
            .link_pod(&self.name.namespace, &self.name.name, uid);
        errors.extend(link.err());
        let reasons: Vec<_> = errors.iter().map(|error| chain(error)).collect();
        reasons.join(", ")
    }
}
