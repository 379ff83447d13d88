//! Volumes in the kubelet's layout: as an ordinary user, and, where mounts matter, as root.

mod ownership;

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    process::Command,
};

use expect_test::expect;
use larder_files::faults::{Fault, during};
use tempfile::TempDir;

use super::*;
use crate::{
    File,
    disk::testing::{as_ordinary_user, as_root_with_mounts, file, files, noon, show},
};

fn volume(kind: VolumeKind, name: &str) -> PodVolume<'_> {
    PodVolume {
        pod_uid: "u1",
        name,
        kind,
        fs_group: None,
        size_limit: None,
        mount_points: &[],
    }
}

fn config(name: &str) -> PodVolume<'_> {
    volume(VolumeKind::ConfigMap, name)
}

fn secret(name: &str) -> PodVolume<'_> {
    volume(VolumeKind::Secret, name)
}

/// A file with an owner.
fn owned(path: &str, mode: u32, owner: Option<u32>) -> (VolumePath, File<'static>) {
    let (path, mut file) = file(path, "x", mode);
    file.owner = owner;
    (path, file)
}

/// Mode, user and group of what a path leads to, or of the link itself.
fn ownership_of(path: &Path, follow: bool) -> (u32, u32, u32) {
    let metadata = if follow {
        fs::metadata(path)
    } else {
        fs::symlink_metadata(path)
    }
    .unwrap();
    (metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
}

#[test]
fn a_volume_lies_where_the_kubelet_has_it() {
    // projection 31, 34
    let root = TempDir::new().unwrap();
    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    let payload = files([("a", "1")]);
    for volume in [
        config("cfg"),
        config("again"),
        secret("sec"),
        volume(VolumeKind::Projected, "pro"),
        volume(VolumeKind::DownwardApi, "down"),
    ] {
        let done = host.set_up(&volume, &payload, noon()).unwrap();
        assert_eq!(fs::read_to_string(done.path.join("a")).unwrap(), "1");
        assert_eq!(done.path, host.volume_path("u1", volume.kind, volume.name));
    }
    let shown = show(root.path());
    let directories: Vec<_> = shown
        .lines()
        .filter(|line| !line.contains(" -> ") && !line.contains("/.."))
        .collect();
    expect![[r#"
        pods/ 0711
        pods/u1/ 0750
        pods/u1/plugins/ 0750
        pods/u1/plugins/kubernetes.io~empty-dir/ 0750
        pods/u1/plugins/kubernetes.io~empty-dir/wrapped_again/ 0750
        pods/u1/plugins/kubernetes.io~empty-dir/wrapped_again/ready 0640 ""
        pods/u1/plugins/kubernetes.io~empty-dir/wrapped_cfg/ 0750
        pods/u1/plugins/kubernetes.io~empty-dir/wrapped_cfg/ready 0640 ""
        pods/u1/plugins/kubernetes.io~empty-dir/wrapped_down/ 0750
        pods/u1/plugins/kubernetes.io~empty-dir/wrapped_down/ready 0640 ""
        pods/u1/plugins/kubernetes.io~empty-dir/wrapped_pro/ 0750
        pods/u1/plugins/kubernetes.io~empty-dir/wrapped_pro/ready 0640 ""
        pods/u1/plugins/kubernetes.io~empty-dir/wrapped_sec/ 0750
        pods/u1/plugins/kubernetes.io~empty-dir/wrapped_sec/ready 0640 ""
        pods/u1/volumes/ 0750
        pods/u1/volumes/kubernetes.io~configmap/ 0755
        pods/u1/volumes/kubernetes.io~configmap/again/ 0777
        pods/u1/volumes/kubernetes.io~configmap/cfg/ 0777
        pods/u1/volumes/kubernetes.io~downward-api/ 0755
        pods/u1/volumes/kubernetes.io~downward-api/down/ 1777
        pods/u1/volumes/kubernetes.io~projected/ 0755
        pods/u1/volumes/kubernetes.io~projected/pro/ 1777
        pods/u1/volumes/kubernetes.io~secret/ 0755
        pods/u1/volumes/kubernetes.io~secret/sec/ 1777"#]]
    .assert_eq(&directories.join("\n"));
}

#[test]
fn an_optional_volume_without_object_is_there_and_empty() {
    // projection 28
    let root = TempDir::new().unwrap();
    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    let done = host.set_up(&config("cfg"), &files([]), noon()).unwrap();
    expect![[r#"
        ..data -> ..set
        ..set/ 0755
    "#]]
    .assert_eq(&show(&done.path));
}

#[test]
fn a_first_set_up_that_fails_leaves_no_volume() {
    // projection 27, 29: on disk; a payload that cannot be made never gets here
    let root = TempDir::new().unwrap();
    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    let impossible = files([("foo", "1"), ("foo/bar", "2")]);
    assert!(host.set_up(&config("cfg"), &impossible, noon()).is_err());
    assert!(
        !host
            .volume_path("u1", VolumeKind::ConfigMap, "cfg")
            .exists()
    );

    let mut at = 0;
    loop {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        let set_up = || host.set_up(&config("cfg"), &files([("a", "1")]), noon());
        let (result, reached) = during(at, Fault::Once(Errno::NOSPC), set_up);
        if !reached {
            break;
        }
        if result.is_err_and(|error| !error.is_after_commit()) {
            let path = host.volume_path("u1", VolumeKind::ConfigMap, "cfg");
            // An empty directory may stay where the failure came between its creation and its opening.
            assert!(!path.exists() || show(&path).is_empty(), "call {at}");
        }
        set_up().unwrap();
        at += 1;
    }
    assert!(at > 20);
}

#[test]
fn an_interrupted_set_up_is_completed_by_the_next_one() {
    let mount_points = [VolumePath::parse("nested/point").unwrap()];
    let volume = PodVolume {
        mount_points: &mount_points,
        ..config("cfg")
    };
    let payload = files([("a", "1"), ("d/b", "2")]);
    // Names of sets differ: the volume is shown by itself.
    let shown = |host: &VolumeHost, root: &Path| {
        let path = host.volume_path("u1", VolumeKind::ConfigMap, "cfg");
        let around: Vec<_> = show(root)
            .lines()
            .filter(|line| !line.contains("/.."))
            .map(str::to_owned)
            .collect();
        (around, show(&path))
    };
    let clean = TempDir::new().unwrap();
    let host = VolumeHost::open_without_mounts(clean.path()).unwrap();
    host.set_up(&volume, &payload, noon()).unwrap();
    let expected = shown(&host, clean.path());

    for at in 0.. {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        let set_up = || host.set_up(&volume, &payload, noon());
        // Nothing works from there on, so nothing is tidied up.
        let (_, reached) = during(at, Fault::FromNowOn(Errno::IO), set_up);
        set_up().unwrap();
        assert_eq!(shown(&host, root.path()), expected, "call {at}");

        let (_, removal_reached) =
            during(at, Fault::FromNowOn(Errno::IO), || host.remove_pod("u1"));
        host.remove_pod("u1").unwrap();
        assert_eq!(show(root.path()), "pods/ 0711\n", "call {at}");
        if !reached && !removal_reached {
            assert!(at > 40);
            break;
        }
    }
}

#[test]
fn a_refresh_that_fails_keeps_the_old_set() {
    let root = TempDir::new().unwrap();
    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    let done = host
        .set_up(&config("cfg"), &files([("a", "1")]), noon())
        .unwrap();
    let before = show(&done.path);
    let impossible = files([("foo", "1"), ("foo/bar", "2")]);
    host.set_up(&config("cfg"), &impossible, noon())
        .unwrap_err();
    assert_eq!(show(&done.path), before);
}

#[test]
fn mount_points_of_other_volumes_are_made_inside() {
    let root = TempDir::new().unwrap();
    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    let mount_points = ["nested", "a/b"].map(|path| VolumePath::parse(path).unwrap());
    let volume = PodVolume {
        mount_points: &mount_points,
        ..config("cfg")
    };
    let payload = files([("nested", "hidden"), ("key", "1")]);
    let done = host.set_up(&volume, &payload, noon()).unwrap();
    assert_eq!(done.written.shadowed, ["nested"]);
    host.set_up(&volume, &payload, noon()).unwrap();
    expect![[r#"
        ..data -> ..set
        ..set/ 0755
        ..set/key 0644 "1"
        ..set/nested 0644 "hidden"
        a/ 0755
        a/b/ 0755
        key -> ..data/key
        nested/ 0755
    "#]]
    .assert_eq(&show(&done.path));
}

#[test]
fn pods_of_a_kubelet_in_the_same_directory_are_not_own() {
    let root = TempDir::new().unwrap();
    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    assert!(!host.has_kubelet().unwrap());
    let own = || {
        let pods = host.scan().unwrap().into_iter();
        let own = pods.filter(|pod| pod.is_own).map(|pod| pod.uid);
        own.collect::<Vec<_>>()
    };
    for uid in ["environment", "kubelet", "linked", "neither"] {
        let volume = PodVolume::new(uid, "cfg", VolumeKind::ConfigMap);
        let payload = files([("a", "1")]);
        host.set_up(&volume, &payload, noon()).unwrap();
    }
    assert!(own().is_empty());
    host.link_pod("n", "web", "linked").unwrap();
    let variables = BTreeMap::<&str, &[u8]>::new();
    host.write_environment("environment", "c", &variables)
        .unwrap();
    assert_eq!(own(), ["environment", "linked"]);
    // Both run a pod of the same UID.
    let pods = root.path().join("pods");
    fs::write(pods.join("linked/etc-hosts"), "").unwrap();
    fs::write(pods.join("environment/containers/c/0a1b2c3d"), "").unwrap();
    assert!(own().is_empty());
    fs::create_dir(root.path().join("plugins_registry")).unwrap();
    assert!(host.has_kubelet().unwrap());
}

#[test]
fn volumes_are_found_again_and_leave_nothing() {
    let root = TempDir::new().unwrap();
    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    host.set_up(&config("cfg"), &files([("a", "1")]), noon())
        .unwrap();
    host.set_up(&secret("sec"), &files([("d/b", "2")]), noon())
        .unwrap();
    drop(host);

    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    let volumes = vec![
        (VolumeKind::ConfigMap, "cfg".to_owned()),
        (VolumeKind::Secret, "sec".to_owned()),
    ];
    let found = host.scan().unwrap();
    assert_eq!(
        found,
        [PodOnDisk {
            uid: "u1".into(),
            name: None,
            volumes,
            is_own: false,
        }]
    );
    // With identical data nothing is rewritten.
    let again = host
        .set_up(&config("cfg"), &files([("a", "1")]), noon())
        .unwrap();
    assert_eq!(again.written, Written::default());
    assert_eq!(
        fs::read_link(again.path.join("..data")).unwrap(),
        Path::new(&again.set)
    );

    host.tear_down("u1", VolumeKind::ConfigMap, "cfg").unwrap();
    host.tear_down("u1", VolumeKind::ConfigMap, "cfg").unwrap();
    host.tear_down("unknown", VolumeKind::ConfigMap, "cfg")
        .unwrap();
    assert_eq!(host.scan().unwrap()[0].volumes.len(), 1);
    host.remove_pod("u1").unwrap();
    host.remove_pod("u1").unwrap();
    assert_eq!(host.scan().unwrap(), []);
    expect![[r"
        pods/ 0711
    "]]
    .assert_eq(&show(root.path()));
}

#[test]
fn only_what_the_pod_still_has_is_retained() {
    let root = TempDir::new().unwrap();
    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    let payload = files([("a", "1")]);
    for volume in [config("kept"), config("dropped"), secret("kept")] {
        host.set_up(&volume, &payload, noon()).unwrap();
    }
    for container in ["kept", "dropped"] {
        host.write_environment("u1", container, &[("A", &b"1"[..])].into())
            .unwrap();
    }
    let environment = |container: &str| {
        let containers = root.path().join("pods/u1/containers");
        containers.join(container).join("env.json")
    };
    for _ in 0..2 {
        host.retain("u1", &[(VolumeKind::ConfigMap, "kept")], &["kept"])
            .unwrap();
        let volumes = host.scan().unwrap().remove(0).volumes;
        assert_eq!(volumes, [(VolumeKind::ConfigMap, "kept".to_owned())]);
        assert!(environment("kept").exists() && !environment("dropped").exists());
    }
    host.retain("unknown", &[], &[]).unwrap();
}

#[test]
fn foreign_files_in_the_directory_of_a_pod_stay() {
    let root = TempDir::new().unwrap();
    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    host.set_up(&config("cfg"), &files([("a", "1")]), noon())
        .unwrap();
    let foreign = root.path().join("pods/u1/volumes/kubernetes.io~csi/v");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("precious"), "1").unwrap();
    host.remove_pod("u1").unwrap();
    expect![[r#"
        pods/ 0711
        pods/u1/ 0750
        pods/u1/volumes/ 0750
        pods/u1/volumes/kubernetes.io~csi/ 0755
        pods/u1/volumes/kubernetes.io~csi/v/ 0755
        pods/u1/volumes/kubernetes.io~csi/v/precious 0644 "1"
    "#]]
    .assert_eq(&show(root.path()));
}

#[test]
fn empty_dirs_go_with_their_pod_unless_a_kubelet_runs_it() {
    for (marker, stays) in [("none", false), ("etc-hosts", true)] {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        host.set_up(&config("cfg"), &files([("a", "1")]), noon())
            .unwrap();
        let pod = root.path().join("pods/u1");
        let file = pod.join("volumes/kubernetes.io~empty-dir/cache/file");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "1").unwrap();
        fs::write(pod.join(marker), "").unwrap();
        host.remove_pod("u1").unwrap();
        assert_eq!(file.exists(), stays, "{marker}");
    }
}

#[test]
fn hostile_names_are_refused() {
    let root = TempDir::new().unwrap();
    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    let long = "a".repeat(250);
    for name in ["", ".", "..", "../../etc", "a/b", "a\0b", &long] {
        let by_volume = config(name);
        let by_pod = PodVolume {
            pod_uid: name,
            ..config("cfg")
        };
        assert!(
            host.set_up(&by_volume, &files([]), noon()).is_err(),
            "{name:?}"
        );
        assert!(
            host.set_up(&by_pod, &files([]), noon()).is_err(),
            "{name:?}"
        );
        assert!(host.remove_pod(name).is_err(), "{name:?}");
    }
    expect![""].assert_eq(&show(root.path()));
}

#[test]
fn a_path_in_the_way_is_named() {
    let root = TempDir::new().unwrap();
    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    let plugin = root.path().join("pods/u1/volumes/kubernetes.io~configmap");
    fs::create_dir_all(&plugin).unwrap();
    fs::write(plugin.join("cfg"), "in the way").unwrap();
    let error = host.set_up(&config("cfg"), &files([]), noon()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot open directory {}/cfg",
            plugin.canonicalize().unwrap().display()
        )
    );
}

#[test]
fn an_ordinary_user_sees_how_many_owners_are_wrong() {
    let root = TempDir::new().unwrap();
    if rustix::process::geteuid().is_root() {
        chown(root.path(), Some(1000), Some(1000)).unwrap();
    }
    as_ordinary_user(|| {
        let host = VolumeHost::open(root.path()).unwrap();
        assert!(matches!(host.memory(), Memory::Directory { .. }));
        let volume = PodVolume {
            fs_group: Some(4_000_000),
            ..secret("sec")
        };
        let payload: Payload<'_> = [owned("a", 0o600, Some(4_000_000))].into();
        let done = host.set_up(&volume, &payload, noon()).unwrap();
        assert!(done.written.swapped);
        assert!(done.written.not_owned > 0);
        // What is not permitted is not tried over and over.
        let again = host.set_up(&volume, &payload, noon()).unwrap();
        assert!(!again.written.swapped && !again.written.repaired);
        assert!(again.written.not_owned > 0);
    });
}

#[test]
fn a_directory_that_may_not_be_written_keeps_its_set() {
    let root = TempDir::new().unwrap();
    if rustix::process::geteuid().is_root() {
        chown(root.path(), Some(1000), Some(1000)).unwrap();
    }
    as_ordinary_user(|| {
        let payload = files([("a", "1")]);
        let writer = AtomicWriter::open(root.path()).unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        writer.write(&payload, noon(), &mut random).unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o500)).unwrap();
        let error = writer
            .write(&files([("a", "2")]), noon(), &mut random)
            .unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("cannot create directory"), "{text}");
        assert!(text.contains(root.path().to_str().unwrap()), "{text}");
        assert_eq!(fs::read_to_string(root.path().join("a")).unwrap(), "1");
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
    });
}

#[test]
fn secrets_lie_in_a_tmpfs_of_their_own() {
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open(root.path()).unwrap();
        assert!(matches!(host.memory(), Memory::Tmpfs { .. }));
        let volume = PodVolume {
            size_limit: Some(1 << 20),
            ..secret("sec")
        };
        let path = host
            .set_up(&volume, &files([("a", "1")]), noon())
            .unwrap()
            .path;
        assert_eq!(ownership_of(&path, true).0, 0o1777);
        let mounts = mounts_below(root.path());
        assert_eq!(mounts.len(), 1);
        let options = &mounts[0].1;
        assert!(options.contains("size=1024k"), "{options}");
        if matches!(host.memory(), Memory::Tmpfs { noswap: true }) {
            assert!(options.contains("noswap"), "{options}");
        }
        // No second one for a refresh.
        host.set_up(&volume, &files([("a", "2")]), noon()).unwrap();
        assert_eq!(mounts_below(root.path()).len(), 1);
        let config = host.set_up(&config("cfg"), &files([]), noon()).unwrap();
        assert_eq!(mounts_below(root.path()).len(), 1, "{config:?}");

        host.write_environment("u1", "web", &[("A", &b"secret"[..])].into())
            .unwrap();
        assert_eq!(mounts_below(root.path()).len(), 2);

        host.remove_pod("u1").unwrap();
        assert_eq!(mounts_below(root.path()).len(), 0);
        expect![[r"
            pods/ 0711
        "]]
        .assert_eq(&show(root.path()));
    });
}

#[test]
fn a_mount_in_place_of_a_set_is_not_entered() {
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let victim = TempDir::new().unwrap();
        fs::write(victim.path().join("a"), "1").unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        let path = host
            .set_up(&config("cfg"), &files([("a", "1")]), noon())
            .unwrap()
            .path;
        let set = path.join(fs::read_link(path.join("..data")).unwrap());
        rustix::mount::mount_bind(victim.path(), &set).unwrap();
        let result = host.set_up(&config("cfg"), &files([("a", "2")]), noon());
        assert!(result.is_err());
        assert_eq!(fs::read_to_string(victim.path().join("a")).unwrap(), "1");
        rustix::mount::unmount(&set, rustix::mount::UnmountFlags::DETACH).unwrap();
        host.set_up(&config("cfg"), &files([("a", "2")]), noon())
            .unwrap();
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "2");
    });
}

#[test]
fn thousands_of_keys_are_written_and_removed() {
    let root = TempDir::new().unwrap();
    let host = VolumeHost::open_without_mounts(root.path()).unwrap();
    let payload: Payload<'_> = (0..2000)
        .map(|number| file(&format!("d{}/k{number}", number % 7), "1", 0o644))
        .collect();
    let path = host.set_up(&config("cfg"), &payload, noon()).unwrap().path;
    assert_eq!(fs::read_to_string(path.join("d4/k1999")).unwrap(), "1");
    let again = host.set_up(&config("cfg"), &payload, noon()).unwrap();
    assert!(!again.written.swapped);
    host.remove_pod("u1").unwrap();
}

#[test]
fn secrets_are_delivered_where_tmpfs_has_no_noswap() {
    // In a user namespace tmpfs refuses the option, as Linux before 6.4 does everywhere.
    let in_user_namespace = || {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount"]);
        command
    };
    if !in_user_namespace()
        .arg("true")
        .status()
        .is_ok_and(|status| status.success())
    {
        assert!(
            env::var_os("CI").is_none(),
            "CI must permit user namespaces"
        );
        return;
    }
    let output = in_user_namespace()
        .arg(env::current_exe().unwrap())
        .args(["--exact", "--ignored", "disk::host::tests::without_noswap"])
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.contains("1 passed"), "{output}");
}

#[test]
#[ignore = "is run by the test above, in a user namespace"]
fn without_noswap() {
    let root = TempDir::new().unwrap();
    let host = VolumeHost::open(root.path()).unwrap();
    assert_eq!(host.memory(), Memory::Tmpfs { noswap: false });
    let volume = secret("sec");
    let path = host
        .set_up(&volume, &files([("a", "1")]), noon())
        .unwrap()
        .path;
    assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "1");
    assert_eq!(mounts_below(root.path()).len(), 1);
    host.remove_pod("u1").unwrap();
    assert_eq!(mounts_below(root.path()).len(), 0);
}

/// Mount points below a directory, with the options of their file systems.
fn mounts_below(directory: &Path) -> Vec<(String, String)> {
    let directory = directory.canonicalize().unwrap();
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .map(|fields| (fields[4].to_owned(), fields.last().unwrap().to_string()))
        .filter(|(point, _)| Path::new(point).starts_with(&directory))
        .collect()
}

#[test]
fn after_a_reboot_a_volume_is_mounted_and_filled_again() {
    // projection 30
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open(root.path()).unwrap();
        let payload = files([("a", "1")]);
        let path = host.set_up(&secret("sec"), &payload, noon()).unwrap().path;
        // A reboot takes the tmpfs and leaves marker and directory.
        rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
        let wrapper = "pods/u1/plugins/kubernetes.io~empty-dir/wrapped_sec/ready";
        assert!(root.path().join(wrapper).exists());
        assert_eq!(show(&path), "");
        let again = host.set_up(&secret("sec"), &payload, noon()).unwrap();
        assert!(again.written.swapped);
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "1");
        // And if the directory is gone as well.
        rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
        fs::remove_dir(&path).unwrap();
        host.set_up(&secret("sec"), &payload, noon()).unwrap();
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "1");
        assert_eq!(mounts_below(root.path()).len(), 1);
    });
}

#[test]
fn secrets_on_disk_are_removed_once_mounts_work() {
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        let path = host
            .set_up(&secret("sec"), &files([("a", "1")]), noon())
            .unwrap()
            .path;
        let host = VolumeHost::open(root.path()).unwrap();
        host.set_up(&secret("sec"), &files([("a", "1")]), noon())
            .unwrap();
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "1");
        rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
        assert_eq!(show(&path), "");
    });
}

#[test]
fn a_full_disk_keeps_the_old_set_and_heals() {
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open(root.path()).unwrap();
        let volume = PodVolume {
            size_limit: Some(64 * 1024),
            ..secret("sec")
        };
        let path = host
            .set_up(&volume, &files([("a", "1")]), noon())
            .unwrap()
            .path;
        let before = show(&path);
        let big: &str = "x".repeat(200 * 1024).leak();
        let error = host
            .set_up(&volume, &files([("a", big)]), noon())
            .unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("cannot write file /"), "{text}");
        assert!(text.ends_with("/a"), "{text}");
        assert_eq!(show(&path), before);
        // A crash left so much behind that nothing more fits; the next pass makes room first.
        let orphan = path.join("..2026_01_01_00_00_00.42");
        fs::create_dir(&orphan).unwrap();
        fs::write(orphan.join("a"), &big[..48 * 1024]).unwrap();
        host.set_up(&volume, &files([("a", &big[..40 * 1024])]), noon())
            .unwrap();
        assert_eq!(fs::read(path.join("a")).unwrap().len(), 40 * 1024);
    });
}

#[test]
fn a_read_only_file_system_keeps_the_old_set() {
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open(root.path()).unwrap();
        let path = host
            .set_up(&secret("sec"), &files([("a", "1")]), noon())
            .unwrap()
            .path;
        let read_only = rustix::mount::MountFlags::RDONLY;
        rustix::mount::mount_remount(&path, read_only, c"").unwrap();
        let error = host
            .set_up(&secret("sec"), &files([("a", "2")]), noon())
            .unwrap_err();
        assert!(
            error.to_string().starts_with("cannot create directory"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "1");
        // Unchanged, there is nothing to do, and so nothing to fail.
        host.set_up(&secret("sec"), &files([("a", "1")]), noon())
            .unwrap();
    });
}

#[test]
fn nothing_is_removed_from_what_others_have_mounted_inside() {
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let elsewhere = TempDir::new().unwrap();
        fs::write(elsewhere.path().join("precious"), "1").unwrap();
        let host = VolumeHost::open(root.path()).unwrap();
        let mount_points = [VolumePath::parse("sub").unwrap()];
        let volume = PodVolume {
            mount_points: &mount_points,
            ..config("cfg")
        };
        let path = host
            .set_up(&volume, &files([("a", "1")]), noon())
            .unwrap()
            .path;
        rustix::mount::mount_bind(elsewhere.path(), path.join("sub")).unwrap();
        host.tear_down("u1", VolumeKind::ConfigMap, "cfg")
            .unwrap_err();
        assert!(elsewhere.path().join("precious").exists());
    });
}
