//! The files of a write, and their size.

use super::*;

#[test]
fn the_next_start_reads_what_was_written() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    let wanted = [present("a", 1), present("b", 2), absent("c")];
    store
        .write(&wanted, time(0), IndexWrite::IfDifferent)
        .unwrap();
    let found = root.open();
    assert_eq!(
        names(&found.copies),
        named([("a", "1"), ("b", "2"), ("c", "absent")])
    );
    assert!(found.rejected.is_empty());
    assert!(found.copies.iter().all(|copy| copy.verified_at == time(0)));
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
        .write(
            &[present("a", 1), absent("c")],
            time(0),
            IndexWrite::IfDifferent,
        )
        .unwrap();
    let before = fs::metadata(root.file(INDEX)).unwrap().ino();
    let mut again = root.open().store;
    let written = again
        .write(
            &[present("a", 1), absent("c")],
            time(60),
            IndexWrite::IfDifferent,
        )
        .unwrap();
    assert_eq!(written, Written::default());
    assert_eq!(fs::metadata(root.file(INDEX)).unwrap().ino(), before);
    // The times of freshness checks are written on request, and cost the index alone.
    let written = again
        .write(
            &[present("a", 1), absent("c")],
            time(60),
            IndexWrite::Always,
        )
        .unwrap();
    assert_eq!(written.files, 1);
    assert!(
        root.open()
            .copies
            .iter()
            .all(|copy| copy.verified_at == time(60))
    );
}

#[test]
fn unwanted_copies_are_removed_with_their_files() {
    // offline 24
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(
            &[present("a", 1), present("b", 2)],
            time(0),
            IndexWrite::IfDifferent,
        )
        .unwrap();
    let gone = file_of(&store, "b");
    store
        .write(&[present("a", 1)], time(1), IndexWrite::IfDifferent)
        .unwrap();
    assert!(!root.file(&gone).exists());
    assert_eq!(names(&root.open().copies), named([("a", "1")]));
    store.write(&[], time(2), IndexWrite::IfDifferent).unwrap();
    assert_eq!(root.files(), [""; 0]);
    assert!(root.open().copies.is_empty());
}

#[test]
fn an_object_in_unknown_state_keeps_its_copy_and_time() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(
            &[present("a", 1), present("b", 2)],
            time(0),
            IndexWrite::IfDifferent,
        )
        .unwrap();
    let wanted = [unknown("a"), present("b", 3), unknown("never seen")];
    store
        .write(&wanted, time(100), IndexWrite::IfDifferent)
        .unwrap();
    let copies = root.open().copies;
    assert_eq!(names(&copies), named([("a", "1"), ("b", "3")]));
    let times: Vec<_> = copies.iter().map(|copy| copy.verified_at).collect();
    assert_eq!(times, [time(0), time(100)]);
}

#[test]
fn a_copy_keeps_the_time_of_an_earlier_freshness_check() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    let old = WantedCopy {
        verified_at: Some(time(-500)),
        ..present("a", 1)
    };
    store
        .write(&[old, present("b", 1)], time(0), IndexWrite::IfDifferent)
        .unwrap();
    let copies = root.open().copies;
    assert_eq!(copies[0].verified_at, time(-500));
    assert_eq!(copies[1].verified_at, time(0));
    assert_eq!(store.oldest_verification(), Some(time(-500)));
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
        .write(
            &[present("a", 1), absent("c")],
            time(0),
            IndexWrite::IfDifferent,
        )
        .unwrap();
    assert_eq!(store.size(), measured(&root));
    assert_eq!(root.open().store.size(), measured(&root));
    store.write(&[], time(1), IndexWrite::IfDifferent).unwrap();
    assert_eq!(store.size(), measured(&root));
}

#[test]
fn no_plain_byte_reaches_the_disk() {
    // offline 28
    let root = TestRoot::new();
    let mut store = root.open().store;
    for version in 1..5 {
        store
            .write(
                &[present("tls-of-prod", version)],
                time(0),
                IndexWrite::IfDifferent,
            )
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
                WantedCopy {
                    id,
                    state: WantedState::Present {
                        version: [version; 16],
                        content: Box::new(|| vec![b'x'; 1100].into()),
                    },
                    verified_at: None,
                }
            })
            .collect()
    };
    store
        .write(&wanted(0), time(0), IndexWrite::IfDifferent)
        .unwrap();
    let size: u64 = root
        .files()
        .iter()
        .map(|name| fs::metadata(root.file(name)).unwrap().len())
        .sum();
    assert!(size <= 2 << 20, "{size} bytes");
    let written = store
        .write(&wanted(1), time(1), IndexWrite::IfDifferent)
        .unwrap();
    assert_eq!(written.files, 2, "the copy and the index");
    assert!(written.bytes <= 64 << 10, "{written:?}");
}
