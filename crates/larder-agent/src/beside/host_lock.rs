//! A lock in a directory of the host, so that only one larder per node touches pods (beside-kubelet R28). During an
//! update of a DaemonSet, or by mistake, two may run.
//!
//! Invariants:
//! 1. The directory itself is locked, as an agent locks its root directory: nothing removes that lock. The file names the
//!    process, and is the only lock where directories cannot be locked.
//! 2. Directory and file pass the checks of [`crate::root_dir`]: no other user can hold the lock, or use it to make larder
//!    write to another file.

use std::{path::PathBuf, time::Duration};

use larder_files::lock::Lock;
use larder_transport::blocking::blocking;
use tokio::time::sleep;
use tracing::info;

use crate::root_dir::{RootDirError, lock_directory, lock_file, open_private};

/// Locked by the larder that touches. Contains the PID of its process, for people.
const LOCK: &str = "beside.lock";

/// Longest time until a waiting larder takes over from one that has exited.
const INTERVAL: Duration = Duration::from_secs(1);

/// The lock of a node. Dropping it releases it.
#[derive(Debug)]
#[must_use = "dropping it releases the lock"]
pub(crate) struct HostLock {
    _directory: Option<Lock>,
    _file: Lock,
}

/// A directory of the host, for the lock.
#[derive(Clone, Debug)]
pub(crate) struct LockDir {
    pub(crate) path: PathBuf,
    /// With which the user chooses it, for errors.
    pub(crate) option: &'static str,
    /// Whether this agent has locked it already, as its root directory.
    pub(crate) is_own_root: bool,
}

/// Takes the lock in `directory`, which is created if missing; `None` while another larder holds it. Blocks on files.
///
/// # Errors
///
/// The directory or the lock cannot be used, or another user could use them.
fn try_lock(directory: &LockDir) -> Result<Option<HostLock>, RootDirError> {
    let option = directory.option;
    let (path, opened) = open_private(&directory.path, option)?;
    let lock = || {
        let of_directory = if directory.is_own_root {
            None
        } else {
            lock_directory(&opened, &path, LOCK, option)?
        };
        Ok(HostLock {
            _directory: of_directory,
            _file: lock_file(&opened, &path, LOCK, option)?,
        })
    };
    match lock() {
        Ok(lock) => Ok(Some(lock)),
        Err(RootDirError::InUse { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits for the lock, for as long as another larder holds it.
///
/// # Errors
///
/// As [`try_lock`].
///
/// # Cancel safety
///
/// Cancel-safe: dropping the future releases a lock that it has taken.
pub(crate) async fn wait_for_lock(directory: &LockDir) -> Result<HostLock, RootDirError> {
    let mut waits = false;
    loop {
        let tried = directory.clone();
        if let Some(lock) = blocking(move || try_lock(&tried)).await? {
            return Ok(lock);
        }
        if !waits {
            waits = true;
            info!(directory = %directory.path.display(), "another larder touches the pods of this node, waiting");
        }
        sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use futures::{FutureExt as _, poll};
    use tokio::time::Instant;

    use super::*;
    use crate::root_dir::RootDir;

    fn lock_dir(path: &Path) -> LockDir {
        LockDir {
            path: path.to_owned(),
            option: "--lock-dir",
            is_own_root: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn second_larder_waits_for_the_first() {
        // beside-kubelet 36
        let temp = tempfile::tempdir().unwrap();
        let path = lock_dir(&temp.path().join("run/larder"));
        let first = wait_for_lock(&path).await.unwrap();
        assert!(try_lock(&path).unwrap().is_none());
        let start = Instant::now();
        let mut second = wait_for_lock(&path).boxed();
        tokio::time::timeout(Duration::from_mins(10), &mut second)
            .await
            .unwrap_err();
        assert!(poll!(&mut second).is_pending());
        drop(first);
        let second = second.await.unwrap();
        assert!(start.elapsed() <= Duration::from_mins(10) + INTERVAL);
        assert!(try_lock(&path).unwrap().is_none());
        drop(second);
        assert!(try_lock(&path).unwrap().is_some());
    }

    #[test]
    fn a_second_larder_is_refused_also_when_the_file_was_removed() {
        let temp = tempfile::tempdir().unwrap();
        let path = lock_dir(temp.path());
        let first = try_lock(&path).unwrap().unwrap();
        fs::remove_file(temp.path().join(LOCK)).unwrap();
        assert!(try_lock(&path).unwrap().is_none());
        assert!(!temp.path().join(LOCK).exists());
        drop(first);
        assert!(try_lock(&path).unwrap().is_some());
    }

    #[test]
    fn an_agent_locks_the_node_in_its_own_root_directory() {
        let temp = tempfile::tempdir().unwrap();
        let root = RootDir::lock(temp.path()).unwrap();
        let mut path = lock_dir(temp.path());
        assert!(try_lock(&path).unwrap().is_none());
        path.is_own_root = true;
        assert!(try_lock(&path).unwrap().is_some());
        drop(root);
    }

    #[test]
    fn a_link_in_place_of_the_lock_is_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("victim"), "precious").unwrap();
        symlink("victim", temp.path().join(LOCK)).unwrap();
        let error = try_lock(&lock_dir(temp.path())).unwrap_err();
        assert!(matches!(error, RootDirError::Unsafe { .. }), "{error}");
        assert!(error.to_string().ends_with("with --lock-dir"), "{error}");
        assert_eq!(
            fs::read_to_string(temp.path().join("victim")).unwrap(),
            "precious"
        );
    }
}
