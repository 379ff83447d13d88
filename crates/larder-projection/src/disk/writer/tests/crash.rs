//! Passes that are interrupted at every system call, by failures and by kills, and the passes that follow.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::{
        fs::{PermissionsExt, symlink},
        process::ExitStatusExt,
    },
    process::Command,
};

use larder_files::faults::{Fault, during};
use proptest::prelude::*;

use super::*;
use crate::{
    File,
    disk::testing::{TestVolume, file, files, noon, show},
};

/// The payload of a volume before a pass, and the one to be written.
type Change = (Option<Payload<'static>>, Payload<'static>);

fn changes() -> Vec<Change> {
    let before = files([("a", "1"), ("b", "2"), ("d/e/x", "3"), ("f/y", "4")]);
    let after = files([("a", "changed"), ("c", "5"), ("d/e/z", "6"), ("f", "7")]);
    let unchanged = before.clone();
    vec![
        (None, after.clone()),
        (Some(before.clone()), after),
        (Some(before.clone()), unchanged),
        (Some(before), files([])),
    ]
}

/// A volume as the last pass left it, and, with `leftovers`, some crash before it.
fn volume_before(change: &Change, leftovers: bool) -> TestVolume {
    let volume = match &change.0 {
        Some(before) => TestVolume::holding(before),
        None => TestVolume::new(),
    };
    if leftovers {
        let orphan = "..2026_01_01_00_00_00.42";
        fs::create_dir_all(volume.path().join(orphan).join("d/e")).unwrap();
        fs::write(volume.path().join(orphan).join("d/e/f"), "half").unwrap();
        symlink(orphan, volume.path().join("..data_tmp")).unwrap();
        symlink("..data/gone", volume.path().join("gone")).unwrap();
    }
    volume
}

/// The tree that a volume has when nothing goes wrong.
fn tree_of(payload: &Payload<'_>) -> String {
    show(TestVolume::holding(payload).path())
}

/// The files that a reader finds by resolving `..data` once.
fn current_set(volume: &TestVolume) -> BTreeMap<String, (u32, String)> {
    fn collect(directory: &Path, prefix: &str, set: &mut BTreeMap<String, (u32, String)>) {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                collect(&entry.path(), &format!("{path}/"), set);
            } else {
                let data = fs::read_to_string(entry.path()).unwrap();
                set.insert(path, (metadata.permissions().mode() & 0o7777, data));
            }
        }
    }
    let mut set = BTreeMap::new();
    if let Ok(directory) = volume.path().join("..data").canonicalize() {
        collect(&directory, "", &mut set);
    }
    set
}

fn set_of(payload: &Payload<'_>) -> BTreeMap<String, (u32, String)> {
    let text = |file: &File<'_>| String::from_utf8(file.data.to_vec()).unwrap();
    payload
        .iter()
        .map(|(path, file)| (path.to_string(), (file.mode, text(file))))
        .collect()
}

#[test]
fn a_failed_system_call_leaves_only_the_old_set() {
    for fault in [
        Fault::Once(Errno::NOSPC),
        Fault::FromNowOn(Errno::IO),
        Fault::Once(Errno::NOSYS),
        Fault::FromNowOn(Errno::ROFS),
    ] {
        for change in changes() {
            for leftovers in [false, true] {
                let mut calls = 0;
                for at in 0.. {
                    let mut volume = volume_before(&change, leftovers);
                    let (result, reached) = during(at, fault, || volume.write(&change.1));
                    if !reached {
                        result.unwrap();
                        break;
                    }
                    calls += 1;
                    check_failure(&mut volume, &change, &result, fault, at);
                }
                assert!(calls >= 8, "{calls} system calls cannot be a whole pass");
            }
        }
    }
}

fn check_failure(
    volume: &mut TestVolume,
    (before, after): &Change,
    result: &Result<Written, DiskError>,
    fault: Fault,
    at: usize,
) {
    let old = before.as_ref().map(set_of).unwrap_or_default();
    let expected = match result {
        Err(error) if !error.is_after_commit() => old,
        // The failure did no harm, or came after the commit. Or the content was there all along.
        _ => set_of(after),
    };
    assert_eq!(current_set(volume), expected, "{fault:?} at {at}");
    if let (Err(error), Fault::Once(_)) = (result, fault) {
        // The pass could clean up: not even the new set's directory is left.
        let sets = fs::read_dir(volume.path()).unwrap().filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            is_set_name(name.to_str().unwrap()) && !name.to_str().unwrap().ends_with(".42")
        });
        if !error.is_after_commit() {
            assert_eq!(
                sets.count(),
                usize::from(before.is_some()),
                "{fault:?} at {at}"
            );
        }
    }
    volume.write(after).unwrap();
    assert_eq!(
        show(volume.path()),
        tree_of(after),
        "after {fault:?} at {at}"
    );
}

/// Environment of the process that dies: the volume, the number of the change, the number of the system call.
const VICTIM: &str = "LARDER_TEST_VICTIM";

#[test]
fn a_pass_after_a_kill_ends_in_the_same_tree() {
    for (number, change) in changes().iter().enumerate() {
        let expected = tree_of(&change.1);
        for at in 0.. {
            let mut volume = volume_before(change, true);
            let victim = format!("{number} {at} {}", volume.path().display());
            let status = Command::new(env::current_exe().unwrap())
                .args(["--exact", "--ignored", "disk::writer::tests::crash::victim"])
                .env(VICTIM, victim)
                .output()
                .unwrap()
                .status;
            if status.success() {
                assert!(at >= 8, "{at} system calls cannot be a whole pass");
                assert_eq!(show(volume.path()), expected);
                break;
            }
            assert_eq!(status.signal(), Some(9));
            let set = current_set(&volume);
            let old = change.0.as_ref().map(set_of).unwrap_or_default();
            assert!(
                set == old || set == set_of(&change.1),
                "killed at {at}: {set:?}"
            );
            volume.write(&change.1).unwrap();
            assert_eq!(show(volume.path()), expected, "killed at {at}");
        }
    }
}

#[test]
#[ignore = "is run by the test above, in a process of its own, to be killed"]
fn victim() {
    let Ok(victim) = env::var(VICTIM) else { return };
    let mut words = victim.splitn(3, ' ');
    let mut next = || words.next().unwrap();
    let (number, at) = (next().parse::<usize>().unwrap(), next().parse().unwrap());
    let writer = AtomicWriter::open(Path::new(next())).unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let payload = &changes()[number].1;
    let (result, _) = during(at, Fault::Kill, || {
        writer.write(payload, noon(), &mut random)
    });
    result.unwrap();
}

/// Small names, so that files and directories often take each other's place.
fn any_payload() -> impl Strategy<Value = Payload<'static>> {
    let path = prop::sample::select(vec![
        "a", "b", "c", ".d", "d/a", "d/b", "d/d/a", "e/a", "e/b/c", "a/b", "d/d",
    ]);
    let data = prop::sample::select(vec!["", "1", "2", "longer than the others"]);
    let mode = prop::sample::select(vec![0o644, 0o400, 0o600]);
    prop::collection::btree_map(path, (data, mode), 0..6).prop_map(|entries| {
        entries
            .into_iter()
            .map(|(path, (data, mode))| file(path, data, mode))
            .collect()
    })
}

fn any_fault() -> impl Strategy<Value = Option<(usize, Fault)>> {
    let errno = prop::sample::select(vec![Errno::NOSPC, Errno::IO, Errno::ACCESS, Errno::MFILE]);
    let fault = (errno, any::<bool>()).prop_map(|(errno, once)| {
        if once {
            Fault::Once(errno)
        } else {
            Fault::FromNowOn(errno)
        }
    });
    prop::option::of((0_usize..80, fault))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The model: a volume holds the last payload that did not fail; a failed one changes nothing.
    #[test]
    fn a_volume_follows_its_model(steps in prop::collection::vec((any_payload(), any_fault()), 1..8)) {
        let mut volume = TestVolume::new();
        let mut model = Payload::new();
        for (payload, fault) in steps {
            let (at, fault) = fault.unwrap_or((usize::MAX, Fault::Once(Errno::IO)));
            let (result, _) = during(at, fault, || volume.write(&payload));
            match &result {
                Err(error) if !error.is_after_commit() => {}
                _ => model = payload,
            }
            prop_assert_eq!(current_set(&volume), set_of(&model), "{:?}", &result);
            if result.is_ok() {
                prop_assert_eq!(show(volume.path()), tree_of(&model));
            }
        }
        volume.write(&model).unwrap();
        prop_assert_eq!(show(volume.path()), tree_of(&model));
    }
}
