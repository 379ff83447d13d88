//! A pod of manifests: the requested container, and the objects that it reads.

use anyhow::{Context as _, anyhow};
use k8s_openapi::api::core::v1::Pod;
use larder_exec::{Contents, ExecTarget, container_called, filled, volumes};
use larder_objects::manifest::Manifests;
use larder_projection::{ContainerKind, containers, environment, project};

use crate::{
    args::ExecArgs,
    offline::{ClusterObjects, Offline, OfflinePod, Outside, did_you_mean},
    outcome::Failure,
    rendered::mount_table,
};

/// Number of pods that are named to choose from.
const NAMED_PODS: usize = 10;

/// The requested container in manifests; without names, the first container of the only pod.
pub(super) fn target(manifests: Manifests, args: &ExecArgs) -> Result<ExecTarget, Failure> {
    let mut offline = offline(manifests, args.assume_missing);
    let index = match (&args.pod, offline.pods.as_slice()) {
        (Some(wanted), _) => offline.position(wanted, &args.namespace)?,
        (None, []) => return Err(anyhow!("no pod in the manifests").into()),
        (None, [_]) => 0,
        (None, pods) => {
            let pods = pods.iter().map(|pod| &pod.pod.metadata);
            let names = pods.filter_map(|pod| {
                let (namespace, name) = (pod.namespace.as_deref()?, pod.name.as_deref()?);
                Some(format!("{namespace}/{name}"))
            });
            let names = names.take(NAMED_PODS).collect::<Vec<_>>().join(", ");
            return Err(Failure::unreadable(format!(
                "several pods in the manifests: name one with --pod, such as {names}"
            )));
        }
    };
    let OfflinePod { pod, inputs, .. } = offline.pods.swap_remove(index);
    Ok(ExecTarget {
        container: container_name(&pod, args.container.as_deref())?,
        contents: Contents::Inputs(Box::new(inputs)),
        pod,
    })
}

/// The pods as a command sees them here.
fn offline(manifests: Manifests, assume_missing: bool) -> Offline {
    let mut offline = Offline::new(manifests, ClusterObjects::Assumed);
    if assume_missing {
        offline.take_outside(Outside::Assumed);
    } else {
        offline.run_here();
    }
    offline
}

/// Why a command with the view of this container of the first pod would not start. For tests that hold it to a model.
///
/// # Errors
///
/// It would not.
pub fn exec_start(
    manifests: Manifests,
    container: &str,
    assume_missing: bool,
) -> anyhow::Result<()> {
    let offline = offline(manifests, assume_missing);
    let OfflinePod { pod, inputs, .. } = offline.pods.first().context("no pod")?;
    let view = container_called(pod, container);
    let variables = environment(pod, view, inputs)?;
    mount_table(pod, view, &variables)?;
    for volume in filled(volumes(pod, view)) {
        project(pod, volume, inputs)?;
    }
    Ok(())
}

/// The container of this name; without one, the first that is not an init container.
pub(super) fn container_name(pod: &Pod, wanted: Option<&str>) -> anyhow::Result<String> {
    let found = containers(pod).find(|container| match wanted {
        Some(name) => container.name == name,
        None => container.kind == ContainerKind::Regular,
    });
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    match (found, wanted) {
        (Some(container), _) => Ok(container.name.to_owned()),
        (None, Some(wanted)) => {
            let all: Vec<_> = containers(pod).map(|container| container.name).collect();
            let hint = did_you_mean(wanted, all.iter().copied());
            let hint = match &*hint {
                "" => format!("it has {}", all.join(", ")),
                hint => hint.to_owned(),
            };
            Err(anyhow!("pod {name} has no container {wanted}; {hint}"))
        }
        (None, None) => Err(anyhow!("pod {name} has no container")),
    }
}
