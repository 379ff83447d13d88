//! A pod as its containers see it, computed by the libraries.

use std::collections::{BTreeMap, HashSet};

use indexmap::IndexMap;
use k8s_openapi::api::core::v1::{Pod, Volume};
use larder_containers::subpaths::ANNOTATION;
use larder_objects::{Kind, ObjectKey, manifest};
use larder_on_change::{
    PodOutline,
    parse::{AllowedActions, AnnotatedHooks, annotated_hooks},
};
use larder_projection::{
    ContainerView, Environment, EnvironmentError, Inputs, Mount, MountError, MountTable, ObjectId,
    Origin, PayloadError, Projection, RuntimeFeatures, Unavailable, VolumeKind, containers,
    environment, mounts, partial_environment, partial_mounts, pod_volumes, project, used_volumes,
};

use super::path_in_volume;
use crate::offline::{Offline, OfflinePod, Workload};

/// One pod, with the view of each of its containers.
pub(crate) struct RenderedPod<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) inputs: &'a Inputs,
    /// All objects of the manifests, for hints at where a missing object is.
    pub(crate) offline: &'a Offline,
    /// Place of the pod in the manifests.
    pub(crate) source: &'a str,
    /// Its unique label within the namespace: [`OfflinePod::label`].
    pub(crate) label: &'a str,
    pub(crate) workload: &'a Workload,
    /// The document of the workload, if it is not the pod's own.
    pub(crate) made_by: Option<&'a manifest::Workload>,
    /// Whether the document says on which node it runs.
    pub(crate) states_node: bool,
    /// All containers: init, regular, ephemeral.
    pub(crate) containers: Vec<(ContainerView<'a>, Result<RenderedContainer<'a>, StartError>)>,
    /// Of each container that does not start, what can be computed of its view.
    partial: BTreeMap<usize, RenderedContainer<'a>>,
    /// The volumes that are filled from objects, mounted or not, by name.
    pub(crate) volumes: IndexMap<&'a str, (&'a Volume, ProjectionResult<'a>)>,
    /// The hooks that annotations ask for, with their containers' names in them.
    pub(crate) hooks: Vec<AnnotatedHooks>,
    /// Names of the volumes that containers use.
    used: HashSet<&'a str>,
}

pub(crate) type ProjectionResult<'a> = Result<Projection<'a>, PayloadError>;

/// The view of one container.
pub(crate) struct RenderedContainer<'a> {
    pub(crate) environment: Environment<'a>,
    pub(crate) mounts: MountTable<'a>,
}

/// The reason why a container does not start. The texts are the kubelet's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Mounts(#[from] MountError),
    /// A `subPath` leads through a file.
    #[error("subPath {path:?} of volume {volume}: {file:?} is a file, not a directory")]
    FileInTheWay {
        path: String,
        volume: String,
        file: String,
    },
}

/// Checks that no file is where a mount needs a directory of its volume.
fn check_sub_path(
    mount: &Mount<'_>,
    filled: Option<&ProjectionResult<'_>>,
) -> Result<(), StartError> {
    let (Some(path), Some(Ok(filled))) = (mount.shown_sub_path(), filled) else {
        return Ok(());
    };
    let wanted = path_in_volume(path);
    let mut parents = wanted.match_indices('/').map(|(at, _)| &wanted[..at]);
    let file = parents.find(|parent| filled.payload.contains_key(*parent));
    file.map_or(Ok(()), |file| {
        Err(StartError::FileInTheWay {
            path: path.to_owned(),
            volume: mount.volume.name.clone(),
            file: file.to_owned(),
        })
    })
}

/// The mounts of a container on a runtime with all features: nothing is mounted here, so no limits apply.
pub(crate) fn mount_table<'a>(
    pod: &'a Pod,
    container: ContainerView<'a>,
    environment: &Environment<'_>,
) -> Result<MountTable<'a>, MountError> {
    mounts(pod, container, environment, RUNTIME)
}

/// A runtime with all features.
const RUNTIME: RuntimeFeatures = RuntimeFeatures {
    recursive_read_only: true,
};

impl<'a> RenderedPod<'a> {
    /// Whether it asks larder to update what running containers see by `subPath`.
    pub(crate) fn updates_sub_paths(&self) -> bool {
        self.pod
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|all| all.get(ANNOTATION).is_some_and(|asked| asked == "true"))
    }

    /// The number of bytes in all variables and files.
    pub(crate) fn bytes(&self) -> usize {
        let variables = self
            .containers
            .iter()
            .flat_map(|(_, view)| view)
            .flat_map(|view| view.environment.iter())
            .map(|(name, variable)| name.len() + variable.value.len());
        let files = self
            .volumes
            .values()
            .flat_map(|(_, filled)| filled)
            .flat_map(|filled| filled.payload.iter())
            .map(|(path, file)| path.as_str().len() + file.data.len());
        variables.sum::<usize>() + files.sum::<usize>()
    }

    pub(crate) fn new(pod: &'a OfflinePod, offline: &'a Offline) -> Self {
        let (workload, made_by) = (&pod.workload, pod.made_by.as_ref());
        let (label, states_node) = (&*pod.label, pod.states_node);
        let (source, inputs, pod) = (&pod.source, &pod.inputs, &pod.pod);
        let volumes = pod_volumes(pod)
            .filter(|volume| VolumeKind::of(volume).is_some())
            .map(|volume| (&*volume.name, (volume, project(pod, volume, inputs))));
        let volumes: IndexMap<_, _> = volumes.collect();
        let views: Vec<_> = containers(pod)
            .map(|view| {
                let rendered = || {
                    let environment = environment(pod, view, inputs)?;
                    let mounts = mount_table(pod, view, &environment)?;
                    for mount in &mounts {
                        let filled = volumes.get(&*mount.volume.name);
                        check_sub_path(mount, filled.map(|(_, filled)| filled))?;
                    }
                    Ok(RenderedContainer {
                        environment,
                        mounts,
                    })
                };
                (view, rendered())
            })
            .collect();
        let partial = views
            .iter()
            .enumerate()
            .filter(|(_, (_, view))| view.is_err())
            .map(|(index, (view, _))| {
                let environment = partial_environment(pod, *view, inputs)
                    .map(|(environment, _)| environment)
                    .unwrap_or_default();
                let (mounts, _) = partial_mounts(pod, *view, &environment, RUNTIME);
                (
                    index,
                    RenderedContainer {
                        environment,
                        mounts,
                    },
                )
            })
            .collect();
        let annotations = pod.metadata.annotations.as_ref();
        Self {
            pod,
            inputs,
            offline,
            source,
            label,
            workload,
            made_by,
            states_node,
            containers: views,
            partial,
            used: used_volumes(pod),
            volumes,
            hooks: annotated_hooks(
                annotations.unwrap_or(&BTreeMap::new()),
                // The limits of a node are unknown here.
                AllowedActions::default(),
                &PodOutline::of(pod),
            ),
        }
    }

    pub(crate) fn namespace(&self) -> &'a str {
        self.pod.metadata.namespace.as_deref().unwrap_or("")
    }

    pub(crate) fn name(&self) -> &'a str {
        self.pod.metadata.name.as_deref().unwrap_or("")
    }

    /// The immutable object that is the `origin` of something, if the manifests of `to` change or lack it: containers
    /// that run keep what they see of it.
    pub(crate) fn pinned(&self, to: &Self, origin: &Origin<'_>) -> Option<String> {
        let (Origin::Key { kind, name, .. } | Origin::Missing { kind, name, .. }) = origin else {
            return None;
        };
        let key = ObjectKey::new(self.namespace(), *name);
        let is_pinned = self.offline.is_immutable_change(to.offline, *kind, &key);
        is_pinned.then(|| format!("{} {name}", kind.object_type().singular))
    }

    /// What the documents have at the `origin` of something; `None` if that is a Secret, or not known.
    pub(crate) fn stated<'o>(&'o self, origin: &'o Origin<'_>) -> Option<&'o [u8]> {
        match origin {
            Origin::Value { text } => Some(text.as_bytes()),
            Origin::Key {
                kind: Kind::ConfigMap,
                name,
                key,
                ..
            } => {
                let map = self.inputs.config_maps.get(*name)?.as_ref().ok()?;
                map.data.get(key).map(|value| value.as_bytes())
            }
            _ => None,
        }
    }

    /// The view of the container at `index`, as far as it can be computed.
    pub(super) fn view(&self, index: usize) -> Option<&RenderedContainer<'a>> {
        let (_, view) = self.containers.get(index)?;
        view.as_ref().ok().or_else(|| self.partial.get(&index))
    }

    /// Whether the manifests have the object, or what makes it.
    pub(crate) fn has_object(&self, object: &ObjectId) -> bool {
        let key = ObjectKey::new(self.namespace(), &*object.name);
        self.offline.has_object(object.kind, &key)
    }

    /// Whether not all of an object is known.
    pub(crate) fn is_unknown(&self, kind: Kind, name: &str) -> bool {
        match kind {
            Kind::ConfigMap => is_unknown(self.inputs.config_maps.get(name)),
            Kind::Secret => is_unknown(self.inputs.secrets.get(name)),
        }
    }

    /// The content of the volume `name`; `None` if it is not filled from objects.
    pub(crate) fn projection(&self, name: &str) -> Option<&ProjectionResult<'a>> {
        self.volumes.get(name).map(|(_, projection)| projection)
    }

    /// Whether a container uses the volume. The kubelet sets up no other volume.
    pub(crate) fn is_used(&self, volume: &Volume) -> bool {
        self.used.contains(volume.name.as_str())
    }

    /// Whether a container does not start, a volume cannot be filled, or a hook is wrong.
    pub(crate) fn has_errors(&self) -> bool {
        self.containers.iter().any(|(_, view)| view.is_err())
            || self.volumes.values().any(|(_, filled)| filled.is_err())
            || self.hooks.iter().any(|found| found.hooks.is_err())
    }
}

fn is_unknown<T>(found: Option<&Result<T, Unavailable>>) -> bool {
    matches!(found, Some(Err(Unavailable::Unknown(_))))
}
