//! The target processes of a step: those of the containers that a hook names, or that its changes affect.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use smol_str::SmolStr;

use crate::processes::{ContainerId, FoundContainer, PodMounts, Processes};

/// Which containers of a pod are asked for, and what is known of them.
#[derive(Clone, Debug, Default)]
pub struct TargetQuery {
    /// The mount points of the pod's volumes in its containers.
    pub mounts: PodMounts,
    /// The IDs of the containers that run, by which their processes are found; `None` if they are found by their mounts.
    pub ids: Option<BTreeMap<SmolStr, ContainerId>>,
    /// The only target container; `None` for those that the changes concern.
    pub container: Option<SmolStr>,
    /// The volumes that have changed; `None` if that is unknown, so that any may have.
    pub volumes: Option<BTreeSet<SmolStr>>,
    /// The containers whose variables have changed.
    pub variables: BTreeSet<SmolStr>,
    /// When the changes were put in place; `None` if that is unknown.
    pub swapped: Option<Duration>,
    /// The results of earlier searches.
    pub known: Arc<KnownContainers>,
}

/// The containers of a pod that the last search found. A search examines all processes of the machine. While every
/// target container is among the known ones, checking their processes is enough.
#[derive(Debug, Default)]
pub struct KnownContainers(Mutex<Vec<FoundContainer>>);

impl KnownContainers {
    /// Keeps names and main processes. Only a new search shows all processes.
    fn keep(&self, mut containers: Vec<FoundContainer>) {
        for container in &mut containers {
            container.processes = Vec::new();
            container.candidate_names.shrink_to_fit();
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
    #[error("containers {} have identical mounts; remove `container`", names.join(" and "))]
    Alike {
        /// The containers.
        names: Vec<SmolStr>,
    },
    /// A container cannot be found, because it mounts no volume that larder delivers.
    #[error("container {name} mounts no volume by which its processes could be found")]
    NoMounts {
        /// The container.
        name: String,
    },
    /// A container mounts a volume where the agent's directory is, and so are volumes in the machine's own mounts.
    #[error(
        "container {name} mounts a volume at {}, in or above the directory of the agent's volumes: its processes could not be \
         distinguished from those of the machine",
        path.display()
    )]
    AgentDirectory {
        /// The container.
        name: String,
        /// The mount point.
        path: PathBuf,
    },
    /// The processes of this machine cannot be listed.
    #[error("cannot list processes: {0}")]
    List(#[source] std::io::Error),
}

impl TargetQuery {
    /// The names of the target containers.
    pub fn names(&self) -> Vec<SmolStr> {
        let containers = self.mounts.containers.iter();
        let named = containers.filter(|container| {
            if let Some(name) = &self.container {
                return container.name == *name;
            }
            let mounts_changed = self
                .volumes
                .as_ref()
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
        if self.ids.is_none() {
            self.check_mounts(&names, processes.root())?;
        }
        let meant = |containers: &[FoundContainer]| -> Vec<FoundContainer> {
            let meant = containers.iter().filter(|found| {
                let mut candidates = found.candidate_names.iter();
                candidates.any(|name| names.contains(name))
            });
            meant.cloned().collect()
        };
        let mut found = {
            let mut known = self.known.0.lock();
            known.retain(|container| {
                container.main.is_of(self.ids.as_ref()) && processes.is_same(&container.main)
            });
            meant(&known)
        };
        let is_known = |name: &SmolStr| {
            let mut known = found.iter();
            known.any(|container| container.candidate_names.contains(name))
        };
        if all_processes || found.len() < names.len() || !names.iter().all(is_known) {
            let searched = processes
                .containers(&self.mounts, self.ids.as_ref())
                .await
                .map_err(TargetError::List)?;
            found = meant(&searched);
            self.known.keep(searched);
        }
        if let (Some(_), Some(alike)) = (
            &self.container,
            found.iter().find(|found| found.candidate_names.len() > 1),
        ) {
            let names = alike.candidate_names.clone();
            return Err(TargetError::Alike { names });
        }
        Ok(found)
    }

    /// Whether the target containers can be found by their mounts.
    fn check_mounts(&self, names: &[SmolStr], root: &Path) -> Result<(), TargetError> {
        let containers = self.mounts.containers.iter();
        for container in containers.filter(|container| names.contains(&container.name)) {
            let mut mounts = container.delivered(&self.mounts.volumes).into_iter();
            if names.len() == 1 && mounts.len() == 0 {
                return Err(TargetError::NoMounts {
                    name: container.name.to_string(),
                });
            }
            if let Some((_, path)) =
                mounts.find(|(_, path)| path.starts_with(root) || root.starts_with(path))
            {
                return Err(TargetError::AgentDirectory {
                    name: container.name.to_string(),
                    path,
                });
            }
        }
        Ok(())
    }
}
