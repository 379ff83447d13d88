//! Targets of a `subPath`, and paths that it must not reach.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
};

use rustix::fs::CWD;
use tempfile::TempDir;

use super::*;
use crate::disk::{
    PodVolume,
    testing::{as_ordinary_user, as_root_with_mounts, files, noon},
};

fn config<'a>() -> PodVolume<'a> {
    PodVolume {
        pod_uid: "u1",
        name: "cfg",
        kind: VolumeKind::ConfigMap,
        fs_group: None,
        size_limit: None,
        mount_points: &[],
    }
}

fn sub_path(path: &str) -> SubPath<'_> {
    SubPath {
        pod_uid: "u1",
        kind: VolumeKind::ConfigMap,
        volume: "cfg",
        container: "web",
        index: 3,
        path,
    }
}

#[test]
fn hostile_paths_have_the_errors_of_the_kubelet() {
    // projection 66
    let root = TempDir::new().unwrap();
    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    let error = |path| {
        host.prepare_subpath(&sub_path(path))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error("/etc"),
        "error SubPath `/etc` must not be an absolute path"
    );
    for path in ["..", "a/../../b", "a/.."] {
        assert_eq!(
            error(path),
            format!("unable to provision SubPath `{path}`: must not contain '..'")
        );
    }
    let text = error("a");
    assert!(
        text.starts_with("cannot open volume") && text.ends_with("kubernetes.io~configmap/cfg"),
        "{text}"
    );
}

#[test]
fn a_key_is_mounted_as_it_is_at_that_moment() {
    // projection 64, 65
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open(root.path()).unwrap();
        host.set_up(
            &config(),
            &files([("key", "1"), ("dir/podname", "web")]),
            noon(),
        )
        .unwrap();
        let target = host.prepare_subpath(&sub_path("key")).unwrap();
        let pod = host.path().join("pods/u1");
        assert_eq!(target, pod.join("volume-subpaths/cfg/web/3"));
        assert_eq!(fs::read_to_string(&target).unwrap(), "1");
        assert_eq!(host.prepare_subpath(&sub_path(".//key/")).unwrap(), target);
        assert_eq!(fs::read_to_string(&target).unwrap(), "1");
        let below = SubPath {
            index: 4,
            ..sub_path("dir/podname")
        };
        let below = host.prepare_subpath(&below).unwrap();
        assert_eq!(fs::read_to_string(below).unwrap(), "web");

        host.set_up(
            &config(),
            &files([("key", "2"), ("dir/podname", "web")]),
            noon(),
        )
        .unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "1");
        // The container restarts.
        host.prepare_subpath(&sub_path("key")).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "2");

        host.tear_down("u1", VolumeKind::ConfigMap, "cfg").unwrap();
        assert!(!pod.join("volume-subpaths").exists());
    });
}

#[test]
fn mounted_targets_stay_and_outdated_ones_are_replaced() {
    // projection 69
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open(root.path()).unwrap();
        let path = host
            .set_up(&config(), &files([("key", "1"), ("dir/a", "2")]), noon())
            .unwrap()
            .path;
        let mounts = || {
            let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            let ours = mounts.lines().filter(|line| line.contains("/cfg/web/3"));
            ours.map(str::to_owned).collect::<Vec<_>>()
        };
        let target = host.prepare_subpath(&sub_path("key")).unwrap();
        let before = mounts();
        assert_eq!(before.len(), 1);
        host.prepare_subpath(&sub_path("key")).unwrap();
        assert_eq!(mounts(), before);

        // From a file to a directory, and back.
        host.prepare_subpath(&sub_path("dir")).unwrap();
        assert_eq!(mounts().len(), 1);
        assert_eq!(fs::read_to_string(target.join("a")).unwrap(), "2");
        host.prepare_subpath(&sub_path("key")).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "1");

        let _socket = UnixListener::bind(path.join("socket")).unwrap();
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(CWD, path.join("fifo"), fifo, Mode::RUSR, 0).unwrap();
        for special in ["socket", "fifo"] {
            host.prepare_subpath(&sub_path(special)).unwrap();
            assert_eq!(mounts().len(), 1, "{special}");
        }
        host.remove_pod("u1").unwrap();
        assert_eq!(mounts().len(), 0);
    });
}

#[test]
fn a_source_outside_the_volume_leaves_no_target() {
    // projection 69
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open(root.path()).unwrap();
        let path = host.set_up(&config(), &files([]), noon()).unwrap().path;
        symlink("/etc/passwd", path.join("absolute")).unwrap();
        symlink("../../../../../../../etc/passwd", path.join("relative")).unwrap();
        for hostile in ["absolute", "relative"] {
            let error = host.prepare_subpath(&sub_path(hostile)).unwrap_err();
            assert!(error.to_string().starts_with("cannot resolve subPath"));
        }
        assert!(!root.path().join("pods/u1/volume-subpaths").exists());
    });
}

#[test]
fn a_missing_key_becomes_a_directory() {
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open(root.path()).unwrap();
        let path = host.set_up(&config(), &files([]), noon()).unwrap().path;
        let target = host.prepare_subpath(&sub_path("not/yet")).unwrap();
        assert_eq!(fs::read_dir(target).unwrap().count(), 0);
        let mode = fs::metadata(path.join("not/yet"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o777);
        // A link to a key that is gone cannot become a directory.
        symlink("..data/gone", path.join("gone")).unwrap();
        host.prepare_subpath(&sub_path("gone")).unwrap_err();
    });
}

/// A base directory with links of all kinds, in a directory that holds nothing else.
fn base() -> (TempDir, Directory) {
    let temp = TempDir::new().unwrap();
    let path = &temp.path().join("base");
    fs::create_dir_all(path.join("real/inner")).unwrap();
    fs::write(path.join("file"), "").unwrap();
    for (target, name) in [
        ("real", "inside"),
        ("real/../real/inner", "winding"),
        ("../real", "real/up-and-down"),
        ("/", "root"),
        ("..", "parent"),
        ("real/../../x", "sly"),
        ("loop-b", "loop-a"),
        ("loop-a", "loop-b"),
        ("nowhere", "dangling"),
    ] {
        symlink(target, path.join(name)).unwrap();
    }
    let base = Directory::open(path).unwrap();
    (temp, base)
}

#[test]
fn directories_are_made_inside_only() {
    // projection 68
    let (temp, base) = base();
    for hostile in [
        "..",
        "../x",
        "new/../../x",
        "root/x",
        "parent/x",
        "sly",
        "loop-a/x",
        "dangling",
        "dangling/x",
        "file",
        "file/x",
    ] {
        let error = make_directories(&base, hostile, 0o755).unwrap_err();
        assert!(
            error.to_string().starts_with("cannot create directory"),
            "{hostile}"
        );
    }
    assert!(!temp.path().join("x").exists());

    make_directories(&base, "inside/a/b", 0o3755).unwrap();
    make_directories(&base, "./winding//c", 0o700).unwrap();
    let mode = |path: &str| {
        let metadata = fs::metadata(temp.path().join("base").join(path)).unwrap();
        metadata.permissions().mode() & 0o7777
    };
    assert_eq!(mode("real/a"), 0o3755);
    assert_eq!(mode("real/a/b"), 0o3755);
    assert_eq!(mode("real/inner/c"), 0o700);
    make_directories(&base, "inside/a/b", 0o777).unwrap();
    assert_eq!(mode("real/a/b"), 0o3755, "what is there stays as it is");
}

#[test]
fn resolving_by_elements_agrees_with_the_kernel() {
    let (_temp, base) = base();
    let identity = |file: &OwnedFd| {
        let stat = sys::stat(file).unwrap();
        (stat.st_dev, stat.st_ino)
    };
    for path in [
        ".",
        "real",
        "real/inner/..",
        "inside/inner",
        "winding",
        "real/up-and-down/inner",
        "file",
        "file/",
        "file/x",
        "missing",
        "missing/..",
        "..",
        "real/../..",
        "real/../../x",
        "root",
        "root/etc",
        "parent",
        "sly",
        "loop-a",
        "dangling",
    ] {
        let by_kernel = resolve(base.as_fd(), path);
        let by_elements = resolve_by_elements(base.as_fd(), path);
        match (by_kernel, by_elements) {
            (Ok(a), Ok(b)) => assert_eq!(identity(&a), identity(&b), "{path}"),
            (a, b) => assert_eq!(a.unwrap_err(), b.unwrap_err(), "{path}"),
        }
    }
}

/// Fails only where `fs.protected_symlinks` is set, as on most systems: the kernel then follows such a link for its owner
/// alone.
#[test]
fn a_link_of_another_user_in_a_sticky_directory_is_read() {
    as_root_with_mounts(|| {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path();
        fs::create_dir(path.join("..set")).unwrap();
        fs::write(path.join("..set/key"), "of 1001").unwrap();
        symlink("..set", path.join("..data")).unwrap();
        symlink("..data/key", path.join("key")).unwrap();
        std::os::unix::fs::lchown(path.join("key"), Some(1001), None).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o1777)).unwrap();
        let check = || {
            let base = Directory::open(path).unwrap();
            let found = |path| sys::stat(resolve(base.as_fd(), path).unwrap()).unwrap();
            assert_eq!(found("key").st_ino, found("..set/key").st_ino);
        };
        check();
        as_ordinary_user(check);
    });
}
