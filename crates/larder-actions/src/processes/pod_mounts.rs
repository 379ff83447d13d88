//! The mounts of a pod's volumes: in its specification, and as they are recognized in a process's mounts.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use smol_str::SmolStr;

use super::{
    mount_hashes::{MountHasher, MountPrefix},
    mount_table::MountLine,
    own_mounts::OwnMounts,
};

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
pub(super) type Mounts = BTreeSet<(SmolStr, PathBuf)>;

impl ContainerMounts {
    /// Whether the container mounts the volume.
    pub fn has(&self, volume: &str) -> bool {
        self.mounts.iter().any(|(name, _)| name == volume)
    }

    /// The mounts of volumes that larder delivers, sorted, each once.
    pub(super) fn delivered(&self, volumes: &BTreeMap<SmolStr, PathBuf>) -> Mounts {
        let mounts = self.mounts.iter();
        let delivered = mounts.filter(|(name, _)| volumes.contains_key(name));
        delivered
            .map(|(name, path)| (name.clone(), normalized(path)))
            .collect()
    }
}

impl PodMounts {
    /// The names of the containers that have exactly these mounts; if none has, of those that have them among others.
    pub(super) fn fitting(&self, visible: &Mounts) -> Vec<SmolStr> {
        let named = |fits: &dyn Fn(&Mounts) -> bool| -> Vec<SmolStr> {
            let containers = self.containers.iter();
            containers
                .filter(|container| fits(&container.delivered(&self.volumes)))
                .map(|container| container.name.clone())
                .collect()
        };
        let fits = named(&|delivered| delivered == visible);
        if !fits.is_empty() {
            return fits;
        }
        // A container that has unmounted one, or that covers one by another.
        named(&|delivered| visible.is_subset(delivered))
    }
}

/// The volumes to find in the mounts of processes.
pub(super) struct WantedMounts {
    /// Volume, device and root.
    volumes: Vec<(SmolStr, Box<[u8]>, PathBuf)>,
    /// The mount points of each volume in containers.
    mount_points: Mounts,
}

impl WantedMounts {
    pub(super) fn new(mounts: &PodMounts, own: &OwnMounts) -> Self {
        let volumes = mounts.volumes.iter();
        let volumes = volumes.filter_map(|(name, path)| {
            let (device, root) = own.place(path)?;
            Some((name.clone(), device, root))
        });
        let containers = mounts.containers.iter();
        Self {
            volumes: volumes.collect(),
            mount_points: containers
                .flat_map(|container| container.delivered(&mounts.volumes))
                .collect(),
        }
    }

    /// The volume and mount point of a mount, if a container has it.
    pub(super) fn volume(&self, line: &MountLine<'_>) -> Option<(SmolStr, PathBuf)> {
        let mut volumes = self.volumes.iter();
        volumes.find_map(|(name, device, root)| {
            if **device != *line.device || !line.root().starts_with(root) {
                return None;
            }
            let mount = (name.clone(), line.mount_point().into_owned());
            self.mount_points.contains(&mount).then_some(mount)
        })
    }

    /// The prefixes, one of which every table has in which [`volume`](Self::volume) finds one.
    pub(super) fn prefixes(&self, hasher: &MountHasher) -> Vec<MountPrefix> {
        let places = self.mount_points.iter().flat_map(|(name, mount_point)| {
            let volumes = self.volumes.iter();
            let same = volumes.filter(move |(volume, ..)| volume == name);
            same.map(move |(_, device, root)| (device, root, mount_point))
        });
        places
            .map(|(device, root, mount_point)| hasher.prefix(device, mount_point, root))
            .collect()
    }
}

/// An absolute path without `.`, `..` and doubled slashes, as the kernel shows mount points.
fn normalized(path: &Path) -> PathBuf {
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
