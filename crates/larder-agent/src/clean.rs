//! Removes the files and mounts of stopped agents from a root directory, for `larder clean`.
//!
//! Invariants:
//! 1. The directory is locked meanwhile, so no agent runs with it, and none starts.
//! 2. Only what agents create is removed, and directories only if nothing else is in them. A kubelet that has the same
//!    root directory keeps its pods.
//! 3. The lock is removed last, so that an interrupted clean-up can be repeated.

use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use larder_checkpoint::{Store, StoreError};
use larder_files::operation_error::{OperationError, failed};
use larder_pods::PodSource;
use larder_projection::disk::{DiskError, PodOnDisk, VolumeHost};

use crate::root_dir::{CHECKPOINT, RootDir, RootDirError};

/// What is in a root directory, and goes with it.
#[derive(Debug)]
pub struct Leftovers {
    root: RootDir,
    host: VolumeHost,
    /// The pods that have volumes or environments on disk, sorted by UID.
    pub pods: Vec<PodOnDisk>,
    /// Files and directories besides: the checkpoint, copies of manifests.
    pub others: Vec<PathBuf>,
}

/// A root directory cannot be cleaned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CleanError {
    /// It is in use, or belongs to another user.
    #[error(transparent)]
    Root(#[from] RootDirError),
    /// Its volumes cannot be listed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// One of `others` cannot be removed.
    #[error(transparent)]
    Remove(#[from] OperationError),
    /// The checkpoint cannot be erased.
    #[error("cannot erase the checkpoint")]
    Checkpoint(#[source] StoreError),
}

impl Leftovers {
    /// Locks the root directory `path` and lists what is in it; `None` if no agent has used it.
    ///
    /// # Errors
    ///
    /// An agent runs with it, it belongs to another user, or it cannot be read.
    pub fn find(path: &Path) -> Result<Option<Self>, CleanError> {
        let Some(root) = RootDir::lock_used(path)? else {
            return Ok(None);
        };
        let host = root.volumes()?.with_pod_files(&[larder_hooks::RECORD]);
        let others = [CHECKPOINT, RootDir::MANIFESTS];
        let others = others.into_iter().map(|name| root.path().join(name));
        let mut pods = host.scan()?;
        pods.retain(|pod| pod.is_own);
        Ok(Some(Self {
            pods,
            others: others.filter(|path| path.exists()).collect(),
            root,
            host,
        }))
    }

    /// The root directory, absolute and without links.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// Unmounts and removes everything; returns the failures, and whether the directory is still there because of
    /// other files.
    pub fn remove(self) -> (Vec<CleanError>, bool) {
        let mut errors = Vec::new();
        for pod in &self.pods {
            if let Err(failed) = self.host.remove_pod(&pod.uid) {
                errors.extend(failed.into_iter().map(CleanError::Disk));
            }
        }
        errors.extend(self.host.remove_names().err().map(CleanError::Disk));
        for path in &self.others {
            if path.ends_with(CHECKPOINT) {
                let erased = Store::erase(&self.root.checkpoint());
                errors.extend(erased.err().map(CleanError::Checkpoint));
            } else {
                for source in [PodSource::File, PodSource::Http] {
                    errors.extend(remove_files(&self.root.manifests(source)));
                }
            }
            errors.extend(removed(path, fs::remove_dir(path)));
        }
        let path = self.path().to_owned();
        if errors.is_empty() {
            self.root.discard();
        }
        (errors, path.exists())
    }
}

/// Removes the files of a directory, and the directory if nothing else is in it.
fn remove_files(directory: &Path) -> Vec<CleanError> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let files = files.map(|entry| entry.path());
    let failed = files.filter_map(|path| removed(&path, fs::remove_file(&path)));
    let mut errors: Vec<_> = failed.collect();
    errors.extend(removed(directory, fs::remove_dir(directory)));
    errors
}

/// The error of a removal. What is missing, or keeps files of others, is none.
fn removed(path: &Path, result: io::Result<()>) -> Option<CleanError> {
    let source = result.err()?;
    let is_fine = matches!(
        source.kind(),
        ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty
    );
    (!is_fine).then(|| failed("remove", path)(source).into())
}
