//! A lock in a directory of the host, so that only one larder per node touches pods (beside-kubelet R28). During an
//! update of a DaemonSet, or by mistake, two may run.
//!
//! Directory and file pass the checks of [`crate::root_dir`]: no other user can hold the lock, or use it to make larder
//! write to another file.

use std::{path::Path, time::Duration};

use larder_files::lock::Lock;
use larder_transport::blocking::blocking;
use tokio::time::sleep;
use tracing::info;

use crate::root_dir::{RootDirError, lock_file, open_private};

/// Locked by the larder that touches. Contains the PID of its process, for people.
const LOCK: &str = "beside.lock";

/// Longest time until a waiting larder takes over from one that has exited.
const INTERVAL: Duration = Duration::from_secs(1);

/// Takes the lock in `directory`, which is created if missing; `None` while another larder holds it. Errors name
/// `option`, with which the user chooses the directory. Blocks on files.
///
/// # Errors
///
/// The directory or the lock cannot be used, or another user could use them.
fn try_lock(directory: &Path, option: &'static str) -> Result<Option<Lock>, RootDirError> {
    let (path, directory) = open_private(directory, option)?;
    match lock_file(&directory, &path, LOCK, option) {
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
pub(crate) async fn wait_for_lock(
    directory: &Path,
    option: &'static str,
) -> Result<Lock, RootDirError> {
    let mut waits = false;
    loop {
        let path = directory.to_owned();
        if let Some(lock) = blocking(move || try_lock(&path, option)).await? {
            return Ok(lock);
        }
        if !waits {
            waits = true;
            info!(directory = %directory.display(), "another larder touches the pods of this node, waiting");
        }
        sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use futures::{FutureExt as _, poll};
    use tokio::time::Instant;

    use super::*;

    const OPTION: &str = "--lock-dir";

    #[tokio::test(start_paused = true)]
    async fn second_larder_waits_for_the_first() {
        // beside-kubelet 36
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("run/larder");
        let first = wait_for_lock(&path, OPTION).await.unwrap();
        assert!(try_lock(&path, OPTION).unwrap().is_none());
        let start = Instant::now();
        let mut second = wait_for_lock(&path, OPTION).boxed();
        tokio::time::timeout(Duration::from_mins(10), &mut second)
            .await
            .unwrap_err();
        assert!(poll!(&mut second).is_pending());
        drop(first);
        let second = second.await.unwrap();
        assert!(start.elapsed() <= Duration::from_mins(10) + INTERVAL);
        assert!(try_lock(&path, OPTION).unwrap().is_none());
        drop(second);
        assert!(try_lock(&path, OPTION).unwrap().is_some());
    }

    #[test]
    fn a_link_in_place_of_the_lock_is_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("victim"), "precious").unwrap();
        symlink("victim", temp.path().join(LOCK)).unwrap();
        let error = try_lock(temp.path(), OPTION).unwrap_err();
        assert!(matches!(error, RootDirError::Unsafe { .. }), "{error}");
        assert!(error.to_string().ends_with("with --lock-dir"), "{error}");
        assert_eq!(
            fs::read_to_string(temp.path().join("victim")).unwrap(),
            "precious"
        );
    }
}
