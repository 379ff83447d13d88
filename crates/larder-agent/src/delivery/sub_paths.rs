//! A worker's part in mounts with `subPath` that follow their volume (subpath S1, S7).
//!
//! In either mode: the worker says what its volumes have, then calls [`update`], then hands its pass over to the hooks.

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::api::core::v1::Pod;
use larder_containers::subpaths::{MountState, PodSubPaths, WantedMount};
use larder_kubelet::sub_path_mounts::SubPathMounts;
use larder_pods::events::{EventSubject, PodReason};
use larder_projection::Inputs;
use smol_str::SmolStr;
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
    volumes
        .iter()
        .map(|name| ((*name).into(), wanted(&mounts, name)))
        .filter(|(_, mounts)| !mounts.is_empty())
        .collect()
}

/// Updates what is due.
pub(crate) async fn update(pod: &mut PodSubPaths, node: &DeliveryNode, plan: &PodPlan) {
    let settings = &node.sub_paths;
    if let Some(reason) = settings.pins(&plan.pod) {
        return pod.pin(reason);
    }
    if !pod.is_due() {
        return;
    }
    let query = node.on_change.container_query(&plan.pod);
    let name = &plan.key;
    for status in pod.update(&settings.node, query, node.now()).await {
        let (container, path) = (&*status.mount.container, &*status.mount.mount_path);
        if let MountState::Pinned(reason) = &status.state {
            warn!(pod = %name, container, path, reason, "mount by subPath is not updated");
            let message = format!("Container {container:?} keeps its content of {path}: {reason}");
            let subject = EventSubject::Pod(PodReason::SubPathNotUpdated);
            node.post(&plan.pod, subject, &message);
        } else {
            let millis = status.took.map(|took| took.as_millis());
            info!(pod = %name, container, path, millis, "mount by subPath replaced");
        }
    }
}

/// The published status of the mounts of a volume.
pub(crate) fn statuses(pod: &PodSubPaths, volume: &str) -> Vec<SubPathStatus> {
    let statuses = pod
        .statuses()
        .iter()
        .filter(|status| status.mount.volume == volume)
        .map(|status| {
            let (state, reason) = match &status.state {
                MountState::Unknown => (SubPathState::Unknown, ""),
                MountState::Live => (SubPathState::Live, ""),
                MountState::Waiting(_) => (SubPathState::Waiting, ""),
                MountState::Pinned(reason) => (SubPathState::Pinned, &**reason),
            };
            let waiting_since = match status.state {
                MountState::Waiting(since) => Some(since),
                _ => None,
            };
            let took = status.took.map(|took| took.as_millis());
            SubPathStatus {
                container: status.mount.container.to_string(),
                mount_path: status.mount.mount_path.to_string(),
                state,
                reason: reason.to_owned(),
                waiting_since,
                replaced_at: status.replaced,
                took_ms: took.map(|millis| u64::try_from(millis).unwrap_or(u64::MAX)),
            }
        });
    statuses.collect()
}
