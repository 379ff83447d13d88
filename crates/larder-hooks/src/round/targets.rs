//! The targets of a pod's rounds: its containers, volumes and addresses.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, sync::Arc};

use k8s_openapi::api::core::v1::{Pod, VolumeMount};
use larder_actions::{
    http::PodAddresses,
    processes::{ContainerId, ContainerMounts, PodMounts},
    targets::TargetQuery,
};
use larder_on_change::{Attempt, PodOutline, StopDefaults};
use larder_pods::{StoredPod, identity::is_static_pod};
use larder_projection::{VolumeKind, pod_volumes};
use smol_str::SmolStr;

use crate::{OnChange, hooked_pod::HookedPod};

/// What the steps of an attempt reach.
pub(super) struct PodTargets {
    pub(super) query: TargetQuery,
    pub(super) stop: StopDefaults,
    pub(super) addresses: PodAddresses,
    pub(super) outline: PodOutline,
}

impl PodTargets {
    /// Those of an attempt, for changes yet to be determined.
    pub(super) fn of(on_change: &OnChange, attempt: &Attempt<HookedPod>) -> Self {
        let pod = &*Box::new(attempt.pod.pod.decode());
        let query = TargetQuery {
            mounts: PodMounts {
                containers: containers(pod),
                volumes: directories(on_change, &attempt.uid, pod),
            },
            // Where a kubelet runs the containers.
            ids: on_change.node().kubelet.is_some().then(|| running(pod)),
            container: attempt.hook().hook.container.clone(),
            known: Arc::clone(&attempt.pod.known_containers),
            ..TargetQuery::default()
        };
        Self {
            query,
            stop: StopDefaults::of(pod),
            addresses: addresses(on_change, pod),
            outline: PodOutline::of(pod),
        }
    }
}

impl OnChange {
    /// The containers of a pod, found and proven as for hooks: those of every kind, all of which may run.
    pub fn container_query(&self, pod: &StoredPod) -> TargetQuery {
        let decoded = &*Box::new(pod.decode());
        let containers = larder_projection::containers(decoded);
        TargetQuery {
            mounts: PodMounts {
                containers: containers
                    .map(|found| of_container(found.name, found.volume_mounts))
                    .collect(),
                volumes: directories(self, pod.uid(), decoded),
            },
            ids: self.node().kubelet.is_some().then(|| running(decoded)),
            ..TargetQuery::default()
        }
    }
}

/// The directory of each volume that larder delivers.
fn directories(on_change: &OnChange, uid: &str, pod: &Pod) -> BTreeMap<SmolStr, PathBuf> {
    pod_volumes(pod)
        .filter_map(|volume| {
            let kind = VolumeKind::of(volume)?;
            let path = on_change
                .node()
                .volumes()
                .volume_path(uid, kind, &volume.name);
            Some((volume.name.as_str().into(), path))
        })
        .collect()
}

/// Where the containers that may be the target of a hook mount volumes (rule F9).
fn containers(pod: &Pod) -> Vec<ContainerMounts> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars =
        sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let all = sidecars.chain(&spec.containers);
    all.map(|container| {
        of_container(
            &container.name,
            container.volume_mounts.as_deref().unwrap_or_default(),
        )
    })
    .collect()
}

fn of_container(name: &str, mounts: &[VolumeMount]) -> ContainerMounts {
    let mounts = mounts.iter();
    ContainerMounts {
        name: name.into(),
        mounts: mounts
            .map(|mount| (mount.name.as_str().into(), mount.mount_path.as_str().into()))
            .collect(),
    }
}

/// The IDs of the containers that run, by the status of the pod.
fn running(pod: &Pod) -> BTreeMap<SmolStr, ContainerId> {
    let statuses = pod.status.iter().flat_map(|status| {
        let sidecars = status.init_container_statuses.iter().flatten();
        let ephemeral = status.ephemeral_container_statuses.iter().flatten();
        sidecars
            .chain(status.container_statuses.iter().flatten())
            .chain(ephemeral)
    });
    let running = statuses.filter_map(|status| {
        status.state.as_ref()?.running.as_ref()?;
        let id = ContainerId::of_status(status.container_id.as_deref()?)?;
        Some((SmolStr::new(&status.name), id))
    });
    running.collect()
}

/// The addresses of the pod, and which of them its hooks may call.
pub(super) fn addresses(on_change: &OnChange, pod: &Pod) -> PodAddresses {
    let is_stated = on_change.node().serves_manifests || is_static_pod(&pod.metadata);
    let spec = pod.spec.as_ref();
    PodAddresses {
        ips: ips(pod),
        networks: is_stated.then(|| on_change.allowed_networks()),
        is_host_network: spec.and_then(|spec| spec.host_network) == Some(true),
    }
}

/// `status.podIPs`, or `status.podIP`.
fn ips(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = &pod.status else {
        return Vec::new();
    };
    let all = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let ips: Vec<_> = all.filter_map(|ip| ip.parse().ok()).collect();
    if ips.is_empty() {
        let one = status.pod_ip.as_deref().and_then(|ip| ip.parse().ok());
        return one.into_iter().collect();
    }
    ips
}
