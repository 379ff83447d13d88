//! The outline of a pod that hooks are checked against: its volumes, containers and ports.

use k8s_openapi::api::core::v1::{Container, Pod, Volume, VolumeMount};
use larder_objects::{SourceKind, volume_sources};
use larder_projection::{VolumeKind, token_paths};
use smol_str::SmolStr;

/// What the hooks of a pod may name of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodOutline {
    /// The volumes, in order.
    pub volumes: Vec<VolumeOutline>,
    /// Init and regular containers, in order.
    pub containers: Vec<ContainerOutline>,
    /// `spec.restartPolicy`, `Always` if absent.
    pub restart_policy: SmolStr,
}

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeOutline {
    /// Its name.
    pub name: SmolStr,
    /// Its kind; `None` if larder does not deliver it.
    pub kind: Option<VolumeKind>,
    /// Its type, as the field of the specification: `configMap`, `emptyDir`.
    pub type_name: SmolStr,
    /// Paths of its service account tokens.
    pub tokens: Vec<SmolStr>,
    /// Whether it may hold bytes of Secrets, tokens or private keys.
    pub is_secret: bool,
}

/// A container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerOutline {
    /// Its name.
    pub name: SmolStr,
    /// How long it runs.
    pub role: ContainerRole,
    /// Names of its ports, with their numbers.
    pub ports: Vec<(SmolStr, u16)>,
    /// Whether a variable may hold the value of a Secret.
    pub has_secret_variables: bool,
    /// The volumes that it mounts, and what of each.
    pub mounts: Vec<(SmolStr, MountedPath)>,
}

/// How long a container runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContainerRole {
    /// As long as the pod.
    #[default]
    Regular,
    /// As long as the pod, although it is an init container: it has `restartPolicy: Always`.
    Sidecar,
    /// Until the next container starts, so it is no target of a hook (rule F9).
    Init,
}

/// The part of a volume that a container mounts. By a path, it keeps the old file until it restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountedPath {
    /// All of it.
    Whole,
    /// The file or directory of this path, without needless separators.
    SubPath(SmolStr),
    /// A path that depends on variables, or on links.
    Unknown,
}

impl MountedPath {
    fn of(mount: &VolumeMount) -> Self {
        let paths = [mount.sub_path_expr.as_deref(), mount.sub_path.as_deref()];
        let path = match paths.map(|path| path.filter(|path| !path.is_empty())) {
            [Some(_), _] => return Self::Unknown,
            [None, None] => return Self::Whole,
            [None, Some(path)] => path,
        };
        let names = path
            .split('/')
            .filter(|name| !name.is_empty() && *name != ".");
        match names.collect::<Vec<_>>().as_slice() {
            [] => Self::Whole,
            [first, ..] if first.starts_with("..") => Self::Unknown,
            names => Self::SubPath(names.join("/").into()),
        }
    }

    /// Whether it holds the file of this path.
    pub fn contains(&self, path: &str) -> bool {
        let Self::SubPath(mounted) = self else {
            return true;
        };
        path.strip_prefix(mounted.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl PodOutline {
    /// The outline of `pod`.
    pub fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else {
            return Self::default();
        };
        let init = spec.init_containers.iter().flatten().map(|container| {
            let role = match container.restart_policy.as_deref() {
                Some("Always") => ContainerRole::Sidecar,
                _ => ContainerRole::Init,
            };
            ContainerOutline::of(container, role)
        });
        let regular = spec
            .containers
            .iter()
            .map(|container| ContainerOutline::of(container, ContainerRole::Regular));
        let volumes = spec.volumes.iter().flatten();
        Self {
            volumes: volumes.map(VolumeOutline::of).collect(),
            containers: init.chain(regular).collect(),
            restart_policy: spec.restart_policy.as_deref().unwrap_or("Always").into(),
        }
    }

    /// The names of the volumes that larder delivers.
    pub fn delivered(&self) -> impl Iterator<Item = &SmolStr> {
        self.volumes
            .iter()
            .filter(|volume| volume.kind.is_some())
            .map(|volume| &volume.name)
    }

    /// Whether any of this may show the bytes of a Secret, a token or a private key.
    pub fn reads_secrets(&self) -> bool {
        // What is not known counts.
        self.containers.is_empty()
            || self.volumes.iter().any(|volume| volume.is_secret)
            || self
                .containers
                .iter()
                .any(|container| container.has_secret_variables)
    }

    /// The number of the port that a container calls `name`.
    pub fn port(&self, name: &str) -> Option<u16> {
        self.containers
            .iter()
            .flat_map(|container| &container.ports)
            .find(|(port, _)| port == name)
            .map(|(_, number)| *number)
    }
}

impl VolumeOutline {
    fn of(volume: &Volume) -> Self {
        let sources = volume_sources(volume);
        let type_name = sources.keys().next();
        Self {
            name: volume.name.as_str().into(),
            kind: VolumeKind::of(volume),
            // The API server's default.
            type_name: type_name.map_or("emptyDir", String::as_str).into(),
            is_secret: volume.secret.is_some()
                || SourceKind::of_volume(volume).any(|(_, source)| source.is_secret()),
            tokens: token_paths(volume)
                .map(|path| path.as_str().into())
                .collect(),
        }
    }
}

impl ContainerOutline {
    fn of(container: &Container, role: ContainerRole) -> Self {
        let ports = container.ports.iter().flatten();
        let named = ports.filter_map(|port| {
            Some((
                port.name.as_deref()?.into(),
                u16::try_from(port.container_port).ok()?,
            ))
        });
        let mounts = container.volume_mounts.iter().flatten();
        let mut all_keys = container.env_from.iter().flatten();
        Self {
            name: container.name.as_str().into(),
            role,
            ports: named.collect(),
            has_secret_variables: all_keys.any(|all| all.secret_ref.is_some())
                || container.env.iter().flatten().any(|variable| {
                    variable
                        .value_from
                        .as_ref()
                        .is_some_and(|source| source.secret_key_ref.is_some())
                }),
            mounts: mounts
                .map(|mount| (mount.name.as_str().into(), MountedPath::of(mount)))
                .collect(),
        }
    }
}
