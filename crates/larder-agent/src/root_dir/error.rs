//! Why a root directory cannot be used.

use std::path::PathBuf;

use larder_files::operation_error::OperationError;
use larder_projection::disk::DiskError;

/// With which the user chooses the directory.
pub(super) const OPTION: &str = "--root-dir";
/// The boot in which an agent has mounted something in the directory.
pub(super) const BOOT: &str = "boot";

/// The root directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootDirError {
    /// A step of the preparation failed.
    #[error(transparent)]
    Io(#[from] OperationError),
    /// Another user could put files in the agent's way, or the lock file is not one that an agent has created.
    #[error("{} {problem}, or choose another directory with {option}", path.display())]
    Unsafe {
        /// The root directory, or a file of the agent in it.
        path: PathBuf,
        /// Owner, mode, and what to do.
        problem: String,
        /// With which the user chooses the directory.
        option: &'static str,
    },
    /// The volumes cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Containers would see empty directories where Secrets are.
    #[error(
        "cannot keep Secrets in {}: containers do not see what this process mounts there. Make the mount shared \
         (`mountPropagation: Bidirectional`, `rshared`), run in the machine's mount namespace, choose a directory in \
         memory with {OPTION}, or take away CAP_SYS_ADMIN", path.display()
    )]
    HiddenMounts {
        /// The root directory.
        path: PathBuf,
    },
    /// Containers would keep a file system that is never updated.
    #[error(
        "cannot update {}: an earlier agent has mounted a tmpfs there, which this process does not see. Bind the root \
         directory with all mounts in it (`rbind`, `HostToContainer` or `Bidirectional`), or run where the earlier \
         agent did; if it was unmounted since, remove the file {BOOT} in the root directory", volume.display()
    )]
    UnseenMounts {
        /// The volume.
        volume: PathBuf,
    },
    /// Two agents would overwrite each other's volumes.
    #[error("{} is in use by another larder agent{holder}; stop it, or choose another directory with {option}", path.display())]
    InUse {
        /// The root directory.
        path: PathBuf,
        /// The other agent's process, if known: ` (process 42)`.
        holder: String,
        /// With which the user chooses the directory.
        option: &'static str,
    },
}
