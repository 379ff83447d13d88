//! The store in a directory of its own.

mod crash;
mod directory;
mod limits;
mod rejection;
mod writing;

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, path::Path};

use rustix::fs::{CWD, Mode, OFlags};
use tempfile::TempDir;

use super::{load::SavedCopy, *};

/// The directory in the root directory of a test.
const DIRECTORY: &str = "checkpoint";

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
        kind: "Secret".into(),
        namespace: "prod".into(),
        name: name.into(),
    }
}

/// A copy `name` in version `version`, which its content names.
pub(super) fn present(name: &str, version: u8) -> WantedCopy {
    WantedCopy {
        id: id(name),
        state: WantedState::Present {
            version: [version; 16],
            content: Box::new(move || format!("{CANARY}-{version}").into_bytes().into()),
        },
        verified_at: None,
    }
}

/// The version that the content names.
pub(super) fn decode(_: &CopyId, bytes: &[u8]) -> Result<String, Malformed> {
    let text = str::from_utf8(bytes).map_err(|_| Malformed)?;
    match text.strip_prefix(CANARY) {
        Some(version) => Ok(version.trim_start_matches('-').to_owned()),
        // The content of a sized copy.
        None if text.chars().all(|letter| letter == 'x') => Ok(format!("{} bytes", text.len())),
        None => Err(Malformed),
    }
}

fn absent(name: &str) -> WantedCopy {
    WantedCopy {
        id: id(name),
        state: WantedState::Absent,
        verified_at: None,
    }
}

fn unknown(name: &str) -> WantedCopy {
    WantedCopy {
        id: id(name),
        state: WantedState::Unknown,
        verified_at: None,
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

    fn place(&self) -> CheckpointDir {
        CheckpointDir::new(self.checkpoint())
    }

    fn checkpoint(&self) -> PathBuf {
        self.path().join(DIRECTORY)
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
    pub(super) copies: Vec<SavedCopy<String>>,
    pub(super) rejected: Vec<RejectedFile>,
}

pub(super) fn open_at(path: &Path, keys: &[u8], owner: Owner) -> Result<OpenedStore, StoreError> {
    let place = CheckpointDir::new(path.join(DIRECTORY));
    let found = Store::open(&place, Keyring::of_bytes(keys), owner, decode)?;
    Ok(OpenedStore {
        copies: found.store.contents(decode)?.copies,
        store: found.store,
        rejected: found.rejected,
    })
}

/// The copies by name: their version, or `absent`.
pub(super) fn names(copies: &[SavedCopy<String>]) -> BTreeMap<String, String> {
    let name = |copy: &SavedCopy<String>| {
        let state = copy.content.clone();
        (
            copy.id.name.to_string(),
            state.unwrap_or("absent".to_owned()),
        )
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
    match store.index.entries[&id(name)].file {
        Some(file) => file.name.to_string(),
        None => panic!("{name} is absent"),
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
