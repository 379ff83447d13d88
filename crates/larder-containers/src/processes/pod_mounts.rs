//! The mounts of a pod's volumes: in its specification, and recognized in a mount namespace.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use smol_str::SmolStr;

/// The volumes of a pod on this machine, and the mount points in its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodMounts {
    /// Directory of each volume that larder delivers, absolute and without links.
    pub volumes: BTreeMap<SmolStr, PathBuf>,
    /// The containers that may be the target of a hook.
    pub containers: Vec<ContainerMounts>,
}

/// The mount points of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMounts {
    /// Name of the container.
    pub name: SmolStr,
    /// Volumes and mount points.
    pub mounts: Vec<(SmolStr, PathBuf)>,
}

/// Volumes with the mount points that they are mounted at.
pub(crate) type Mounts = BTreeSet<(SmolStr, PathBuf)>;

impl ContainerMounts {
    /// Whether the container mounts the volume.
    pub fn has(&self, volume: &str) -> bool {
        self.mounts.iter().any(|(name, _)| name == volume)
    }

    /// The mounts of volumes that larder delivers, sorted, each once.
    pub(crate) fn delivered(&self, volumes: &BTreeMap<SmolStr, PathBuf>) -> Mounts {
        let delivered = self
            .mounts
            .iter()
            .filter(|(name, _)| volumes.contains_key(name));
        delivered
            .map(|(name, path)| (name.clone(), normalized(path)))
            .collect()
    }
}

impl PodMounts {
    /// The names of the containers that a namespace with these mounts may be: files and directories, with their mount
    /// points. None if no volume is where a container has it.
    pub(super) fn candidate_names(&self, mounts: &[(PathBuf, PathBuf)]) -> Vec<SmolStr> {
        let mounts = mounts.iter();
        let visible = mounts.flat_map(|(path, mount_point)| {
            self.volumes
                .iter()
                .filter(move |(_, directory)| path.starts_with(directory))
                .map(move |(name, _)| (name.clone(), mount_point.clone()))
        });
        let containers = self.containers.iter();
        let wanted: Vec<_> = containers
            .map(|container| (&container.name, container.delivered(&self.volumes)))
            .collect();
        let visible: Mounts = visible
            .filter(|mount| wanted.iter().any(|(_, mounts)| mounts.contains(mount)))
            .collect();
        let named = |fits: &dyn Fn(&Mounts) -> bool| -> Vec<SmolStr> {
            wanted
                .iter()
                .filter(|(_, mounts)| fits(mounts))
                .map(|(name, _)| (*name).clone())
                .collect()
        };
        if visible.is_empty() {
            return Vec::new();
        }
        let exact = named(&|mounts| *mounts == visible);
        if !exact.is_empty() {
            return exact;
        }
        // A container that has unmounted one, or that covers one by another.
        named(&|mounts| visible.is_subset(mounts))
    }
}

/// An absolute path without `.`, `..` and doubled slashes, as the kernel shows mount points.
pub(crate) fn normalized(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            _ => {}
        }
    }
    clean
}
