//! A pod of manifests: the requested container, and the objects that it reads.

use std::collections::BTreeMap;

use anyhow::{Context as _, anyhow};
use k8s_openapi::api::core::v1::Pod;
use larder_exec::{Contents, ExecTarget, filled, volumes};
use larder_objects::manifest::Manifests;
use larder_projection::{ContainerKind, containers, environment, project};

use crate::{
    agent::origin,
    args::ExecArgs,
    cluster,
    offline::{ClusterObjects, Offline, OfflinePod, Outside, find_container},
    outcome::Failure,
    rendered::mount_table,
};

/// Number of pods that are named to choose from.
const NAMED_PODS: usize = 10;

/// The requested container in manifests, which an API server completes if one is given; without names, the first
/// container of the only pod.
pub(super) fn target(
    manifests: Manifests,
    args: &ExecArgs,
    namespace: &str,
) -> Result<ExecTarget, Failure> {
    let objects = match &args.kubeconfig {
        Some(kubeconfig) => {
            let source = origin(Some(kubeconfig), args.context.as_deref());
            let (manifests, missed) = cluster::complete(source, manifests)?;
            let mut objects = Offline::of_cluster(manifests, &missed.objects);
            if !args.assume_missing {
                objects.refuse_unread(&missed.reasons);
            }
            objects
        }
        None => Offline::new(manifests, ClusterObjects::Assumed),
    };
    let mut offline = as_run_here(objects, args.assume_missing);
    let index = match (args.pod(), offline.pods.as_slice()) {
        (Some(wanted), _) => offline.position(wanted, namespace)?,
        (None, []) => return Err(anyhow!("no pod in the manifests").into()),
        (None, [_]) => 0,
        (None, pods) => {
            let names = pods.iter().map(OfflinePod::called).take(NAMED_PODS);
            let names = names.collect::<Vec<_>>().join(", ");
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
fn as_run_here(mut offline: Offline, assume_missing: bool) -> Offline {
    if assume_missing {
        offline.take_outside(Outside::Assumed);
    } else {
        offline.run_here();
    }
    offline
}

/// Whether a command with the view of each container of the first pod starts. For tests that hold it to a model.
pub fn exec_starts(
    manifests: Manifests,
    assume_missing: bool,
) -> BTreeMap<String, anyhow::Result<()>> {
    let objects = Offline::new(manifests, ClusterObjects::Assumed);
    let offline = as_run_here(objects, assume_missing);
    let starts = |OfflinePod { pod, inputs, .. }: &OfflinePod, view| {
        let variables = environment(pod, view, inputs)?;
        mount_table(pod, view, &variables)?;
        for volume in filled(volumes(pod, view)) {
            project(pod, volume, inputs)?;
        }
        Ok(())
    };
    let pod = offline.pods.first();
    let found = pod
        .into_iter()
        .flat_map(|pod| containers(&pod.pod).map(|view| (view.name.to_owned(), starts(pod, view))));
    found.collect()
}

/// The container of this name; without one, the first that is not an init container.
pub(super) fn container_name(pod: &Pod, wanted: Option<&str>) -> anyhow::Result<String> {
    if let Some(wanted) = wanted {
        return Ok(find_container(pod, wanted)?.name.to_owned());
    }
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let first = containers(pod)
        .find(|container| container.kind == ContainerKind::Regular)
        .with_context(|| format!("pod {name} has no container"))?;
    Ok(first.name.to_owned())
}
