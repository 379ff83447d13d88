//! The fields of a pod that this mode reads in addition to its plan. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, VolumeMount};
use larder_objects::is_terminal_phase;
use larder_projection::{ContainerView, containers};
use smol_str::SmolStr;

use crate::{
    node_state::has_volume_of,
    rules::{PodView, RunningContainer},
};

/// The reason of a container that waits for an object of its environment (R6).
const CONFIG_ERROR: &str = "CreateContainerConfigError";

/// The parts of a pod that decide about its touches.
#[derive(Clone, Debug, Default)]
pub struct PodTraits {
    /// `spec.priority`.
    pub priority: i32,
    /// Whether a DaemonSet owns it.
    pub is_daemon_set: bool,
    /// Whether one of its containers runs, or has run.
    pub has_started: bool,
    /// Containers that run.
    pub running: BTreeSet<SmolStr>,
    /// Containers that wait for an object of their environment.
    pub waiting: BTreeSet<SmolStr>,
    /// Volumes that a container mounts without `subPath`, and so sees the changes of (R2).
    pub mounted: BTreeSet<SmolStr>,
    /// The containers whose variables are in the path of a mount, by the volume that they mount.
    pub expanded: BTreeMap<SmolStr, BTreeSet<SmolStr>>,
}

impl PodTraits {
    /// The traits of `pod`.
    pub fn of(pod: &Pod) -> Self {
        let owners = pod.metadata.owner_references.iter().flatten();
        let spec = pod.spec.as_ref();
        let names = |is: fn(&ContainerStatus) -> bool| {
            statuses(pod)
                .filter(|status| is(status))
                .map(|status| SmolStr::new(&status.name))
                .collect()
        };
        Self {
            priority: spec.and_then(|spec| spec.priority).unwrap_or_default(),
            is_daemon_set: owners.into_iter().any(|owner| owner.kind == "DaemonSet"),
            has_started: statuses(pod).any(|status| id(status).is_some()),
            running: names(is_running),
            waiting: names(waits_for_environment),
            mounted: containers(pod)
                .flat_map(|container| whole_mounts(&container))
                .collect(),
            expanded: expanded(pod),
        }
    }
}

/// The view of `pod`.
pub fn pod_view(pod: &Pod, republishing: &BTreeSet<String>) -> PodView {
    let running = statuses(pod)
        .filter(|status| is_running(status))
        .filter_map(|status| {
            let container = containers(pod).find(|found| found.name == status.name)?;
            Some(RunningContainer {
                name: status.name.as_str().into(),
                id: id(status)?,
                volumes: whole_mounts(&container).collect(),
            })
        });
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    PodView {
        containers: running.collect(),
        republishes: has_volume_of(pod, republishing),
        ending: pod.metadata.deletion_timestamp.is_some() || phase.is_some_and(is_terminal_phase),
    }
}

/// The volumes that `container` mounts without `subPath`.
fn whole_mounts<'a>(container: &ContainerView<'a>) -> impl Iterator<Item = SmolStr> + use<'a> {
    container
        .volume_mounts
        .iter()
        .filter(|mount| !has_sub_path(mount))
        .map(|mount| SmolStr::new(&mount.name))
}

fn expanded(pod: &Pod) -> BTreeMap<SmolStr, BTreeSet<SmolStr>> {
    let mut expanded: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for container in containers(pod).filter(has_expression) {
        for mount in container.volume_mounts {
            expanded
                .entry(SmolStr::new(&mount.name))
                .or_default()
                .insert(SmolStr::new(container.name));
        }
    }
    expanded
}

/// Whether the variables of `container` are in the path of one of its mounts.
pub fn has_expression(container: &ContainerView<'_>) -> bool {
    let mut mounts = container.volume_mounts.iter();
    mounts.any(|mount| {
        mount
            .sub_path_expr
            .as_deref()
            .is_some_and(|path| !path.is_empty())
    })
}

/// Whether a container sees only a part of the volume by this mount, as of its start.
pub fn has_sub_path(mount: &VolumeMount) -> bool {
    let mut paths = [&mount.sub_path, &mount.sub_path_expr]
        .into_iter()
        .flatten();
    paths.any(|path| !path.is_empty())
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let lists = pod.status.as_ref().map(|status| {
        [
            &status.init_container_statuses,
            &status.container_statuses,
            &status.ephemeral_container_statuses,
        ]
    });
    lists.into_iter().flatten().flatten().flatten()
}

fn id(status: &ContainerStatus) -> Option<SmolStr> {
    status
        .container_id
        .as_deref()
        .filter(|id| !id.is_empty())
        .map(SmolStr::new)
}

fn is_running(status: &ContainerStatus) -> bool {
    status
        .state
        .as_ref()
        .is_some_and(|state| state.running.is_some())
}

fn waits_for_environment(status: &ContainerStatus) -> bool {
    let waiting = status
        .state
        .as_ref()
        .and_then(|state| state.waiting.as_ref());
    waiting.and_then(|waiting| waiting.reason.as_deref()) == Some(CONFIG_ERROR)
}
