//! Small files of the caller in the directory of a pod, which are removed with the pod.
//!
//! A file is replaced in one step. It is not synced: after a power failure it may be absent or empty; the reader treats
//! both as absent.

use std::os::fd::AsFd;

use larder_files::{regular_file::read_open, replace::replace_file, sys};
use rustix::io::Errno;
use zeroize::Zeroizing;

use super::{
    DiskError, VolumeHost,
    layout::{self, element},
};

const MODE: u32 = 0o600;
/// Largest file that is read, in bytes.
const MAX_BYTES: usize = 256 << 10;

impl VolumeHost {
    /// The file `name` of a pod; `None` if there is none.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is no regular file of at most 256 KiB.
    pub fn read_pod_file(
        &self,
        pod_uid: &str,
        name: &str,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, DiskError> {
        let Some(pod) = self.pod(pod_uid)? else {
            return Ok(None);
        };
        let read = sys::open_regular(pod.as_fd(), element(name)?)
            .and_then(|(file, stat)| read_open(&file, &stat, MAX_BYTES));
        match read {
            Ok(text) => Ok(Some(text)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(pod.failed("read file", name)(errno)),
        }
    }

    /// Creates the directory of a pod that has no volumes here, so that its files have a place.
    ///
    /// # Errors
    ///
    /// It cannot be created.
    pub fn ensure_pod_directory(&self, pod_uid: &str) -> Result<(), DiskError> {
        self.ensure_pod(pod_uid).map(drop)
    }

    /// Replaces the file `name` of a pod in one step, with mode 0600. Returns false, and does nothing, if the pod has no
    /// directory: the file goes with it.
    ///
    /// # Errors
    ///
    /// The first step that failed; the old file stays.
    pub fn write_pod_file(
        &self,
        pod_uid: &str,
        name: &str,
        content: &[u8],
    ) -> Result<bool, DiskError> {
        let Some(pod) = self.pod(pod_uid)? else {
            return Ok(false);
        };
        let aside = layout::aside(element(name)?);
        replace_file(pod.as_fd(), name, &aside, MODE, content)
            .map_err(pod.failed("write file", name))?;
        Ok(true)
    }

    /// Removes the file `name` of a pod, if there is one.
    ///
    /// # Errors
    ///
    /// It cannot be removed.
    pub fn remove_pod_file(&self, pod_uid: &str, name: &str) -> Result<(), DiskError> {
        match self.pod(pod_uid)? {
            Some(pod) => pod.remove_replaceable(element(name)?),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, path::PathBuf};

    use super::*;

    const NAME: &str = "state.json";

    /// A pod with a directory.
    fn pod() -> (tempfile::TempDir, VolumeHost, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        let host = host.with_pod_files(&[NAME]);
        host.write_environment("u", "c", &BTreeMap::new()).unwrap();
        let pod = root.path().join("pods/u");
        (root, host, pod)
    }

    #[test]
    fn file_goes_with_its_pod() {
        let (_root, host, pod) = pod();
        assert!(!host.write_pod_file("none", NAME, b"no directory").unwrap());
        assert!(host.read_pod_file("none", NAME).unwrap().is_none());
        assert!(host.read_pod_file("u", NAME).unwrap().is_none());
        for text in ["one", "the longest", "", "two"] {
            assert!(host.write_pod_file("u", NAME, text.as_bytes()).unwrap());
            let found = host.read_pod_file("u", NAME).unwrap().unwrap();
            assert_eq!(**found, *text.as_bytes());
        }
        assert_eq!(fs::metadata(pod.join(NAME)).unwrap().mode() & 0o7777, MODE);
        // A crash in the middle of a replacement.
        fs::write(pod.join(layout::aside(NAME)), "garbage").unwrap();
        host.remove_pod("u").unwrap();
        assert!(!pod.exists());
    }

    #[test]
    fn old_file_stays_if_it_cannot_be_replaced() {
        let (_root, host, pod) = pod();
        host.write_pod_file("u", NAME, b"old").unwrap();
        fs::create_dir(pod.join(layout::aside(NAME))).unwrap();
        assert!(host.write_pod_file("u", NAME, b"new").is_err());
        let found = host.read_pod_file("u", NAME).unwrap().unwrap();
        assert_eq!(**found, *b"old");
    }

    #[test]
    fn link_in_place_of_the_file_is_not_followed() {
        let (root, host, pod) = pod();
        let victim = root.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, pod.join(NAME)).unwrap();
        assert!(host.read_pod_file("u", NAME).is_err());
        fs::hard_link(&victim, pod.join(layout::aside(NAME))).unwrap();
        host.write_pod_file("u", NAME, b"one").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        let found = host.read_pod_file("u", NAME).unwrap().unwrap();
        assert_eq!(**found, *b"one");
        assert!(host.read_pod_file("u", "../victim").is_err());
    }
}
