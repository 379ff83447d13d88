//! Reads back the state that an earlier run left of a pod: the set of each volume, and the environment of each
//! container.
//!
//! Invariants:
//! 1. The only link that is followed is `..data`, which the atomic writer makes, and only to a set beside it.
//! 2. Content that cannot be read counts as absent. It is only compared, never served.

use std::{
    ffi::CString,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use larder_files::{beneath, regular_file::read_open, sys};
use larder_objects::SecretBytes;
use rustix::{
    fs::FileType,
    io::{Errno, Result},
    path::Arg,
};
use zeroize::Zeroizing;

use super::{
    VolumeHost,
    environment::read_environment,
    layout::{self, element},
    writer,
};
use crate::VolumeKind;

/// Largest file of a volume that is read back: objects have 1 MiB at most.
const MAX_FILE: usize = 16 << 20;
/// Deepest directory in a set that is read back. A path has 4096 bytes at most.
const MAX_DEPTH: usize = 2048;

impl VolumeHost {
    /// Visits each file of the set that a volume holds at present, with its path. Returns the name of the set, which is
    /// another one after each change; `None` if there is none.
    pub fn read_set(
        &self,
        pod_uid: &str,
        kind: VolumeKind,
        volume: &str,
        mut visit: impl FnMut(&str, &[u8]),
    ) -> Option<String> {
        let path = [layout::VOLUMES, kind.directory(), element(volume).ok()?];
        let pod = self.pod(pod_uid).ok()??;
        let root = pod.descendant(&path).ok()??;
        let set = sys::read_link(root.as_fd(), writer::DATA).ok()?;
        let name = element(set.to_str().ok()?).ok()?.to_owned();
        let set = sys::open_dir(root.as_fd(), name.as_str()).ok()?;
        read_directory(&set, &mut visit).ok()?;
        Some(name)
    }

    /// The variables in the `env.json` of a container; `None` if there is none.
    pub fn read_back_environment(
        &self,
        pod_uid: &str,
        container: &str,
    ) -> Option<std::collections::BTreeMap<String, SecretBytes>> {
        let container = element(container).ok()?;
        let pod = self.pod(pod_uid).ok()??;
        let directory = pod.descendant(&[layout::CONTAINERS, container]).ok()??;
        let text = read_file(directory.as_fd(), layout::ENVIRONMENT).ok()?;
        read_environment(&text).ok()
    }
}

/// The content of the regular file `name`.
fn read_file(directory: BorrowedFd<'_>, name: impl Arg + Copy) -> Result<Zeroizing<Vec<u8>>> {
    let (file, stat) = sys::open_regular(directory, name)?;
    read_open(&file, &stat, MAX_FILE)
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
            path => beneath::open_dir(set.as_fd(), path.as_bytes())?,
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
                    visit(&below, &read_file(opened.as_fd(), &*name)?);
                }
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
        found.map(|_| files)
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
}
