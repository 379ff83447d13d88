//! A temporary directory for processes that mount.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

/// A temporary directory. Dropping it unmounts all that is mounted below, which would keep it from being removed, and
/// removes it.
#[derive(Debug)]
pub struct ScratchDir(TempDir);

impl ScratchDir {
    /// A new one.
    ///
    /// # Errors
    ///
    /// It cannot be created.
    pub fn with_prefix(prefix: &str) -> io::Result<Self> {
        TempDir::with_prefix(prefix).map(Self)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The paths below it on which something is mounted, in the order of mounting.
    pub fn mounts(&self) -> Vec<PathBuf> {
        let Ok(root) = fs::canonicalize(self.path()) else {
            return Vec::new();
        };
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let paths = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        let below = paths.map(Path::new).filter(|path| path.starts_with(&root));
        below.map(Path::to_owned).collect()
    }

    /// Unmounts all that is mounted below.
    pub fn unmount_all(&self) {
        for path in self.mounts().iter().rev() {
            // Detached, since a process may still use it.
            let _ = unmount(path, UnmountFlags::DETACH);
        }
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        self.unmount_all();
    }
}
