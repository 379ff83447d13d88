//! Removes the files and mounts of stopped agents from a root directory, for `larder clean`.
//!
//! Invariants:
//! 1. The directory is locked meanwhile, so no agent runs with it, and none starts.
//! 2. Only what agents create is removed, and directories only if nothing else is in them. A kubelet that has the same
//!    root directory keeps its pods.
//! 3. The lock is removed last, so that an interrupted clean-up can be repeated.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use larder_checkpoint::{Store, StoreError};
use larder_files::{
    operation_error::{OperationError, failed},
    sys,
};
use larder_pods::PodSource;
use larder_projection::disk::{DiskError, PodOnDisk, VolumeHost};
use rustix::{fs::FileType, io::Errno};

use crate::root_dir::{CHECKPOINT, RootDir, RootDirError};

/// What is in a root directory, and goes with it.
#[derive(Debug)]
pub struct Leftovers {
    root: RootDir,
    host: VolumeHost,
    /// The pods that have volumes or environments on disk, sorted by UID.
    pub pods: Vec<PodOnDisk>,
    /// Files and directories besides: the checkpoint, copies of manifests, what was accepted of a directory of them.
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
        let others = [CHECKPOINT, RootDir::MANIFESTS, RootDir::ACCEPTED]
            .into_iter()
            .map(|name| root.path().join(name));
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
        // Reached by no path: another user may own a directory above.
        let root = self.root.directory();
        for path in &self.others {
            let name = path.file_name().unwrap_or_default();
            if path.ends_with(RootDir::ACCEPTED) {
                errors.extend(removed(path, sys::remove_file(root.as_fd(), name)));
                continue;
            }
            if path.ends_with(CHECKPOINT) {
                let erased = Store::erase(&self.root.checkpoint());
                errors.extend(erased.err().map(CleanError::Checkpoint));
            } else if let Ok(directory) = sys::open_dir(root.as_fd(), name) {
                for source in [PodSource::File, PodSource::Http] {
                    let path = path.join(source.as_str());
                    errors.extend(remove_files(directory.as_fd(), &path));
                }
            }
            errors.extend(removed(path, sys::remove_dir(root.as_fd(), name)));
        }
        let path = self.path().to_owned();
        if errors.is_empty() {
            self.root.discard();
        }
        (errors, path.exists())
    }
}

/// Removes the files of the directory `path` in `parent`, and the directory if nothing else is in it.
fn remove_files(parent: BorrowedFd<'_>, path: &Path) -> Vec<CleanError> {
    let name = path.file_name().unwrap_or_default();
    let directory = match sys::open_dir(parent, name) {
        Ok(directory) => directory,
        Err(errno) => return removed(path, Err(errno)).into_iter().collect(),
    };
    let mut files = Vec::new();
    let listed = sys::list(&directory, |name, kind| {
        files.extend((kind == FileType::RegularFile).then(|| name.to_owned()));
    });
    let mut errors: Vec<_> = removed(path, listed).into_iter().collect();
    for file in files {
        let path = path.join(OsStr::from_bytes(file.to_bytes()));
        errors.extend(removed(&path, sys::remove_file(directory.as_fd(), file)));
    }
    errors.extend(removed(path, sys::remove_dir(parent, name)));
    errors
}

/// The error of a removal. What is missing, or keeps files of others, is none.
fn removed(path: &Path, result: rustix::io::Result<()>) -> Option<CleanError> {
    let errno = result.err()?;
    let is_fine = matches!(errno, Errno::NOENT | Errno::NOTEMPTY);
    (!is_fine).then(|| failed("remove", path)(errno).into())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn what_takes_the_place_of_the_directory_meanwhile_is_not_touched() {
        let home = tempfile::tempdir().unwrap();
        let [path, away, victim] = ["larder", "away", "victim"].map(|name| home.path().join(name));
        let root = RootDir::lock(&path).unwrap();
        for directory in [root.manifests(PodSource::File), victim.clone()] {
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("a"), "").unwrap();
        }
        drop(root);
        let found = Leftovers::find(&path).unwrap().unwrap();
        fs::rename(&path, &away).unwrap();
        fs::create_dir_all(path.join("static-pods")).unwrap();
        symlink(&victim, path.join("static-pods/file")).unwrap();
        let (errors, _) = found.remove();
        assert!(errors.is_empty(), "{errors:?}");
        assert!(victim.join("a").exists());
        assert!(!away.join("static-pods").exists());
    }
}
