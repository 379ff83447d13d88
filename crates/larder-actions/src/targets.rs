//! The target processes of a step: those of the containers that a hook names, or that its changes concern.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::{task::spawn_blocking, time::Instant};

use crate::{
    cgroups::ContainerId,
    processes::{FoundContainer, Owner, PodMounts, Processes},
};

/// The facts of a round that a signal or a restart uses, besides the [context](crate::StepContext).
#[derive(Clone, Debug)]
pub struct TargetQuery<'a> {
    /// The mount points of the pod's volumes in its containers.
    pub mounts: &'a PodMounts,
    /// The IDs of the containers that run, by which their processes are found; `None` if they are found by their mounts.
    pub ids: Option<&'a BTreeMap<SmolStr, ContainerId>>,
    /// The only target container; `None` for those that the changes concern.
    pub container: Option<&'a SmolStr>,
    /// The volumes that have changed; `None` if that is unknown, so that any may have.
    pub volumes: Option<&'a BTreeSet<SmolStr>>,
    /// The containers whose variables have changed.
    pub variables: &'a BTreeSet<SmolStr>,
    /// When the changes were put in place; `None` if that is unknown.
    pub swapped: Option<Duration>,
    /// The results of earlier searches.
    pub known: &'a KnownContainers,
}

/// The containers of a pod that the last search found. A search examines all processes of the machine. While every
/// target container is among the known ones, checking their processes is enough.
#[derive(Debug, Default)]
pub struct KnownContainers(Mutex<Vec<FoundContainer>>);

impl KnownContainers {
    /// Keeps names and main processes. Only a new search shows all processes, and mounts have done their part.
    fn keep(&self, mut containers: Vec<FoundContainer>) {
        for container in &mut containers {
            container.processes = Vec::new();
            container.mounts = BTreeSet::new();
            container.fits.shrink_to_fit();
        }
        containers.shrink_to_fit();
        *self.0.lock() = containers;
    }
}

/// Why there is no target.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// Several containers have the same mounts, and the target is one of them (rule G2).
    #[error("containers {} mount the same: leave container out", names.join(" and "))]
    Alike {
        /// The containers.
        names: Vec<String>,
    },
    /// A container cannot be found, because it mounts no volume that larder delivers.
    #[error("container {name} mounts no volume by which its processes could be found")]
    NoMounts {
        /// The container.
        name: String,
    },
    /// The processes of this machine cannot be listed.
    #[error("cannot list processes: {0}")]
    List(#[source] std::io::Error),
}

impl TargetQuery<'_> {
    /// The names of the target containers.
    pub fn names(&self) -> Vec<SmolStr> {
        let containers = self.mounts.containers.iter();
        let named = containers.filter(|container| {
            if let Some(name) = self.container {
                return container.name == *name;
            }
            let mounts_changed = self
                .volumes
                .is_none_or(|volumes| volumes.iter().any(|volume| container.has(volume)));
            mounts_changed || self.variables.contains(&container.name)
        });
        named.map(|container| container.name.clone()).collect()
    }

    /// The running target containers. With `all_processes`, each has all of its processes, not only the main one.
    ///
    /// One look at each process that is known is made on this thread; a search, which looks at all processes of the
    /// machine, on another one.
    ///
    /// # Errors
    ///
    /// They cannot be found, or cannot be distinguished from others.
    ///
    /// # Cancel safety
    ///
    /// A search that is dropped is made again by the next call.
    pub async fn find(
        &self,
        processes: &Processes,
        all_processes: bool,
    ) -> Result<Vec<FoundContainer>, TargetError> {
        let names = self.names();
        let mut containers = self.mounts.containers.iter();
        let is_hidden = |name: &&SmolStr| {
            containers
                .find(|container| container.name == **name)
                .is_none_or(|found| !self.mounts.volumes.keys().any(|volume| found.has(volume)))
        };
        if self.ids.is_none()
            && let (Some(hidden), true) = (names.iter().find(is_hidden), names.len() == 1)
        {
            return Err(TargetError::NoMounts {
                name: hidden.to_string(),
            });
        }
        let meant = |containers: &[FoundContainer]| -> Vec<FoundContainer> {
            let meant = containers
                .iter()
                .filter(|found| found.fits.iter().any(|name| names.contains(name)));
            meant.cloned().collect()
        };
        let mut found = {
            let mut known = self.known.0.lock();
            known.retain(|container| {
                self.is_current(&container.main.owner) && processes.is_same(&container.main)
            });
            meant(&known)
        };
        if all_processes || found.len() < names.len() {
            let (processes, mounts) = (processes.clone(), self.mounts.clone());
            let (ids, targets, now) = (self.ids.cloned(), names.clone(), Instant::now());
            let search = move || match &ids {
                Some(ids) => processes.containers_with(ids),
                None => processes.targets(&mounts, &targets, now),
            };
            let searched = spawn_blocking(search).await;
            let searched = searched.unwrap_or_else(|error| Err(std::io::Error::other(error)));
            let searched = searched.map_err(TargetError::List)?;
            found = meant(&searched);
            self.known.keep(searched);
        }
        if let (Some(_), Some(alike)) = (
            self.container,
            found.iter().find(|found| found.fits.len() > 1),
        ) {
            return Err(TargetError::Alike {
                names: alike.fits.iter().map(ToString::to_string).collect(),
            });
        }
        Ok(found)
    }

    /// Whether the container that was found is the one that the pod has now.
    fn is_current(&self, owner: &Owner) -> bool {
        match (self.ids, owner) {
            (Some(ids), Owner::Container(id)) => ids.values().any(|current| current == id),
            (Some(_), Owner::Mounts(_)) | (None, Owner::Container(_)) => false,
            (None, Owner::Mounts(_)) => true,
        }
    }
}
