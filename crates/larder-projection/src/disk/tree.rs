//! Removes a directory with all its contents, without following a link or crossing a mount.
//!
//! Invariants:
//! 1. Every name is a single element, resolved relative to an open directory. A mount is never entered, not even one of
//!    the same file system.
//! 2. At most [`MAX_OPEN`] directories of the tree are open at a time, however deep it is. The way back to a directory
//!    that was closed meanwhile is `..`; device and inode confirm that it leads there.
//! 3. Each entry is visited once, so the cost is linear. A directory that another process fills meanwhile is listed at
//!    most [`MAX_LISTINGS`] times.
//! 4. After a failure, the other entries are still removed. The first failure is reported.

use std::{
    collections::VecDeque,
    ffi::{CStr, CString},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use larder_files::{beneath, pause, sys};
use rustix::{
    fs::FileType,
    io::{Errno, Result},
};

/// Volumes are rarely deeper, so few removals ever need `..`.
const MAX_OPEN: usize = 8;
/// One listing finds everything; another one is needed only when entries appear meanwhile.
const MAX_LISTINGS: usize = 16;
/// Lets the owner list, enter and change a directory.
const REMOVABLE: u32 = 0o700;

/// Removes the entry `name` of `dir`, whatever it is. A missing entry is no error.
///
/// # Errors
///
/// As [`remove_dir_all`].
pub(crate) fn remove(dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    match sys::remove_file(dir, name) {
        Err(Errno::ISDIR) => remove_dir_all(dir, name),
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Removes the directory `name` of `dir` with all its contents. A missing directory is no error.
///
/// # Errors
///
/// The first failure; everything else is removed. It is `EXDEV` for a mount in the tree. It is `ESTALE` for a directory
/// that another process moved away during the removal, which then ends early.
pub(crate) fn remove_dir_all(dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    Removal::of(dir, vec![name]).run()
}

/// Removes the directory `name` of `dir`, which is open as `opened`, with all its contents.
///
/// # Errors
///
/// As [`remove_dir_all`].
pub(crate) fn remove_opened(dir: BorrowedFd<'_>, name: &[u8], opened: OwnedFd) -> Result<()> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let mut removal = Removal::of(dir, Vec::new());
    let entered = removal.enter_opened(name, opened);
    removal.note(entered);
    removal.run()
}

/// Removes the contents of the open directory `top`, which must not have been listed before.
///
/// # Errors
///
/// As [`remove_dir_all`].
pub(crate) fn remove_contents(top: &OwnedFd) -> Result<()> {
    let mut pending = Vec::new();
    let emptied = remove_files(top, top.as_fd(), &mut pending);
    Removal::of(top.as_fd(), pending).run().and(emptied)
}

/// A removal in progress.
struct Removal<'t> {
    top: BorrowedFd<'t>,
    /// Names of the directories in `top` that are still to be removed.
    pending: Vec<CString>,
    /// Directories on the way from `top` down that are closed again, each with its device and inode.
    closed: Vec<(NestedDirectory, (u64, u64))>,
    /// The directories below those, down to the one that is being emptied. Empty only if `closed` is.
    open: VecDeque<(NestedDirectory, OwnedFd)>,
    failure: Result<()>,
}

/// A directory below the top that is being emptied.
struct NestedDirectory {
    /// In its parent.
    name: CString,
    /// Names of the directories in it that are still to be removed.
    pending: Vec<CString>,
    /// Number of times it was listed.
    listings: usize,
    /// Something in it cannot be removed, so it has to stay.
    is_stuck: bool,
}

impl<'t> Removal<'t> {
    fn of(top: BorrowedFd<'t>, pending: Vec<CString>) -> Self {
        Self {
            top,
            pending,
            closed: Vec::new(),
            open: VecDeque::new(),
            failure: Ok(()),
        }
    }

    fn run(mut self) -> Result<()> {
        loop {
            let innermost = self.open.back_mut();
            let pending = innermost.map_or(&mut self.pending, |(it, _)| &mut it.pending);
            if let Some(name) = pending.pop() {
                let entered = self.enter(name);
                self.note(entered);
            } else if let Some((directory, fd)) = self.open.pop_back() {
                self.reopen_parent(&fd)?;
                let removed = self.leave(directory, fd);
                self.note(removed);
            } else {
                return self.failure;
            }
        }
    }

    /// Opens the directory `name` of the innermost one, makes it the innermost one, and removes the files in it.
    fn enter(&mut self, name: CString) -> Result<()> {
        let opened = match self.in_innermost(|parent| open(parent, &name)) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(()),
            // Another process has put something else in its place.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return self.in_innermost(|parent| remove_file(parent, &name));
            }
            Err(errno) => return Err(errno),
        };
        self.enter_opened(name, opened)
    }

    /// Makes the directory `name` of the innermost one, open as `opened`, the innermost one, and removes the files in
    /// it.
    fn enter_opened(&mut self, name: CString, opened: OwnedFd) -> Result<()> {
        let directory = NestedDirectory {
            name,
            pending: Vec::new(),
            listings: 0,
            is_stuck: false,
        };
        self.open.push_back((directory, opened));
        self.close_outermost()?;
        self.list_innermost()
    }

    /// Removes `directory`, which has no entries left that could be removed, from what is the innermost one now.
    fn leave(&mut self, directory: NestedDirectory, fd: OwnedFd) -> Result<()> {
        if directory.is_stuck {
            // Its parent cannot be removed either. The failure is noted already.
            self.mark_stuck();
            return Ok(());
        }
        match self.in_innermost(|parent| sys::remove_dir(parent, &*directory.name)) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTDIR) => self.in_innermost(|parent| remove_file(parent, &directory.name)),
            // Entries appeared after the listing.
            Err(Errno::NOTEMPTY | Errno::EXIST) if directory.listings < MAX_LISTINGS => {
                self.open.push_back((directory, fd));
                self.list_innermost()
            }
            Err(errno) => Err(errno),
        }
    }

    /// Removes the files in the innermost directory; its directories become pending.
    fn list_innermost(&mut self) -> Result<()> {
        let Some((directory, fd)) = self.open.back_mut() else {
            return Ok(());
        };
        directory.listings += 1;
        if directory.listings == 1 {
            return remove_files(fd, fd.as_fd(), &mut directory.pending);
        }
        // A directory can be listed once for each handle.
        let listed = with_permission(fd.as_fd(), |fd| sys::open_dir(fd, c"."))?;
        remove_files(&listed, fd.as_fd(), &mut directory.pending)
    }

    /// Keeps the number of open directories below the bound.
    fn close_outermost(&mut self) -> Result<()> {
        if self.open.len() > MAX_OPEN
            && let Some((_, fd)) = self.open.front()
        {
            let id = id(fd)?;
            let closed = self.open.pop_front().map(|(directory, _)| (directory, id));
            self.closed.extend(closed);
        }
        Ok(())
    }

    /// Opens the parent of `child` again if it was closed.
    fn reopen_parent(&mut self, child: &OwnedFd) -> Result<()> {
        if self.open.is_empty()
            && let Some((directory, expected)) = self.closed.pop()
        {
            let parent = with_permission(child.as_fd(), |child| sys::open_dir(child, c".."))?;
            if id(&parent)? != expected {
                return Err(Errno::STALE);
            }
            self.open.push_back((directory, parent));
        }
        Ok(())
    }

    /// Runs `action` in the innermost directory.
    fn in_innermost<T>(&self, action: impl Fn(BorrowedFd<'_>) -> Result<T>) -> Result<T> {
        match self.open.back() {
            Some((_, fd)) => with_permission(fd.as_fd(), action),
            // Not ours to change: what is removed is below it.
            None => action(self.top),
        }
    }

    /// Notes a failure in the innermost directory.
    fn note(&mut self, result: Result<()>) {
        if result.is_err() {
            self.failure = self.failure.and(result);
            self.mark_stuck();
        }
    }

    fn mark_stuck(&mut self) {
        if let Some((directory, _)) = self.open.back_mut() {
            directory.is_stuck = true;
        }
    }
}

/// Opens the directory `name` of `parent` so that it can be emptied: a missing permission of the owner is added.
fn open(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    match beneath::open_dir(parent, name.to_bytes()) {
        Err(Errno::ACCESS) => {
            let unreadable = beneath::open_place(parent, name.to_bytes())?;
            sys::set_mode_of_place(&unreadable, REMOVABLE)?;
            sys::open_dir(unreadable.as_fd(), c".")
        }
        opened => opened,
    }
}

/// Runs `action` in `dir`, a directory that is about to be removed; again, with the owner's permissions added, if they
/// are missing.
fn with_permission<T>(
    dir: BorrowedFd<'_>,
    action: impl Fn(BorrowedFd<'_>) -> Result<T>,
) -> Result<T> {
    match action(dir) {
        Err(Errno::ACCESS) if sys::set_mode(dir, REMOVABLE).is_ok() => action(dir),
        done => done,
    }
}

/// Lists `listed`, a handle of `dir`: removes all but directories, and adds the names of those to `pending`. The first
/// failure is returned at the end.
fn remove_files(listed: &OwnedFd, dir: BorrowedFd<'_>, pending: &mut Vec<CString>) -> Result<()> {
    let mut removed = Ok(());
    let done = sys::list(listed, |name, kind| {
        pause::point();
        match kind {
            FileType::Directory => pending.push(name.to_owned()),
            _ => match with_permission(dir, |dir| remove_file(dir, name)) {
                // A directory has taken its place.
                Err(Errno::ISDIR) => pending.push(name.to_owned()),
                result => removed = removed.and(result),
            },
        }
    });
    done.and(removed)
}

/// Removes an entry that is no directory. A missing entry is no error.
fn remove_file(dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
    sys::may_be_missing(sys::remove_file(dir, name))
}

fn id(directory: &OwnedFd) -> Result<(u64, u64)> {
    let found = sys::stat(directory)?;
    Ok((found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests;
