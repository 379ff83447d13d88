//! Volumes that are visible, the identity of their directories, and files that stay open.

use std::fs;

use larder_objects::Kind;
use rustix::mount::UnmountFlags;

use super::{super::*, harness::*};

#[test]
fn volumes_without_a_set_are_not_set_up() {
    let kubelet = KubeletVolumes::new();
    let directory = kubelet.open(Mounts::NotExpected);
    let is_not_set_up = || {
        matches!(
            directory.presence(&CONFIG_MAP),
            Err(UnknownContent::NotSetUp)
        )
    };
    assert!(is_not_set_up());
    fs::create_dir_all(kubelet.path(&CONFIG_MAP)).unwrap();
    assert!(is_not_set_up());
    kubelet.write(&CONFIG_MAP, &[]);
    directory.presence(&CONFIG_MAP).unwrap();
    fs::remove_dir_all(kubelet.path(&CONFIG_MAP)).unwrap();
    assert!(is_not_set_up());
}

#[test]
fn memory_volume_that_is_no_mount_point_is_not_visible() {
    // beside-kubelet 27
    let kubelet = KubeletVolumes::new();
    kubelet.write(&SECRET, &[("a", "1")]);
    kubelet.write(&CONFIG_MAP, &[("a", "1")]);
    let directory = kubelet.open(Mounts::Required);
    let error = directory.presence(&SECRET).unwrap_err();
    assert!(matches!(error, UnknownContent::NotVisible), "{error}");
    let volume = volume(serde_json::json!({"name": "v", "secret": {"secretName": "s"}}));
    let error = directory
        .compare(&SECRET, &volume, &Projection::default())
        .unwrap_err();
    assert!(matches!(error, UnknownContent::NotVisible), "{error}");
    directory.presence(&CONFIG_MAP).unwrap();
    // The kubelet has made the directory, and has not mounted it yet.
    let marker = "plugins/kubernetes.io~empty-dir/wrapped_v/ready";
    fs::remove_file(kubelet.root.path().join("pods").join(UID).join(marker)).unwrap();
    let error = directory.presence(&SECRET).unwrap_err();
    assert!(matches!(error, UnknownContent::NotSetUp), "{error}");
}

#[test]
fn mounted_volume_is_read_and_can_be_unmounted_at_once() {
    // beside-kubelet 28
    let Some(kubelet) = KubeletVolumes::with_mounts() else {
        return;
    };
    let directory = kubelet.open(Mounts::Required);
    let volume = volume(serde_json::json!({"name": "v", "secret": {"secretName": "s"}}));
    let computed = projection(&[("d/a", "1", key(Kind::Secret, "s", "a"))]);
    let mut identities = Vec::new();
    for _ in 0..2 {
        kubelet.write(&SECRET, &[("d/a", "1")]);
        let found = directory.compare(&SECRET, &volume, &computed).unwrap();
        assert!(found.differences.is_none());
        identities.push(found.identity);
    }
    // The same tmpfs, and then a new one while a container keeps the old one.
    assert_eq!(identities[0], identities[1]);
    let path = kubelet.path(&SECRET);
    let container = fs::File::open(&path).unwrap();
    rustix::mount::unmount(&path, UnmountFlags::DETACH).unwrap();
    kubelet.write(&SECRET, &[("d/a", "1")]);
    let found = directory.compare(&SECRET, &volume, &computed).unwrap();
    assert_ne!(found.identity, identities[0]);
    drop(container);
    // EBUSY if anything were open.
    rustix::mount::unmount(&path, UnmountFlags::empty()).unwrap();
}

#[test]
fn recreated_directory_has_another_identity() {
    // beside-kubelet 30
    let kubelet = KubeletVolumes::new();
    let directory = kubelet.open(Mounts::NotExpected);
    kubelet.write(&CONFIG_MAP, &[("a", "1")]);
    let first = directory.presence(&CONFIG_MAP).unwrap();
    kubelet.write(&CONFIG_MAP, &[("a", "2")]);
    assert_eq!(directory.presence(&CONFIG_MAP).unwrap(), first);
    // A container keeps the old directory.
    let _container = fs::File::open(kubelet.path(&CONFIG_MAP)).unwrap();
    fs::remove_dir_all(kubelet.path(&CONFIG_MAP)).unwrap();
    kubelet.write(&CONFIG_MAP, &[("a", "2")]);
    assert_ne!(directory.presence(&CONFIG_MAP).unwrap(), first);
}

#[test]
fn recreated_directory_with_the_old_inode_has_another_identity() {
    // beside-kubelet 30
    let kubelet = KubeletVolumes::new();
    let directory = kubelet.open(Mounts::NotExpected);
    kubelet.write(&CONFIG_MAP, &[("a", "1")]);
    let mut last = directory.presence(&CONFIG_MAP).unwrap();
    if last.created.is_none() {
        // This file system does not record when a directory was created.
        return;
    }
    for _ in 0..5 {
        fs::remove_dir_all(kubelet.path(&CONFIG_MAP)).unwrap();
        kubelet.write(&CONFIG_MAP, &[("a", "1")]);
        let found = directory.presence(&CONFIG_MAP).unwrap();
        assert_ne!(found, last);
        last = found;
    }
}

#[test]
fn nothing_but_the_root_directory_stays_open() {
    let kubelet = KubeletVolumes::new();
    kubelet.write(&CONFIG_MAP, &[("a", "1"), ("d/e", "2")]);
    let directory = kubelet.open(Mounts::NotExpected);
    let computed = projection(&[("a", "1", of_config_map("a"))]);
    directory
        .compare(&CONFIG_MAP, &config_map("c"), &computed)
        .unwrap();
    directory.presence(&CONFIG_MAP).unwrap();
    let root = kubelet.root.path().canonicalize().unwrap();
    let open: Vec<_> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter(|path| path.starts_with(&root))
        .collect();
    // The second one is the writer's.
    assert_eq!(open, [root.clone(), root]);
}
