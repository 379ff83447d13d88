//! Rejected files: damaged, swapped, old, foreign, hostile.

use std::os::unix::fs::symlink;

use expect_test::{Expect, expect};
use larder_files::faults::{Fault, during};

use super::*;
use crate::seal::SealError;

#[test]
fn one_damaged_file_costs_one_copy() {
    // offline 14
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(
            &[present("a", 1), present("b", 2)],
            time(0),
            IndexWrite::IfDifferent,
        )
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
    assert_eq!(root.rejected(), [""; 0]);
    // It is copied again, and the start after that finds nothing wrong.
    let wanted = [present("a", 1), present("b", 2)];
    found
        .store
        .write(&wanted, time(1), IndexWrite::IfDifferent)
        .unwrap();
    assert_eq!(
        root.rejected(),
        [damaged.file_name().unwrap().to_str().unwrap()]
    );
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
            IndexWrite::IfDifferent,
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
        .write(
            &[present("a", 1), present("b", 1)],
            time(0),
            IndexWrite::IfDifferent,
        )
        .unwrap();
    let old = fs::read(root.file(&file_of(&store, "a"))).unwrap();
    store
        .write(
            &[present("a", 2), present("b", 1)],
            time(1),
            IndexWrite::IfDifferent,
        )
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
        store
            .write(&[present("a", 1)], time(0), IndexWrite::IfDifferent)
            .unwrap();
        let mut found = root.open_with(&[1], other.clone()).unwrap();
        assert!(found.copies.is_empty());
        assert_eq!(
            reasons(&found.rejected)[0],
            ": damaged, or sealed for another path, node or cluster"
        );
        // A start changes nothing: with the right names everything is there.
        let right = root.open();
        assert!(right.rejected.is_empty());
        assert_eq!(names(&right.copies), named([("a", "1")]));
        // The API server has answered, so the names are right.
        let wanted = [present("b", 1)];
        found
            .store
            .write(&wanted, time(1), IndexWrite::IfDifferent)
            .unwrap();
        assert_eq!(root.rejected().len(), 2, "index and copy");
        let found = root.open_with(&[1], other).unwrap();
        assert_eq!(names(&found.copies), named([("b", "1")]));
    }
}

// Attack: starts with other names, other keys and damaged files, in every order, while the API server is away.
#[test]
fn no_start_moves_or_replaces_a_file() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    let wanted = [present("a", 1), present("b", 2)];
    store
        .write(&wanted, time(0), IndexWrite::IfDifferent)
        .unwrap();
    let content = || {
        let entries = fs::read_dir(root.checkpoint()).unwrap();
        let files = entries.map(|entry| {
            let path = entry.unwrap().path();
            (path.clone(), fs::read(path).unwrap())
        });
        files.collect::<BTreeMap<_, _>>()
    };
    let before = content();
    for _ in 0..2 {
        root.open_with(&[1], owner(1, "node-2")).unwrap();
        root.open_with(&[1], owner(2, "node-1")).unwrap();
        root.open_with(&[2], owner(1, "node-1")).unwrap();
        root.open();
    }
    assert_eq!(content(), before);
}

// Attack: files of zeros, and cut at every length, as after a power cut or by hand.
#[test]
fn files_of_zeros_and_files_cut_at_every_length_are_set_aside() {
    let wanted = || [present("a", 1), present("b", 2), absent("c")];
    let all = named([("a", "1"), ("b", "2"), ("c", "absent")]);
    let without_a = named([("b", "2"), ("c", "absent")]);
    for (victim, expected) in [(0, named([])), (1, without_a)] {
        let root = TestRoot::new();
        let mut store = root.open().store;
        store
            .write(&wanted(), time(0), IndexWrite::IfDifferent)
            .unwrap();
        let sealed = [INDEX.to_owned(), file_of(&store, "a"), file_of(&store, "b")];
        let sealed = sealed.map(|name| (root.file(&name), fs::read(root.file(&name)).unwrap()));
        let whole = &sealed[victim].1;
        let cut = (0..whole.len()).map(|length| whole[..length].to_vec());
        let zeros = [whole.len(), 1 << 20].map(|length| vec![0; length]);
        let mut store = None;
        for bytes in cut.chain(zeros) {
            // As it was, but for one file.
            for (path, bytes) in &sealed {
                fs::write(path, bytes).unwrap();
            }
            fs::write(&sealed[victim].0, &bytes).unwrap();
            let found = root.open();
            assert!(!found.rejected.is_empty(), "{victim}: {}", bytes.len());
            assert_eq!(names(&found.copies), expected, "{victim}: {}", bytes.len());
            store = Some(found.store);
        }
        // It is written again, and the start after that finds nothing wrong.
        store
            .unwrap()
            .write(&wanted(), time(1), IndexWrite::IfDifferent)
            .unwrap();
        let found = root.open();
        assert!(found.rejected.is_empty(), "{:?}", found.rejected);
        assert_eq!(names(&found.copies), all);
    }
}

// Attack: the files of two nodes are mixed, by a copy of a whole disk or one by one.
#[test]
fn files_of_another_node_are_not_served_whether_or_not_the_key_is_shared() {
    for (keys, reason) in [
        ([1], "damaged, or sealed for another path, node or cluster"),
        ([2], "sealed with a key that is not configured"),
    ] {
        let make = |keys: &[u8], node: &str, version| {
            let root = TestRoot::new();
            let mut store = root.open_with(keys, owner(1, node)).unwrap().store;
            let wanted = [present("a", version), present("b", version)];
            store
                .write(&wanted, time(0), IndexWrite::IfDifferent)
                .unwrap();
            (root, store)
        };
        // One copy, in the place of the own one.
        let (own, store) = make(&[1], "node-1", 1);
        let (other, other_store) = make(&keys, "node-2", 2);
        let foreign = fs::read(other.file(&file_of(&other_store, "a"))).unwrap();
        fs::write(own.file(&file_of(&store, "a")), foreign).unwrap();
        let found = own.open();
        assert_eq!(names(&found.copies), named([("b", "1")]));
        assert_eq!(found.rejected.len(), 1, "{:?}", found.rejected);

        // All copies, beside the own ones: they are not listed.
        let (own, _store) = make(&[1], "node-1", 1);
        for name in other.files() {
            fs::copy(other.file(&name), own.file(&name)).unwrap();
        }
        let mut found = own.open();
        let both = named([("a", "1"), ("b", "1")]);
        assert_eq!(names(&found.copies), both);
        let wanted = [present("a", 1), present("b", 1)];
        found
            .store
            .write(&wanted, time(1), IndexWrite::IfDifferent)
            .unwrap();
        assert_eq!(names(&own.open().copies), both);
        assert_eq!(own.files().len(), 2, "only what is listed stays");

        // The index too, in the place of the own one.
        fs::copy(other.file(INDEX), own.file(INDEX)).unwrap();
        let mut found = own.open();
        assert_eq!(names(&found.copies), named([]));
        let reasons = reasons(&found.rejected);
        assert!(reasons.contains(&format!(": {reason}")), "{reasons:?}");
        found
            .store
            .write(&wanted, time(2), IndexWrite::IfDifferent)
            .unwrap();
        let found = own.open();
        assert!(found.rejected.is_empty(), "{:?}", found.rejected);
        assert_eq!(names(&found.copies), both);
    }
}

#[test]
fn nothing_opens_without_its_key_and_the_reason_is_reported() {
    // offline 12
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(&[present("a", 1)], time(0), IndexWrite::IfDifferent)
        .unwrap();
    let mut found = root.open_with(&[2], owner(1, "node-1")).unwrap();
    assert!(found.copies.is_empty());
    assert_eq!(
        reasons(&found.rejected),
        [
            ": its index cannot be read",
            ": sealed with a key that is not configured",
        ]
    );
    found
        .store
        .write(&[present("a", 1)], time(1), IndexWrite::IfDifferent)
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
        .write(
            &[present("a", 1), absent("b")],
            time(0),
            IndexWrite::IfDifferent,
        )
        .unwrap();
    let mut found = root.open_with(&[2, 1], owner(1, "node-1")).unwrap();
    assert_eq!(names(&found.copies), named([("a", "1"), ("b", "absent")]));
    let wanted = [present("a", 1), absent("b")];
    let written = found
        .store
        .write(&wanted, time(1), IndexWrite::IfDifferent)
        .unwrap();
    assert_eq!(written.files, 2, "copy and index");
    assert_eq!(
        found
            .store
            .write(&wanted, time(2), IndexWrite::IfDifferent)
            .unwrap(),
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
    store
        .write(&[present("a", 1)], time(0), IndexWrite::IfDifferent)
        .unwrap();
    let mut index = fs::read(root.file(INDEX)).unwrap();
    // With pages of the index.
    index[8] = 1;
    fs::write(root.file(INDEX), index).unwrap();
    let mut found = root.open();
    assert!(found.copies.is_empty());
    assert_eq!(
        reasons(&found.rejected),
        [
            ": format version 1 is not supported",
            ": its index cannot be read"
        ]
    );
    // The next write replaces it.
    found
        .store
        .write(&[present("a", 2)], time(1), IndexWrite::IfDifferent)
        .unwrap();
    assert_eq!(names(&root.open().copies), named([("a", "2")]));
}

#[test]
fn hostile_files_in_the_directory_cause_no_hang_and_no_escape() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    let wanted = [
        present("a", 1),
        present("b", 2),
        present("c", 3),
        present("d", 4),
    ];
    store
        .write(&wanted, time(0), IndexWrite::IfDifferent)
        .unwrap();
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
    let mut found = root.open();
    assert_eq!(names(&found.copies), named([("d", "4")]));
    assert_eq!(found.rejected.len(), 3);
    found
        .store
        .write(&wanted, time(1), IndexWrite::IfDifferent)
        .unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    // Only one generation is kept.
    let first = root.rejected();
    assert_eq!(first.len(), 3);
    fs::write(root.file(INDEX), "not sealed").unwrap();
    let mut found = root.open();
    found
        .store
        .write(&wanted, time(2), IndexWrite::IfDifferent)
        .unwrap();
    assert!(first.iter().all(|name| !root.rejected().contains(name)));
}

// Attack: all descriptors are in use while the agent starts.
#[test]
fn a_failed_read_rejects_no_copy_for_good() {
    let wanted = || [present("a", 1), present("b", 2), absent("c")];
    let all = named([("a", "1"), ("b", "2"), ("c", "absent")]);
    for errno in [Errno::MFILE, Errno::IO, Errno::NOMEM] {
        for at in 0.. {
            let root = TestRoot::new();
            root.open()
                .store
                .write(&wanted(), time(0), IndexWrite::IfDifferent)
                .unwrap();
            let place = root.place();
            let open = || Store::open(&place, Keyring::of_bytes(&[1]), owner(1, "node-1"), decode);
            let (opened, reached) = during(at, Fault::Once(errno), open);
            assert_eq!(root.rejected(), [""; 0], "{errno:?} at {at}");
            if let Ok(Found { mut store, .. }) = opened {
                // An object whose state is not known yet keeps its copy.
                let unknown = [unknown("a"), unknown("b"), unknown("c")];
                store.write(&unknown, time(1), IndexWrite::Always).unwrap();
                assert_eq!(names(&root.open().copies), all, "{errno:?} at {at}");
                // One that is known is sealed again: the file may be bad for good.
                store
                    .write(&wanted(), time(2), IndexWrite::IfDifferent)
                    .unwrap();
            }
            assert_eq!(names(&root.open().copies), all, "{errno:?} at {at}");
            if !reached {
                assert!(at > 10, "{at} system calls cannot be a whole start");
                break;
            }
        }
    }
}

#[test]
fn directories_in_place_of_files_are_set_aside_each_time() {
    let root = TestRoot::new();
    for second in 0..3 {
        let mut store = root.open().store;
        store
            .write(&[present("a", 1)], time(second), IndexWrite::IfDifferent)
            .unwrap();
        fs::remove_file(root.file(INDEX)).unwrap();
        fs::create_dir(root.file(INDEX)).unwrap();
        let found = root.open();
        assert_eq!(
            reasons(&found.rejected)[0],
            ": its index cannot be read",
            "{:?}",
            reasons(&found.rejected)
        );
    }
}

#[test]
fn an_older_index_alone_restores_no_older_copy() {
    // offline 16
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(
            &[present("a", 1), present("b", 1)],
            time(0),
            IndexWrite::IfDifferent,
        )
        .unwrap();
    let old = fs::read(root.file(INDEX)).unwrap();
    store
        .write(
            &[present("a", 2), present("b", 1)],
            time(1),
            IndexWrite::IfDifferent,
        )
        .unwrap();
    fs::write(root.file(INDEX), old).unwrap();
    let found = root.open();
    let copies = names(&found.copies);
    assert!(!copies.contains_key("a"), "{copies:?}");
    assert!(!found.rejected.is_empty());
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
