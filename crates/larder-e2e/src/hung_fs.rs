//! A file system that never answers, as a FUSE whose program has stopped.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
};

use rustix::{
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::geteuid,
};

/// A mounted file system whose requests are not read: a call that opens, lists or examines something in it waits. A
/// signal that ends the process ends the wait, and so does [`Self::abort`].
#[derive(Debug)]
#[must_use = "dropping it unmounts it"]
pub struct HungFs {
    path: PathBuf,
    /// The kernel's side of it, which a FUSE would read.
    device: Option<File>,
}

impl HungFs {
    /// Mounts it on the directory `path`; `None`, with a line on standard error, where this process may not mount.
    ///
    /// # Panics
    ///
    /// CI cannot mount, although it runs as root.
    pub fn mount(path: &Path) -> Option<Self> {
        match Self::try_mount(path) {
            Ok(mounted) => Some(mounted),
            Err(error) => {
                let is_ci = std::env::var_os("CI").is_some();
                assert!(
                    !(is_ci && geteuid().is_root()),
                    "CI must be able to mount a FUSE: {error}"
                );
                let said = format!("SKIPPED: no file system that hangs ({error})\n");
                // Straight to the stream, which no test runner holds back.
                let _ = io::stderr().write_all(said.as_bytes());
                None
            }
        }
    }

    fn try_mount(path: &Path) -> io::Result<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
            device.as_raw_fd()
        );
        let options = std::ffi::CString::new(options)?;
        mount("hung", path, "fuse", MountFlags::empty(), Some(&*options))?;
        Ok(Self {
            path: path.to_owned(),
            device: Some(device),
        })
    }

    /// From now on it fails instead of hanging.
    pub fn abort(&mut self) {
        self.device = None;
    }
}

impl Drop for HungFs {
    fn drop(&mut self) {
        self.abort();
        let unmounted = unmount(&self.path, UnmountFlags::DETACH);
        debug_assert!(
            unmounted.is_ok() || std::thread::panicking(),
            "{unmounted:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::mpsc::channel, thread};

    use super::*;

    #[test]
    fn whoever_opens_something_waits_until_it_is_aborted() {
        let directory = tempfile::tempdir().unwrap();
        let Some(mut hung) = HungFs::mount(directory.path()) else {
            return;
        };
        let path = directory.path().to_owned();
        let (listing, begun) = channel();
        let (listed, ended) = channel();
        let thread = thread::spawn(move || {
            listing.send(()).unwrap();
            listed.send(fs::read_dir(path).map(drop)).unwrap();
        });
        begun.recv().unwrap();
        assert!(ended.try_recv().is_err());
        hung.abort();
        assert!(ended.recv().unwrap().is_err());
        thread.join().unwrap();
    }
}
