//! The digest key, in memory only (rule P2).
//!
//! It is in a file on a tmpfs, so that it outlives the agent but not a reboot. The first agent that needs it creates
//! it; agents that start at the same time use the same one. If no such directory can be used, the key lives as long as
//! the agent, and the record of an earlier agent counts as written under another key.

use std::{
    fs::DirBuilder,
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::DirBuilderExt as _,
    },
    path::{Path, PathBuf},
};

use larder_files::{
    operation_error::{OperationError, failed},
    ownership::Ownership,
    sys,
};
use larder_objects::chain;
use larder_on_change::DigestKey;
use larder_projection::disk::is_in_memory;
use rustix::io::Errno;
use tracing::warn;

const FILE: &str = "on-change.key";
const HAS_RANDOM: &str = "the kernel has random numbers for every process";

/// Why a directory cannot hold the key.
#[derive(Debug, thiserror::Error)]
enum DigestKeyError {
    /// Its files are kept on a disk.
    #[error("{} is neither on a tmpfs nor on a ramfs", .0.display())]
    OnDisk(PathBuf),
    /// Others could replace or read the key.
    #[error("{} belongs to another user or is open to others", .0.display())]
    Exposed(PathBuf),
    #[error(transparent)]
    Io(#[from] OperationError),
}

/// The key in the first of `directories` that can hold it, with that directory; else a new one.
pub(super) fn load(directories: &[PathBuf]) -> (DigestKey, Option<PathBuf>) {
    let mut reasons = Vec::new();
    for directory in directories {
        match load_from(directory) {
            Ok(key) => return (key, Some(directory.clone())),
            Err(error) => reasons.push(chain(&error)),
        }
    }
    if !directories.is_empty() {
        warn!(
            error = reasons.join(", "),
            "no usable tmpfs for the digest key, comparing with the files on disk after a restart"
        );
    }
    (DigestKey::temporary().expect(HAS_RANDOM), None)
}

fn load_from(directory: &Path) -> Result<DigestKey, DigestKeyError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(directory)
        .map_err(failed("create", directory))?;
    let opened = sys::open_root(directory).map_err(failed("open", directory))?;
    if !is_in_memory(&opened).map_err(failed("examine", directory))? {
        return Err(DigestKeyError::OnDisk(directory.to_owned()));
    }
    let found = sys::stat(&opened).map_err(failed("examine", directory))?;
    let ownership = Ownership::from(&found);
    if !ownership.is_trusted() || ownership.is_writable_by_others() {
        return Err(DigestKeyError::Exposed(directory.to_owned()));
    }
    let path = directory.join(FILE);
    // Twice: another agent may have created the key meanwhile, or left a file without one.
    for _ in 0..2 {
        match read(&opened, &path)? {
            Some(key) => return Ok(DigestKey::from_bytes(&key)),
            None => make(directory, &path).map_err(failed("write", &path))?,
        }
    }
    Err(failed("read", &path)(Errno::NOENT).into())
}

/// The key in `directory`; `None` if there is none, or not all of it.
fn read(
    directory: &OwnedFd,
    path: &Path,
) -> Result<Option<[u8; DigestKey::BYTES]>, DigestKeyError> {
    let (file, found) = match sys::open_regular(directory.as_fd(), FILE) {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::INVAL) => return Err(DigestKeyError::Exposed(path.to_owned())),
        Err(errno) => return Err(failed("read", path)(errno).into()),
    };
    let ownership = Ownership::from(&found);
    if !ownership.is_trusted() || ownership.is_open_to_others() {
        return Err(DigestKeyError::Exposed(path.to_owned()));
    }
    let mut key = [0; DigestKey::BYTES];
    let count = sys::read(&file, &mut key).map_err(failed("read", path))?;
    Ok((count == key.len()).then_some(key))
}

/// Puts a new key in place, unless another agent was first.
fn make(directory: &Path, path: &Path) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .prefix(FILE)
        .tempfile_in(directory)?;
    file.write_all(&DigestKey::generate().expect(HAS_RANDOM))?;
    // A file that is too short is replaced.
    let is_short = path
        .metadata()
        .is_ok_and(|found| found.len() < DigestKey::BYTES as u64);
    let renamed = if is_short {
        file.persist(path)
    } else {
        file.persist_noclobber(path)
    };
    match renamed {
        Err(failed) if failed.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        renamed => {
            renamed?;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    };

    use super::*;

    fn in_memory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    #[test]
    fn key_outlives_the_agent_that_created_it() {
        let memory = in_memory();
        let directory = memory.path().join("larder");
        let first = load(std::slice::from_ref(&directory)).0.fingerprint();
        assert_eq!(
            load(std::slice::from_ref(&directory)).0.fingerprint(),
            first
        );
        let mode = fs::metadata(directory.join(FILE)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_file(directory.join(FILE)).unwrap();
        assert_ne!(load(&[directory]).0.fingerprint(), first);
    }

    #[test]
    fn key_is_never_written_to_a_disk() {
        // Outlives a reboot, so it is no memory, and every user may write there.
        let disk = tempfile::tempdir_in("/var/tmp").unwrap();
        load(&[disk.path().to_owned()]);
        assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0);
    }

    #[test]
    fn directory_open_to_others_is_not_used() {
        let memory = in_memory();
        fs::set_permissions(memory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        load(&[memory.path().to_owned()]);
        assert_eq!(fs::read_dir(memory.path()).unwrap().count(), 0);
        fs::set_permissions(memory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", memory.path().join(FILE)).unwrap();
        assert!(load_from(memory.path()).is_err());
    }

    #[test]
    fn agents_that_start_together_agree_on_one_key() {
        let memory = in_memory();
        let keys: Vec<_> = std::thread::scope(|scope| {
            let load = || scope.spawn(|| load_from(memory.path()).unwrap().fingerprint());
            let threads: Vec<_> = (0..8).map(|_| load()).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    }
}
