use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rustix::{
    fs::CWD,
    mount::{UnmountFlags, mount_bind, unmount},
};
use tempfile::TempDir;

use super::*;
use crate::disk::testing::{as_ordinary_user, as_root_with_mounts, show};

fn open_path(path: &Path) -> OwnedFd {
    sys::open_dir(CWD, path).unwrap()
}

fn remove_entry(parent: &Path, name: &str) -> Result<()> {
    remove(open_path(parent).as_fd(), name.as_bytes())
}

/// Creates `depth` directories below each other, each with a file.
fn make_deep(parent: &Path, depth: usize) {
    let mut reached = open_path(parent);
    for _ in 0..depth {
        sys::make_dir(reached.as_fd(), "d", 0o700).unwrap();
        reached = sys::open_dir(reached.as_fd(), "d").unwrap();
        sys::create_file(reached.as_fd(), "file", 0o600).unwrap();
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn trees_deeper_than_the_longest_path_are_removed() {
    let root = TempDir::new().unwrap();
    make_deep(root.path(), 5000);
    remove_entry(root.path(), "d").unwrap();
    assert_eq!(show(root.path()), "");
}

#[test]
fn open_directories_are_bounded_however_deep_the_tree() {
    let root = TempDir::new().unwrap();
    make_deep(root.path(), 1000);
    let top = open_path(root.path());
    let mut removal = Removal::of(top.as_fd(), Vec::new());
    for _ in 0..1000 {
        removal.enter(c"d".to_owned()).unwrap();
        assert!(removal.open.len() <= MAX_OPEN);
    }
    assert_eq!(removal.closed.len(), 1000 - MAX_OPEN);
    removal.run().unwrap();
    assert_eq!(show(root.path()), "");
}

#[test]
fn wide_directories_are_removed() {
    let root = TempDir::new().unwrap();
    for number in 0..600 {
        fs::create_dir_all(root.path().join(format!("top/d{number}/below"))).unwrap();
        fs::write(root.path().join(format!("top/file{number}")), "").unwrap();
    }
    remove_entry(root.path(), "top").unwrap();
    assert_eq!(show(root.path()), "");
}

#[test]
fn links_are_removed_and_their_targets_stay() {
    let outside = TempDir::new().unwrap();
    fs::create_dir(outside.path().join("kept")).unwrap();
    fs::write(outside.path().join("kept/file"), "1").unwrap();
    let root = TempDir::new().unwrap();
    fs::create_dir_all(root.path().join("top/below")).unwrap();
    symlink(outside.path(), root.path().join("top/link")).unwrap();
    symlink(outside.path().join("kept"), root.path().join("top/below/a")).unwrap();
    symlink("nowhere", root.path().join("top/dangling")).unwrap();
    symlink(outside.path(), root.path().join("link")).unwrap();
    for name in ["top", "link", "missing"] {
        remove_entry(root.path(), name).unwrap();
    }
    remove_dir_all(open_path(root.path()).as_fd(), b"missing").unwrap();
    assert_eq!(show(root.path()), "");
    assert_eq!(
        fs::read_to_string(outside.path().join("kept/file")).unwrap(),
        "1"
    );
}

#[test]
fn mounts_are_not_entered_and_all_else_is_removed() {
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let outside = TempDir::new_in(root.path()).unwrap();
        fs::write(outside.path().join("kept"), "1").unwrap();
        let top = root.path().join("top");
        for path in ["a/b/mounted", "a/c", "z/y"] {
            fs::create_dir_all(top.join(path)).unwrap();
            fs::write(top.join(path).join("file"), "").unwrap();
        }
        // Same file system, so the same device number.
        let mounted = top.join("a/b/mounted");
        mount_bind(outside.path(), &mounted).unwrap();
        set_mode(outside.path(), 0);
        assert_eq!(remove_entry(root.path(), "top"), Err(Errno::XDEV));
        assert_eq!(
            show(&top).lines().map(without_mode).collect::<Vec<_>>(),
            ["a/", "a/b/", "a/b/mounted/", "a/b/mounted/kept"]
        );
        unmount(&mounted, UnmountFlags::DETACH).unwrap();
        remove_entry(root.path(), "top").unwrap();
        assert!(!top.exists());
        assert!(outside.path().join("kept").exists());
    });
}

fn without_mode(line: &str) -> &str {
    line.split(' ').next().unwrap_or(line)
}

#[test]
fn entries_that_appear_meanwhile_are_removed_too() {
    let root = TempDir::new().unwrap();
    let top = root.path().join("top");
    fs::create_dir_all(top.join("below")).unwrap();
    let (parent, ended) = (open_path(root.path()), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0_u64.. {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                let name = top.join(format!("below/{}", number % 64));
                // Fails while the directory is gone.
                let _ = match number % 3 {
                    0 => fs::write(&name, ""),
                    1 => fs::create_dir(&name),
                    _ => symlink("..", &name),
                };
            }
        });
        // The other thread may win at any one attempt; what matters is that each ends, and that a quiet tree is
        // removed.
        for _ in 0..10 {
            match remove(parent.as_fd(), b"top") {
                Ok(()) | Err(Errno::NOTEMPTY) => {}
                Err(errno) => panic!("{errno}"),
            }
            fs::create_dir_all(top.join("below")).unwrap();
        }
        ended.store(true, Ordering::Relaxed);
    });
    remove_entry(root.path(), "top").unwrap();
    assert_eq!(show(root.path()), "");
}

#[test]
fn directories_without_permissions_are_removed_by_their_owner() {
    as_ordinary_user(|| {
        for mode in [0, 0o100, 0o200, 0o400, 0o500, 0o600] {
            let root = TempDir::new().unwrap();
            let closed = root.path().join("top/closed");
            fs::create_dir_all(closed.join("below/empty")).unwrap();
            fs::write(closed.join("file"), "").unwrap();
            for path in [
                closed.join("below"),
                closed.clone(),
                root.path().join("top"),
            ] {
                set_mode(&path, mode);
            }
            remove_entry(root.path(), "top").unwrap_or_else(|errno| panic!("{mode:o}: {errno}"));
            assert_eq!(show(root.path()), "");
        }
    });
}

#[test]
fn deep_directories_without_permissions_are_removed_too() {
    as_ordinary_user(|| {
        let root = TempDir::new().unwrap();
        make_deep(root.path(), 3 * MAX_OPEN);
        let top = open_path(root.path());
        let mut removal = Removal::of(top.as_fd(), Vec::new());
        for _ in 0..3 * MAX_OPEN {
            removal.enter(c"d".to_owned()).unwrap();
            let (_, fd) = removal.open.back().unwrap();
            sys::set_mode(fd, 0).unwrap();
        }
        removal.run().unwrap();
        assert_eq!(show(root.path()), "");
    });
}

#[test]
fn a_directory_moved_away_meanwhile_ends_the_removal() {
    let root = TempDir::new().unwrap();
    let victim = root.path().join("victim");
    fs::create_dir_all(victim.join("d/kept")).unwrap();
    make_deep(root.path(), 2 * MAX_OPEN);
    let top = open_path(root.path());
    let mut removal = Removal::of(top.as_fd(), Vec::new());
    for _ in 0..2 * MAX_OPEN {
        removal.enter(c"d".to_owned()).unwrap();
    }
    // Its parent is closed by now, and `..` would lead to the victim.
    let moved: std::path::PathBuf = ["d"; MAX_OPEN + 1].iter().collect();
    fs::rename(root.path().join(moved), victim.join("d2")).unwrap();
    assert_eq!(removal.run(), Err(Errno::STALE));
    assert!(victim.join("d/kept").exists());
}
