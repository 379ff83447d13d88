//! The directory of the checkpoint: opened without following a link, owned by this user, locked against other writers.
//!
//! Invariants:
//! 1. A directory of another user, or one that another user could replace, is neither read nor written.
//! 2. Only the agent creates the directory and closes it to other users. Inspecting it changes nothing.
//! 3. A directory with other files and without an index is not a checkpoint: its mode and its files are left unchanged.

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use larder_files::{
    operation_error::{OperationError, failed},
    ownership::{Changers, Ownership, OwnershipError, resolve, user},
    sys,
};
use rustix::io::Errno;

use super::{ASIDE, INDEX};
use crate::seal::FileName;

/// The directory in it, for files that did not open.
pub(super) const REJECTED: &str = "rejected";
/// Mode of the directory: no other user enters it.
pub(super) const DIRECTORY_MODE: u32 = 0o700;

/// Where a checkpoint is.
#[derive(Clone, Debug)]
pub struct CheckpointDir {
    path: PathBuf,
    parent: Parent,
}

/// How the parent of the directory is reached.
#[derive(Clone, Debug)]
enum Parent {
    /// By its path. Only root and this user may be able to change what it leads to.
    Resolved,
    /// By its path, which is the caller's. Only the parent itself is checked.
    Named,
    /// It is open already, and checked by the caller.
    Open(Arc<OwnedFd>),
}

impl CheckpointDir {
    /// The directory `path`, which may be missing. Every directory on the way to it is checked, in the way of
    /// [`Changers::RootAndUser`].
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            parent: Parent::Resolved,
        }
    }

    /// The directory `path` in a directory that the caller uses in any case. Only that directory itself is checked.
    pub fn within(path: PathBuf) -> Self {
        Self {
            path,
            parent: Parent::Named,
        }
    }

    /// The directory `path` in `parent`, which the caller has checked. Only the last component of `path` is resolved.
    pub fn in_open(parent: Arc<OwnedFd>, path: PathBuf) -> Self {
        Self {
            path,
            parent: Parent::Open(parent),
        }
    }

    /// Its path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the parent; `None` if there is none.
    pub(super) fn open_parent(&self) -> Result<Option<Arc<OwnedFd>>, StoreError> {
        let parent = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let parent = match &self.parent {
            Parent::Open(parent) => return Ok(Some(Arc::clone(parent))),
            Parent::Named => parent.to_owned(),
            Parent::Resolved => match resolve(parent, Changers::RootAndUser) {
                Err(OwnershipError::Io(error))
                    if error.source.kind() == io::ErrorKind::NotFound =>
                {
                    return Ok(None);
                }
                resolved => resolved?,
            },
        };
        let opened = match sys::open_root(&parent) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed("open", &parent)(errno).into()),
        };
        let stat = sys::stat(&opened).map_err(failed("examine", &parent))?;
        let ownership = Ownership::from(&stat);
        if !ownership.is_trusted() {
            return Err(foreign(parent, ownership.owner));
        }
        // Here the sticky bit does not help: others could create the directory.
        if ownership.is_writable_by_others() {
            return Err(StoreError::Writable {
                path: parent,
                mode: ownership.mode,
            });
        }
        Ok(Some(Arc::new(opened)))
    }

    /// Whether there is such a directory, for this user.
    ///
    /// # Errors
    ///
    /// It belongs to another user, or others may replace it.
    pub fn exists(&self) -> Result<bool, StoreError> {
        Ok(self.open_existing()?.is_some())
    }

    /// Whether a checkpoint was written to the directory, readable or not.
    ///
    /// # Errors
    ///
    /// The directory belongs to another user, others may replace it, or it cannot be examined.
    pub fn is_written(&self) -> Result<bool, StoreError> {
        let Some(directory) = self.open_existing()? else {
            return Ok(false);
        };
        match sys::stat_entry(directory.as_fd(), INDEX) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed("examine", &self.path.join(INDEX))(errno).into()),
        }
    }

    /// Opens the directory, which belongs to this user; `None` if there is none.
    pub(super) fn open_existing(&self) -> Result<Option<OwnedFd>, StoreError> {
        match self.open_parent()? {
            Some(parent) => open_directory(parent.as_fd(), &self.path),
            None => Ok(None),
        }
    }
}

fn foreign(path: PathBuf, owner: u32) -> StoreError {
    StoreError::Foreign {
        path,
        owner,
        user: user(),
    }
}

impl From<OwnershipError> for StoreError {
    fn from(error: OwnershipError) -> Self {
        match error {
            OwnershipError::Io(error) => Self::Io(error),
            OwnershipError::Foreign { path, owner } => foreign(path, owner),
            OwnershipError::Writable { path, mode } => Self::Writable { path, mode },
        }
    }
}

/// The checkpoint cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The operating system failed an operation.
    #[error(transparent)]
    Io(#[from] OperationError),
    /// Another user owns the directory, or one on the way to it.
    #[error("{} belongs to user {owner}, expected user {user}", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// User ID of its owner.
        owner: u32,
        /// User ID of this process.
        user: u32,
    },
    /// Others than the owner could replace the directory, or one on the way to it.
    #[error("{} has mode {mode:04o}, so other users can write to it; run `chmod go-w` on it", path.display())]
    Writable {
        /// A directory above it.
        path: PathBuf,
        /// The permission bits of that directory.
        mode: u32,
    },
    /// The directory is not a checkpoint and contains other files.
    #[error("{} holds {entry:?} and no checkpoint; name an empty directory, or one that does not exist", path.display())]
    Occupied {
        /// The directory.
        path: PathBuf,
        /// An entry that larder has not written.
        entry: String,
    },
}

impl StoreError {
    /// The failure as a label of a metric, from a small fixed set.
    pub fn label(&self) -> &'static str {
        let source = match self {
            Self::Io(OperationError { source, .. }) => source,
            Self::Foreign { .. } | Self::Writable { .. } => return "foreign",
            Self::Occupied { .. } => return "occupied",
        };
        match Errno::from_io_error(source) {
            Some(Errno::NOSPC | Errno::DQUOT) => "no_space",
            Some(Errno::ROFS) => "read_only",
            Some(Errno::WOULDBLOCK) => "locked",
            _ => "io",
        }
    }
}

/// Opens the directory `path` for the agent that writes it, and creates it in `parent` if missing.
pub(super) fn create_directory(parent: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, StoreError> {
    match sys::make_dir(parent, name(path)?, DIRECTORY_MODE) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed("create", path)(errno).into()),
    }
    let Some(directory) = open_directory(parent, path)? else {
        return Err(failed("open", path)(Errno::NOENT).into());
    };
    expect_checkpoint(&directory, path)?;
    if mode(&directory, path)? != DIRECTORY_MODE {
        sys::set_mode(&directory, DIRECTORY_MODE).map_err(failed("set mode of", path))?;
    }
    Ok(directory)
}

/// Opens the directory `path` in `parent`, which belongs to this user; `None` if there is none.
pub(super) fn open_directory(
    parent: BorrowedFd<'_>,
    path: &Path,
) -> Result<Option<OwnedFd>, StoreError> {
    let directory = match sys::open_dir(parent, name(path)?) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(failed("open", path)(errno).into()),
    };
    let stat = sys::stat(&directory).map_err(failed("examine", path))?;
    let ownership = Ownership::from(&stat);
    if !ownership.is_own() {
        return Err(foreign(path.to_owned(), ownership.owner));
    }
    Ok(Some(directory))
}

/// Rejects a directory that other programs use, before its mode changes or a file in it is removed: a directory without
/// an index that contains an entry which no checkpoint has.
pub(super) fn expect_checkpoint(directory: &OwnedFd, path: &Path) -> Result<(), StoreError> {
    if exists(directory, INDEX) {
        return Ok(());
    }
    let entries = sys::names(directory).map_err(failed("list", path))?;
    let is_own = |name: &str| name == ASIDE || name == REJECTED || FileName::parse(name).is_some();
    match entries.into_iter().find(|name| !is_own(name)) {
        Some(entry) => Err(StoreError::Occupied {
            path: path.to_owned(),
            entry,
        }),
        None => Ok(()),
    }
}

/// The last component of `path`.
fn name(path: &Path) -> Result<&OsStr, StoreError> {
    Ok(path
        .file_name()
        .ok_or_else(|| failed("open", path)(Errno::INVAL))?)
}

/// The permissions of the directory.
pub(super) fn mode(directory: &OwnedFd, path: &Path) -> Result<u32, StoreError> {
    let stat = sys::stat(directory).map_err(failed("examine", path))?;
    Ok(stat.st_mode & 0o7777)
}

pub(super) fn exists(directory: &OwnedFd, name: &str) -> bool {
    sys::stat_entry(directory.as_fd(), name).is_ok()
}

/// Removes the files in `rejected/`; returns how many there were.
pub(super) fn clear_rejected(directory: &OwnedFd, path: &Path) -> Result<usize, StoreError> {
    let path = path.join(REJECTED);
    let rejected = match sys::open_dir(directory.as_fd(), REJECTED) {
        Ok(rejected) => rejected,
        Err(Errno::NOENT) => return Ok(0),
        Err(errno) => return Err(failed("open", &path)(errno).into()),
    };
    let names = sys::names(&rejected).map_err(failed("list", &path))?;
    for name in &names {
        // A rejected entry may be an empty directory in place of a file.
        sys::remove_file(rejected.as_fd(), name.as_str())
            .or_else(|_| sys::may_be_missing(sys::remove_dir(rejected.as_fd(), name.as_str())))
            .map_err(failed("remove", &path.join(name)))?;
    }
    sys::may_be_missing(sys::remove_dir(directory.as_fd(), REJECTED))
        .map_err(failed("remove", &path))?;
    Ok(names.len())
}
