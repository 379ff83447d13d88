//! Volumes, and projections to compare with them.

use std::sync::LazyLock;

use larder_objects::{Kind, ResourceVersion, SecretBytes};
use larder_projection::{File, Origin, Value, VolumePath};

use super::super::*;
pub(super) use crate::testing::KubeletVolumes;

pub(super) const UID: &str = "7e0c5e5c-0000-4000-8000-000000000001";

static VERSION: LazyLock<ResourceVersion> = LazyLock::new(|| ResourceVersion::new("1"));

/// Content that must not appear in a result.
pub(super) const CANARY: &str = "c4n4ry";

impl KubeletDir {
    /// The directory of a volume that is set up: it has a set of files (R2).
    pub(super) fn presence(&self, id: &VolumeId<'_>) -> Result<VolumeIdentity, UnknownContent> {
        let volume = self.open_volume(id)?;
        self.current_set(id, &volume)?;
        Ok(volume.identity)
    }
}

/// What a test compares of the volumes.
impl KubeletVolumes {
    /// A path in the current set.
    pub(super) fn data(&self, id: &VolumeId<'_>, path: &str) -> PathBuf {
        self.path(id).join(DATA).join(path)
    }

    /// Writes files with these paths and content `1` into the volume of a ConfigMap; returns them as computed.
    pub(super) fn write_paths<'a>(
        &self,
        paths: &'a [String],
    ) -> Vec<(&'a str, &'static str, Origin<'a>)> {
        let files: Vec<_> = paths.iter().map(|path| (path.as_str(), "1")).collect();
        self.write(&CONFIG_MAP, &files);
        let computed = |(path, text)| (path, text, of_config_map(path));
        files.into_iter().map(computed).collect()
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

pub(super) const TOKEN: Origin<'static> = Origin::Token {
    account: "default",
    audience: None,
};

pub(super) fn projection<'a>(files: &[(&str, &str, Origin<'a>)]) -> Projection<'a> {
    let mut projection = Projection::default();
    for (path, text, origin) in files {
        let path = VolumePath::parse(path).unwrap();
        let file = File {
            data: Value::Secret(SecretBytes::new(text.as_bytes().to_vec())),
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
    format!("{differences} {:?}", differences.reason())
}
