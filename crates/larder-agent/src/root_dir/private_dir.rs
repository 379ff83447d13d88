//! A directory that only this user and root can write to, and the file in it that the process locks which uses it.

use std::{
    fs::{self, DirBuilder, File},
    io::{Read as _, Seek as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{DirBuilderExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use larder_files::{
    lock::Lock,
    operation_error::failed,
    ownership::{Ownership, user},
    sys,
};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};

use super::error::RootDirError;

/// Opens the directory `path`, created if missing (mode 0711), and returns it with its absolute path without links.
/// Errors name `option`, with which the user chooses it.
///
/// # Errors
///
/// The directory cannot be created, belongs to another user, or is writable by others.
pub(crate) fn open_private(
    path: &Path,
    option: &'static str,
) -> Result<(PathBuf, OwnedFd), RootDirError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(path)
        .map_err(failed("create", path))?;
    // In a directory such as /tmp, any user can create a link to a directory of ours.
    let named = fs::symlink_metadata(path).map_err(failed("examine", path))?;
    check_owner(path, Ownership::from(&named), option)?;
    // The absolute path is what links and mount tables need.
    let path = fs::canonicalize(path).map_err(failed("resolve", path))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(&path, flags, Mode::empty()).map_err(failed("open", &path))?;
    let found = rustix::fs::fstat(&directory).map_err(failed("examine", &path))?;
    // The sticky bit does not help: others could create files in the agent's way.
    let ownership = Ownership::from(&found);
    check_owner(&path, ownership, option)?;
    if ownership.is_writable_by_others() {
        let Ownership { owner, mode } = ownership;
        return Err(RootDirError::Unsafe {
            path,
            problem: format!(
                "of user {owner} has mode {mode:04o}, so other users can write to it; run `chmod go-w` on it"
            ),
            option,
        });
    }
    Ok((path, directory))
}

/// Locks the open directory, whose path is `root`; `None` where directories cannot be locked. Nothing removes this lock. The
/// process that has it has locked the file `name`, too, for the error message.
///
/// # Errors
///
/// It is locked, or cannot be.
pub(crate) fn lock_directory(
    directory: &OwnedFd,
    root: &Path,
    name: &str,
    option: &'static str,
) -> Result<Option<Lock>, RootDirError> {
    match Lock::try_file(directory.as_fd()) {
        Ok(lock) => Ok(Some(lock)),
        Err(Errno::WOULDBLOCK) => {
            let lock = sys::open_file(directory.as_fd(), name).ok();
            Err(in_use(root, lock.map(File::from).as_ref(), option))
        }
        Err(Errno::BADF | Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(errno) => Err(failed("lock", root)(errno).into()),
    }
}

/// Opens and locks the file `name` of `directory`, whose path is `root`, and writes the number of this process to it.
///
/// # Errors
///
/// The file cannot be used, is not one that an agent has created, or is locked.
pub(crate) fn lock_file(
    directory: &OwnedFd,
    root: &Path,
    name: &str,
    option: &'static str,
) -> Result<Lock, RootDirError> {
    let path = root.join(name);
    // A pipe must not make the agent wait.
    let flags = OFlags::RDWR
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let not_a_lock = |Ownership { owner, mode }| RootDirError::Unsafe {
        path: path.clone(),
        problem: format!(
            "of user {owner} (mode {mode:04o}) is not a file that an agent has created; remove it"
        ),
        option,
    };
    let opened = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o640));
    let mut file = match opened {
        Ok(fd) => File::from(fd),
        Err(errno) => {
            let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
            return Err(match found {
                Ok(found) if errno == Errno::LOOP => not_a_lock(Ownership::from(&found)),
                _ => failed("open", &path)(errno).into(),
            });
        }
    };
    let found = file.metadata().map_err(failed("examine", &path))?;
    if !found.is_file() || found.nlink() > 1 {
        return Err(not_a_lock(Ownership::from(&found)));
    }
    check_owner(&path, Ownership::from(&found), option)?;
    let lock = match Lock::try_file(file.as_fd()) {
        Ok(lock) => lock,
        Err(Errno::WOULDBLOCK) => return Err(in_use(root, Some(&file), option)),
        Err(errno) => return Err(failed("lock", &path)(errno).into()),
    };
    // The agent that held the lock has removed it at its end.
    if file.metadata().is_ok_and(|found| found.nlink() == 0) {
        return lock_file(directory, root, name, option);
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed("write", &path))?;
    Ok(lock)
}

/// The error about the directory `path`, used by the process whose number is in `lock`.
fn in_use(path: &Path, lock: Option<&File>, option: &'static str) -> RootDirError {
    let mut process = String::new();
    if let Some(lock) = lock {
        // The error message names the process if it can be read.
        let _ = lock.take(32).read_to_string(&mut process);
    }
    RootDirError::InUse {
        path: path.to_owned(),
        holder: match process.trim() {
            "" => String::new(),
            process => format!(" (process {process})"),
        },
        option,
    }
}

fn check_owner(path: &Path, found: Ownership, option: &'static str) -> Result<(), RootDirError> {
    if found.is_trusted() {
        return Ok(());
    }
    Err(RootDirError::Unsafe {
        path: path.to_owned(),
        problem: format!(
            "belongs to user {} (mode {:04o}), expected user {} or root; change its owner",
            found.owner,
            found.mode,
            user()
        ),
        option,
    })
}
