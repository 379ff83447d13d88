//! A worker's part in mounts with `subPath` that follow their volume (subpath S1, S7).
//!
//! In either mode: the worker says what its volumes have, then calls [`SubPaths::update`], then hands its pass over to
//! the hooks.

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use larder_actions::{
    subpaths::{MountState, PodSubPaths, WantedMount},
    targets::KnownContainers,
};
use larder_kubelet::{backoff::RETRY, sub_path_mounts::SubPathMounts};
use larder_pods::events::{EventSubject, PodReason};
use larder_projection::Inputs;
use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{plan::PodPlan, worker::DeliveryNode};
use crate::status::{SubPathState, SubPathStatus};

/// The mounts with `subPath` of these volumes, by volume.
pub(crate) type Wanted = BTreeMap<SmolStr, Vec<WantedMount>>;

/// Those of `mounts` that can be updated.
pub(crate) fn wanted(mounts: &SubPathMounts<'_>, volume: &str) -> Vec<WantedMount> {
    let mounts = mounts.of_volume(volume);
    let wanted = mounts.filter_map(|(container, mount)| {
        let path = mount.sub_path.as_deref().unwrap_or_default();
        let is_secret = mount.secret_sub_path;
        WantedMount::new(container, &mount.mount_path, volume, path, is_secret)
    });
    wanted.collect()
}

/// The mounts with `subPath` of `volumes`.
pub(crate) fn wanted_of(pod: &Pod, inputs: &Inputs, volumes: &HashSet<&str>) -> Wanted {
    let mounts = SubPathMounts::of(pod, inputs, volumes);
    let wanted = volumes
        .iter()
        .map(|name| ((*name).into(), wanted(&mounts, name)));
    wanted.filter(|(_, mounts)| !mounts.is_empty()).collect()
}

/// The mounts of one pod. Nothing is allocated for a pod without any.
#[derive(Default)]
pub(crate) struct SubPaths {
    pod: Option<Box<PodSubPaths>>,
    /// The IDs of the containers that ran at the last look, where they are known.
    running: Vec<SmolStr>,
    /// Whether the pod asked for no updates.
    is_pinned: bool,
    /// The containers that earlier searches have found.
    known: Option<Arc<KnownContainers>>,
}

impl SubPaths {
    /// Takes in the mounts of a volume. Those that are known stay as they were at the start of their container.
    pub(crate) fn add(&mut self, volume: &str, wanted: Vec<WantedMount>) {
        if wanted.is_empty() && self.pod.is_none() {
            return;
        }
        let pod = self
            .pod
            .get_or_insert_with(|| Box::new(PodSubPaths::new(RETRY)));
        pod.add_mounts(volume, wanted);
    }

    /// An object of the volume has changed.
    pub(crate) fn changed(&mut self, volume: &str, at: Instant) {
        if let Some(pod) = &mut self.pod {
            pod.changed(volume, at);
        }
    }

    /// The volume has its content in this set, if one is given: other content than before if it was `swapped`.
    pub(crate) fn written(&mut self, volume: &str, set: Option<&str>, swapped: bool) {
        if let Some(pod) = &mut self.pod {
            pod.written(volume, set.map(SmolStr::new), swapped);
        }
    }

    /// The IDs of the containers that run.
    pub(crate) fn running(&mut self, ids: impl Iterator<Item = SmolStr>) {
        let running: Vec<_> = ids.collect();
        if self.pod.is_some() && self.running != running {
            self.running = running;
            self.all_due();
        }
    }

    /// The containers may be others.
    pub(crate) fn all_due(&mut self) {
        if let Some(pod) = &mut self.pod {
            pod.all_due();
        }
    }

    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.pod.as_ref()?.retry_at()
    }

    /// Updates what is due.
    pub(crate) async fn update(&mut self, node: &DeliveryNode, plan: &PodPlan) {
        let Some(pod) = &mut self.pod else { return };
        let settings = &node.sub_paths;
        let pins = settings.pins(&plan.pod);
        if mem::replace(&mut self.is_pinned, pins.is_some()) && pins.is_none() {
            pod.all_due();
        }
        if let Some(reason) = pins {
            return pod.pin(reason);
        }
        if !pod.is_due() {
            return;
        }
        let mut query = node.on_change.container_query(&plan.pod);
        query.known = Arc::clone(self.known.get_or_insert_default());
        let before = pod.statuses().iter().map(|status| status.replaced);
        let before: Vec<_> = before.collect();
        let now = node.now();
        let failing = pod.update(&settings.node, query, now).await;
        let name = &plan.key;
        for (status, before) in pod.statuses().iter().zip(before) {
            if status.replaced != before {
                let (container, path) = (&*status.mount.container, &*status.mount.mount_path);
                let millis = status.took.map(|took| took.as_millis());
                info!(pod = %name, container, path, millis, "mount by subPath replaced");
            }
        }
        for status in failing {
            let MountState::Pinned(reason) = &status.state else {
                continue;
            };
            let (container, path) = (&status.mount.container, &status.mount.mount_path);
            warn!(pod = %name, %container, %path, reason, "mount by subPath is not updated");
            let message = format!("Container {container:?} keeps its content of {path}: {reason}");
            let subject = EventSubject::Pod(PodReason::SubPathNotUpdated);
            node.post(&plan.pod, subject, &message);
        }
    }

    /// Whether the container sees the present content through the mount.
    pub(crate) fn is_live(&self, container: &str, mount_path: &str) -> bool {
        let mut all = self.pod.iter().flat_map(|pod| pod.statuses());
        all.any(|status| {
            status.mount.container == container
                && status.mount.mount_path == mount_path
                && status.state == MountState::Live
        })
    }

    /// The published status of the mounts of a volume.
    pub(crate) fn statuses(&self, volume: &str) -> Vec<SubPathStatus> {
        let all = self.pod.iter().flat_map(|pod| pod.statuses());
        let own = all.filter(|status| status.mount.volume == volume);
        let statuses = own.map(|status| SubPathStatus {
            container: status.mount.container.to_string(),
            mount_path: status.mount.mount_path.to_string(),
            state: match status.state {
                MountState::Unknown => SubPathState::Unknown,
                MountState::Live => SubPathState::Live,
                MountState::Pinned(_) => SubPathState::Pinned,
            },
            reason: match &status.state {
                MountState::Pinned(reason) => reason.clone(),
                _ => String::new(),
            },
            replaced_at: status.replaced,
            took_ms: status
                .took
                .map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
        });
        statuses.collect()
    }
}
