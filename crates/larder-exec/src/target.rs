//! The container whose variables and volumes a command gets.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, EnvVar, Pod, Volume};
use larder_console as console;
use larder_objects::{Kind, SecretBytes};
use larder_on_change::{ContainerRole, LeftOut, ObjectTag, PodOutline};
use larder_projection::{
    ContainerView, Environment, Inputs, Origin, Unknown, VolumeKind, containers, environment,
    pod_volumes, project, used_volumes,
};

/// A container of a pod, at one time.
#[derive(Debug)]
pub struct ExecTarget {
    /// Its pod.
    pub pod: Pod,
    /// Its name, which one of the pod's containers has.
    pub container: String,
    /// Its variables and volumes.
    pub contents: Contents,
}

/// The source of the container's variables and volumes.
#[derive(Debug)]
pub enum Contents {
    /// Objects to project.
    Inputs(Box<Inputs>),
    /// Files that an agent has written.
    Delivered(Delivered),
}

/// The environment and volumes that an agent has delivered to a container.
#[derive(Debug)]
pub struct Delivered {
    /// The variables.
    pub variables: BTreeMap<String, SecretBytes>,
    /// The file that they were read from.
    pub environment: PathBuf,
    /// Directories of the volumes that the container mounts and the agent fills, by name.
    pub volumes: BTreeMap<String, PathBuf>,
    /// Where the commands of the pod share its emptyDir volumes.
    pub shared: SharedDirectory,
    /// The files and variables that hooks do not react to.
    pub left_out: LeftOutItems,
}

/// Files and variables whose objects are left out of what hooks react to, as an agent names them.
#[derive(Debug, Default)]
pub struct LeftOutItems {
    /// Paths of files, by volume.
    pub files: BTreeMap<String, Vec<String>>,
    /// Names of variables.
    pub variables: Vec<String>,
}

/// The objects that files or variables come from, by their names.
pub(crate) type ObjectsByName = BTreeMap<String, ObjectTag>;

/// The directory of a pod, in which its emptyDir volumes are.
#[derive(Debug)]
pub enum SharedDirectory {
    /// Another user's, who could not remove what is made in it: nothing is shared.
    Foreign,
    /// On a disk.
    Disk(PathBuf),
    /// In memory.
    Memory(PathBuf),
}

impl SharedDirectory {
    /// The directory, if it is a place for this volume: what belongs into memory does not get on a disk.
    pub(crate) fn place_of(&self, source: &EmptyDirVolumeSource) -> Option<&Path> {
        match (self, source.medium.as_deref()) {
            (Self::Memory(pod), None | Some("" | "Memory"))
            | (Self::Disk(pod), None | Some("")) => Some(pod),
            _ => None,
        }
    }
}

impl ExecTarget {
    /// Sets variables of the container. Those of manifests that refer to them follow.
    pub fn set_variables(&mut self, variables: &[(String, String)]) {
        if let Contents::Delivered(delivered) = &mut self.contents {
            let all = variables
                .iter()
                .cloned()
                .map(|(name, value)| (name, SecretBytes::new(value.into())));
            return delivered.variables.extend(all);
        }
        let Some(spec) = &mut self.pod.spec else {
            return;
        };
        let regular = spec
            .init_containers
            .iter_mut()
            .flatten()
            .chain(&mut spec.containers)
            .map(|container| (&container.name, &mut container.env));
        let others = spec
            .ephemeral_containers
            .iter_mut()
            .flatten()
            .map(|container| (&container.name, &mut container.env));
        let mut all = regular.chain(others);
        let Some((_, own)) = all.find(|(name, _)| **name == self.container) else {
            return;
        };
        let own = own.get_or_insert_default();
        for (name, value) in variables {
            let set = EnvVar {
                name: name.clone(),
                value: Some(value.replace('$', "$$")),
                value_from: None,
            };
            match own.iter_mut().rfind(|variable| variable.name == *name) {
                Some(variable) => *variable = set,
                None => own.push(set),
            }
        }
    }

    /// Prints which variables and files are empty because their values are not known.
    pub(crate) fn note_unknown(&self) {
        // Its errors are those of the start.
        let environment = self.environment().unwrap_or_default();
        let line = |name: &str, value: &Unknown| {
            let sources: Vec<_> = value.sources().map(ToString::to_string).collect();
            format!("{name} ({})", sources.join(", "))
        };
        let variables = environment
            .iter()
            .filter_map(|(name, one)| Some(line(name, one.value.unknown()?)));
        let mut unknown: Vec<_> = variables.collect();
        let opaque = environment.opaque().into_iter();
        unknown.extend(opaque.map(|(name, objects)| line(&name, &objects)));
        if let Contents::Inputs(inputs) = &self.contents {
            for volume in filled(self.volumes()) {
                let projection = project(&self.pod, volume, inputs).unwrap_or_default();
                let named = projection.paths().filter_map(|path| {
                    let term = projection.look_up(path.as_str()).term()?;
                    Some((path.as_str(), term))
                });
                let all = named.chain(projection.opaque().map(|all| ("*", all)));
                unknown.extend(
                    all.map(|(path, term)| {
                        line(&format!("{path} of volume {}", volume.name), &term)
                    }),
                );
            }
        }
        self.note_made_up();
        if !unknown.is_empty() {
            console::note(format_args!(
                "not known here, so empty: {}; --env NAME=VALUE sets a variable",
                unknown.join(", ")
            ));
        }
    }

    /// Prints which variables and files have what a cluster sets otherwise.
    fn note_made_up(&self) {
        let Contents::Inputs(inputs) = &self.contents else {
            return;
        };
        let is_made_up = |path: &str| {
            let mut all = inputs.assumptions.made_up.iter();
            // All annotations, too.
            all.any(|field| {
                field
                    .strip_prefix(path)
                    .is_some_and(|rest| matches!(rest.as_bytes(), [] | [b'[', ..]))
            })
        };
        let line = |name: &str, origin: &Origin<'_>| match origin {
            Origin::Field(path) if is_made_up(path) => Some(format!("{name} ({path})")),
            _ => None,
        };
        let environment = self.environment().unwrap_or_default();
        let variables = environment.iter();
        let variables = variables.filter_map(|(name, one)| line(name, &one.origin));
        let mut made_up: Vec<_> = variables.collect();
        for volume in filled(self.volumes()) {
            let projection = project(&self.pod, volume, inputs).unwrap_or_default();
            let files = projection.origins.iter();
            made_up.extend(files.filter_map(|(path, origin)| {
                line(&format!("{path} of volume {}", volume.name), origin)
            }));
        }
        if !made_up.is_empty() {
            console::note(format_args!(
                "not known here, so other than in a cluster: {}",
                made_up.join(", ")
            ));
        }
    }

    /// Prints which volumes keep the pod from starting, though this container does not mount them.
    pub(crate) fn note_unfilled(&self) {
        let Contents::Inputs(inputs) = &self.contents else {
            return;
        };
        let own: Vec<_> = self.container().volumes().collect();
        let used = used_volumes(&self.pod);
        let others = pod_volumes(&self.pod)
            .filter(|volume| used.contains(&*volume.name) && !own.contains(&&*volume.name));
        for volume in filled(others) {
            if let Err(error) = project(&self.pod, volume, inputs) {
                console::note(format_args!(
                    "the pod would not start: volume {}, which other containers mount: {error}",
                    volume.name
                ));
            }
        }
    }

    pub(crate) fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(crate) fn container(&self) -> ContainerView<'_> {
        container_called(&self.pod, &self.container)
    }

    /// What hooks may name: the container, and the volumes that it mounts.
    pub fn outline(&self) -> PodOutline {
        let mut outline = PodOutline::of(&self.pod);
        let mounted: Vec<_> = self.volumes().map(|volume| volume.name.as_str()).collect();
        let (containers, volumes) = (&mut outline.containers, &mut outline.volumes);
        containers.retain(|found| found.name == self.container);
        volumes.retain(|volume| mounted.contains(&&*volume.name));
        for container in containers {
            // Its command runs for as long as that of any other.
            if container.role == ContainerRole::Init {
                container.role = ContainerRole::Regular;
            }
        }
        outline
    }

    /// The variables of the container.
    pub(crate) fn environment(&self) -> anyhow::Result<Environment<'_>> {
        match &self.contents {
            Contents::Inputs(inputs) => Ok(environment(&self.pod, self.container(), inputs)?),
            Contents::Delivered(delivered) => {
                let variables = delivered
                    .variables
                    .iter()
                    .map(|(name, value)| (&**name, &**value));
                Ok(Environment::of_values(variables))
            }
        }
    }

    /// The objects that hooks do not react to.
    pub(crate) fn left_out(&self) -> LeftOut {
        match &self.contents {
            Contents::Inputs(inputs) => inputs.left_out().map(ObjectTag::of).collect(),
            Contents::Delivered(_) => [*UNNAMED].into_iter().collect(),
        }
    }

    /// The objects that files of a volume come from, as far as that matters to hooks.
    pub(crate) fn objects_of_files(&self, volume: &Volume) -> ObjectsByName {
        match &self.contents {
            Contents::Inputs(inputs) => {
                // Its errors are those of the refresh.
                let projection = project(&self.pod, volume, inputs).unwrap_or_default();
                projection
                    .origins
                    .iter()
                    .filter_map(|(path, origin)| {
                        Some((path.to_string(), ObjectTag::of(origin.object()?)))
                    })
                    .collect()
            }
            Contents::Delivered(delivered) => unnamed(
                delivered
                    .left_out
                    .files
                    .get(&volume.name)
                    .into_iter()
                    .flatten(),
            ),
        }
    }

    /// The objects that variables come from, as far as that matters to hooks.
    pub(crate) fn objects_of_variables(&self, environment: &Environment<'_>) -> ObjectsByName {
        match &self.contents {
            Contents::Inputs(_) => environment
                .iter()
                .filter_map(|(name, variable)| {
                    Some((name.to_owned(), ObjectTag::of(variable.origin.object()?)))
                })
                .collect(),
            Contents::Delivered(delivered) => unnamed(&delivered.left_out.variables),
        }
    }

    /// The volumes that the container mounts.
    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        volumes(&self.pod, self.container())
    }
}

/// Stands for every object that is left out: an agent names files and variables only.
static UNNAMED: LazyLock<ObjectTag> = LazyLock::new(|| ObjectTag::of((Kind::ConfigMap, "")));

fn unnamed<'a>(names: impl IntoIterator<Item = &'a String>) -> ObjectsByName {
    names
        .into_iter()
        .map(|name| (name.clone(), *UNNAMED))
        .collect()
}

/// The container called `name`.
///
/// # Panics
///
/// The pod has none of this name.
pub fn container_called<'a>(pod: &'a Pod, name: &str) -> ContainerView<'a> {
    let mut all = containers(pod);
    all.find(|container| container.name == name)
        .expect("the name is that of one of the pod's containers")
}

/// The volumes that a container mounts.
pub fn volumes<'a>(pod: &'a Pod, container: ContainerView<'a>) -> impl Iterator<Item = &'a Volume> {
    let used: Vec<_> = container.volumes().collect();
    pod_volumes(pod).filter(move |volume| used.contains(&&*volume.name))
}

/// The volumes among `volumes` that larder fills.
pub fn filled<'a>(volumes: impl Iterator<Item = &'a Volume>) -> impl Iterator<Item = &'a Volume> {
    volumes.filter(|volume| VolumeKind::of(volume).is_some())
}
