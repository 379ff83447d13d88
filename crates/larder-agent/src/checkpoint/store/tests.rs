//! The store in a directory of its own.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    sync::Arc,
};

use expect_test::{Expect, expect};
use larder_objects::{Object as _, Secret};
use rustix::fs::{CWD, Mode, OFlags};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::checkpoint::{
    DEFAULT_DIR,
    codec::{CopyContent, CopyKind},
    seal::SealError,
};

/// What no file on disk may show.
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
        namespace: "prod".to_owned(),
        name: name.to_owned(),
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

    pub(super) fn open_with(&self, keys: &[u8], owner: Owner) -> Result<Found, StoreError> {
        open_at(self.path(), keys, owner)
    }

    pub(super) fn open(&self) -> Found {
        self.open_with(&[1], owner(1, "node-1")).unwrap()
    }

    /// The sealed files, `index` aside.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.checkpoint()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| is_file_name(name)).collect();
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

pub(super) fn open_at(path: &Path, keys: &[u8], owner: Owner) -> Result<Found, StoreError> {
    let root = open_root(path);
    Store::open(
        root.as_fd(),
        &path.join(DEFAULT_DIR),
        Keyring::of_bytes(keys),
        owner,
    )
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
        (copy.id.name.clone(), state)
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
        CopyState::File { file, .. } => file.name.clone(),
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

#[test]
fn what_was_written_is_found_at_the_next_start() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    let wanted = [present("a", 1), present("b", 2), absent("c")];
    store.write(&wanted, time(0), false).unwrap();
    let found = root.open();
    assert_eq!(
        names(&found.copies),
        named([("a", "1"), ("b", "2"), ("c", "absent")])
    );
    assert!(found.rejected.is_empty());
    assert!(found.copies.iter().all(|copy| copy.proven == time(0)));
    assert_eq!(
        fs::metadata(root.checkpoint()).unwrap().mode() & 0o7777,
        0o700
    );
    for name in root.files() {
        let metadata = fs::metadata(root.file(&name)).unwrap();
        assert_eq!((metadata.mode() & 0o7777, metadata.len() % 512), (0o600, 0));
    }
}

#[test]
fn an_equal_checkpoint_is_not_written_again() {
    // offline 23
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(&[present("a", 1), absent("c")], time(0), false)
        .unwrap();
    let before = fs::metadata(root.file(INDEX)).unwrap().ino();
    let mut again = root.open().store;
    let written = again
        .write(&[present("a", 1), absent("c")], time(60), false)
        .unwrap();
    assert_eq!(written, Written::default());
    assert_eq!(fs::metadata(root.file(INDEX)).unwrap().ino(), before);
    // The times of proofs alone are written when they are asked for, and cost the root.
    let written = again
        .write(&[present("a", 1), absent("c")], time(60), true)
        .unwrap();
    assert_eq!(written.files, 1);
    assert!(
        root.open()
            .copies
            .iter()
            .all(|copy| copy.proven == time(60))
    );
}

#[test]
fn copies_that_are_no_longer_wanted_go_with_their_files() {
    // offline 24
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(&[present("a", 1), present("b", 2)], time(0), false)
        .unwrap();
    let gone = file_of(&store, "b");
    store.write(&[present("a", 1)], time(1), false).unwrap();
    assert!(!root.file(&gone).exists());
    assert_eq!(names(&root.open().copies), named([("a", "1")]));
    store.write(&[], time(2), false).unwrap();
    assert_eq!(root.files(), [""; 0]);
    assert!(root.open().copies.is_empty());
}

#[test]
fn an_object_about_which_nothing_is_known_keeps_its_copy_and_proof() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(&[present("a", 1), present("b", 2)], time(0), false)
        .unwrap();
    let wanted = [unknown("a"), present("b", 3), unknown("never seen")];
    store.write(&wanted, time(100), false).unwrap();
    let copies = root.open().copies;
    assert_eq!(names(&copies), named([("a", "1"), ("b", "3")]));
    let proven: Vec<_> = copies.iter().map(|copy| copy.proven).collect();
    assert_eq!(proven, [time(0), time(100)]);
}

#[test]
fn a_copy_that_was_proven_earlier_says_so() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    let old = WantedCopy {
        proven: Some(time(-500)),
        ..present("a", 1)
    };
    store
        .write(&[old, present("b", 1)], time(0), false)
        .unwrap();
    let copies = root.open().copies;
    assert_eq!(copies[0].proven, time(-500));
    assert_eq!(copies[1].proven, time(0));
    assert_eq!(store.oldest_proof(), Some(time(-500)));
}

#[test]
fn one_damaged_file_costs_one_copy() {
    // offline 14
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(&[present("a", 1), present("b", 2)], time(0), false)
        .unwrap();
    let damaged = root.file(&file_of(&store, "a"));
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[100] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let mut found = root.open();
    assert_eq!(names(&found.copies), named([("b", "2")]));
    assert_eq!(
        reasons(&found.rejected),
        ["Secret prod/a: older or newer than the index says, or damaged"]
    );
    assert_eq!(
        root.rejected(),
        [damaged.file_name().unwrap().to_str().unwrap()]
    );
    // It is copied again, and the start after that finds nothing wrong.
    let wanted = [present("a", 1), present("b", 2)];
    found.store.write(&wanted, time(1), false).unwrap();
    let found = root.open();
    assert!(found.rejected.is_empty());
    assert_eq!(names(&found.copies), named([("a", "1"), ("b", "2")]));
}

#[test]
fn swapped_files_are_not_served() {
    // offline 15
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(
            &[present("a", 1), present("b", 2), present("c", 3)],
            time(0),
            false,
        )
        .unwrap();
    let (a, b) = (
        root.file(&file_of(&store, "a")),
        root.file(&file_of(&store, "b")),
    );
    let aside = root.path().join("aside");
    fs::rename(&a, &aside).unwrap();
    fs::rename(&b, &a).unwrap();
    fs::rename(&aside, &b).unwrap();
    let found = root.open();
    assert_eq!(names(&found.copies), named([("c", "3")]));
    assert_eq!(found.rejected.len(), 2);
}

#[test]
fn an_older_version_of_a_file_is_not_served() {
    // offline 16
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(&[present("a", 1), present("b", 1)], time(0), false)
        .unwrap();
    let old = fs::read(root.file(&file_of(&store, "a"))).unwrap();
    store
        .write(&[present("a", 2), present("b", 1)], time(1), false)
        .unwrap();
    fs::write(root.file(&file_of(&store, "a")), old).unwrap();
    let found = root.open();
    assert_eq!(names(&found.copies), named([("b", "1")]));
}

#[test]
fn another_nodes_or_clusters_checkpoint_is_rejected() {
    // offline 17, 18
    for other in [owner(1, "node-2"), owner(2, "node-1")] {
        let root = TestRoot::new();
        let mut store = root.open().store;
        store.write(&[present("a", 1)], time(0), false).unwrap();
        let found = root.open_with(&[1], other).unwrap();
        assert!(found.copies.is_empty());
        assert_eq!(
            reasons(&found.rejected)[0],
            ": damaged, or of another place, node or cluster"
        );
        assert_eq!(root.rejected().len(), 3, "index, page and copy");
        assert!(root.files().is_empty());
    }
}

#[test]
fn a_lost_key_leaves_nothing_to_serve_and_says_so() {
    // offline 12
    let root = TestRoot::new();
    let mut store = root.open().store;
    store.write(&[present("a", 1)], time(0), false).unwrap();
    let mut found = root.open_with(&[2], owner(1, "node-1")).unwrap();
    assert!(found.copies.is_empty());
    assert_eq!(
        reasons(&found.rejected),
        [
            ": its index does not open",
            ": its index does not open",
            ": sealed with a key that is not configured",
        ]
    );
    found
        .store
        .write(&[present("a", 1)], time(1), false)
        .unwrap();
    let found = root.open_with(&[2], owner(1, "node-1")).unwrap();
    assert_eq!(names(&found.copies), named([("a", "1")]));
}

#[test]
fn a_new_first_key_opens_old_files_and_seals_them_again() {
    // offline 13
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(&[present("a", 1), absent("b")], time(0), false)
        .unwrap();
    let mut found = root.open_with(&[2, 1], owner(1, "node-1")).unwrap();
    assert_eq!(names(&found.copies), named([("a", "1"), ("b", "absent")]));
    let wanted = [present("a", 1), absent("b")];
    let written = found.store.write(&wanted, time(1), false).unwrap();
    assert!(written.files >= 3, "copy, pages and root: {written:?}");
    assert_eq!(
        found.store.write(&wanted, time(2), false).unwrap(),
        Written::default()
    );
    // The old key is not needed any more.
    let found = root.open_with(&[2], owner(1, "node-1")).unwrap();
    assert_eq!(names(&found.copies), named([("a", "1"), ("b", "absent")]));
    assert!(found.rejected.is_empty());
}

#[test]
fn an_index_of_another_format_version_is_rejected_by_name() {
    // offline 30
    let root = TestRoot::new();
    let mut store = root.open().store;
    store.write(&[present("a", 1)], time(0), false).unwrap();
    let mut index = fs::read(root.file(INDEX)).unwrap();
    index[8] = 0;
    fs::write(root.file(INDEX), index).unwrap();
    let found = root.open();
    assert!(found.copies.is_empty());
    assert_eq!(
        reasons(&found.rejected)[0],
        ": format version 0 is not supported"
    );
}

#[test]
fn hostile_files_in_the_directory_neither_hang_nor_lead_elsewhere() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    let wanted = [
        present("a", 1),
        present("b", 2),
        present("c", 3),
        present("d", 4),
    ];
    store.write(&wanted, time(0), false).unwrap();
    let victim = root.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| root.file(&file_of(&store, name)));
    fs::remove_file(&a).unwrap();
    symlink("../victim", &a).unwrap();
    fs::remove_file(&b).unwrap();
    rustix::fs::mkfifoat(CWD, &b, Mode::RUSR | Mode::WUSR).unwrap();
    fs::File::options()
        .write(true)
        .open(&c)
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    symlink(
        "../../victim",
        root.file("0123456789abcdef0123456789abcdef"),
    )
    .unwrap();
    let found = root.open();
    assert_eq!(names(&found.copies), named([("d", "4")]));
    assert_eq!(found.rejected.len(), 3);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    // Only one generation is kept.
    let first = root.rejected();
    fs::write(root.file(INDEX), "not sealed").unwrap();
    root.open();
    assert!(first.iter().all(|name| !root.rejected().contains(name)));
}

#[test]
fn a_link_in_place_of_the_directory_is_not_followed() {
    let root = TestRoot::new();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), root.checkpoint()).unwrap();
    assert!(root.open_with(&[1], owner(1, "node-1")).is_err());
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn an_open_directory_is_closed_to_other_users() {
    let root = TestRoot::new();
    fs::create_dir(root.checkpoint()).unwrap();
    fs::set_permissions(root.checkpoint(), Permissions::from_mode(0o777)).unwrap();
    root.open();
    assert_eq!(
        fs::metadata(root.checkpoint()).unwrap().mode() & 0o7777,
        0o700
    );
}

#[test]
fn inspecting_and_erasing_leave_the_directory_its_mode() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    store.write(&[present("a", 1)], time(0), false).unwrap();
    let inspect = || {
        let (directory, keys) = (root.handle(), Keyring::of_bytes(&[1]));
        let found = Store::inspect(
            directory.as_fd(),
            &root.checkpoint(),
            &keys,
            &owner(1, "node-1"),
        );
        found.unwrap().unwrap()
    };
    assert!(inspect().rejected.is_empty());
    let mode = || fs::metadata(root.checkpoint()).unwrap().mode() & 0o7777;
    for exposed in [0o777, 0o710, 0o704] {
        fs::set_permissions(root.checkpoint(), Permissions::from_mode(exposed)).unwrap();
        let found = inspect();
        assert_eq!(names(&found.copies), named([("a", "1")]));
        let reason = format!(": mode {exposed:04o} lets other users enter, expected 0700");
        assert_eq!(reasons(&found.rejected), [reason]);
        assert_eq!(mode(), exposed);
    }
    Store::erase(root.handle().as_fd(), &root.checkpoint()).unwrap();
    assert_eq!(mode(), 0o704);
}

#[test]
fn a_directory_that_was_moved_or_removed_is_written_anew() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    let wanted = [present("a", 1), present("b", 2)];
    store.write(&wanted, time(0), false).unwrap();
    let aside = root.path().join("aside");
    fs::rename(root.checkpoint(), &aside).unwrap();
    store.write(&wanted, time(1), false).unwrap();
    let both = named([("a", "1"), ("b", "2")]);
    assert_eq!(names(&root.open().copies), both);
    fs::remove_dir_all(root.checkpoint()).unwrap();
    store.write(&wanted, time(2), false).unwrap();
    assert_eq!(names(&root.open().copies), both);
    // An older one in its place is no copy to rely on.
    fs::remove_dir_all(root.checkpoint()).unwrap();
    fs::rename(&aside, root.checkpoint()).unwrap();
    let wanted = [present("a", 1), present("b", 3)];
    store.write(&wanted, time(3), false).unwrap();
    assert_eq!(names(&root.open().copies), named([("a", "1"), ("b", "3")]));
    // A link leads nowhere, and is no reason to stop trying.
    fs::rename(root.checkpoint(), &aside).unwrap();
    symlink(&aside, root.checkpoint()).unwrap();
    let before = fs::read_dir(&aside).unwrap().count();
    assert!(store.write(&[present("a", 2)], time(4), false).is_err());
    assert_eq!(fs::read_dir(&aside).unwrap().count(), before);
    fs::remove_file(root.checkpoint()).unwrap();
    store.write(&[present("a", 2)], time(5), false).unwrap();
    assert_eq!(names(&root.open().copies), named([("a", "2")]));
}

#[test]
fn two_agents_in_one_directory_leave_no_more_than_what_they_keep() {
    let root = TestRoot::new();
    let mut one = root.open().store;
    let mut other = root.open_with(&[1], owner(1, "node-2")).unwrap().store;
    let wanted = [present("a", 1), present("b", 2)];
    for second in 0..10 {
        one.write(&wanted, time(second), false).unwrap();
        other.write(&wanted, time(second), false).unwrap();
    }
    let files = root.files().len();
    assert!(
        files <= 8,
        "{files} files, of which two copies and two pages count twice at most"
    );
}

#[test]
fn a_lock_that_another_process_holds_is_reported_and_not_waited_for() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    store.write(&[present("a", 1)], time(0), false).unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = rustix::fs::openat(CWD, root.checkpoint(), flags, Mode::empty()).unwrap();
    let held = sys::lock(held.as_fd()).unwrap();
    let error = store.write(&[present("a", 2)], time(1), false).unwrap_err();
    assert_eq!(error.label(), "locked");
    let error = root.open_with(&[1], owner(1, "node-1")).err().unwrap();
    assert_eq!(error.label(), "locked");
    drop(held);
    store.write(&[present("a", 2)], time(2), false).unwrap();
    assert_eq!(names(&root.open().copies), named([("a", "2")]));
}

#[test]
fn directories_in_place_of_files_are_set_aside_each_time() {
    let root = TestRoot::new();
    for second in 0..3 {
        let mut store = root.open().store;
        store
            .write(&[present("a", 1)], time(second), false)
            .unwrap();
        fs::remove_file(root.file(INDEX)).unwrap();
        fs::create_dir(root.file(INDEX)).unwrap();
        let found = root.open();
        assert!(found.problem.is_none(), "{:?}", found.problem);
        assert_eq!(
            reasons(&found.rejected)[0],
            ": its index does not open",
            "{:?}",
            reasons(&found.rejected)
        );
    }
}

#[test]
fn an_older_index_alone_brings_no_older_copy_back() {
    // offline 16
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(&[present("a", 1), present("b", 1)], time(0), false)
        .unwrap();
    let old = fs::read(root.file(INDEX)).unwrap();
    store
        .write(&[present("a", 2), present("b", 1)], time(1), false)
        .unwrap();
    fs::write(root.file(INDEX), old).unwrap();
    let found = root.open();
    let copies = names(&found.copies);
    assert!(!copies.contains_key("a"), "{copies:?}");
    assert!(!found.rejected.is_empty());
}

#[test]
fn the_size_is_that_of_the_files() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    assert_eq!(store.size(), 0);
    let measured = |root: &TestRoot| -> u64 {
        let files = root.files();
        let names = files.iter().map(String::as_str).chain([INDEX]);
        names
            .map(|name| fs::metadata(root.file(name)).unwrap().len())
            .sum()
    };
    store
        .write(&[present("a", 1), absent("c")], time(0), false)
        .unwrap();
    assert_eq!(store.size(), measured(&root));
    assert_eq!(root.open().store.size(), measured(&root));
    store.write(&[], time(1), false).unwrap();
    assert_eq!(store.size(), measured(&root));
}

#[test]
fn an_erased_checkpoint_is_written_anew_at_the_next_change() {
    // offline 32
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(&[present("a", 1), present("b", 2)], time(0), false)
        .unwrap();
    let removed = Store::erase(root.handle().as_fd(), &root.checkpoint()).unwrap();
    assert!(removed >= 4, "{removed}");
    assert!(root.files().is_empty());
    assert!(root.open().copies.is_empty());
    store
        .write(&[present("a", 1), present("b", 3)], time(1), false)
        .unwrap();
    assert_eq!(names(&root.open().copies), named([("a", "1"), ("b", "3")]));
}

#[test]
fn no_plain_byte_reaches_the_disk() {
    // offline 28
    let root = TestRoot::new();
    let mut store = root.open().store;
    for version in 1..5 {
        store
            .write(&[present("tls-of-prod", version)], time(0), false)
            .unwrap();
    }
    for name in root.files().iter().map(String::as_str).chain([INDEX]) {
        let bytes = fs::read(root.file(name)).unwrap();
        for canary in [CANARY, "tls-of-prod", "prod", "node-1"] {
            let found = bytes
                .windows(canary.len())
                .any(|window| window == canary.as_bytes());
            assert!(!found, "{name} shows {canary}");
        }
    }
}

#[test]
fn budgets_of_size_and_of_one_change_are_met() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    let wanted = |changed: u8| -> Vec<_> {
        (0..500)
            .map(|number| {
                let id = id(&format!("settings-of-an-application-{number}"));
                let version = if number == 77 { changed } else { 0 };
                let key = id.clone();
                let content = move || {
                    let object = larder_objects::ConfigMap {
                        metadata: larder_objects::ObjectMeta {
                            namespace: key.namespace.as_str().into(),
                            name: key.name.as_str().into(),
                            uid: "2c1b0a2e-6b2f-4b5e-9b0a-0123456789ab".into(),
                            resource_version: larder_objects::ResourceVersion::new("12345678"),
                        },
                        data: [("settings", "x".repeat(1024).into())].into(),
                        ..larder_objects::ConfigMap::default()
                    };
                    CopyContent::ConfigMap(Arc::new(object)).encode()
                };
                WantedCopy {
                    id,
                    state: WantedState::Present {
                        version: [version; 16],
                        content: Box::new(content),
                    },
                    proven: None,
                }
            })
            .collect()
    };
    store.write(&wanted(0), time(0), false).unwrap();
    let size: u64 = root
        .files()
        .iter()
        .map(|name| fs::metadata(root.file(name)).unwrap().len())
        .sum();
    assert!(size <= 2 << 20, "{size} bytes");
    let written = store.write(&wanted(1), time(1), false).unwrap();
    assert_eq!(written.files, 3, "the copy, a page and the root");
    assert!(written.bytes <= 8 << 10, "{written:?}");
}

#[test]
fn rejected_files_are_named_with_their_reason() {
    let check = |file: RejectedFile, expected: Expect| expected.assert_eq(&file.to_string());
    check(
        RejectedFile {
            file: "3f2a".to_owned(),
            id: Some(id("tls")),
            reason: Rejection::OtherVersion,
        },
        expect!["3f2a (Secret prod/tls): older or newer than the index says, or damaged"],
    );
    check(
        RejectedFile {
            file: INDEX.to_owned(),
            id: None,
            reason: SealError::UnknownKey.into(),
        },
        expect!["index: sealed with a key that is not configured"],
    );
}

mod crash;
