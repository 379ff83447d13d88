//! The targets of a pod's rounds: its containers, volumes and addresses.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use larder_actions::http::PodAddresses;
use larder_containers::{
    processes::{ContainerId, ContainerMounts, PodMounts},
    targets::TargetQuery,
};
use larder_on_change::{Attempt, ContainerRole, PodOutline, StopDefaults};
use larder_pods::{StoredPod, identity::is_static_pod};
use larder_projection::{VolumeKind, containers, pod_volumes};
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
        let outline = PodOutline::of(pod);
        // Rule F9.
        let is_target = |name: &str| {
            let mut containers = outline.containers.iter();
            containers.any(|found| found.role != ContainerRole::Init && found.name == name)
        };
        Self {
            query: TargetQuery {
                container: attempt.hook().hook.container.clone(),
                known: Arc::clone(&attempt.pod.known_containers),
                ..on_change.query(&attempt.uid, pod, is_target)
            },
            stop: StopDefaults::of(pod),
            addresses: addresses(on_change, pod),
            outline,
        }
    }
}

impl OnChange {
    /// The containers of a pod, found and proven as for hooks: those of every kind, all of which may run.
    pub fn container_query(&self, pod: &StoredPod) -> TargetQuery {
        let decoded = &*Box::new(pod.decode());
        self.query(pod.uid(), decoded, |_| true)
    }

    /// The containers of a pod whose names are targets.
    fn query(&self, uid: &str, pod: &Pod, is_target: impl Fn(&str) -> bool) -> TargetQuery {
        let containers = containers(pod)
            .filter(|found| is_target(found.name))
            .map(|found| {
                let mounts = found
                    .volume_mounts
                    .iter()
                    .map(|mount| (mount.name.as_str().into(), mount.mount_path.as_str().into()));
                ContainerMounts {
                    name: found.name.into(),
                    mounts: mounts.collect(),
                }
            });
        // The directory of each volume that larder delivers.
        let volumes = pod_volumes(pod).filter_map(|volume| {
            let kind = VolumeKind::of(volume)?;
            let node = self.node().volumes();
            let path = node.volume_path(uid, kind, &volume.name);
            Some((volume.name.as_str().into(), path))
        });
        TargetQuery {
            mounts: PodMounts {
                containers: containers.collect(),
                volumes: volumes.collect(),
            },
            // Where a kubelet runs the containers.
            ids: self.node().kubelet.is_some().then(|| running(pod)),
            ..TargetQuery::default()
        }
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
