//! Reads back the state that an earlier run left of a pod: the set of each volume, the environment of each container,
//! and the record that the agent keeps beside them.
//!
//! Invariants:
//! 1. Nothing here follows a link but `..data`, which the atomic writer makes, and only to a set beside it.
//! 2. Content that cannot be read counts as absent. It is only compared with, never served.
//! 3. A record is replaced in one step. It is not synced: after a power failure it may be absent or empty, and its
//!    reader takes that for absent.

use std::{
    ffi::CString,
    os::fd::{AsFd, OwnedFd},
};

use larder_objects::SecretBytes;
use rustix::{
    fs::FileType,
    io::{Errno, Result},
    process::geteuid,
};
use zeroize::Zeroizing;

use super::{
    DiskError, VolumeHost, directory::Directory, environment::read_environment,
    error::DiskOperation, layout, sys, writer,
};
use crate::VolumeKind;

/// The agent's record of a pod, in the pod's directory.
const RECORD: &str = "on-change.json";
/// The new record until it takes the place of the old one, and then the old one until the next is written over it.
const RECORD_TMP: &str = "..on-change.json_tmp";
const RECORD_MODE: u32 = 0o600;
/// Largest record that is read. One of 16 hooks has 8 KiB.
const MAX_RECORD: usize = 256 << 10;
/// Largest file of a volume that is read back: objects have 1 MiB at most.
const MAX_FILE: usize = 16 << 20;
/// Deepest directory in a set that is read back. A path has 4096 bytes at most.
const MAX_DEPTH: usize = 2048;

impl VolumeHost {
    /// Visits each file of the set that a volume holds at present, with its path. Returns whether there is a set.
    pub fn read_set(
        &self,
        pod_uid: &str,
        kind: VolumeKind,
        volume: &str,
        mut visit: impl FnMut(&str, &[u8]),
    ) -> bool {
        let mut read = || -> Option<()> {
            layout::element(volume).ok()?;
            let pod = self.pod(pod_uid).ok()??;
            let plugin = pod.grandchild([layout::VOLUMES, kind.directory()]).ok()??;
            let root = plugin.child(volume).ok()??;
            let set = sys::read_link(root.as_fd(), writer::DATA).ok()?;
            let set = layout::element(set.to_str().ok()?).ok()?.to_owned();
            let set = sys::open_dir(root.as_fd(), set.as_str()).ok()?;
            read_directory(&set, &mut visit).ok()
        };
        read().is_some()
    }

    /// The variables in the `env.json` of a container; `None` if there is none.
    pub fn read_back_environment(
        &self,
        pod_uid: &str,
        container: &str,
    ) -> Option<std::collections::BTreeMap<String, SecretBytes>> {
        let container = layout::element(container).ok()?;
        let pod = self.pod(pod_uid).ok()??;
        let directory = pod.grandchild([layout::CONTAINERS, container]).ok()??;
        let text = read_file(directory.as_fd(), layout::ENVIRONMENT, MAX_FILE).ok()?;
        read_environment(&text).ok()
    }

    /// The record of a pod; `None` if there is none.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is too large to be one.
    pub fn read_record(
        &self,
        pod_uid: &str,
    ) -> std::result::Result<Option<Zeroizing<Vec<u8>>>, DiskError> {
        let Some(pod) = self.pod(pod_uid)? else {
            return Ok(None);
        };
        match read_file(pod.as_fd(), RECORD, MAX_RECORD) {
            Ok(text) => Ok(Some(text)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(pod.failed(DiskOperation::ReadRecord, RECORD)(errno)),
        }
    }

    /// Creates the directory of a pod that has no volumes here, so that its record has a place.
    ///
    /// # Errors
    ///
    /// It cannot be created.
    pub fn ensure_record_directory(&self, pod_uid: &str) -> std::result::Result<(), DiskError> {
        self.ensure_pod(pod_uid).map(drop)
    }

    /// Replaces the record of a pod in one step. Returns false, and does nothing, if the pod has no directory, since the
    /// record goes with it.
    ///
    /// # Errors
    ///
    /// The first step that failed; the old record stays.
    pub fn write_record(
        &self,
        pod_uid: &str,
        record: &[u8],
    ) -> std::result::Result<bool, DiskError> {
        let Some(pod) = self.pod(pod_uid)? else {
            return Ok(false);
        };
        let written = replace(&pod, record);
        if written.is_err() {
            // The error names the failed operation; what cannot be removed now is overwritten next time.
            let _ = sys::remove_file(pod.as_fd(), RECORD_TMP);
        }
        written.map_err(pod.failed(DiskOperation::WriteFile, RECORD))?;
        Ok(true)
    }

    /// Removes the record of a pod, if there is one.
    ///
    /// # Errors
    ///
    /// It cannot be removed.
    pub fn remove_record(&self, pod_uid: &str) -> std::result::Result<(), DiskError> {
        match self.pod(pod_uid)? {
            Some(pod) => remove_record(&pod),
            None => Ok(()),
        }
    }
}

/// Removes the record in the directory of a pod, and what an interrupted replacement has left.
pub(super) fn remove_record(pod: &Directory) -> std::result::Result<(), DiskError> {
    for name in [RECORD, RECORD_TMP] {
        pod.remove(name)?;
    }
    Ok(())
}

fn replace(pod: &Directory, record: &[u8]) -> Result<()> {
    let (file, size) = spare(pod)?;
    sys::write(&file, record)?;
    // Mostly both have one length, and ext4 takes as long to keep a length as to change it.
    if size > record.len() as u64 {
        sys::truncate(&file, record.len() as u64)?;
    }
    // ext4 begins to write a file to the disk before it renames it over another one, which takes longer than all the
    // rest and would delay a signal. This file need not reach the disk (invariant 3).
    match sys::exchange(pod.as_fd(), RECORD_TMP, RECORD) {
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => {
            sys::rename(pod.as_fd(), RECORD_TMP, RECORD)
        }
        exchanged => exchanged,
    }
}

/// Opens the file for the next record, and returns it with its size. The last exchange left one: it is used again if it
/// is ours alone, because creating and removing a file takes several times as long as writing it.
fn spare(pod: &Directory) -> Result<(OwnedFd, u64)> {
    if let Ok(file) = sys::open_file_to_write(pod.as_fd(), RECORD_TMP) {
        let stat = sys::stat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_mode & 0o7777 == RECORD_MODE
            && stat.st_nlink == 1
            && stat.st_uid == geteuid().as_raw()
        {
            return Ok((file, u64::try_from(stat.st_size).unwrap_or(u64::MAX)));
        }
    }
    match sys::remove_file(pod.as_fd(), RECORD_TMP) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let file = sys::create_file(pod.as_fd(), RECORD_TMP, RECORD_MODE)?;
    sys::set_mode(&file, RECORD_MODE)?;
    Ok((file, 0))
}

fn read_file(
    directory: std::os::fd::BorrowedFd<'_>,
    name: impl rustix::path::Arg,
    limit: usize,
) -> Result<Zeroizing<Vec<u8>>> {
    let file = sys::open_file(directory, name)?;
    let stat = sys::stat(&file)?;
    let size = usize::try_from(stat.st_size).map_err(|_| Errno::FBIG)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || size > limit {
        return Err(Errno::FBIG);
    }
    let mut bytes = Zeroizing::new(vec![0; size]);
    let read = sys::read(&file, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Visits every file below `set`, with its path.
fn read_directory(set: &OwnedFd, visit: &mut impl FnMut(&str, &[u8])) -> Result<()> {
    let mut pending = vec![(String::new(), 0)];
    while let Some((path, depth)) = pending.pop() {
        if depth > MAX_DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        let opened = match path.as_str() {
            "" => sys::open_dir(set.as_fd(), c".")?,
            path => sys::open_dir_beneath(set.as_fd(), path.as_bytes())?,
        };
        let mut entries: Vec<(CString, FileType)> = Vec::new();
        sys::list(&opened, |name, kind| entries.push((name.to_owned(), kind)))?;
        for (name, kind) in entries {
            let shown = name.to_str().map_err(|_| Errno::ILSEQ)?;
            let below = match path.as_str() {
                "" => shown.to_owned(),
                path => format!("{path}/{shown}"),
            };
            match kind {
                FileType::Directory => pending.push((below, depth + 1)),
                FileType::RegularFile => {
                    visit(&below, &read_file(opened.as_fd(), &name, MAX_FILE)?);
                }
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _};

    use jiff::Timestamp;

    use super::*;
    use crate::disk::{PodVolume, testing::files};

    fn host() -> (tempfile::TempDir, VolumeHost) {
        let root = tempfile::tempdir().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        (root, host)
    }

    fn set_of(host: &VolumeHost, volume: &str) -> Option<BTreeMap<String, String>> {
        let mut files = BTreeMap::new();
        let found = host.read_set("u", VolumeKind::ConfigMap, volume, |path, bytes| {
            files.insert(path.to_owned(), String::from_utf8(bytes.to_vec()).unwrap());
        });
        found.then_some(files)
    }

    #[test]
    fn sets_are_read_back_with_their_directories() {
        let (_root, host) = host();
        assert_eq!(set_of(&host, "v"), None);
        let payload = files([("a", "1"), ("d/e/f", "2")]);
        let volume = PodVolume::new("u", "v", VolumeKind::ConfigMap);
        host.set_up(&volume, &payload, Timestamp::UNIX_EPOCH)
            .unwrap();
        let expected = [("a", "1"), ("d/e/f", "2")].map(|(path, text)| (path.into(), text.into()));
        assert_eq!(set_of(&host, "v"), Some(expected.into()));
        assert_eq!(set_of(&host, "../v"), None);
    }

    #[test]
    fn environment_is_read_back() {
        let (_root, host) = host();
        assert!(host.read_back_environment("u", "c").is_none());
        let variables = BTreeMap::from([("A", b"1".as_slice()), ("B", b"\xff".as_slice())]);
        host.write_environment("u", "c", &variables).unwrap();
        let found = host.read_back_environment("u", "c").unwrap();
        assert_eq!((&*found["A"], &*found["B"]), (&b"1"[..], &b"\xff"[..]));
    }

    #[test]
    fn record_goes_with_its_pod() {
        let (root, host) = host();
        assert!(!host.write_record("u", b"no directory").unwrap());
        assert!(host.read_record("u").unwrap().is_none());
        host.write_environment("u", "c", &BTreeMap::new()).unwrap();
        assert!(host.write_record("u", b"one").unwrap());
        host.write_record("u", b"two").unwrap();
        assert_eq!(**host.read_record("u").unwrap().unwrap(), *b"two");
        let file = root.path().join("pods/u").join(RECORD);
        assert_eq!(fs::metadata(file).unwrap().mode() & 0o7777, RECORD_MODE);
        host.remove_pod("u").unwrap();
        assert!(!root.path().join("pods/u").exists());
    }

    #[test]
    fn record_is_the_last_one_whatever_was_left_in_the_place_of_the_next() {
        let (root, host) = host();
        host.write_environment("u", "c", &BTreeMap::new()).unwrap();
        let pod = root.path().join("pods/u");
        let read = || host.read_record("u").unwrap().unwrap().to_vec();
        for record in ["one", "the longest", "", "two", "two"] {
            host.write_record("u", record.as_bytes()).unwrap();
            assert_eq!(read(), record.as_bytes());
        }
        // A crash in the middle of a record.
        fs::write(pod.join(RECORD_TMP), "garbage that is longer").unwrap();
        host.write_record("u", b"three").unwrap();
        assert_eq!(read(), b"three");
        let victim = root.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        fs::remove_file(pod.join(RECORD_TMP)).unwrap();
        fs::hard_link(&victim, pod.join(RECORD_TMP)).unwrap();
        host.write_record("u", b"four").unwrap();
        assert_eq!(read(), b"four");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        fs::remove_file(pod.join(RECORD_TMP)).unwrap();
        fs::create_dir(pod.join(RECORD_TMP)).unwrap();
        assert!(host.write_record("u", b"five").is_err());
        assert_eq!(read(), b"four", "the old record stays");
    }

    #[test]
    fn link_in_place_of_a_record_is_not_followed() {
        let (root, host) = host();
        host.write_environment("u", "c", &BTreeMap::new()).unwrap();
        let pod = root.path().join("pods/u");
        let victim = root.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        for name in [RECORD, RECORD_TMP] {
            std::os::unix::fs::symlink(&victim, pod.join(name)).unwrap();
        }
        assert!(host.read_record("u").is_err());
        host.write_record("u", b"one").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(**host.read_record("u").unwrap().unwrap(), *b"one");
    }
}
