//! What can go wrong on disk: one type for all of this half, because every failure is a step on a path.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

/// Why a volume, or another file of a pod, is not on disk as it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The operating system refused a step.
    #[error("cannot {step} {}", path.display())]
    Io {
        /// What was being done.
        step: Step,
        /// To what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The payload has a file where another of its files needs a directory.
    #[error("{directory} cannot be a file and hold {file} at once")]
    Conflict {
        /// The path that would have to be both.
        directory: String,
        /// The file below it.
        file: String,
    },
    /// A name of an object that cannot be the name of a directory.
    #[error("{0:?} cannot be a name in a path")]
    Name(String),
    /// A `subPath` that begins with `/`. The kubelet's text.
    #[error("error SubPath `{0}` must not be an absolute path")]
    AbsoluteSubPath(String),
    /// A `subPath` with an element `..`. The kubelet's text.
    #[error("unable to provision SubPath `{0}`: must not contain '..'")]
    ParentSubPath(String),
}

impl DiskError {
    pub(crate) fn new(step: Step, path: &Path, errno: Errno) -> Self {
        Self::Io {
            step,
            path: path.to_owned(),
            source: errno.into(),
        }
    }

    /// Whether the new content is visible all the same: only tidying up failed, and the next pass does it.
    pub fn is_after_commit(&self) -> bool {
        matches!(
            self,
            Self::Io { step, .. } if matches!(
                step,
                Step::RemoveLeftover | Step::SetOwner | Step::Link | Step::Unlink | Step::RemoveOldSet
            )
        )
    }
}

/// What was being done when a [`DiskError::Io`] came up. Displayed, it reads on from "cannot".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Open the directory of a volume.
    OpenVolume,
    /// Open a directory of the layout.
    OpenDirectory,
    /// List a directory of the layout.
    ListDirectory,
    /// Set mode or group of a directory.
    SetMode,
    /// Mount a tmpfs, or find out whether one is mounted.
    Mount,
    /// Unmount a tmpfs or a bind mount.
    Unmount,
    /// Remove a file or a directory of the layout.
    Remove,
    /// Find what a `subPath` leads to.
    ResolveSubPath,
    /// Find or read a file that variables come from.
    ReadEnvFile,
    /// Bind-mount what a `subPath` leads to.
    BindSubPath,
    /// Read the link `..data`.
    ReadCurrent,
    /// List the directory of a volume.
    ListVolume,
    /// Remove what a crash left behind.
    RemoveLeftover,
    /// Give a file to its user or group.
    SetOwner,
    /// Create the directory of a new set.
    CreateSet,
    /// Create a directory.
    CreateDirectory,
    /// Create or fill a file.
    WriteFile,
    /// Give a new set the mode with which readers may enter.
    OpenSet,
    /// Create the link `..data_tmp`.
    LinkSet,
    /// Rename `..data_tmp` over `..data`.
    Publish,
    /// Create or correct a link in the root of a volume.
    Link,
    /// Remove a link in the root of a volume.
    Unlink,
    /// Remove the set that was replaced.
    RemoveOldSet,
}

impl fmt::Display for Step {
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
