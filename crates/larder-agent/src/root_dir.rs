//! The root directory: made for one agent at a time, and known for where its bytes end up.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use larder_pods::PodSource;
use rustix::fs::FlockOperation;

/// Held while an agent uses the directory; holds the number of its process, for people.
const LOCK: &str = "agent.lock";
/// The agent's local API, for `larder status`.
const SOCKET: &str = "agent.sock";
/// Copies of the last good manifests of static pods, by source.
const MANIFESTS: &str = "static-pods";

/// A root directory that is ours until dropped.
#[derive(Debug)]
#[must_use = "dropping it lets another agent in"]
pub struct RootDir {
    path: PathBuf,
    /// The kernel lets go of the lock when the file is closed, also after `kill -9`.
    _lock: File,
}

/// The root directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootDirError {
    /// A step of preparing it failed.
    #[error("cannot {step} {}", path.display())]
    Io {
        /// What was tried.
        step: &'static str,
        /// With which path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Somebody else could put files in our way.
    #[error("{} belongs to user {owner}, not to the one that runs larder; choose another with --root-dir", path.display())]
    Foreign {
        /// The root directory.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
    },
    /// Two agents would overwrite each other's volumes.
    #[error("{} is in use by another larder agent{holder}; stop it, or choose another directory with --root-dir", path.display())]
    InUse {
        /// The root directory.
        path: PathBuf,
        /// The other's process, if known: ` (process 42)`.
        holder: String,
    },
}

impl RootDir {
    /// Makes the directory if need be (mode 0750, as the kubelet's) and locks it.
    ///
    /// # Errors
    ///
    /// It cannot be made, belongs to another user, or is in use.
    pub fn lock(path: &Path) -> Result<Self, RootDirError> {
        let io = |step, path: &Path| {
            let path = path.to_owned();
            move |source| RootDirError::Io { step, path, source }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(path)
            .map_err(io("create", path))?;
        // The absolute path is what links and mount tables need.
        let path = fs::canonicalize(path).map_err(io("resolve", path))?;
        let owner = fs::metadata(&path).map_err(io("examine", &path))?.uid();
        let uid = rustix::process::geteuid().as_raw();
        if uid != 0 && owner != uid {
            return Err(RootDirError::Foreign { path, owner });
        }

        let lock_path = path.join(LOCK);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o640)
            .open(&lock_path)
            .map_err(io("open", &lock_path))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut process = String::new();
                // Only for the message: without it, the message is still right.
                let _ = lock.read_to_string(&mut process);
                let holder = match process.trim() {
                    "" => String::new(),
                    process => format!(" (process {process})"),
                };
                return Err(RootDirError::InUse { path, holder });
            }
            Err(error) => return Err(io("lock", &lock_path)(error.into())),
        }
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "{}", std::process::id()))
            .map_err(io("write", &lock_path))?;
        Ok(Self { path, _lock: lock })
    }

    /// The directory, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the last good manifests of a source of static pods are kept.
    pub fn manifests(&self, source: PodSource) -> PathBuf {
        self.path.join(MANIFESTS).join(source.as_str())
    }

    /// Where the agent's local API listens.
    pub fn socket(&self) -> PathBuf {
        socket(&self.path)
    }
}

/// Where an agent with the root directory `path` listens, whether or not there is one.
pub fn socket(path: &Path) -> PathBuf {
    path.join(SOCKET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_refused_until_the_first_is_gone() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("new/root");
        let first = RootDir::lock(&path).unwrap();
        let error = RootDir::lock(&path).unwrap_err();
        let process = format!("(process {})", std::process::id());
        assert!(matches!(error, RootDirError::InUse { .. }), "{error}");
        assert!(error.to_string().contains(&process), "{error}");
        drop(first);
        drop(RootDir::lock(&path).unwrap());
    }

    #[test]
    fn a_path_in_the_way_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        fs::write(&path, "").unwrap();
        let error = RootDir::lock(&path).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cannot create {}", path.display())
        );
    }
}
