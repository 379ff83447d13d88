//! The effect of a pass on a volume, by example.

mod crash;
mod races;

use std::{
    collections::BTreeSet,
    fs,
    os::{
        fd::AsRawFd,
        unix::fs::{PermissionsExt, symlink},
    },
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use expect_test::expect;
use rustix::{
    fs::{Mode, inotify},
    thread::UnshareFlags,
};

use super::*;
use crate::disk::testing::{TestVolume, file, files, in_own_thread, noon, unshare};

#[test]
fn a_writer_needs_an_existing_directory() {
    // projection 1
    let volume = TestVolume::new();
    assert!(AtomicWriter::open(volume.path()).is_ok());
    let missing = volume.path().join("missing");
    let error = AtomicWriter::open(&missing).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot open volume {}", missing.display())
    );
}

#[test]
fn files_are_readable_through_links_in_the_root() {
    // projection 5
    let volume = TestVolume::holding(&files([("foo", "1"), ("bar", "2")]));
    volume.check(expect![[r#"
        ..data -> ..set
        ..set/ 0755
        ..set/bar 0644 "2"
        ..set/foo 0644 "1"
        bar -> ..data/bar
        foo -> ..data/foo
    "#]]);
    assert_eq!(volume.read("foo"), "1");
    let name = volume.current();
    let name = name.to_str().unwrap();
    assert!(name.starts_with("..2026_03_01_12_00_00."), "{name}");
    assert!(is_set_name(name), "{name}");
}

#[test]
fn modes_are_exact_whatever_the_umask() {
    // projection 6
    let modes = [0o777, 0o400, 0o440, 0o407, 0o666, 0o000];
    let payload: Payload<'_> = modes
        .iter()
        .flat_map(|mode| {
            // Two of each, because only the first one in a row is examined.
            [
                format!("f{mode:o}"),
                format!("f{mode:o}-too"),
                format!(".f{mode:o}"),
                format!("d/f{mode:o}"),
                format!("d/f{mode:o}-too"),
            ]
        })
        .zip(modes.iter().flat_map(|&mode| [mode; 5]))
        .map(|(path, mode)| file(&path, "x", mode))
        .collect();
    for umask in [0o022, 0o077, 0o000] {
        let mut volume = TestVolume::new();
        with_umask(umask, || volume.write(&payload)).unwrap();
        let mode = |path: &str| {
            let metadata = fs::metadata(volume.path().join(path)).unwrap();
            metadata.permissions().mode() & 0o7777
        };
        for (path, file) in &payload {
            assert_eq!(mode(path.as_str()), file.mode, "{path} under {umask:03o}");
        }
        assert_eq!((mode("..data"), mode("d")), (0o755, 0o755));
    }
}

/// Runs `action` with a umask of its own; that of the process belongs to all tests.
fn with_umask<T: Send>(umask: u32, action: impl FnOnce() -> T + Send) -> T {
    in_own_thread(|| {
        unshare(UnshareFlags::FS);
        rustix::process::umask(Mode::from_raw_mode(umask));
        action()
    })
}

#[test]
fn deep_paths_get_one_link_for_each_first_element() {
    // projection 7, 8
    let volume = TestVolume::holding(&files([
        ("1/2/3/4/5/6/7/8/9/10/.dotfile.lib", "deep"),
        ("1/2/3/note", "n"),
        ("1/2/a-sibling", "s"),
        ("./bar", "b"),
        ("foo///bar", "f"),
    ]));
    volume.check(expect![[r#"
        ..data -> ..set
        ..set/ 0755
        ..set/1/ 0755
        ..set/1/2/ 0755
        ..set/1/2/3/ 0755
        ..set/1/2/3/4/ 0755
        ..set/1/2/3/4/5/ 0755
        ..set/1/2/3/4/5/6/ 0755
        ..set/1/2/3/4/5/6/7/ 0755
        ..set/1/2/3/4/5/6/7/8/ 0755
        ..set/1/2/3/4/5/6/7/8/9/ 0755
        ..set/1/2/3/4/5/6/7/8/9/10/ 0755
        ..set/1/2/3/4/5/6/7/8/9/10/.dotfile.lib 0644 "deep"
        ..set/1/2/3/note 0644 "n"
        ..set/1/2/a-sibling 0644 "s"
        ..set/bar 0644 "b"
        ..set/foo/ 0755
        ..set/foo/bar 0644 "f"
        1 -> ..data/1
        bar -> ..data/bar
        foo -> ..data/foo
    "#]]);
}

#[test]
fn the_longest_path_is_written_and_removed() {
    // 2047 directories: more than a process may have open at once.
    let deepest = vec!["a"; 2048].join("/");
    let mut volume = TestVolume::holding(&files([(&deepest, "x")]));
    assert_eq!(
        volume.write(&files([(&deepest, "x")])).unwrap(),
        Written::default()
    );
    volume.write(&files([])).unwrap();
    volume.check(expect![[r#"
        ..data -> ..set
        ..set/ 0755
    "#]]);
}

#[test]
fn changed_content_is_swapped_in() {
    // projection 9, 11, 12
    let mut volume = TestVolume::holding(&files([("foo", "1"), ("bar/a", "2"), ("baz/a", "3")]));
    let before = volume.current();
    let written = volume
        .write(&files([
            ("foo", "x"),
            ("bar/a", "y"),
            ("bar/2/3/4/5/zip.txt", "z"),
        ]))
        .unwrap();
    assert_eq!(
        written,
        Written {
            swapped: true,
            ..Written::default()
        }
    );
    assert_ne!(volume.current(), before);
    volume.check(expect![[r#"
        ..data -> ..set
        ..set/ 0755
        ..set/bar/ 0755
        ..set/bar/2/ 0755
        ..set/bar/2/3/ 0755
        ..set/bar/2/3/4/ 0755
        ..set/bar/2/3/4/5/ 0755
        ..set/bar/2/3/4/5/zip.txt 0644 "z"
        ..set/bar/a 0644 "y"
        ..set/foo 0644 "x"
        bar -> ..data/bar
        foo -> ..data/foo
    "#]]);
}

#[test]
fn an_unchanged_payload_is_not_written() {
    // projection 10
    let payload = files([("a", "1"), ("d/e/b", "2")]);
    let mut volume = TestVolume::holding(&payload);
    let before = volume.current();
    let events = Events::of(&volume);
    assert_eq!(volume.write(&payload).unwrap(), Written::default());
    assert_eq!(volume.current(), before);
    assert_eq!(events.read(), [""; 0]);
}

#[test]
fn an_empty_payload_is_a_set_too() {
    // projection 13
    let mut volume = TestVolume::holding(&files([("a", "1"), ("d/b", "2")]));
    volume.write(&files([])).unwrap();
    let expected = expect![[r#"
        ..data -> ..set
        ..set/ 0755
    "#]];
    volume.check(expected);
    let before = volume.current();
    assert_eq!(volume.write(&files([])).unwrap(), Written::default());
    assert_eq!(volume.current(), before);
}

#[test]
fn files_removed_from_the_payload_are_deleted() {
    // projection 14
    let mut volume = TestVolume::holding(&files([
        ("foo.txt", "f"),
        ("zap/1/2/3/4/bar.txt", "b"),
        ("zap/1/2/c/bar.txt", "c"),
        ("zap/1/2/magic.txt", "m"),
    ]));
    volume
        .write(&files([("foo.txt", "f"), ("zap/1/2/magic.txt", "m")]))
        .unwrap();
    volume.check(expect![[r#"
        ..data -> ..set
        ..set/ 0755
        ..set/foo.txt 0644 "f"
        ..set/zap/ 0755
        ..set/zap/1/ 0755
        ..set/zap/1/2/ 0755
        ..set/zap/1/2/magic.txt 0644 "m"
        foo.txt -> ..data/foo.txt
        zap -> ..data/zap
    "#]]);
}

#[test]
fn lost_and_wrong_links_are_repaired_without_a_swap() {
    // projection 16
    let payload = files([("a", "1"), ("b", "2"), ("c", "3")]);
    let mut volume = TestVolume::holding(&payload);
    let before = volume.current();
    fs::remove_file(volume.path().join("a")).unwrap();
    fs::remove_file(volume.path().join("b")).unwrap();
    symlink("/etc/passwd", volume.path().join("b")).unwrap();
    symlink("..data/gone", volume.path().join("gone")).unwrap();
    symlink("elsewhere", volume.path().join("foreign")).unwrap();
    assert_eq!(
        volume.write(&payload).unwrap(),
        Written {
            repaired: true,
            ..Written::default()
        }
    );
    assert_eq!(volume.current(), before);
    volume.check(expect![[r#"
        ..data -> ..set
        ..set/ 0755
        ..set/a 0644 "1"
        ..set/b 0644 "2"
        ..set/c 0644 "3"
        a -> ..data/a
        b -> ..data/b
        c -> ..data/c
        foreign -> elsewhere
    "#]]);
}

#[test]
fn a_link_that_begins_like_its_target_is_corrected() {
    let payload = files([("a", "1"), ("b", "2"), ("c", "3")]);
    let mut volume = TestVolume::holding(&payload);
    let wrong = [
        ("a", format!("..data/a{}", "/.".repeat(300))),
        ("b", "..data/bb".to_owned()),
        ("c", "..datac".to_owned()),
    ];
    for (name, target) in wrong {
        fs::remove_file(volume.path().join(name)).unwrap();
        symlink(target, volume.path().join(name)).unwrap();
    }
    assert!(volume.write(&payload).unwrap().repaired);
    for name in ["a", "b", "c"] {
        let target = fs::read_link(volume.path().join(name)).unwrap();
        assert_eq!(target.to_str(), Some(&*format!("..data/{name}")));
    }
}

#[test]
fn a_writer_sees_what_has_changed_since_its_last_pass() {
    let volume = TestVolume::new();
    let writer = AtomicWriter::open(volume.path()).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let mut write = |payload| writer.write(&payload, noon(), &mut random).unwrap();
    assert!(write(files([("a", "1"), ("b", "2")])).swapped);
    fs::create_dir(volume.path().join("..2026_01_01_00_00_00.42")).unwrap();
    fs::remove_file(volume.path().join("a")).unwrap();
    assert!(write(files([("a", "1"), ("b", "2")])).repaired);
    assert!(write(files([("a", "1")])).swapped);
    volume.check(expect![[r#"
        ..data -> ..set
        ..set/ 0755
        ..set/a 0644 "1"
        a -> ..data/a
    "#]]);
}

#[test]
fn a_link_to_remove_may_be_gone() {
    let mut volume = TestVolume::holding(&files([("a", "1"), ("b", "2")]));
    fs::remove_file(volume.path().join("b")).unwrap();
    volume.write(&files([("a", "1")])).unwrap();
    volume.check(expect![[r#"
        ..data -> ..set
        ..set/ 0755
        ..set/a 0644 "1"
        a -> ..data/a
    "#]]);
}

#[test]
fn a_pass_removes_no_more_links_than_it_may_and_the_next_one_goes_on() {
    let mut volume = TestVolume::new();
    let payload = files([("a", "1")]);
    for number in 0..=MAX_STRAYS {
        let target = format!("..data/{number}");
        symlink(target, volume.path().join(number.to_string())).unwrap();
    }
    let links = |volume: &TestVolume| {
        let entries = fs::read_dir(volume.path()).unwrap();
        entries
            .filter(|entry| entry.as_ref().unwrap().file_type().unwrap().is_symlink())
            .count()
    };
    volume.write(&payload).unwrap();
    // With `..data` and `a`.
    assert_eq!(links(&volume), 3);
    assert!(volume.write(&payload).unwrap().repaired);
    assert_eq!(links(&volume), 2);
}

#[test]
fn a_changed_mode_alone_is_applied() {
    // projection 17, improved
    let mut volume = TestVolume::holding(&[file("a", "1", 0o644)].into());
    let written = volume.write(&[file("a", "1", 0o400)].into()).unwrap();
    assert!(written.swapped);
    volume.check(expect![[r#"
        ..data -> ..set
        ..set/ 0755
        ..set/a 0400 "1"
        a -> ..data/a
    "#]]);
}

#[test]
fn a_file_may_become_a_directory_and_the_reverse() {
    // projection 18, improved
    let mut volume = TestVolume::holding(&files([("foo/bar", "1")]));
    volume.write(&files([("foo", "2")])).unwrap();
    assert_eq!(volume.read("foo"), "2");
    volume.write(&files([("foo/bar", "3")])).unwrap();
    volume.check(expect![[r#"
        ..data -> ..set
        ..set/ 0755
        ..set/foo/ 0755
        ..set/foo/bar 0644 "3"
        foo -> ..data/foo
    "#]]);
}

#[test]
fn a_path_cannot_be_file_and_directory() {
    // projection 4: one bad path among good ones; `foo-x` sorts between the two
    let mut volume = TestVolume::holding(&files([("a", "1")]));
    let error = volume
        .write(&files([("foo", "1"), ("foo-x", "2"), ("foo/b/c", "3")]))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "path \"foo\" is a file, and also the directory of \"foo/b/c\""
    );
    volume.check(expect![[r#"
        ..data -> ..set
        ..set/ 0755
        ..set/a 0644 "1"
        a -> ..data/a
    "#]]);
}

#[test]
fn leftovers_of_crashes_are_removed() {
    // projection 19, 22, improved
    let mut volume = TestVolume::holding(&files([("a", "1")]));
    let orphan = volume.path().join("..2026_01_01_00_00_00.42");
    fs::create_dir_all(orphan.join("d/e")).unwrap();
    fs::write(orphan.join("d/e/f"), "half a secr").unwrap();
    symlink("/", orphan.join("d/root")).unwrap();
    symlink("..2026_01_01_00_00_00.42", volume.path().join("..data_tmp")).unwrap();
    fs::create_dir(volume.path().join("..not-a-set")).unwrap();

    let before = volume.current();
    let written = volume.write(&files([("a", "1")])).unwrap();
    assert!(written.repaired && !written.swapped);
    assert_eq!(volume.current(), before);
    volume.check(expect![[r#"
        ..data -> ..set
        ..not-a-set/ 0755
        ..set/ 0755
        ..set/a 0644 "1"
        a -> ..data/a
    "#]]);
}

#[test]
fn a_real_directory_hides_the_key_of_its_name() {
    // projection 20
    let mut volume = TestVolume::new();
    fs::create_dir(volume.path().join("sub")).unwrap();
    let written = volume.write(&files([("sub/f", "1"), ("g", "2")])).unwrap();
    assert_eq!(written.shadowed, ["sub"]);
    volume.check(expect![[r#"
        ..data -> ..set
        ..set/ 0755
        ..set/g 0644 "2"
        ..set/sub/ 0755
        ..set/sub/f 0644 "1"
        g -> ..data/g
        sub/ 0755
    "#]]);
    assert_eq!(volume.read("..data/sub/f"), "1");
}

#[test]
fn a_watcher_sees_the_events_of_the_kubelet() {
    // projection 21
    let mut volume = TestVolume::holding(&files([("a", "1"), ("b", "2")]));
    let events = Events::of(&volume);
    volume.write(&files([("a", "x"), ("c", "3")])).unwrap();
    assert_eq!(
        events.read(),
        [
            "create ..*",
            "attrib ..*",
            "create ..data_tmp",
            "moved from ..data_tmp",
            "moved to ..data",
            "create c",
            "delete b",
            "delete ..*",
        ]
    );
}

#[test]
fn content_edited_in_place_is_healed() {
    let payload = files([("a", "same length 1"), ("d/b", "2")]);
    let mut volume = TestVolume::holding(&payload);
    let healed = expect![[r#"
        ..data -> ..set
        ..set/ 0755
        ..set/a 0644 "same length 1"
        ..set/d/ 0755
        ..set/d/b 0644 "2"
        a -> ..data/a
        d -> ..data/d
    "#]];
    let damages: [fn(&Path); 8] = [
        |set| fs::write(set.join("a"), "same length 2").unwrap(),
        |set| fs::write(set.join("a"), "short").unwrap(),
        |set| fs::write(set.join("stranger"), "").unwrap(),
        |set| fs::create_dir(set.join("d/stranger")).unwrap(),
        |set| fs::remove_file(set.join("d/b")).unwrap(),
        |set| fs::remove_dir_all(set).unwrap(),
        |set| {
            fs::remove_file(set.join("a")).unwrap();
            symlink("/etc/passwd", set.join("a")).unwrap();
        },
        |set| {
            fs::remove_dir_all(set.join("d")).unwrap();
            symlink("/etc", set.join("d")).unwrap();
        },
    ];
    for damage in damages {
        damage(&volume.path().join("..data").canonicalize().unwrap());
        assert!(volume.write(&payload).unwrap().swapped);
        volume.check(&healed);
    }
}

#[test]
fn a_hostile_data_link_is_not_followed() {
    for target in [
        "/",
        "../victim",
        "..data",
        "..",
        "..data_tmp",
        "a",
        "..x/../../victim",
    ] {
        let outer = TestVolume::new();
        let victim = outer.path().join("victim");
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("precious"), "1").unwrap();
        let root = outer.path().join("volume");
        fs::create_dir(&root).unwrap();
        symlink(target, root.join("..data")).unwrap();

        let writer = AtomicWriter::open(&root).unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let written = writer
            .write(&files([("a", "1")]), noon(), &mut random)
            .unwrap();
        assert!(written.swapped, "{target}");
        assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "1");
        assert_eq!(fs::read_to_string(victim.join("precious")).unwrap(), "1");
    }
}

#[test]
fn something_else_in_the_place_of_data_is_an_error() {
    let mut volume = TestVolume::new();
    fs::create_dir(volume.path().join("..data")).unwrap();
    let error = volume.write(&files([("a", "1")])).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot read link {}/..data", volume.path().display())
    );
    volume.check(expect![[r#"
        ..data/ 0755
    "#]]);
}

#[test]
fn a_taken_name_is_not_reused() {
    let mut volume = TestVolume::holding(&files([("a", "1")]));
    // The same seed and the same second: the name of the current set comes up again.
    let writer = AtomicWriter::open(volume.path()).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    writer
        .write(&files([("a", "2")]), noon(), &mut random)
        .unwrap();
    assert_eq!(volume.read("a"), "2");
    volume.write(&files([("a", "2")])).unwrap();
}

#[test]
fn readers_that_resolve_data_once_never_see_a_mixed_set() {
    // projection 23
    const SWAPS: usize = 1000;
    let versions = ["0".repeat(5000), "1".repeat(100)].map(|text| -> &'static str { text.leak() });
    let payloads = versions.map(|text| files([("a", text), ("b", text), ("d/c", text)]));
    let mut volume = TestVolume::holding(&payloads[1]);
    let path = volume.path().to_owned();
    let done = AtomicBool::new(false);

    thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let (mut whole, mut seen) = (0, BTreeSet::new());
                    while !done.load(Ordering::Relaxed) {
                        // Relative to the handle: `..data` is resolved once. Between its reading and the opening of the
                        // set, the set may go.
                        let Ok(set) = fs::File::open(path.join("..data")) else {
                            continue;
                        };
                        let set = format!("/proc/self/fd/{}", set.as_raw_fd());
                        let files = ["a", "b", "d/c"]
                            .map(|name| fs::read_to_string(format!("{set}/{name}")).ok());
                        // A set that is gone meanwhile: the reader tries again.
                        if let [Some(a), Some(b), Some(c)] = files {
                            assert!(a == b && b == c && versions.contains(&&*a));
                            seen.insert(a.len());
                            whole += 1;
                        }
                        // A single open through the root is never torn.
                        let single = fs::read_to_string(path.join("a"));
                        assert!(single.is_err() || versions.contains(&&*single.unwrap()));
                    }
                    (whole, seen)
                })
            })
            .collect();
        for swap in 0..SWAPS {
            assert!(volume.write(&payloads[swap % 2]).unwrap().swapped);
        }
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            let (whole, seen) = reader.join().unwrap();
            assert!(whole > 0 && seen.len() == 2, "{whole} reads, {seen:?}");
        }
    });
}

/// The events in a directory.
struct Events(OwnedFd);

impl Events {
    fn of(volume: &TestVolume) -> Self {
        let watcher = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        let interesting = inotify::WatchFlags::CREATE
            | inotify::WatchFlags::ATTRIB
            | inotify::WatchFlags::MODIFY
            | inotify::WatchFlags::MOVE
            | inotify::WatchFlags::DELETE;
        inotify::add_watch(&watcher, volume.path(), interesting).unwrap();
        Self(watcher)
    }

    /// All so far, with `..*` for the names of sets.
    fn read(&self) -> Vec<String> {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut events = Vec::new();
        while let Ok(event) = reader.next() {
            let name = event.file_name().unwrap().to_str().unwrap();
            let what = match event.events() & !inotify::ReadFlags::ISDIR {
                inotify::ReadFlags::CREATE => "create",
                inotify::ReadFlags::ATTRIB => "attrib",
                inotify::ReadFlags::MOVED_FROM => "moved from",
                inotify::ReadFlags::MOVED_TO => "moved to",
                inotify::ReadFlags::DELETE => "delete",
                other => panic!("{other:?} of {name}"),
            };
            let name = if is_set_name(name) { "..*" } else { name };
            events.push(format!("{what} {name}"));
        }
        events
    }
}
