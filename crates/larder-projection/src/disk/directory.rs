//! An open directory that knows its path, for errors that name it.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use larder_files::{operation_error::failed, sys};
use rustix::{
    fs::{CWD, FileType},
    io::Errno,
};

use super::{
    error::DiskError,
    layout::aside,
    ownership::{self, Group},
    tree,
};

/// An open directory. What is named in it is a single element, and never followed if it is a link.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Directory {
    /// Opens `path` itself; the links in it are the caller's.
    pub(crate) fn open(path: &Path) -> Result<Self, DiskError> {
        let fd = sys::open_dir(CWD, path)
            .map_err(|errno| DiskError::new("open directory", path, errno))?;
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// A directory that is open already; errors call it `path`.
    pub(crate) fn new(fd: OwnedFd, path: PathBuf) -> Self {
        Self { fd, path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Names a failure of `operation` on the entry `name`.
    pub(crate) fn failed<'a>(
        &'a self,
        operation: &'static str,
        name: &'a str,
    ) -> impl Fn(Errno) -> DiskError + 'a {
        move |errno| DiskError::new(operation, &self.path.join(name), errno)
    }

    /// Names a failure of `operation` that comes after the new content is in place.
    pub(crate) fn failed_late<'a>(
        &'a self,
        operation: &'static str,
        name: &'a str,
    ) -> impl Fn(Errno) -> DiskError + 'a {
        move |errno| DiskError::AfterCommit(failed(operation, &self.path.join(name))(errno))
    }

    /// The directory `name`, if there is one.
    pub(crate) fn child(&self, name: &str) -> Result<Option<Self>, DiskError> {
        match sys::open_dir(self.fd.as_fd(), name) {
            Ok(fd) => Ok(Some(Self {
                fd,
                path: self.path.join(name),
            })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed("open directory", name)(errno)),
        }
    }

    /// The directory `names[0]/names[1]/…`, if there is one.
    pub(crate) fn descendant(&self, names: &[&str]) -> Result<Option<Self>, DiskError> {
        let [first, rest @ ..] = names else {
            return Ok(None);
        };
        match self.child(first)? {
            Some(child) if !rest.is_empty() => child.descendant(rest),
            child => Ok(child),
        }
    }

    /// The directory `name`, created with mode 0700 if missing; and whether it was created.
    pub(crate) fn make(&self, name: &str) -> Result<(Self, bool), DiskError> {
        let created = match sys::make_dir(self.fd.as_fd(), name, 0o700) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(self.failed("create directory", name)(errno)),
        };
        match self.child(name)? {
            Some(child) => Ok((child, created)),
            None => Err(self.failed("open directory", name)(Errno::NOENT)),
        }
    }

    /// The directory `name` with exactly this mode, created if missing. A crash may have come before its mode.
    pub(crate) fn ensure(&self, name: &str, mode: u32) -> Result<Self, DiskError> {
        self.ensure_of(Group::default(), name, mode)
    }

    /// As [`Self::ensure`], and given to `group` where this process may.
    pub(crate) fn ensure_of(&self, group: Group, name: &str, mode: u32) -> Result<Self, DiskError> {
        let (child, _) = self.make(name)?;
        ownership::settle(&child, None, group, mode).map_err(self.failed("set mode of", name))?;
        Ok(child)
    }

    /// What the directory holds, sorted; names that are not UTF-8 belong to other programs.
    pub(crate) fn entries(&self) -> Result<Vec<(String, FileType)>, DiskError> {
        let failed = |errno| DiskError::new("list directory", &self.path, errno);
        // A handle of its own: a directory can be listed once for each handle.
        let listed = sys::open_dir(self.fd.as_fd(), c".").map_err(failed)?;
        let mut entries = Vec::new();
        sys::list(&listed, |name, kind| {
            entries.extend(name.to_str().ok().map(|name| (name.to_owned(), kind)));
        })
        .map_err(failed)?;
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        Ok(entries)
    }

    /// The names of the directories in it, sorted.
    pub(crate) fn directories(&self) -> Result<Vec<String>, DiskError> {
        Ok(self
            .entries()?
            .into_iter()
            .filter(|&(_, kind)| kind == FileType::Directory)
            .map(|(name, _)| name)
            .collect())
    }

    /// The directories in it with their names, sorted. Each is opened when it is taken.
    pub(crate) fn children(
        &self,
    ) -> Result<impl Iterator<Item = Result<(String, Self), DiskError>>, DiskError> {
        Ok(self.directories()?.into_iter().filter_map(|name| {
            let child = self.child(&name).transpose()?;
            Some(child.map(|child| (name, child)))
        }))
    }

    /// Removes the entry `name` with all that is in it; it may be gone already.
    pub(crate) fn remove(&self, name: &str) -> Result<(), DiskError> {
        tree::remove(self.fd.as_fd(), name.as_bytes()).map_err(self.failed("remove", name))
    }

    /// Removes the file `name`, and what an interrupted replacement of it has left.
    pub(crate) fn remove_replaceable(&self, name: &str) -> Result<(), DiskError> {
        self.remove(name)?;
        self.remove(&aside(name))
    }

    /// Removes the directory `name` unless it holds something; returns whether it is gone.
    pub(crate) fn remove_if_empty(&self, name: &str) -> Result<bool, DiskError> {
        match sys::remove_dir(self.fd.as_fd(), name) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(errno) => Err(self.failed("remove", name)(errno)),
        }
    }
}
