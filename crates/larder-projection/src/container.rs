//! One view of the three kinds of container that a pod has.
//!
//! Regular and init containers share a type in the API, ephemeral ones have their own with the same fields. Every rule
//! of this crate is the same for all of them, or distinguishes them by [`ContainerKind`].

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, EphemeralContainer, Pod, ResourceRequirements,
    SecurityContext, Volume, VolumeDevice, VolumeMount,
};

use crate::expand::{Piece, pieces};

/// The list of the pod that has a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerKind {
    /// `spec.initContainers`.
    Init,
    /// `spec.containers`.
    Regular,
    /// `spec.ephemeralContainers`.
    Ephemeral,
}

/// The fields of a container that a projection reads.
#[derive(Clone, Copy, Debug)]
pub struct ContainerView<'a> {
    /// The list that has it.
    pub kind: ContainerKind,
    /// Name, unique among all containers of the pod.
    pub name: &'a str,
    /// `env`, in list order.
    pub env: &'a [EnvVar],
    /// `envFrom`, in list order.
    pub env_from: &'a [EnvFromSource],
    /// `volumeMounts`, in list order.
    pub volume_mounts: &'a [VolumeMount],
    /// `command`, before expansion.
    pub command: &'a [String],
    /// `args`, before expansion.
    pub args: &'a [String],
    /// `resources`; ephemeral containers may not set it.
    pub resources: Option<&'a ResourceRequirements>,
    /// `securityContext`.
    pub security_context: Option<&'a SecurityContext>,
    /// `workingDir`.
    pub working_dir: Option<&'a str>,
    /// `volumeDevices`: a block device makes its volume used, too.
    devices: Option<&'a [VolumeDevice]>,
    restart_policy: Option<&'a str>,
}

macro_rules! view {
    ($container:expr, $kind:expr) => {
        ContainerView {
            kind: $kind,
            name: &$container.name,
            env: $container.env.as_deref().unwrap_or_default(),
            env_from: $container.env_from.as_deref().unwrap_or_default(),
            volume_mounts: $container.volume_mounts.as_deref().unwrap_or_default(),
            command: $container.command.as_deref().unwrap_or_default(),
            args: $container.args.as_deref().unwrap_or_default(),
            resources: $container.resources.as_ref(),
            security_context: $container.security_context.as_ref(),
            working_dir: $container.working_dir.as_deref(),
            devices: $container.volume_devices.as_deref(),
            restart_policy: $container.restart_policy.as_deref(),
        }
    };
}

impl<'a> ContainerView<'a> {
    /// A view of a regular or init container.
    pub fn new(container: &'a Container, kind: ContainerKind) -> Self {
        view!(container, kind)
    }

    /// A view of an ephemeral container.
    pub fn ephemeral(container: &'a EphemeralContainer) -> Self {
        view!(container, ContainerKind::Ephemeral)
    }

    /// Whether it runs as long as its pod does: an init container has ended before, unless it is a sidecar.
    pub fn keeps_running(&self) -> bool {
        self.kind != ContainerKind::Init || self.restart_policy == Some("Always")
    }

    /// Whether its command line has the value of this variable.
    pub fn command_refers_to(&self, variable: &str) -> bool {
        let is_reference =
            |piece| matches!(piece, Piece::Reference { name, .. } if name == variable);
        let mut words = self.command.iter().chain(self.args);
        words.any(|word| pieces(word).any(is_reference))
    }

    /// Names of the volumes that the container mounts or uses as a device, in list order.
    pub fn volumes(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mounts = self.volume_mounts.iter().map(|mount| mount.name.as_str());
        let devices = self.devices.unwrap_or_default().iter();
        mounts.chain(devices.map(|device| device.name.as_str()))
    }
}

/// All containers of `pod`: init, regular, ephemeral, each in list order.
pub fn containers(pod: &Pod) -> impl Iterator<Item = ContainerView<'_>> {
    let spec = || pod.spec.iter();
    let init = spec().flat_map(|spec| spec.init_containers.iter().flatten());
    let regular = spec().flat_map(|spec| &spec.containers);
    let ephemeral = spec().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
    let view = |kind| move |container| ContainerView::new(container, kind);
    init.map(view(ContainerKind::Init))
        .chain(regular.map(view(ContainerKind::Regular)))
        .chain(ephemeral.map(ContainerView::ephemeral))
}

/// All volumes of `pod`, in list order.
pub fn pod_volumes(pod: &Pod) -> impl DoubleEndedIterator<Item = &Volume> {
    pod.spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
}

/// Names of the volumes that some container of `pod` mounts or has as a device.
///
/// A volume that none uses is not set up at all (kubelet 1.36, `pkg/kubelet/volumemanager/populator`).
pub fn used_volumes(pod: &Pod) -> HashSet<&str> {
    containers(pod)
        .flat_map(|container| container.volumes())
        .collect()
}
