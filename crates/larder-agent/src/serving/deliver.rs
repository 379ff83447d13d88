//! One pass of one pod on disk: projects each part and writes it. Synchronous: it gives way at pause points, and always
//! goes on.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    sync::Arc,
};

use jiff::Timestamp;
use larder_files::pause;
use larder_hooks::Observer;
use larder_objects::ObjectKey;
use larder_on_change::{ItemObjects, LeftOut, ObjectTag, PartKey};
use larder_pods::identity::is_static_pod;
use larder_projection::{
    Inputs, NestedMountPoints, RuntimeFeatures, VolumeKind, VolumePath,
    disk::{DiskError, HiddenLinks, PodVolume, VolumeHost},
    env_files, environment, fs_group, memory_limit, mounts, nested_mount_points, project,
    unknown_address,
};
use rustix::process::geteuid;

use super::failure::{AddressGiver, DeliveryFailure};
use crate::{
    delivery::{
        plan::{PartKind, PodPlan},
        pod_parts::PodParts,
        sub_paths::{Wanted, wanted_of},
    },
    node::state_own_addresses,
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
    /// Whether the API server is filled from manifests.
    pub(super) serves_manifests: bool,
}

/// The result of a job.
pub(super) struct JobReport {
    /// Of each part, in the order of the job.
    pub(super) parts: Vec<Result<Delivered, DeliveryFailure>>,
    /// What failed when the pod's directory was tidied; `None` if that was not requested.
    pub(super) tidied: Option<Vec<DiskError>>,
    /// The mounts with `subPath` of the volumes.
    pub(super) sub_paths: Wanted,
    /// To be finished when they are updated.
    pub(super) observer: Option<Observer>,
}

/// A part is in place.
#[derive(Debug)]
pub(super) struct Delivered {
    /// Whether its content differs from before.
    pub(super) swapped: bool,
    /// Number of its files or variables.
    pub(super) files: usize,
    /// The set of a volume.
    pub(super) set: Option<String>,
    /// Names of its files or variables that hooks do not react to.
    pub(super) left_out: Vec<String>,
    /// Links of the volume that only one user may follow.
    pub(super) hidden_links: Vec<HiddenLinks>,
}

/// What each volume needs of the whole pod.
struct VolumeLimits<'a> {
    mount_points: HashMap<&'a str, NestedMountPoints>,
    /// While the Node is unknown the kernel sets the limit: files do not wait for it.
    memory: Option<u64>,
}

/// The hooks of the pod, if it has any, and the objects that no hook reacts to.
struct ObservedPass<'a> {
    observer: Option<&'a mut Observer>,
    left_out: LeftOut,
}

impl ObservedPass<'_> {
    /// Files or variables of a part are about to be written; `of` knows their objects.
    fn announce<N: AsRef<str>, B: AsRef<[u8]>>(
        &self,
        part: &PartKey,
        items: impl Iterator<Item = (N, B)>,
        of: &dyn Fn(&str) -> Option<ObjectTag>,
    ) {
        let left_out = &self.left_out;
        if let Some(observer) = &self.observer {
            observer.announce(part, items, &ItemObjects { left_out, of });
        }
    }

    /// Files or variables of a part are in place.
    fn add<N: AsRef<str>, B: AsRef<[u8]>>(
        &mut self,
        part: PartKey,
        items: impl Iterator<Item = (N, B)>,
        of: &dyn Fn(&str) -> Option<ObjectTag>,
        swapped: bool,
    ) {
        let left_out = &self.left_out;
        if let Some(observer) = &mut self.observer {
            observer.add(part, items, &ItemObjects { left_out, of }, swapped);
        }
    }

    /// Those of `names` that no hook reacts to.
    fn left_out<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
        of: &dyn Fn(&str) -> Option<ObjectTag>,
    ) -> Vec<String> {
        if self.left_out.is_empty() {
            return Vec::new();
        }
        names
            .filter(|name| self.left_out.has(of(name)))
            .map(str::to_owned)
            .collect()
    }
}

impl Job {
    /// Delivers the parts.
    pub(super) fn run(mut self) -> JobReport {
        let mut pod = self.plan.pod.decode();
        let node = self.inputs.node.as_deref();
        // A static pod does not wait for the API server.
        if node.is_none() && is_static_pod(&pod.metadata) {
            state_own_addresses(&mut pod);
        }
        let limits = VolumeLimits {
            mount_points: nested_mount_points(&pod),
            memory: node.and_then(|node| memory_limit(&pod, node)),
        };
        let pod = PodParts::new(&pod);
        let kinds = self.parts.iter().map(|&index| &self.plan.parts[index].kind);
        let containers = kinds.filter_map(|kind| match kind {
            PartKind::Environment(name, _) => Some(pod.container(name)),
            PartKind::Volume(..) => None,
        });
        self.host
            .read_env_files(pod.uid, env_files(containers), &mut self.inputs);
        let mut observer = self.observer.take();
        if let Some(observer) = &mut observer {
            let parts = self.plan.parts.iter().map(|part| part.kind.observed());
            observer.begin(parts);
        }
        let mut pass = ObservedPass {
            observer: observer.as_mut(),
            left_out: self.inputs.left_out().map(ObjectTag::of).collect(),
        };
        let tidied = self.tidy.then(|| self.tidy_directory(pod.uid));
        let kinds = self.parts.iter().map(|&index| &self.plan.parts[index].kind);
        let volumes = kinds.clone().filter_map(PartKind::volume);
        let parts = kinds
            .map(|kind| {
                pause::point();
                match kind {
                    PartKind::Volume(name, kind) => {
                        self.volume(&pod, &limits, name, *kind, &mut pass)
                    }
                    PartKind::Environment(name, _) => self.environment(&pod, name, &mut pass),
                }
            })
            .collect();
        JobReport {
            parts,
            tidied,
            sub_paths: wanted_of(pod.pod, &self.inputs, &volumes.collect()),
            observer,
        }
    }

    fn volume(
        &self,
        parts: &PodParts<'_>,
        limits: &VolumeLimits<'_>,
        name: &str,
        kind: VolumeKind,
        pass: &mut ObservedPass<'_>,
    ) -> Result<Delivered, DeliveryFailure> {
        let pod = parts.pod;
        let projection = project(pod, parts.volume(name), &self.inputs)?;
        let mount_points = match limits.mount_points.get(name) {
            None => &[],
            Some(Ok(points)) => points.as_slice(),
            Some(Err(error)) => return Err(error.clone().into()),
        };
        let volume = PodVolume {
            pod_uid: parts.uid,
            name,
            kind,
            fs_group: fs_group(pod),
            size_limit: limits.memory,
            mount_points,
        };
        let part = PartKey::Volume(name.into(), kind);
        let files = projection.payload.iter().map(|(path, file)| {
            // Hooks hash them.
            pause::point();
            (path.as_str(), &*file.data)
        });
        let of = |path: &str| projection.origins.get(path)?.object().map(ObjectTag::of);
        pass.announce(&part, files.clone(), &of);
        let set_up = self.host.set_up(&volume, &projection.payload, self.now);
        let swapped = match &set_up {
            Ok(set_up) => Some(set_up.written.swapped),
            Err(error) => error.is_after_commit().then_some(true),
        };
        if let Some(swapped) = swapped {
            pass.add(part, files, &of, swapped);
        }
        let set_up = set_up?;
        let is_mounted_on = |name: &str| mount_points.iter().any(|point| point.first() == name);
        let mut shadowed = set_up.written.shadowed.iter();
        if let Some(name) = shadowed.find(|name| !is_mounted_on(name)) {
            return Err(DeliveryFailure::Shadowed {
                name: name.clone(),
                swapped: set_up.written.swapped,
            });
        }
        let mut hidden_links = HiddenLinks::of(kind, &projection.payload, geteuid().as_raw());
        if !hidden_links.is_empty() && !links_are_protected() {
            hidden_links.clear();
        }
        Ok(Delivered {
            swapped: set_up.written.swapped,
            files: projection.payload.len(),
            set: Some(set_up.set),
            left_out: pass.left_out(projection.payload.keys().map(VolumePath::as_str), &of),
            hidden_links,
        })
    }

    fn environment(
        &self,
        parts: &PodParts<'_>,
        name: &str,
        pass: &mut ObservedPass<'_>,
    ) -> Result<Delivered, DeliveryFailure> {
        let (container, node) = (parts.container(name), self.inputs.node.as_deref());
        if let Some(path) = unknown_address(parts.pod, container, node) {
            return Err(DeliveryFailure::NoAddress {
                path: path.to_owned(),
                giver: match path.starts_with("status.host") {
                    true => AddressGiver::Node,
                    false if self.serves_manifests => AddressGiver::Manifests,
                    false => AddressGiver::PodStatus,
                },
            });
        }
        let environment = environment(parts.pod, container, &self.inputs)?;
        // What its runtime has is unknown here, and most have it.
        let runtime = RuntimeFeatures {
            recursive_read_only: true,
        };
        mounts(parts.pod, container, &environment, runtime)?;
        let variables: BTreeMap<&str, &[u8]> = environment
            .iter()
            .map(|(name, variable)| (name, &*variable.value))
            .collect();
        let part = PartKey::Environment(name.into());
        let of = |name: &str| environment.get(name)?.origin.object().map(ObjectTag::of);
        pass.announce(&part, variables.iter(), &of);
        let swapped = self.host.write_environment(parts.uid, name, &variables)?;
        pass.add(part, variables.iter(), &of, swapped);
        Ok(Delivered {
            swapped,
            files: variables.len(),
            set: None,
            left_out: pass.left_out(variables.keys().copied(), &of),
            hidden_links: Vec::new(),
        })
    }

    /// Removes parts that the pod no longer has, and creates its link by name; returns what failed. That blocks no
    /// delivery.
    fn tidy_directory(&self, uid: &str) -> Vec<DiskError> {
        let (mut volumes, mut containers) = (Vec::new(), Vec::new());
        for part in &*self.plan.parts {
            match &part.kind {
                PartKind::Volume(name, kind) => volumes.push((*kind, name.as_str())),
                PartKind::Environment(name, _) => containers.push(name.as_str()),
            }
        }
        let retained = self.host.retain(uid, &volumes, &containers);
        let mut errors = retained.err().unwrap_or_default();
        if self.plan.hooks.is_none() {
            // Records of hooks that were removed while no agent ran.
            errors.extend(self.host.remove_pod_file(uid, larder_hooks::RECORD).err());
        }
        let ObjectKey { namespace, name } = &self.name;
        errors.extend(self.host.link_pod(namespace, name, uid).err());
        errors
    }
}

/// Whether this machine lets users follow only some links in directories that all may write to.
fn links_are_protected() -> bool {
    fs::read_to_string("/proc/sys/fs/protected_symlinks").is_ok_and(|text| text.trim() != "0")
}
