//! Writes that are interrupted at every system call, by failures and by kills, and the starts that follow.

use std::{env, error::Error as _, os::unix::process::ExitStatusExt as _, process::Command};

use larder_files::faults::{Fault, during};

use super::*;

fn old() -> Vec<WantedCopy> {
    vec![present("a", 1), present("b", 2), absent("c")]
}

fn new() -> Vec<WantedCopy> {
    vec![
        present("a", 7),
        absent("b"),
        present("c", 8),
        present("d", 9),
    ]
}

fn old_names() -> BTreeMap<String, String> {
    named([("a", "1"), ("b", "2"), ("c", "absent")])
}

/// What a start finds before the write.
fn names_before(has_old: bool) -> BTreeMap<String, String> {
    if has_old {
        old_names()
    } else {
        BTreeMap::new()
    }
}

fn new_names() -> BTreeMap<String, String> {
    named([("a", "7"), ("b", "absent"), ("c", "8"), ("d", "9")])
}

/// A checkpoint with `before` in it, or none.
fn root_before(has_old: bool) -> TestRoot {
    let root = TestRoot::new();
    if has_old {
        root.open()
            .store
            .write(&old(), time(0), IndexWrite::IfDifferent)
            .unwrap();
    }
    root
}

#[test]
fn a_lasting_failure_has_the_same_text_each_time() {
    // offline 20, 21: so status and log report it once
    let root = root_before(true);
    let mut store = root.open().store;
    for at in 0.. {
        let fault = Fault::FromNowOn(Errno::NOSPC);
        let mut texts = BTreeSet::new();
        let mut is_reached = true;
        for _ in 0..3 {
            let (written, reached) = during(at, fault, || {
                store.write(&new(), time(1), IndexWrite::IfDifferent)
            });
            is_reached &= reached;
            if let Err(error) = written {
                texts.insert(format!("{error}: {:?}", error.source()));
            }
        }
        assert!(texts.len() <= 1, "at {at}: {texts:?}");
        if !is_reached {
            break;
        }
    }
}

#[test]
fn a_failed_system_call_leaves_the_old_checkpoint_or_the_new_one() {
    // offline 19 to 21
    for fault in [
        Fault::Once(Errno::NOSPC),
        Fault::FromNowOn(Errno::NOSPC),
        Fault::FromNowOn(Errno::ROFS),
        Fault::Once(Errno::IO),
    ] {
        for has_old in [false, true] {
            let before = names_before(has_old);
            for at in 0.. {
                let root = root_before(has_old);
                let mut store = root.open().store;
                let (result, reached) = during(at, fault, || {
                    store.write(&new(), time(1), IndexWrite::IfDifferent)
                });
                let found = root.open();
                assert!(
                    found.rejected.is_empty(),
                    "{fault:?} at {at}: {:?}",
                    reasons(&found.rejected)
                );
                let copies = names(&found.copies);
                if !reached {
                    result.unwrap();
                    assert_eq!(copies, new_names());
                    assert!(at >= 15, "{at} system calls cannot be a whole write");
                    break;
                }
                assert!(
                    copies == before || copies == new_names(),
                    "{fault:?} at {at}: {copies:?}"
                );
                if result.is_ok() {
                    assert_eq!(copies, new_names(), "{fault:?} at {at}");
                }
                // The same store continues when the fault is over, and leaves no stray file.
                store
                    .write(&new(), time(2), IndexWrite::IfDifferent)
                    .unwrap();
                let found = root.open();
                assert_eq!(names(&found.copies), new_names(), "after {fault:?} at {at}");
                assert!(found.rejected.is_empty());
                let listed = store.index.files().count();
                assert_eq!(root.files().len(), listed, "after {fault:?} at {at}");
            }
        }
    }
}

#[test]
fn a_failed_sync_of_many_files_leaves_the_old_checkpoint_or_the_new_one() {
    // offline 19 to 21
    let many: Vec<_> = (0..40)
        .map(|number| present(&format!("many-{number}"), number))
        .collect();
    let all: BTreeSet<_> = (0..40).map(|number| format!("many-{number}")).collect();
    for at in 0.. {
        let root = root_before(true);
        let mut store = root.open().store;
        let (result, reached) = during(at, Fault::Once(Errno::IO), || {
            store.write(&many, time(1), IndexWrite::IfDifferent)
        });
        let found = root.open();
        assert!(found.rejected.is_empty(), "at {at}");
        let copies = names(&found.copies);
        let is_new = copies.keys().cloned().collect::<BTreeSet<_>>() == all;
        assert!(is_new || copies == old_names(), "at {at}: {copies:?}");
        if result.is_ok() {
            assert!(is_new, "at {at}: {copies:?}");
        }
        if !reached {
            assert!(at >= 80, "{at} system calls cannot be a whole write");
            break;
        }
    }
}

#[test]
fn errors_name_the_failure_for_the_metric() {
    // offline 20, 21
    for (errno, label) in [
        (Errno::NOSPC, "no_space"),
        (Errno::ROFS, "read_only"),
        (Errno::IO, "io"),
    ] {
        let root = root_before(true);
        let mut store = root.open().store;
        let (result, _) = during(3, Fault::FromNowOn(errno), || {
            store.write(&new(), time(1), IndexWrite::IfDifferent)
        });
        assert_eq!(result.unwrap_err().label(), label);
    }
}

/// Environment variable of the killed process: the number of the system call, and the root directory.
const VICTIM: &str = "LARDER_TEST_CHECKPOINT_VICTIM";

#[test]
fn a_start_after_a_kill_finds_the_old_checkpoint_or_the_new_one() {
    // offline 19, 29
    for has_old in [false, true] {
        let before = names_before(has_old);
        for at in 0.. {
            let root = root_before(has_old);
            let status = Command::new(env::current_exe().unwrap())
                .args(["--exact", "--ignored", "store::tests::crash::victim"])
                .env(VICTIM, format!("{at} {}", root.path().display()))
                .output()
                .unwrap()
                .status;
            let mut found = root.open();
            assert!(found.rejected.is_empty(), "killed at {at}");
            let copies = names(&found.copies);
            if status.success() {
                assert_eq!(copies, new_names());
                assert!(at >= 15, "{at} system calls cannot be a whole write");
                break;
            }
            assert_eq!(status.signal(), Some(9));
            assert!(
                copies == before || copies == new_names(),
                "killed at {at}: {copies:?}"
            );
            // No file without an entry in the index survives a start with an index, or the next write.
            if !has_old {
                found
                    .store
                    .write(&new(), time(2), IndexWrite::IfDifferent)
                    .unwrap();
            }
            let listed = found.store.index.files().count();
            assert_eq!(root.files().len(), listed, "killed at {at}");
        }
    }
}

#[test]
#[ignore = "is run by the test above, in a process of its own, to be killed"]
fn victim() {
    let Ok(victim) = env::var(VICTIM) else { return };
    let (at, path) = victim.split_once(' ').unwrap();
    let mut store = open_at(Path::new(path), &[1], owner(1, "node-1"))
        .unwrap()
        .store;
    let (result, _) = during(at.parse().unwrap(), Fault::Kill, || {
        store.write(&new(), time(1), IndexWrite::IfDifferent)
    });
    result.unwrap();
}
