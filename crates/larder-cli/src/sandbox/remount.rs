//! Replaces a mount of a running command by another file or directory, without a moment in which neither is there.
//!
//! 1. In the supervisor's namespace: clone the new mount, detached from any tree.
//! 2. In the command's namespace: check that the mount point still shows the old file, so that mounts made or moved by
//!    the command stay unchanged.
//! 3. Mount the clone beneath the old mount (`MOVE_MOUNT_BENEATH`, Linux 6.5): the old one stays visible.
//! 4. Unmount the old one, lazily: the next lookup finds the new one. Open files keep the old content.

use std::{
    fs, io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::Path,
};

use larder_projection::BindOptions;
use rustix::{
    fs::CWD,
    io::Errno,
    mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};

use super::{namespace::unshare, spawn::in_thread, view::restrict};

/// Identifies a file while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
    is_dir: bool,
}

impl FileId {
    /// The file at `path`, with links followed.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            is_dir: metadata.is_dir(),
        })
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(self) -> bool {
        self.is_dir
    }
}

/// One mount to replace.
#[derive(Debug)]
pub(crate) struct Replacement<'a> {
    /// The new file or directory: a mount that the supervisor sees.
    pub(crate) source: &'a Path,
    /// The mount point, as the command sees it.
    pub(crate) target: &'a Path,
    /// What is mounted there.
    pub(crate) old: FileId,
    /// Whether the command may only read.
    pub(crate) read_only: bool,
    /// What else the command may not do there.
    pub(crate) options: BindOptions,
}

/// Why a mount was not replaced. The old one stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemountError {
    /// This needs Linux 6.5.
    #[error("replacing a mount needs Linux 6.5 or later")]
    Unsupported,
    /// The command has mounted something there, or has moved the directory.
    #[error("the command has changed the mount point")]
    Changed,
    /// A step that failed.
    #[error("cannot {operation}: {source}")]
    Failed {
        operation: &'static str,
        source: io::Error,
    },
}

/// Replaces a mount in the mount namespace `mounts`.
///
/// # Errors
///
/// The old mount stays in place.
pub(crate) fn replace(replacement: &Replacement<'_>, mounts: &OwnedFd) -> Result<(), RemountError> {
    let failed = |operation| move |source: io::Error| RemountError::Failed { operation, source };
    // Step 1
    restrict(
        replacement.source,
        replacement.read_only,
        replacement.options,
    )
    .map_err(failed("restrict the mount"))?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let new = open_tree(CWD, replacement.source, clone)
        .map_err(|errno| failed("clone the mount")(errno.into()))?;
    in_thread(|| {
        // A thread has the root directory of its process until it has one of its own.
        unshare(UnshareFlags::FS).map_err(|errno| failed("leave the root")(errno.into()))?;
        move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))
            .map_err(|errno| failed("enter the view of the command")(errno.into()))?;
        // Step 2
        let target = replacement.target;
        match FileId::of(target) {
            Ok(found) if found == replacement.old => {}
            _ => return Err(RemountError::Changed),
        }
        // Step 3
        let beneath = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH
            | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS
            | MoveMountFlags::MOVE_MOUNT_BENEATH;
        move_mount(&new, c"", CWD, target, beneath).map_err(|errno| match errno {
            Errno::INVAL => RemountError::Unsupported,
            errno => failed("mount beneath")(errno.into()),
        })?;
        // Step 4
        unmount(target, UnmountFlags::DETACH)
            .map_err(|errno| failed("unmount the old mount")(errno.into()))
    })
}
