//! A pod's user changes his own volume before each system call of a pass.

use std::{
    cell::Cell,
    os::unix::fs::{MetadataExt as _, chown},
    path::PathBuf,
};

use larder_files::faults::{Fault, during};
use rustix::process::geteuid;

use super::*;
use crate::disk::testing::show;

/// What the user does in the volume.
type Attack = fn(&Path);

thread_local! {
    /// The next attack, and its volume.
    static ATTACK: Cell<Option<(Attack, PathBuf)>> = const { Cell::new(None) };
}

/// Runs `pass` while the user acts before its system call number `at`; returns whether it got that far.
fn attacked<T>(volume: &Path, attack: Attack, at: usize, pass: impl FnOnce() -> T) -> (T, bool) {
    ATTACK.set(Some((attack, volume.to_owned())));
    let act = || {
        let (attack, volume) = ATTACK.take().unwrap();
        attack(&volume);
    };
    during(at, Fault::Meanwhile(act), pass)
}

/// The sets in the volume; one that is being written comes first.
fn sets(volume: &Path) -> Vec<PathBuf> {
    let current = fs::read_link(volume.join("..data")).ok();
    let names = fs::read_dir(volume)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let mut sets: Vec<_> = names
        .filter(|name| is_set_name(name.to_str().unwrap()))
        .collect();
    sets.sort_by_key(|name| Some(Path::new(name)) == current.as_deref());
    sets.iter().map(|name| volume.join(name)).collect()
}

/// Puts a link to the directory beside the volume in the place of `path`, and what was there aside.
fn replace(path: &Path) {
    let volume = path.ancestors().find(|path| path.ends_with("volume"));
    let aside = volume.unwrap().join("..2026_01_01_00_00_00.42");
    if fs::symlink_metadata(path).is_ok() && fs::symlink_metadata(&aside).is_err() {
        fs::rename(path, aside).unwrap();
        let victim = volume.unwrap().with_file_name("victim");
        symlink(victim, path).unwrap();
    }
}

const ATTACKS: &[(&str, Attack)] = &[
    ("`..data` is renamed", |volume| {
        // Before the first pass there is none.
        let _ = fs::rename(volume.join("..data"), volume.join("moved"));
    }),
    ("`..data` leads out", |volume| {
        replace(&volume.join("..data"));
    }),
    ("`..data_tmp` leads out", |volume| {
        let _ = fs::remove_file(volume.join("..data_tmp"));
        symlink("../victim", volume.join("..data_tmp")).unwrap();
    }),
    ("a key leads out", |volume| replace(&volume.join("a"))),
    ("each set leads out", |volume| {
        for set in sets(volume) {
            replace(&set);
        }
    }),
    ("the new set leads out", |volume| {
        if let Some(set) = sets(volume).first() {
            replace(set);
        }
    }),
    ("a directory of the new set leads out", |volume| {
        if let Some(set) = sets(volume).first() {
            replace(&set.join("d"));
        }
    }),
    ("a deep directory of the new set leads out", |volume| {
        if let Some(set) = sets(volume).first() {
            replace(&set.join("d/e"));
        }
    }),
    ("a file of the new set leads out", |volume| {
        if let Some(set) = sets(volume).first() {
            replace(&set.join("a"));
        }
    }),
];

/// The tree beside the volume, with all that a pass may change by mistake.
fn state_of(victim: &Path) -> String {
    let of = |path: &str| {
        let found = fs::metadata(victim.join(path)).unwrap();
        (
            found.uid(),
            found.gid(),
            found.mtime_nsec(),
            found.ctime_nsec(),
        )
    };
    let owners = ["", "a", "d", "d/e", "d/e/x"].map(of);
    format!("{}{owners:?}", show(victim))
}

/// A volume of a pod, two of whose files have lost their group, and a directory beside it, whose files have the same
/// names and content.
fn volume_and_victim(payload: &Payload<'_>, group: Option<u32>) -> (TestVolume, PathBuf, PathBuf) {
    let outer = TestVolume::new();
    let [volume, victim] = ["volume", "victim"].map(|name| outer.path().join(name));
    fs::create_dir_all(victim.join("d/e")).unwrap();
    fs::write(victim.join("a"), "1").unwrap();
    fs::write(victim.join("d/e/x"), "2").unwrap();
    fs::create_dir(&volume).unwrap();
    let writer = AtomicWriter::open(&volume).unwrap().group(group);
    let mut random = fastrand::Rng::with_seed(1);
    writer.write(payload, noon(), &mut random).unwrap();
    if group.is_some() {
        for file in ["a", "d/e/x"] {
            chown(volume.join(file), None, Some(0)).unwrap();
        }
    }
    (outer, volume, victim)
}

// Attack: the pod's user acts in his volume while a pass writes it.
#[test]
fn whatever_a_pods_user_does_meanwhile_nothing_beside_the_volume_changes() {
    let before = files([("a", "1"), ("d/e/x", "2"), ("f", "3")]);
    let changed = files([("a", "changed"), ("d/e/x", "4"), ("g", "5")]);
    let group = geteuid().is_root().then_some(4711);
    for (after, group) in [(&changed, None), (&changed, group), (&before, group)] {
        let write = |volume: &Path, seed| {
            let mut random = fastrand::Rng::with_seed(seed);
            let writer = AtomicWriter::open(volume).unwrap().group(group);
            writer.write(after, noon(), &mut random)
        };
        let (_outer, volume, _) = volume_and_victim(&before, group);
        write(&volume, 2).unwrap();
        let expected = show(&volume);
        for &(name, attack) in ATTACKS {
            for at in 0.. {
                let (_outer, volume, victim) = volume_and_victim(&before, group);
                let precious = state_of(&victim);
                // It may fail.
                let (_, reached) = attacked(&volume, attack, at, || write(&volume, 2));
                assert_eq!(state_of(&victim), precious, "{name} at {at}");
                if !reached {
                    assert!(at >= 8, "{at} system calls cannot be a whole pass");
                    break;
                }
                write(&volume, 3).unwrap();
                // What has a name of his own is his.
                let _ = fs::remove_file(volume.join("moved"));
                assert_eq!(show(&volume), expected, "{name} at {at}");
                assert_eq!(state_of(&victim), precious, "{name} at {at}");
            }
        }
    }
}

// Attack: the pod's user fills his volume while a pass writes it.
#[test]
fn ten_thousand_files_of_a_pods_user_stop_no_pass() {
    let (before, after) = (files([("a", "1"), ("b", "2")]), files([("a", "3")]));
    let fill: Attack = |volume| {
        for number in 0..2_500 {
            fs::write(volume.join(format!("own-{number}")), "").unwrap();
            symlink("../victim", volume.join(format!("own-link-{number}"))).unwrap();
            let key = format!("..data/key-{number}");
            symlink(&key, volume.join(format!("key-{number}"))).unwrap();
            symlink("../victim", volume.join(key)).unwrap();
        }
    };
    // Before the first step, and after the volume has been listed.
    for at in [0, 4] {
        let (_outer, volume, victim) = volume_and_victim(&before, None);
        let precious = state_of(&victim);
        let writer = AtomicWriter::open(&volume).unwrap();
        let mut random = fastrand::Rng::with_seed(2);
        let mut write = || writer.write(&after, noon(), &mut random);
        let (result, reached) = attacked(&volume, fill, at, &mut write);
        assert!(reached && result.unwrap().swapped, "{at}");
        write().unwrap();
        assert_eq!(state_of(&victim), precious, "{at}");
        // Links like those of keys are gone, and so is what was put into the set. Other names are his.
        let names = fs::read_dir(&volume).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: BTreeSet<_> = names.filter(|name| !name.starts_with("own-")).collect();
        let set = fs::read_link(volume.join(DATA)).unwrap();
        let set = set.to_str().unwrap();
        let expected = [DATA, "a", set].map(ToOwned::to_owned);
        assert_eq!(left, expected.into(), "{at}");
        assert_eq!(fs::read_dir(volume.join(set)).unwrap().count(), 1, "{at}");
    }
}
