//! The store in a directory of its own.

mod crash;
mod directory;
mod limits;
mod rejection;
mod writing;

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, sync::Arc};

use larder_objects::{Object as _, Secret};
use rustix::fs::{CWD, Mode, OFlags};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::checkpoint::{
    DEFAULT_DIR,
    codec::{CopyContent, CopyKind},
};

/// Text that no file on disk may contain.
const CANARY: &str = "hunter2-canary";

pub(super) fn owner(cluster: u8, node: &str) -> Owner {
    Owner {
        cluster: [cluster; 32],
        node: node.to_owned(),
    }
}

pub(super) fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_772_366_400 + seconds).unwrap()
}

fn id(name: &str) -> CopyId {
    CopyId {
        kind: CopyKind::Secret,
        namespace: "prod".into(),
        name: name.into(),
    }
}

/// A Secret `name` in version `version`, which is its value too.
pub(super) fn present(name: &str, version: u8) -> WantedCopy {
    let wanted = id(name);
    let object = json!({
        "metadata": {"namespace": "prod", "name": name, "uid": "u", "resourceVersion": version.to_string()},
        "data": {"p": data_encoding(&format!("{CANARY}-{version}"))},
    });
    WantedCopy {
        id: wanted,
        state: WantedState::Present {
            version: [version; 16],
            content: Box::new(move || {
                let secret = Secret::from_json(object.to_string().as_bytes()).unwrap();
                CopyContent::Secret(Arc::new(secret)).encode()
            }),
        },
        proven: None,
    }
}

fn data_encoding(text: &str) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let mut group = [0; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let number = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for at in 0..4 {
            let letter = ALPHABET[(number >> (18 - 6 * at) & 63) as usize];
            encoded.push(if at <= chunk.len() {
                letter.into()
            } else {
                '='
            });
        }
    }
    encoded
}

fn absent(name: &str) -> WantedCopy {
    WantedCopy {
        id: id(name),
        state: WantedState::Absent,
        proven: None,
    }
}

fn unknown(name: &str) -> WantedCopy {
    WantedCopy {
        id: id(name),
        state: WantedState::Unknown,
        proven: None,
    }
}

/// The root directory of an agent.
pub(super) struct TestRoot(TempDir);

impl TestRoot {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    fn handle(&self) -> OwnedFd {
        open_root(self.path())
    }

    fn checkpoint(&self) -> PathBuf {
        self.path().join(DEFAULT_DIR)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.checkpoint().join(name)
    }

    pub(super) fn open_with(&self, keys: &[u8], owner: Owner) -> Result<OpenedStore, StoreError> {
        open_at(self.path(), keys, owner)
    }

    pub(super) fn open(&self) -> OpenedStore {
        self.open_with(&[1], owner(1, "node-1")).unwrap()
    }

    /// The sealed files, `index` aside.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.checkpoint()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names
            .filter(|name| FileName::parse(name).is_some())
            .collect();
        names.sort();
        names
    }

    fn rejected(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.file(REJECTED)) else {
            return Vec::new();
        };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }
}

/// What a start finds, and what it would serve.
pub(super) struct OpenedStore {
    pub(super) store: Store,
    pub(super) copies: Vec<SavedCopy>,
    pub(super) rejected: Vec<RejectedFile>,
    pub(super) problem: Option<StoreError>,
}

pub(super) fn open_at(path: &Path, keys: &[u8], owner: Owner) -> Result<OpenedStore, StoreError> {
    let root = open_root(path);
    let found = Store::open(
        root.as_fd(),
        &path.join(DEFAULT_DIR),
        Keyring::of_bytes(keys),
        owner,
    )?;
    Ok(OpenedStore {
        copies: found.store.contents()?.copies,
        store: found.store,
        rejected: found.rejected,
        problem: found.problem,
    })
}

fn open_root(path: &Path) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty()).unwrap()
}

/// The copies by name: their version, or `absent`.
pub(super) fn names(copies: &[SavedCopy]) -> BTreeMap<String, String> {
    let name = |copy: &SavedCopy| {
        let state = match &copy.content {
            None => "absent".to_owned(),
            Some(CopyContent::Secret(secret)) => {
                let version = secret.metadata.resource_version.to_string();
                assert_eq!(&*secret.data["p"], format!("{CANARY}-{version}").as_bytes());
                version
            }
            Some(other) => panic!("{other:?}"),
        };
        (copy.id.name.to_string(), state)
    };
    copies.iter().map(name).collect()
}

fn named<const N: usize>(copies: [(&str, &str); N]) -> BTreeMap<String, String> {
    let copies = copies.into_iter();
    copies
        .map(|(name, state)| (name.to_owned(), state.to_owned()))
        .collect()
}

/// The file that holds the copy `name`.
fn file_of(store: &Store, name: &str) -> String {
    match &store.entries[&id(name)].kept {
        CopyState::File { file, .. } => file.name.to_string(),
        CopyState::Absent => panic!("{name} is absent"),
    }
}

fn reasons(rejected: &[RejectedFile]) -> Vec<String> {
    let reason = |file: &RejectedFile| {
        let id = file
            .id
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        format!("{id}: {}", file.reason)
    };
    let mut reasons: Vec<_> = rejected.iter().map(reason).collect();
    reasons.sort();
    reasons
}
