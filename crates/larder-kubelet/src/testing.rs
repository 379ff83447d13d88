//! Volumes as the kubelet writes them, for tests.

use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};
use larder_projection::{
    File, Payload, Value, VolumePath,
    disk::{Memory, PodVolume, VolumeHost},
};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::kubelet_dir::{KubeletDir, Mounts, VolumeId};

/// A root directory with volumes as the kubelet writes them.
pub(crate) struct KubeletVolumes {
    pub(crate) root: TempDir,
    host: VolumeHost,
    writes: Mutex<i64>,
}

impl KubeletVolumes {
    /// Without mounts.
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        Self {
            root,
            host,
            writes: Mutex::default(),
        }
    }

    /// With tmpfs mounts; `None` if this process may not mount.
    pub(crate) fn with_mounts() -> Option<Self> {
        let root = tempfile::tempdir().unwrap();
        let host = VolumeHost::open(root.path()).unwrap();
        let is_privileged = matches!(host.memory(), Memory::Tmpfs { .. });
        assert!(
            is_privileged || std::env::var_os("CI").is_none(),
            "CI must run as root"
        );
        is_privileged.then(|| Self {
            root,
            host,
            writes: Mutex::default(),
        })
    }

    /// Writes these files. The volume is swapped if they differ from the present ones.
    pub(crate) fn write(&self, id: &VolumeId<'_>, files: &[(&str, &str)]) {
        let payload: Payload<'_> = files
            .iter()
            .map(|(path, text)| {
                let file = File {
                    data: Value::Borrowed(text.as_bytes()),
                    mode: 0o644,
                    owner: None,
                };
                (VolumePath::parse(path).unwrap(), file)
            })
            .collect();
        let mut writes = self.writes.lock();
        *writes += 1;
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(*writes);
        let volume = PodVolume::new(id.pod_uid, id.name, id.kind);
        self.host.set_up(&volume, &payload, now).unwrap();
    }

    /// Writes content that the volume has never had.
    pub(crate) fn swap(&self, id: &VolumeId<'_>) {
        let text = self.writes.lock().to_string();
        self.write(id, &[("a", &text)]);
    }

    pub(crate) fn path(&self, id: &VolumeId<'_>) -> PathBuf {
        self.host.volume_path(id.pod_uid, id.kind, id.name)
    }

    pub(crate) fn open(&self, mounts: Mounts) -> KubeletDir {
        KubeletDir::open(self.root.path(), mounts).unwrap()
    }
}
