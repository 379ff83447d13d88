//! Removing a directory with all that is in it, without following a link or entering another file system.
//!
//! Two directories are open at a time, however deep the tree: paths in a volume may have two thousand elements.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    fs::FileType,
    io::{Errno, Result},
};

use super::sys;

/// Removes the entry `name` of `dir`, whatever it is; it may be gone already.
pub(crate) fn remove(dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    match sys::remove_file(dir, name) {
        Err(Errno::ISDIR) => remove_dir_all(dir, name),
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

/// Removes the directory `name` of `dir` and all that is in it.
///
/// # Errors
///
/// `EXDEV` when something is mounted in it; what lies beside the mount may be gone by then.
pub(crate) fn remove_dir_all(dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    remove_contents(&sys::open_dir_beneath(dir, name)?)?;
    sys::remove_dir(dir, name)
}

/// Removes all that is in the open directory `top`, which must not have been listed before.
///
/// # Errors
///
/// As [`remove_dir_all`].
pub(crate) fn remove_contents(top: &OwnedFd) -> Result<()> {
    // Paths below `top`. Each is met twice: first to be emptied, and, once its own directories are gone, to be removed.
    let mut pending = Vec::new();
    empty(top, b"", &mut pending)?;
    while let Some((path, is_empty)) = pending.pop() {
        if !is_empty {
            let opened = sys::open_dir_beneath(top.as_fd(), &path)?;
            pending.push((path.clone(), true));
            empty(&opened, &path, &mut pending)?;
        } else if let Some(slash) = path.iter().rposition(|&byte| byte == b'/') {
            let parent = sys::open_dir_beneath(top.as_fd(), &path[..slash])?;
            sys::remove_dir(parent.as_fd(), &path[slash + 1..])?;
        } else {
            sys::remove_dir(top.as_fd(), &*path)?;
        }
    }
    Ok(())
}

/// Removes what is no directory from the open directory at `path`, and adds its directories to `pending`.
fn empty(directory: &OwnedFd, path: &[u8], pending: &mut Vec<(Vec<u8>, bool)>) -> Result<()> {
    let mut files = Vec::new();
    sys::list(directory, |name, kind| match kind {
        FileType::Directory if path.is_empty() => pending.push((name.to_bytes().to_owned(), false)),
        FileType::Directory => pending.push(([path, name.to_bytes()].join(&b'/'), false)),
        _ => files.push(name.to_owned()),
    })?;
    for file in files {
        sys::remove_file(directory.as_fd(), file)?;
    }
    Ok(())
}
