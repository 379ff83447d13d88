//! A pod of a running agent: what the agent says of it, and what it has put on disk.
//!
//! Invariant: nothing of the agent's is changed, and nothing is read that the user may not read: variables come from the file that
//! only the agent's user and root can open.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use larder_agent::status::{Delivery, Phase, PodStatus, ServedPod};
use larder_projection::{
    VolumeKind, containers,
    disk::{empty_dir_path, read_environment},
};
use zeroize::Zeroizing;

use super::target::{Contents, Delivered, ExecTarget, container_name, volumes};
use crate::{agent::ask, args::PodName, output};

/// The container of a pod that the agent of `root_dir` serves.
///
/// # Errors
///
/// No agent answers us, it has no such pod, or something that the container needs is not there.
pub(super) fn target(
    root_dir: &Path,
    wanted: &PodName,
    namespace: &str,
    container: Option<&str>,
) -> anyhow::Result<ExecTarget> {
    let (namespace, name) = (wanted.namespace(namespace), wanted.name());
    let plain = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
    };
    let served: Option<ServedPod> = if plain(namespace) && plain(name) {
        ask(root_dir, &format!("/pods/{namespace}/{name}"))?
    } else {
        None
    };
    let Some(ServedPod { status, pod }) = served else {
        bail!(
            "the agent serves no pod {namespace}/{name}; `larder status` lists those that it does"
        );
    };
    let container = container_name(&pod, container)?;
    let delivered = delivered(&pod, &status, &container)
        .with_context(|| format!("container {container} of pod {namespace}/{name} cannot start"))?;
    Ok(ExecTarget {
        pod,
        container,
        contents: Contents::Delivered(delivered),
    })
}

/// Where things lie whose change may concern the container.
pub(super) fn followed(root_dir: &Path, target: &ExecTarget) -> Vec<PathBuf> {
    let mut followed = Vec::new();
    if let Contents::Delivered(delivered) = &target.contents {
        followed.push(delivered.environment.clone());
        let filled = target
            .volumes()
            .filter(|volume| VolumeKind::of(volume).is_some());
        followed.extend(filled.filter_map(|volume| delivered.volumes.get(&volume.name).cloned()));
    }
    // Another pod of the same name shows here.
    let namespace = target.pod.metadata.namespace.as_deref().unwrap_or_default();
    followed.push(root_dir.join("by-name").join(namespace));
    followed
}

fn delivered(pod: &Pod, status: &PodStatus, container: &str) -> anyhow::Result<Delivered> {
    match status.delivery.phase {
        Phase::Ended => bail!("the pod has ended"),
        Phase::Held => bail!("the pod is not served{}", because(&status.delivery)),
        Phase::Delivered | Phase::Waiting | Phase::Failing | Phase::Removing => {}
    }
    let view = containers(pod)
        .find(|view| view.name == container)
        .expect("the name is that of one of the pod's containers");
    let mut directories = BTreeMap::new();
    for volume in volumes(pod, view) {
        let name = &volume.name;
        if VolumeKind::of(volume).is_some() {
            let status = status.volumes.iter().find(|volume| volume.name == *name);
            let status =
                status.with_context(|| format!("volume {name} has not been looked at yet"))?;
            let directory = PathBuf::from(&status.path);
            if status.delivery.phase != Phase::Delivered {
                // A volume that was there once is there still: that it cannot be refreshed keeps no container from starting.
                if fs::symlink_metadata(directory.join("..data")).is_err() {
                    bail!("volume {name} {}", waits(&status.delivery));
                }
                output::note(format_args!(
                    "volume {name} keeps what it has{}",
                    because(&status.delivery)
                ));
            }
            directories.insert(name.clone(), directory);
        } else if volume.empty_dir.is_some() {
            let directory = empty_dir_path(Path::new(&status.path), name);
            if directory.is_dir() {
                directories.insert(name.clone(), directory);
            }
        }
    }
    let environment = status
        .containers
        .iter()
        .find(|status| status.name == container);
    let environment = environment.context("its environment has not been looked at yet")?;
    if environment.delivery.phase != Phase::Delivered {
        bail!("its environment {}", waits(&environment.delivery));
    }
    let path = PathBuf::from(&environment.path);
    let text = fs::read(&path).map(Zeroizing::new);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let variables = read_environment(&text)
        .map_err(|error| anyhow!(error).context(format!("cannot read {}", path.display())))?;
    Ok(Delivered {
        variables,
        environment: path,
        volumes: directories,
    })
}

/// Reads on from the name of what is not delivered.
fn waits(delivery: &Delivery) -> String {
    match delivery.reason.as_str() {
        "" => "has not been looked at yet".to_owned(),
        // `waiting for …`, or why it fails.
        reason if delivery.phase == Phase::Waiting => format!("is {reason}"),
        reason => format!("is not delivered: {reason}"),
    }
}

fn because(delivery: &Delivery) -> String {
    match delivery.reason.as_str() {
        "" => String::new(),
        reason => format!(": {reason}"),
    }
}
