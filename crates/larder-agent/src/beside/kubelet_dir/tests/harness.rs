//! Volumes as the kubelet writes them, and projections to compare with them.

use std::sync::LazyLock;

use jiff::{SignedDuration, Timestamp};
use larder_objects::{Kind, ResourceVersion, SecretBytes};
use larder_projection::{
    File, FileData, Origin, Payload, VolumePath,
    disk::{Memory, PodVolume, VolumeHost},
};
use parking_lot::Mutex;
use tempfile::TempDir;

use super::super::*;

pub(super) const UID: &str = "7e0c5e5c-0000-4000-8000-000000000001";

static VERSION: LazyLock<ResourceVersion> = LazyLock::new(|| ResourceVersion::new("1"));

/// Content that must not appear in a result.
pub(super) const CANARY: &str = "c4n4ry";

/// A root directory with volumes as the kubelet writes them.
pub(super) struct Kubelet {
    pub(super) root: TempDir,
    host: VolumeHost,
    swaps: Mutex<i64>,
}

impl Kubelet {
    pub(super) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        Self {
            root,
            host,
            swaps: Mutex::default(),
        }
    }

    /// With tmpfs mounts; `None` if this process may not mount.
    pub(super) fn with_mounts() -> Option<Self> {
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
            swaps: Mutex::default(),
        })
    }

    pub(super) fn write(&self, id: &VolumeId<'_>, files: &[(&str, &str)]) {
        let payload: Payload<'_> = files
            .iter()
            .map(|(path, text)| {
                let file = File {
                    data: FileData::Borrowed(text.as_bytes()),
                    mode: 0o644,
                    owner: None,
                };
                (VolumePath::parse(path).unwrap(), file)
            })
            .collect();
        let mut swaps = self.swaps.lock();
        *swaps += 1;
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(*swaps);
        let volume = PodVolume::new(id.pod_uid, id.name, id.kind);
        self.host.set_up(&volume, &payload, now).unwrap();
    }

    pub(super) fn path(&self, id: &VolumeId<'_>) -> PathBuf {
        self.host.volume_path(id.pod_uid, id.kind, id.name)
    }

    /// A path in the current set.
    pub(super) fn data(&self, id: &VolumeId<'_>, path: &str) -> PathBuf {
        self.path(id).join(DATA).join(path)
    }

    pub(super) fn open(&self, mounts: Mounts) -> KubeletDir {
        KubeletDir::open(self.root.path(), mounts).unwrap()
    }

    pub(super) fn compare(
        &self,
        id: &VolumeId<'_>,
        volume: &Volume,
        projection: &Projection<'_>,
    ) -> Differences {
        let directory = self.open(Mounts::NotExpected);
        let found = directory.compare(id, volume, projection).unwrap();
        found.differences
    }
}

pub(super) const fn volume_of(kind: VolumeKind) -> VolumeId<'static> {
    VolumeId {
        pod_uid: UID,
        kind,
        name: "v",
    }
}

pub(super) const CONFIG_MAP: VolumeId<'static> = volume_of(VolumeKind::ConfigMap);

pub(super) const SECRET: VolumeId<'static> = volume_of(VolumeKind::Secret);

pub(super) const PROJECTED: VolumeId<'static> = volume_of(VolumeKind::Projected);

pub(super) fn volume(json: serde_json::Value) -> Volume {
    let mut volume: Volume = serde_json::from_value(json).unwrap();
    volume.name = "v".to_owned();
    volume
}

pub(super) fn config_map(name: &str) -> Volume {
    volume(serde_json::json!({"name": "v", "configMap": {"name": name}}))
}

pub(super) fn projected() -> Volume {
    volume(serde_json::json!({"name": "v", "projected": {"sources": [
        {"configMap": {"name": "kube-root-ca.crt"}},
        {"secret": {"name": "s"}},
        {"serviceAccountToken": {"path": "token"}},
    ]}}))
}

pub(super) fn key<'a>(kind: Kind, name: &'a str, key: &'a str) -> Origin<'a> {
    Origin::Key {
        kind,
        name,
        key,
        resource_version: &VERSION,
    }
}

pub(super) fn of_config_map(path: &str) -> Origin<'_> {
    key(Kind::ConfigMap, "c", path)
}

pub(super) const TOKEN: Origin<'static> = Origin::Token { audience: None };

pub(super) fn projection<'a>(files: &[(&str, &str, Origin<'a>)]) -> Projection<'a> {
    let mut projection = Projection::default();
    for (path, text, origin) in files {
        let path = VolumePath::parse(path).unwrap();
        let file = File {
            data: FileData::Owned(SecretBytes::new(text.as_bytes().to_vec())),
            mode: 0o400,
            owner: Some(1000),
        };
        projection.origins.insert(path.clone(), origin.clone());
        projection.payload.insert(path, file);
    }
    projection
}

/// Everything that differs, in one line.
pub(super) fn shown(differences: &Differences) -> String {
    let named = differences.named().iter();
    let named: Vec<_> = named
        .map(|(path, kind)| format!("{kind:?} {path}"))
        .collect();
    format!("{} {:?}", named.join(", "), differences.reason())
}
