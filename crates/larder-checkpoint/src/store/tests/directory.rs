//! The directory: moved, removed, replaced, shared, erased.

use std::{
    fs::Permissions,
    os::unix::fs::{PermissionsExt as _, chown, symlink},
};

use super::*;

#[test]
fn a_link_in_place_of_the_directory_is_not_followed() {
    let root = TestRoot::new();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), root.checkpoint()).unwrap();
    assert!(root.open_with(&[1], owner(1, "node-1")).is_err());
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn a_directory_that_others_could_replace_by_way_of_an_ancestor_is_rejected() {
    let root = TestRoot::new();
    let ancestor = root.path().join("a");
    let path = ancestor.join("b/c");
    fs::create_dir_all(path.join(DIRECTORY)).unwrap();
    let set_mode = |mode| fs::set_permissions(&ancestor, Permissions::from_mode(mode)).unwrap();
    let opened = |path: &Path| match open_at(path, &[1], owner(1, "node-1")) {
        Ok(_) => "opened".to_owned(),
        Err(error) => error.to_string(),
    };
    let writable = |mode: &str| {
        let path = ancestor.display();
        format!("{path} has mode {mode}, so other users can write to it; run `chmod go-w` on it")
    };
    set_mode(0o777);
    assert_eq!(opened(&path), writable("0777"));
    let error = Store::erase(&CheckpointDir::new(path.join(DIRECTORY))).unwrap_err();
    assert_eq!(error.label(), "foreign");
    // Also if a link leads to it.
    symlink("a/b/c", root.path().join("link")).unwrap();
    assert_eq!(opened(&root.path().join("link")), writable("0777"));
    set_mode(0o775);
    assert_eq!(opened(&path), writable("0775"));
    // Nobody else can rename what root and the agent's user have in a sticky directory, as in /tmp.
    set_mode(0o1777);
    assert_eq!(opened(&path), "opened");
    if rustix::process::geteuid().is_root() {
        chown(&ancestor, Some(1000), None).unwrap();
        let expected = format!(
            "{} belongs to user 1000, expected user 0",
            ancestor.display()
        );
        assert_eq!(opened(&path), expected);
    }
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
fn a_directory_that_others_use_keeps_its_mode_and_its_files() {
    let root = TestRoot::new();
    fs::create_dir(root.checkpoint()).unwrap();
    fs::set_permissions(root.checkpoint(), Permissions::from_mode(0o755)).unwrap();
    let looks_ours = root.checkpoint().join("0123456789abcdef0123456789abcdef");
    fs::write(&looks_ours, "a cache of another program").unwrap();
    fs::create_dir(root.checkpoint().join("containers")).unwrap();
    let refused = root.open_with(&[1], owner(1, "node-1")).err().unwrap();
    assert_eq!(refused.label(), "occupied");
    assert!(
        refused.to_string().contains(r#"holds "containers""#),
        "{refused}"
    );
    let refused = Store::erase(&root.place()).unwrap_err();
    assert_eq!(refused.label(), "occupied");
    let mode = fs::metadata(root.checkpoint()).unwrap().mode() & 0o7777;
    assert_eq!(mode, 0o755);
    assert!(looks_ours.exists());
}

#[test]
fn inspecting_and_erasing_leave_the_directory_its_mode() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(&[present("a", 1)], time(0), IndexWrite::IfDifferent)
        .unwrap();
    let inspect = || {
        let keys = Keyring::of_bytes(&[1]);
        let found = Store::inspect(&root.place(), &keys, &owner(1, "node-1"), decode);
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
    Store::erase(&root.place()).unwrap();
    assert_eq!(mode(), 0o704);
}

#[test]
fn a_directory_that_was_moved_or_removed_is_rewritten() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    let wanted = [present("a", 1), present("b", 2)];
    store
        .write(&wanted, time(0), IndexWrite::IfDifferent)
        .unwrap();
    let aside = root.path().join("aside");
    fs::rename(root.checkpoint(), &aside).unwrap();
    store
        .write(&wanted, time(1), IndexWrite::IfDifferent)
        .unwrap();
    let both = named([("a", "1"), ("b", "2")]);
    assert_eq!(names(&root.open().copies), both);
    fs::remove_dir_all(root.checkpoint()).unwrap();
    store
        .write(&wanted, time(2), IndexWrite::IfDifferent)
        .unwrap();
    assert_eq!(names(&root.open().copies), both);
    // An older directory in its place is not relied on.
    fs::remove_dir_all(root.checkpoint()).unwrap();
    fs::rename(&aside, root.checkpoint()).unwrap();
    let wanted = [present("a", 1), present("b", 3)];
    store
        .write(&wanted, time(3), IndexWrite::IfDifferent)
        .unwrap();
    assert_eq!(names(&root.open().copies), named([("a", "1"), ("b", "3")]));
    // A link is not followed, and the next write tries again.
    fs::rename(root.checkpoint(), &aside).unwrap();
    symlink(&aside, root.checkpoint()).unwrap();
    let before = fs::read_dir(&aside).unwrap().count();
    assert!(
        store
            .write(&[present("a", 2)], time(4), IndexWrite::IfDifferent)
            .is_err()
    );
    assert_eq!(fs::read_dir(&aside).unwrap().count(), before);
    fs::remove_file(root.checkpoint()).unwrap();
    store
        .write(&[present("a", 2)], time(5), IndexWrite::IfDifferent)
        .unwrap();
    assert_eq!(names(&root.open().copies), named([("a", "2")]));
}

#[test]
fn two_agents_in_one_directory_leave_no_stray_files() {
    let root = TestRoot::new();
    let mut one = root.open().store;
    let mut other = root.open_with(&[1], owner(1, "node-2")).unwrap().store;
    let wanted = [present("a", 1), present("b", 2)];
    for second in 0..10 {
        one.write(&wanted, time(second), IndexWrite::IfDifferent)
            .unwrap();
        other
            .write(&wanted, time(second), IndexWrite::IfDifferent)
            .unwrap();
    }
    let files = root.files().len();
    assert!(
        files <= 4,
        "{files} files, of which two copies count twice at most"
    );
}

#[test]
fn a_lock_held_by_another_process_is_reported_without_waiting() {
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(&[present("a", 1)], time(0), IndexWrite::IfDifferent)
        .unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = rustix::fs::openat(CWD, root.checkpoint(), flags, Mode::empty()).unwrap();
    let held = Lock::dir(held.as_fd()).unwrap();
    let error = store
        .write(&[present("a", 2)], time(1), IndexWrite::IfDifferent)
        .unwrap_err();
    assert_eq!(error.label(), "locked");
    let error = root.open_with(&[1], owner(1, "node-1")).err().unwrap();
    assert_eq!(error.label(), "locked");
    drop(held);
    store
        .write(&[present("a", 2)], time(2), IndexWrite::IfDifferent)
        .unwrap();
    assert_eq!(names(&root.open().copies), named([("a", "2")]));
}

#[test]
fn an_erased_checkpoint_is_rewritten_at_the_next_change() {
    // offline 32
    let root = TestRoot::new();
    let mut store = root.open().store;
    store
        .write(
            &[present("a", 1), present("b", 2)],
            time(0),
            IndexWrite::IfDifferent,
        )
        .unwrap();
    let removed = Store::erase(&root.place()).unwrap();
    assert!(removed >= 3, "{removed}");
    assert!(root.files().is_empty());
    assert!(root.open().copies.is_empty());
    store
        .write(
            &[present("a", 1), present("b", 3)],
            time(1),
            IndexWrite::IfDifferent,
        )
        .unwrap();
    assert_eq!(names(&root.open().copies), named([("a", "1"), ("b", "3")]));
}
