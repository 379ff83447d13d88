//! `larder render`: what each container would see.
//!
//! The libraries compute it ([`View`]); this module and the ones below put it into words, JSON and files.

mod files;
mod json;
mod tree;

use k8s_openapi::api::core::v1::{Pod, Volume};
use larder_projection::{
    ContainerView, Environment, EnvironmentError, Inputs, MountError, MountTable, PayloadError,
    Projection, RuntimeFeatures, VolumeKind, containers, environment, mounts, project,
};

use super::{Failure, Outcome};
use crate::{
    args::{RenderArgs, RenderOutput},
    input,
    offline::{Offline, OfflinePod},
    output::{self, Style},
};

/// What the containers of one pod see.
struct View<'a> {
    pod: &'a Pod,
    inputs: &'a Inputs,
    /// Where else to look for what is missing.
    offline: &'a Offline,
    /// Where the pod was written.
    source: &'a str,
    /// All containers: init, regular, ephemeral.
    containers: Vec<(ContainerView<'a>, Result<Sight<'a>, Blind>)>,
    /// The volumes that are filled from objects, mounted or not.
    volumes: Vec<(&'a Volume, Result<Projection<'a>, PayloadError>)>,
}

/// What one container sees.
struct Sight<'a> {
    environment: Environment<'a>,
    mounts: MountTable<'a>,
}

/// Why a container sees nothing: it is not started. The texts are the kubelet's.
#[derive(Debug, thiserror::Error)]
enum Blind {
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Mounts(#[from] MountError),
}

impl<'a> Sight<'a> {
    fn new(pod: &'a Pod, container: ContainerView<'a>, inputs: &'a Inputs) -> Result<Self, Blind> {
        let environment = environment(pod, container, inputs)?;
        let mounts = mount_table(pod, container, &environment)?;
        Ok(Self {
            environment,
            mounts,
        })
    }
}

/// The mounts of a container on a runtime that can do everything: nothing is mounted here, so no limits apply.
fn mount_table<'a>(
    pod: &'a Pod,
    container: ContainerView<'a>,
    environment: &Environment<'_>,
) -> Result<MountTable<'a>, MountError> {
    let runtime = RuntimeFeatures {
        recursive_read_only: true,
    };
    mounts(pod, container, environment, runtime)
}

impl<'a> View<'a> {
    fn new(
        OfflinePod { pod, source }: &'a OfflinePod,
        inputs: &'a Inputs,
        offline: &'a Offline,
    ) -> Self {
        let volumes = pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten());
        Self {
            pod,
            inputs,
            offline,
            source,
            containers: containers(pod)
                .map(|container| (container, Sight::new(pod, container, inputs)))
                .collect(),
            volumes: volumes
                .filter(|volume| VolumeKind::of(volume).is_some())
                .map(|volume| (volume, project(pod, volume, inputs)))
                .collect(),
        }
    }

    fn namespace(&self) -> &'a str {
        self.pod.metadata.namespace.as_deref().unwrap_or("")
    }

    fn name(&self) -> &'a str {
        self.pod.metadata.name.as_deref().unwrap_or("")
    }

    fn has_errors(&self) -> bool {
        self.containers.iter().any(|(_, sight)| sight.is_err())
            || self
                .volumes
                .iter()
                .any(|(_, projection)| projection.is_err())
    }
}

pub(super) fn run(args: &RenderArgs) -> Result<Outcome, Failure> {
    let input = input::read(&args.manifests)?;
    let offline = Offline::new(input.manifests);
    let pods = chosen(args, &offline)?;
    let inputs: Vec<_> = pods.iter().map(|pod| offline.inputs(&pod.pod)).collect();
    let views: Vec<_> = pods
        .iter()
        .zip(&inputs)
        .map(|(pod, inputs)| View::new(pod, inputs, &offline))
        .collect();

    output::results(|out| match args.output {
        RenderOutput::Json => json::write(out, &views),
        RenderOutput::Tree => tree::write(out, &views, args.show_secrets, Style::of_stdout()),
    })?;
    let mut failed = input.had_errors || views.iter().any(View::has_errors);
    if let Some(dir) = &args.to {
        failed |= !files::write(dir, &views)?;
    }
    Ok(Outcome::partial_if(failed))
}

/// The pods that the user asked for.
fn chosen<'a>(args: &RenderArgs, offline: &'a Offline) -> Result<Vec<&'a OfflinePod>, Failure> {
    let Some(wanted) = &args.pod else {
        if offline.pods.is_empty() {
            output::note("the manifests hold no pod");
        }
        return Ok(offline.pods.iter().collect());
    };
    let (namespace, name) = (wanted.namespace(&args.manifests.namespace), wanted.name());
    let is_wanted = |pod: &&OfflinePod| {
        let metadata = &pod.pod.metadata;
        metadata.namespace.as_deref() == Some(namespace) && metadata.name.as_deref() == Some(name)
    };
    match offline.pods.iter().find(is_wanted) {
        Some(pod) => Ok(vec![pod]),
        None => Err(anyhow::anyhow!("the manifests hold no pod {namespace}/{name}").into()),
    }
}
