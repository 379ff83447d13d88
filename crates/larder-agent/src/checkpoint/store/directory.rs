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
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use super::{ASIDE, INDEX};
use crate::checkpoint::{seal::FileName, sys};

/// The directory in it, for files that did not open.
pub(super) const REJECTED: &str = "rejected";
/// Mode of the directory: no other user enters it.
const MODE: u32 = 0o700;
/// Permission bits of its parent that let others replace it.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The checkpoint cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The operating system failed an operation.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// The operation, as a verb.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Another user owns the directory.
    #[error("{} belongs to user {owner}, expected user {user}", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// User ID of its owner.
        owner: u32,
        /// User ID of this process.
        user: u32,
    },
    /// Others than the owner could replace the directory.
    #[error("{} has mode {mode:04o}, so other users can write to it; run `chmod go-w` on it", path.display())]
    Writable {
        /// Its parent.
        path: PathBuf,
        /// The permission bits of the parent.
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
    pub(in crate::checkpoint) fn label(&self) -> &'static str {
        let source = match self {
            Self::Io { source, .. } => source,
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

/// Opens the parent directory of `path`; `None` if there is none. Only root and this user may write to it.
pub(in crate::checkpoint) fn open_parent(path: &Path) -> Result<Option<OwnedFd>, StoreError> {
    let parent = path.parent().unwrap_or(path);
    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(parent, flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(failed("open", parent)(errno)),
    };
    let stat = sys::stat(&opened).map_err(failed("examine", parent))?;
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != 0 && stat.st_uid != user {
        return Err(StoreError::Foreign {
            path: parent.to_owned(),
            owner: stat.st_uid,
            user,
        });
    }
    if stat.st_mode & WRITABLE_BY_OTHERS != 0 {
        return Err(StoreError::Writable {
            path: parent.to_owned(),
            mode: stat.st_mode & 0o7777,
        });
    }
    Ok(Some(opened))
}

/// Opens the directory `path` for the agent that writes it, and creates it in `parent` if missing.
pub(super) fn create_directory(parent: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, StoreError> {
    match sys::make_dir(parent, name(path)?) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed("create", path)(errno)),
    }
    let Some(directory) = open_directory(parent, path)? else {
        return Err(failed("open", path)(Errno::NOENT));
    };
    expect_checkpoint(&directory, path)?;
    if mode(&directory, path)? != MODE {
        sys::set_mode(&directory, MODE).map_err(failed("set mode of", path))?;
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
        Err(errno) => return Err(failed("open", path)(errno)),
    };
    let owner = sys::stat(&directory)
        .map_err(failed("examine", path))?
        .st_uid;
    let user = rustix::process::geteuid().as_raw();
    if owner != user {
        return Err(StoreError::Foreign {
            path: path.to_owned(),
            owner,
            user,
        });
    }
    Ok(Some(directory))
}

/// Rejects a directory that other programs use, before its mode changes or a file in it is removed: a directory without
/// an index that contains an entry which no checkpoint has.
pub(super) fn expect_checkpoint(directory: &OwnedFd, path: &Path) -> Result<(), StoreError> {
    if exists(directory, INDEX) {
        return Ok(());
    }
    let entries = sys::list(directory).map_err(failed("list", path))?;
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
    path.file_name()
        .ok_or_else(|| failed("open", path)(Errno::INVAL))
}

/// The permissions of the directory.
pub(super) fn mode(directory: &OwnedFd, path: &Path) -> Result<u32, StoreError> {
    let stat = sys::stat(directory).map_err(failed("examine", path))?;
    Ok(stat.st_mode & 0o7777)
}

/// Locks the directory, unless another process keeps it locked for a second. The agent tries again later.
#[must_use = "the lock ends with the handle"]
pub(super) fn try_lock(directory: &OwnedFd, path: &Path) -> Result<OwnedFd, StoreError> {
    sys::try_lock(directory.as_fd()).map_err(failed("lock", path))
}

/// Locks other processes out of the directory until the returned handle is dropped.
#[must_use = "the lock ends with the handle"]
pub(super) fn lock(directory: &OwnedFd, path: &Path) -> Result<OwnedFd, StoreError> {
    sys::lock(directory.as_fd()).map_err(failed("lock", path))
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
        Err(errno) => return Err(failed("open", &path)(errno)),
    };
    let names = sys::list(&rejected).map_err(failed("list", &path))?;
    for name in &names {
        // A rejected entry may be an empty directory in place of a file.
        sys::remove_file(rejected.as_fd(), name.as_str())
            .or_else(|_| sys::remove_dir(rejected.as_fd(), name.as_str()))
            .map_err(failed("remove", &path.join(name)))?;
    }
    sys::remove_dir(directory.as_fd(), REJECTED).map_err(failed("remove", &path))?;
    Ok(names.len())
}

pub(super) fn failed(operation: &'static str, path: &Path) -> impl Fn(Errno) -> StoreError {
    move |errno| StoreError::Io {
        operation,
        path: path.to_owned(),
        source: errno.into(),
    }
}
