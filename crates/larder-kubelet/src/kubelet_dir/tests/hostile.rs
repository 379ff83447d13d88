//! Names, links and files that lead elsewhere, block or are too large.

use std::{fs, os::unix::fs::symlink};

use larder_projection::Origin;
use rustix::fs::{CWD, Mode};

use super::{super::*, harness::*};

#[test]
fn names_that_are_no_file_names_are_rejected() {
    let kubelet = KubeletVolumes::new();
    kubelet.write(&CONFIG_MAP, &[]);
    let directory = kubelet.open(Mounts::NotExpected);
    for hostile in ["", ".", "..", "../v", "/", "a\0b", &"a".repeat(256)] {
        for id in [
            VolumeId {
                pod_uid: hostile,
                ..CONFIG_MAP
            },
            VolumeId {
                name: hostile,
                ..CONFIG_MAP
            },
        ] {
            let error = directory.presence(&id).unwrap_err();
            assert!(matches!(error, UnknownContent::Name), "{error}");
        }
    }
}

#[test]
fn set_outside_of_the_volume_is_not_read() {
    let kubelet = KubeletVolumes::new();
    kubelet.write(&CONFIG_MAP, &[("a", "1")]);
    let data = kubelet.path(&CONFIG_MAP).join(DATA);
    let elsewhere = kubelet.root.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("a"), "1").unwrap();
    symlink(&elsewhere, kubelet.path(&CONFIG_MAP).join("..link")).unwrap();
    fs::write(kubelet.path(&CONFIG_MAP).join("..file"), "").unwrap();
    let directory = kubelet.open(Mounts::NotExpected);
    let computed = projection(&[("a", "1", of_config_map("a"))]);
    let compare = || directory.compare(&CONFIG_MAP, &config_map("c"), &computed);
    let absolute = elsewhere.to_str().unwrap();
    for target in [
        absolute,
        "../../../../../elsewhere",
        "..",
        ".",
        "..link",
        "..file",
        "..data",
    ] {
        fs::remove_file(&data).unwrap();
        symlink(target, &data).unwrap();
        let error = compare().unwrap_err();
        let expected = matches!(error, UnknownContent::NotASet { .. });
        assert!(expected, "{target}: {error}");
    }
    // A set that was removed for good.
    fs::remove_file(&data).unwrap();
    symlink("..gone", &data).unwrap();
    let error = compare().unwrap_err();
    let expected = matches!(error, UnknownContent::Replaced { .. });
    assert!(expected, "{error}");
    // No link at all.
    fs::remove_file(&data).unwrap();
    fs::create_dir(&data).unwrap();
    let error = compare().unwrap_err();
    let expected = matches!(error, UnknownContent::NotASet { .. });
    assert!(expected, "{error}");
}

#[test]
fn links_and_pipes_in_a_set_are_not_followed_or_opened() {
    let kubelet = KubeletVolumes::new();
    let computed = projection(&[
        ("a", "1", of_config_map("a")),
        ("d/e", "1", of_config_map("e")),
    ]);
    let outside = kubelet.root.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("e"), "1").unwrap();
    let check = |expected: &str| {
        let found = kubelet.compare(&CONFIG_MAP, &config_map("c"), &computed);
        assert_eq!(shown(&found), expected);
    };
    let make_fresh = || {
        // Another payload first, so that the set is a new one.
        kubelet.write(&CONFIG_MAP, &[("a", "0")]);
        kubelet.write(&CONFIG_MAP, &[("a", "1"), ("d/e", "1")]);
    };
    // Link to an equal file.
    make_fresh();
    fs::remove_file(kubelet.data(&CONFIG_MAP, "a")).unwrap();
    symlink(outside.join("e"), kubelet.data(&CONFIG_MAP, "a")).unwrap();
    check("a is missing Some(Object)");

    // Link to an equal directory.
    make_fresh();
    fs::remove_dir_all(kubelet.data(&CONFIG_MAP, "d")).unwrap();
    symlink(&outside, kubelet.data(&CONFIG_MAP, "d")).unwrap();
    check("d/e is missing Some(Object)");

    // Pipe.
    make_fresh();
    fs::remove_file(kubelet.data(&CONFIG_MAP, "a")).unwrap();
    let pipe = kubelet.data(&CONFIG_MAP, "a");
    rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
    check("a is missing Some(Object)");

    // Socket beside the files.
    make_fresh();
    let socket = kubelet.data(&CONFIG_MAP, "socket");
    rustix::fs::mknodat(CWD, &socket, rustix::fs::FileType::Socket, Mode::RUSR, 0).unwrap();
    check("socket is left over Some(Object)");
}

#[test]
fn large_files_are_neither_read_nor_held() {
    let kubelet = KubeletVolumes::new();
    kubelet.write(&PROJECTED, &[("a", "1"), ("t", "1"), ("x", "1")]);
    for name in ["a", "t", "x"] {
        let file = fs::File::options()
            .write(true)
            .open(kubelet.data(&PROJECTED, name))
            .unwrap();
        // Sparse: it takes no memory and no disk.
        file.set_len(1 << 40).unwrap();
    }
    let computed = projection(&[
        ("a", "1", Origin::Field("metadata.annotations")),
        ("t", "1", Origin::TrustBundle),
        ("x", "1", of_config_map("x")),
    ]);
    let found = kubelet.compare(&PROJECTED, &projected(), &computed);
    assert_eq!(
        shown(&found),
        "a differs, t differs, x differs Some(Object)"
    );
}

#[test]
fn many_extra_files_end_the_search_at_the_first() {
    let kubelet = KubeletVolumes::new();
    kubelet.write(&CONFIG_MAP, &[("a", "1")]);
    for number in 0..3000 {
        fs::write(kubelet.data(&CONFIG_MAP, &format!("x{number}")), "").unwrap();
    }
    let computed = projection(&[("a", "1", of_config_map("a"))]);
    let found = kubelet.compare(&CONFIG_MAP, &config_map("c"), &computed);
    assert_eq!((found.count, found.named.len()), (1, 1));
}
