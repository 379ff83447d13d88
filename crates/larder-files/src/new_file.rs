//! A file that appears whole under its name, and is written piece by piece until then.
//!
//! It has no name while it is written (`O_TMPFILE`), so a process that dies leaves nothing. Where the file system cannot
//! do that, it has a random name with a prefix that the caller chooses.
//!
//! Invariants:
//! 1. A reader finds the old file or the new one under the name, never a part, and never with another mode.
//! 2. A failure leaves the old file in place.
//! 3. The file is not synced: after a power cut it may be absent, empty or cut off.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::{
    fs::{AtFlags, Mode, OFlags, linkat, openat},
    io::{Errno, Result},
};

use crate::{
    faults::point,
    sys::{create_file, may_be_missing, remove_file, rename, set_mode, write},
};

/// A file that is being written. Dropped before it is published, it leaves nothing.
#[derive(Debug)]
pub struct NewFile<D: AsFd> {
    dir: D,
    file: OwnedFd,
    /// The name that it has meanwhile.
    aside: String,
    is_named: bool,
}

impl<D: AsFd> NewFile<D> {
    /// An empty file in `dir`, which only its owner may read until it is published. `aside` is a name that nothing else
    /// uses.
    ///
    /// # Errors
    ///
    /// The directory cannot be written.
    pub fn create(dir: D, aside: String) -> Result<Self> {
        let (file, is_named) = match unnamed(dir.as_fd()) {
            Ok(file) => (file, false),
            // Not known to the file system, or to the kernel.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
                (create_file(dir.as_fd(), &aside, 0o600)?, true)
            }
            Err(errno) => return Err(errno),
        };
        Ok(Self {
            dir,
            file,
            aside,
            is_named,
        })
    }

    /// Adds bytes.
    ///
    /// # Errors
    ///
    /// The file system is full, or fails.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        write(&self.file, bytes)
    }

    /// Gives the file its mode and its name, in place of any other file of that name.
    ///
    /// # Errors
    ///
    /// The first call that failed. [`Errno::ISDIR`]: a directory has the name.
    pub fn publish(mut self, name: &str, mode: u32) -> Result<()> {
        set_mode(&self.file, mode)?;
        if !self.is_named {
            match self.link(name) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            self.link(&self.aside)?;
            self.is_named = true;
        }
        rename(self.dir.as_fd(), &self.aside, name)?;
        self.is_named = false;
        Ok(())
    }

    fn link(&self, name: &str) -> Result<()> {
        point()?;
        // Naming a file by its descriptor alone takes a capability.
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        linkat(
            rustix::fs::CWD,
            path,
            self.dir.as_fd(),
            name,
            AtFlags::SYMLINK_FOLLOW,
        )
    }
}

impl<D: AsFd> Drop for NewFile<D> {
    fn drop(&mut self) {
        if self.is_named {
            // What cannot be removed now is recognized by its prefix later, and removed then.
            let _ = may_be_missing(remove_file(self.dir.as_fd(), &self.aside));
        }
    }
}

fn unnamed(dir: BorrowedFd<'_>) -> Result<OwnedFd> {
    point()?;
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = openat(dir, ".", flags, Mode::from_raw_mode(0o600))?;
    // Without it, the file could not be named later.
    rustix::fs::stat("/proc/self/fd")?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::{
        faults::{Fault, during},
        sys::open_root,
    };

    fn replace(dir: BorrowedFd<'_>, text: &str) -> Result<()> {
        let mut file = NewFile::create(dir, ".aside-1".to_owned())?;
        file.write(text.as_bytes())?;
        file.publish("f", 0o640)
    }

    #[test]
    fn failed_call_leaves_the_old_file_and_nothing_else() {
        // With files that have no name, and without.
        for errno in [Errno::NOSPC, Errno::OPNOTSUPP] {
            for at in 0.. {
                let root = tempfile::tempdir().unwrap();
                let dir = open_root(root.path()).unwrap();
                replace(dir.as_fd(), "old").unwrap();
                let fault = Fault::Once(errno);
                let (result, is_reached) = during(at, fault, || replace(dir.as_fd(), "new"));
                let expected = if result.is_ok() { "new" } else { "old" };
                let path = root.path().join("f");
                assert_eq!(fs::read_to_string(&path).unwrap(), expected, "call {at}");
                let mode = fs::metadata(&path).unwrap().permissions().mode();
                assert_eq!(mode & 0o7777, 0o640);
                if !is_reached {
                    break;
                }
                replace(dir.as_fd(), "newest").unwrap();
                let entries = fs::read_dir(root.path()).unwrap();
                // A removal that fails leaves a name with the caller's prefix.
                let names = entries.map(|entry| entry.unwrap().file_name());
                let foreign = names.filter(|name| name != "f" && name != ".aside-1");
                assert_eq!(foreign.count(), 0, "call {at}");
            }
        }
    }

    #[test]
    fn file_that_is_not_published_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let dir = open_root(root.path()).unwrap();
        let create = || NewFile::create(dir.as_fd(), ".aside-1".to_owned());
        drop(create().unwrap());
        let (named, _) = during(0, Fault::Once(Errno::OPNOTSUPP), create);
        let mut named = named.unwrap();
        named.write(b"part").unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        drop(named);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn directory_of_the_name_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("f")).unwrap();
        let dir = open_root(root.path()).unwrap();
        assert_eq!(replace(dir.as_fd(), "new"), Err(Errno::ISDIR));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
