//! A pod of a running agent: its status, and the agent's files.
//!
//! Invariants:
//! 1. No file that the agent fills is changed, and the user's own permissions apply: variables come from a file that only the
//!    agent's user and root can open.
//! 2. Every path from the agent is in its root directory ([`AgentClient::path`]).

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Pod;
use larder_agent::status::{Delivery, Phase, PodStatus, ServedPod};
use larder_exec::{
    Contents, Delivered, ExecTarget, LeftOutItems, SharedDirectory, container_called, filled,
    volumes,
};
use larder_files::{ownership, regular_file::read_regular_file};
use larder_objects::validation::{is_label, is_subdomain};
use larder_projection::{
    MAX_ENVIRONMENT_BYTES, VolumeKind,
    disk::{is_in_memory, read_environment},
};

use super::manifests::container_name;
use crate::{
    agent::AgentClient,
    args::PodName,
    output::{self, because},
};

/// An environment file of this many bytes is rejected. JSON takes up to six bytes for one.
const MAX_ENVIRONMENT_FILE_BYTES: u64 = 8 * MAX_ENVIRONMENT_BYTES as u64;

/// The container of a pod that the agent of `root_dir` serves.
///
/// # Errors
///
/// No trusted agent answers, it has no such pod, or something that the container needs is missing.
pub(super) fn target(
    root_dir: &Path,
    wanted: &PodName,
    namespace: &str,
    container: Option<&str>,
) -> anyhow::Result<ExecTarget> {
    let is_wanted = |served: &ServedPod| wanted.names(&served.pod.metadata, namespace);
    let (namespace, name) = (wanted.namespace(namespace), &wanted.name);
    let agent = AgentClient::new(root_dir)?;
    let served: Option<ServedPod> = if is_label(namespace) && is_subdomain(name) {
        agent.ask(&format!("/pods/{namespace}/{name}"))?
    } else {
        None
    };
    let Some(ServedPod { status, pod }) = served.filter(is_wanted) else {
        bail!("the agent serves no pod {namespace}/{name}; `larder status` lists its pods");
    };
    let container = container_name(&pod, container)?;
    let delivered = delivered(&agent, &pod, &status, &container)
        .with_context(|| format!("container {container} of pod {namespace}/{name} cannot start"))?;
    Ok(ExecTarget {
        pod,
        container,
        contents: Contents::Delivered(delivered),
    })
}

/// Paths whose changes may concern the container.
pub(super) fn followed(root_dir: &Path, target: &ExecTarget) -> Vec<PathBuf> {
    let mut followed = Vec::new();
    if let Contents::Delivered(delivered) = &target.contents {
        followed.push(delivered.environment.clone());
        let volumes = filled(target.volumes());
        followed.extend(volumes.filter_map(|volume| delivered.volumes.get(&volume.name).cloned()));
    }
    // Another pod of the same name appears here.
    let namespace = target.pod.metadata.namespace.as_deref().unwrap_or_default();
    followed.push(root_dir.join("by-name").join(namespace));
    followed
}

fn delivered(
    agent: &AgentClient,
    pod: &Pod,
    status: &PodStatus,
    container: &str,
) -> anyhow::Result<Delivered> {
    match status.delivery.phase {
        Phase::Ended => bail!("the pod has ended"),
        Phase::Excluded | Phase::Held => {
            bail!("the pod is not served{}", because(&status.delivery.reason))
        }
        Phase::Delivered | Phase::Stale | Phase::Waiting | Phase::Failing | Phase::Removing => {}
    }
    let (mut directories, mut left_out) = (BTreeMap::new(), LeftOutItems::default());
    for volume in volumes(pod, container_called(pod, container)) {
        let name = &volume.name;
        if VolumeKind::of(volume).is_some() {
            let what = || format!("volume {name} has not been processed yet");
            let status = status
                .volumes
                .iter()
                .find(|volume| volume.name == *name)
                .with_context(what)?;
            let directory = agent.path(&status.path)?;
            if status.delivery.phase != Phase::Delivered {
                // A volume that was delivered once keeps its content: a container can start with it.
                if fs::symlink_metadata(directory.join("..data")).is_err() {
                    bail!("volume {name} {}", waits(&status.delivery));
                }
                let why = because(&status.delivery.reason);
                let what = match status.delivery.phase {
                    Phase::Stale => "may be out of date",
                    _ => "keeps its last good copy",
                };
                output::note(format_args!("volume {name} {what}{why}"));
            }
            directories.insert(name.clone(), directory);
            left_out.files.insert(name.clone(), status.left_out.clone());
        }
    }
    let mut environments = status.containers.iter();
    let environment = environments
        .find(|status| status.name == container)
        .context("its environment has not been processed yet")?;
    if environment.delivery.phase == Phase::Stale {
        let why = because(&environment.delivery.reason);
        output::note(format_args!("its environment may be out of date{why}"));
    } else if environment.delivery.phase != Phase::Delivered {
        bail!("its environment {}", waits(&environment.delivery));
    }
    left_out.variables.clone_from(&environment.left_out);
    let path = agent.path(&environment.path)?;
    let what = || format!("cannot read {}", path.display());
    let text = read_regular_file(&path, MAX_ENVIRONMENT_FILE_BYTES).with_context(what)?;
    let variables = read_environment(&text).with_context(what)?;
    Ok(Delivered {
        shared: shared(agent.path(&status.path)?)?,
        variables,
        environment: path,
        volumes: directories,
        left_out,
    })
}

/// The directory `pod` for emptyDir volumes.
fn shared(pod: PathBuf) -> anyhow::Result<SharedDirectory> {
    let what = || format!("cannot examine {}", pod.display());
    let opened = fs::File::open(&pod).with_context(what)?;
    let is_own = opened.metadata().with_context(what)?.uid() == ownership::user();
    Ok(if !is_own {
        SharedDirectory::Foreign
    } else if is_in_memory(opened).with_context(what)? {
        SharedDirectory::Memory(pod)
    } else {
        SharedDirectory::Disk(pod)
    })
}

/// Completes a sentence that begins with the name of an undelivered part.
fn waits(delivery: &Delivery) -> String {
    match delivery.reason.as_str() {
        "" => "has not been processed yet".to_owned(),
        // `waiting for …`, or why it fails.
        reason if delivery.phase == Phase::Waiting => format!("is {reason}"),
        reason => format!("is not delivered: {reason}"),
    }
}
