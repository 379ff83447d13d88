//! Errors of this half. One type, because every failure is an operation on a path.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use crate::MountError;

/// A volume, or another file of a pod, could not be brought to its desired state. It never holds content of a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The operating system failed an operation.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// The operation.
        operation: DiskOperation,
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The payload has a file where another of its files needs a directory.
    #[error("path {directory:?} is a file, and also the directory of {file:?}")]
    Conflict {
        /// The path that is both.
        directory: String,
        /// The file below it.
        file: String,
    },
    /// The name of an object cannot be the name of a directory.
    #[error("invalid name {0:?}: expected one element of a path")]
    Name(String),
    /// A `subPath` is absolute, or has an element `..`.
    #[error(transparent)]
    SubPath(MountError),
}

impl DiskError {
    pub(crate) fn new(operation: DiskOperation, path: &Path, errno: Errno) -> Self {
        Self::Io {
            operation,
            path: path.to_owned(),
            source: errno.into(),
        }
    }

    /// Whether the new content is visible: only cleanup failed, and the next pass repeats it.
    pub fn is_after_commit(&self) -> bool {
        matches!(
            self,
            Self::Io { operation, .. } if matches!(
                operation,
                DiskOperation::RemoveLeftover | DiskOperation::SetOwner | DiskOperation::Link | DiskOperation::Unlink | DiskOperation::RemoveOldSet
            )
        )
    }
}

/// The operation that failed in [`DiskError::Io`]. Its text continues "cannot".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskOperation {
    /// Open the directory of a volume.
    OpenVolume,
    /// Open a directory of the layout.
    OpenDirectory,
    /// List a directory of the layout.
    ListDirectory,
    /// Set mode or group of a directory.
    SetMode,
    /// Mount a tmpfs, or check whether one is mounted.
    Mount,
    /// Unmount a tmpfs or a bind mount.
    Unmount,
    /// Remove a file or a directory of the layout.
    Remove,
    /// Resolve a `subPath`.
    ResolveSubPath,
    /// Resolve or read a file that variables come from.
    ReadEnvFile,
    /// Bind-mount the target of a `subPath`.
    BindSubPath,
    /// Read a file of the caller.
    ReadFile,
    /// Read the link `..data`.
    ReadCurrent,
    /// List the directory of a volume.
    ListVolume,
    /// Remove a leftover of a crash.
    RemoveLeftover,
    /// Set user or group of a file.
    SetOwner,
    /// Create the directory of a new set.
    CreateSet,
    /// Create a directory.
    CreateDirectory,
    /// Create or fill a file.
    WriteFile,
    /// Set the mode of a new set, so that readers can enter it.
    OpenSet,
    /// Create the link `..data_tmp`.
    LinkSet,
    /// Rename `..data_tmp` over `..data`.
    Publish,
    /// Create or correct a link in the root of a volume.
    Link,
    /// Remove a link in the root of a volume.
    Unlink,
    /// Remove the replaced set.
    RemoveOldSet,
}

impl fmt::Display for DiskOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenVolume => "open volume",
            Self::OpenDirectory => "open directory",
            Self::ListDirectory => "list directory",
            Self::Mount => "mount tmpfs on",
            Self::Unmount => "unmount",
            Self::Remove => "remove",
            Self::ResolveSubPath => "resolve subPath",
            Self::ReadEnvFile => "read env file",
            Self::BindSubPath => "bind-mount on",
            Self::ReadCurrent => "read link",
            Self::ReadFile => "read file",
            Self::ListVolume => "list volume",
            Self::RemoveLeftover => "remove leftover",
            Self::SetOwner => "set owner of",
            Self::CreateSet | Self::CreateDirectory => "create directory",
            Self::WriteFile => "write file",
            Self::OpenSet | Self::SetMode => "set mode of",
            Self::LinkSet | Self::Link => "create link",
            Self::Publish => "replace link",
            Self::Unlink => "remove link",
            Self::RemoveOldSet => "remove old directory",
        })
    }
}
