//! Users, groups and modes of what a volume has.

use super::*;

#[test]
fn a_group_gets_to_read_everything() {
    // projection 15, 41, 44: ownership is part of a new set before it is published
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open(root.path()).unwrap();
        let payload: Payload<'_> = [
            owned("tight", 0o400, None),
            owned("default", 0o644, None),
            owned("closed", 0o000, None),
            owned("dir/file", 0o600, None),
            owned("token", 0o600, Some(1000)),
        ]
        .into();
        let volume = PodVolume {
            fs_group: Some(1001),
            ..volume(VolumeKind::Projected, "all")
        };
        let path = host.set_up(&volume, &payload, noon()).unwrap().path;
        let of = |name: &str| ownership_of(&path.join(name), true);
        assert_eq!(of("tight"), (0o440, 0, 1001));
        assert_eq!(of("default"), (0o644, 0, 1001));
        assert_eq!(of("closed"), (0o440, 0, 1001));
        assert_eq!(of("dir"), (0o2755, 0, 1001));
        assert_eq!(of("dir/file"), (0o640, 0, 1001));
        // The link in the sticky directory may be hidden (`fs.protected_symlinks`).
        assert_eq!(of("..data/token"), (0o640, 1000, 1001));
        assert_eq!(of("..data"), (0o2755, 0, 1001));
        assert_eq!(of(""), (0o3777, 0, 1001));
        let link = |name: &str| ownership_of(&path.join(name), false);
        assert_eq!(link("tight"), (0o777, 0, 1001));
        assert_eq!(link("token"), (0o777, 1000, 1001));
        assert_eq!(link("..data"), (0o777, 0, 1001));
        let again = host.set_up(&volume, &payload, noon()).unwrap();
        assert_eq!(again.written, Written::default());

        let volume = PodVolume {
            fs_group: Some(1001),
            ..config("cfg")
        };
        let path = host.set_up(&volume, &files([]), noon()).unwrap().path;
        assert_eq!(ownership_of(&path, true), (0o2777, 0, 1001));
    });
}

#[test]
fn tokens_have_the_owner_of_the_table() {
    // projection 42, 76, on disk: the mode comes with the payload
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open(root.path()).unwrap();
        for (mode, owner, fs_group, expected) in [
            (0o644, None, None, (0o644, 0, 0)),
            (0o600, Some(1000), None, (0o600, 1000, 0)),
            (0o600, None, Some(10000), (0o640, 0, 10000)),
            (0o600, Some(1000), Some(10000), (0o640, 1000, 10000)),
        ] {
            let name = format!("v{mode:o}{owner:?}{fs_group:?}");
            let volume = PodVolume {
                fs_group,
                ..volume(VolumeKind::Projected, &name)
            };
            let payload: Payload<'_> = [owned("token", mode, owner)].into();
            let path = host.set_up(&volume, &payload, noon()).unwrap().path;
            let token = path.join("..data/token");
            assert_eq!(ownership_of(&token, true), expected, "{name}");
        }
    });
}

#[test]
fn a_changed_owner_is_corrected_in_place() {
    as_root_with_mounts(|| {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open(root.path()).unwrap();
        let volume = config("cfg");
        let payload =
            |owner| -> Payload<'_> { [owned("a", 0o644, owner), owned("d/b", 0o644, None)].into() };
        let path = host.set_up(&volume, &payload(None), noon()).unwrap().path;
        let set = fs::read_link(path.join("..data")).unwrap();
        let written = host
            .set_up(&volume, &payload(Some(7)), noon())
            .unwrap()
            .written;
        assert!(written.repaired && !written.swapped);
        chown(path.join("d/b"), Some(9), Some(9)).unwrap();
        let written = host
            .set_up(&volume, &payload(Some(7)), noon())
            .unwrap()
            .written;
        assert!(written.repaired && !written.swapped);
        assert_eq!(fs::read_link(path.join("..data")).unwrap(), set);
        assert_eq!(ownership_of(&path.join("a"), true), (0o644, 7, 0));
        assert_eq!(fs::metadata(path.join("d/b")).unwrap().uid(), 0);
    });
}
