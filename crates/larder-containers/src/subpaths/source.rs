//! The new content of a mount: a file or directory in the present set of its volume.
//!
//! Invariant: what is opened is in the set, reached through no link but `..data`.

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat2, readlinkat},
    io::Errno,
};
use smol_str::SmolStr;

/// The link to the present set.
const DATA: &str = "..data";

/// What the present set of a volume has.
#[derive(Debug)]
pub(super) struct Source {
    /// The name of the set.
    pub(super) set: SmolStr,
    /// `None`: there is no such file or directory in it.
    pub(super) file: Option<OwnedFd>,
}

impl Source {
    /// Of the file or directory `path` of the volume at `directory`, an absolute path without links. An empty one is the
    /// set itself.
    ///
    /// # Errors
    ///
    /// The volume is not there, has no set, or gets another one meanwhile.
    pub(super) fn of(directory: &Path, path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |at: &OwnedFd, path: &Path| {
            let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
            openat2(at, path, flags, Mode::empty(), beneath)
        };
        let (only_dir, no_links) = (flags | OFlags::DIRECTORY, ResolveFlags::NO_SYMLINKS);
        let volume = openat2(CWD, directory, only_dir, Mode::empty(), no_links)?;
        let present = || readlinkat(&volume, DATA, Vec::new());
        let link = present()?;
        let set = link.to_str().map_err(io::Error::other)?;
        if !set.starts_with("..") || set.contains('/') || set == ".." {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let directory = open(&volume, Path::new(set))?;
        let file = if path.as_os_str().is_empty() {
            Ok(directory)
        } else {
            open(&directory, path)
        };
        let file = match file {
            Ok(file) => Some(file),
            // Without the set, nothing is known of the file.
            Err(Errno::NOENT | Errno::NOTDIR) if present()? == link => None,
            Err(errno) => return Err(errno.into()),
        };
        let set = set.into();
        Ok(Self { set, file })
    }
}
