//! The limit on the length of a file, which writing and reading share, and content beyond it.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A copy `name` in version `version` whose file has `blocks` blocks of 512 bytes, less `less` bytes of content.
fn sized(
    name: &str,
    version: u8,
    blocks: usize,
    less: usize,
    encoded: &Arc<AtomicUsize>,
) -> WantedCopy {
    let length = blocks * 512 - sealed_overhead() - less;
    let encoded = Arc::clone(encoded);
    WantedCopy {
        id: CopyId {
            kind: "ConfigMap".into(),
            ..id(name)
        },
        state: WantedState::Present {
            version: [version; 16],
            content: Box::new(move || {
                encoded.fetch_add(1, Ordering::Relaxed);
                vec![b'x'; length].into()
            }),
        },
        verified_at: None,
    }
}

/// Bytes of a file besides its content.
fn sealed_overhead() -> usize {
    (0..512)
        .find(|length| sealed_len(512 - length) == 512)
        .unwrap()
}

fn found(root: &TestRoot) -> Vec<String> {
    let opened = root.open();
    assert!(
        opened.rejected.is_empty(),
        "{:?}",
        reasons(&opened.rejected)
    );
    opened
        .copies
        .iter()
        .map(|copy| copy.id.to_string())
        .collect()
}

#[test]
fn the_longest_file_that_is_written_opens() {
    // offline 34
    let root = TestRoot::new();
    let mut store = root.open().store;
    let encoded = Arc::default();
    let most = MAX_FILE_BYTES / 512;
    let wanted = [
        sized("longest", 1, most, 0, &encoded),
        sized("too-long", 1, most + 1, 511, &encoded),
    ];
    store
        .write(&wanted, time(0), IndexWrite::IfDifferent)
        .unwrap();
    assert_eq!(found(&root), ["ConfigMap prod/longest"]);
    let too_large: Vec<_> = store.too_large().collect();
    let [(id, Excess::File { bytes, .. })] = too_large[..] else {
        panic!("{too_large:?}");
    };
    assert_eq!(id.to_string(), "ConfigMap prod/too-long");
    assert!(*bytes > MAX_FILE_BYTES, "{bytes}");
}

#[test]
fn something_too_large_loses_its_older_copy_and_costs_no_other() {
    // offline 16, 34: content that was replaced is not brought back
    let root = TestRoot::new();
    let mut store = root.open().store;
    let encoded = Arc::default();
    let too_long = MAX_FILE_BYTES / 512 + 1;
    let write = |store: &mut Store, version, blocks, second| {
        let wanted = [sized("a", version, blocks, 0, &encoded), present("b", 1)];
        store
            .write(&wanted, time(second), IndexWrite::IfDifferent)
            .unwrap()
    };
    write(&mut store, 1, 2, 0);
    assert_eq!(found(&root), ["ConfigMap prod/a", "Secret prod/b"]);
    write(&mut store, 2, too_long, 1);
    assert_eq!(found(&root), ["Secret prod/b"]);
    // It is neither written nor encoded again while it stays as it is.
    assert_eq!(encoded.load(Ordering::Relaxed), 2);
    assert_eq!(write(&mut store, 2, too_long, 2), Written::default());
    assert_eq!(encoded.load(Ordering::Relaxed), 2);
    assert_eq!(store.too_large().len(), 1);
    write(&mut store, 3, 2, 3);
    assert_eq!(found(&root), ["ConfigMap prod/a", "Secret prod/b"]);
    assert_eq!(store.too_large().len(), 0);
}

// Attack: the pods of one namespace refer to so many names that the index would not open.
#[test]
fn names_that_would_fill_the_index_cost_no_other_namespace() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    let flood = |number: usize| {
        let name = format!("{number:0>250}");
        let exists = number % 100 == 99;
        let mut copy = if exists {
            present(&name, 1)
        } else {
            absent(&name)
        };
        copy.id.namespace = "flood".into();
        copy
    };
    let mut wanted: Vec<_> = (0..14_000).map(flood).collect();
    wanted.push(present("a", 1));
    wanted.push(absent("b"));
    store
        .write(&wanted, time(0), IndexWrite::IfDifferent)
        .unwrap();
    let found = names_of(&root);
    assert_eq!(found["a"], "1");
    assert_eq!(found["b"], "absent");
    // Every object that exists still fits, and the index is nearly full.
    let count = |state| found.values().filter(|found| *found == state).count();
    assert_eq!(count("1"), 141);
    assert!(found.len() > 10_000, "{}", found.len());
    let left_out = wanted.len() - found.len();
    assert_eq!(store.too_large().len(), left_out);
    assert!(
        store
            .too_large()
            .all(|(_, excess)| *excess == Excess::Index)
    );
    // Nothing is written again, and what has room again is copied.
    assert_eq!(
        store
            .write(&wanted, time(1), IndexWrite::IfDifferent)
            .unwrap()
            .files,
        0
    );
    let rest = wanted.split_off(wanted.len() - 5000);
    store
        .write(&rest, time(2), IndexWrite::IfDifferent)
        .unwrap();
    assert_eq!(names_of(&root).len(), rest.len());
    assert_eq!(store.too_large().len(), 0);
}

fn names_of(root: &TestRoot) -> BTreeMap<String, String> {
    let opened = root.open();
    assert!(
        opened.rejected.is_empty(),
        "{:?}",
        reasons(&opened.rejected)
    );
    names(&opened.copies)
}

#[test]
fn a_file_that_stops_opening_after_the_start_is_not_served() {
    // offline 14
    let root = TestRoot::new();
    let mut store = root.open().store;
    let wanted = [present("a", 1), present("b", 2)];
    store
        .write(&wanted, time(0), IndexWrite::IfDifferent)
        .unwrap();
    let store = root.open().store;
    fs::write(root.file(&file_of(&store, "a")), "other").unwrap();
    let contents = store.contents(decode).unwrap();
    assert_eq!(names(&contents.copies), named([("b", "2")]));
    assert_eq!(
        reasons(&contents.rejected),
        ["Secret prod/a: older or newer than the index says, or damaged"]
    );
}
