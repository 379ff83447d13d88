//! The facts about a pod that the steps of its rounds use.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use larder_actions::processes::{ContainerId, ContainerMounts, PodMounts};
use larder_on_change::{Action, MAX_GRACE, PodFacts, PodHook};
use larder_projection::VolumeKind;
use smol_str::SmolStr;

use super::super::OnChange;

/// Grace period of a pod without its own: the API server's default.
const GRACE: Duration = Duration::from_secs(30);

/// The facts about the pod that the steps of an attempt use.
pub(in super::super) struct RoundFacts {
    pub(super) mounts: PodMounts,
    /// The IDs of the containers that run, where a kubelet runs them.
    pub(super) ids: Option<BTreeMap<SmolStr, ContainerId>>,
    pub(super) grace: Duration,
    /// Empty if no step is a request, like the next.
    pub(super) ips: Vec<IpAddr>,
    pub(super) facts: PodFacts,
}

impl RoundFacts {
    pub(super) fn of(on_change: &OnChange, uid: &str, pod: &Pod, hook: &PodHook) -> Self {
        let mut steps = hook.hook.steps.iter();
        let has_request = steps.any(|step| matches!(step, Action::Http(_)));
        Self {
            mounts: PodMounts {
                containers: containers(pod),
                volumes: directories(on_change, uid, pod),
            },
            ids: on_change.has_kubelet().then(|| running(pod)),
            grace: grace(pod),
            ips: if has_request { ips(pod) } else { Vec::new() },
            facts: if has_request {
                PodFacts::of(pod)
            } else {
                PodFacts::default()
            },
        }
    }
}

/// The directory of each volume that larder delivers.
fn directories(on_change: &OnChange, uid: &str, pod: &Pod) -> BTreeMap<SmolStr, PathBuf> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| {
            let kind = VolumeKind::of(volume)?;
            let path = on_change.volumes().volume_path(uid, kind, &volume.name);
            Some((volume.name.as_str().into(), path))
        })
        .collect()
}

/// How long the containers of `pod` may take to end.
fn grace(pod: &Pod) -> Duration {
    let spec = pod.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.termination_grace_period_seconds);
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(GRACE, |seconds| Duration::from_secs(seconds).min(MAX_GRACE))
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
    all.map(|container| ContainerMounts {
        name: container.name.as_str().into(),
        mounts: container
            .volume_mounts
            .iter()
            .flatten()
            .map(|mount| (mount.name.as_str().into(), mount.mount_path.as_str().into()))
            .collect(),
    })
    .collect()
}

/// The IDs of the containers that run and may be the target of a hook, by the status of the pod.
fn running(pod: &Pod) -> BTreeMap<SmolStr, ContainerId> {
    let statuses = pod.status.iter().flat_map(|status| {
        let sidecars = status.init_container_statuses.iter().flatten();
        sidecars.chain(status.container_statuses.iter().flatten())
    });
    let running = statuses.filter_map(|status| {
        status.state.as_ref()?.running.as_ref()?;
        let id = ContainerId::of_status(status.container_id.as_deref()?)?;
        Some((SmolStr::new(&status.name), id))
    });
    running.collect()
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;

    use super::*;

    #[test]
    fn a_grace_period_without_end_can_be_added_to_a_time() {
        let of = |termination_grace_period_seconds| {
            let spec = PodSpec {
                termination_grace_period_seconds,
                ..PodSpec::default()
            };
            grace(&Pod {
                spec: Some(spec),
                ..Pod::default()
            })
        };
        assert_eq!(of(None), GRACE);
        assert_eq!(of(Some(5)), Duration::from_secs(5));
        assert_eq!(of(Some(-5)), GRACE);
        assert_eq!(of(Some(i64::MAX)), MAX_GRACE);
    }
}
