//! The differences that a comparison finds.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    sync::atomic::{AtomicBool, Ordering},
};

use larder_objects::{Kind, pem};
use larder_projection::Origin;

use super::{super::*, harness::*};

#[test]
fn equal_bytes_are_no_difference_whatever_mode_and_owner() {
    // beside-kubelet 31
    let kubelet = KubeletVolumes::new();
    kubelet.write(&CONFIG_MAP, &[("a", "1"), ("d/e/f", CANARY), ("empty", "")]);
    let mode = fs::Permissions::from_mode(0o600);
    fs::set_permissions(kubelet.data(&CONFIG_MAP, "a"), mode).unwrap();
    let computed = projection(&[
        ("a", "1", of_config_map("a")),
        ("d/e/f", CANARY, of_config_map("f")),
        ("empty", "", of_config_map("empty")),
    ]);
    let found = kubelet.compare(&CONFIG_MAP, &config_map("c"), &computed);
    assert!(found.is_none(), "{found:?}");
    assert_eq!(found.reason(), None);
}

#[test]
fn extra_missing_and_changed_files_are_reasons_to_touch() {
    // beside-kubelet 31
    let kubelet = KubeletVolumes::new();
    let map = config_map("c");
    kubelet.write(&CONFIG_MAP, &[("a", "1"), ("d/e", CANARY)]);
    let check = |files: &[(&str, &str)], expected: &str| {
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (*path, *text, of_config_map(path)))
            .collect();
        let found = kubelet.compare(&CONFIG_MAP, &map, &projection(&files));
        assert_eq!(shown(&found), expected);
        assert!(!format!("{found:?}").contains(CANARY));
    };
    check(&[("a", "1"), ("d/e", "c4n4rz")], "d/e differs Some(Object)");
    check(&[("a", "12"), ("d/e", CANARY)], "a differs Some(Object)");
    check(&[("a", ""), ("d/e", CANARY)], "a differs Some(Object)");
    check(
        &[("a", "1"), ("b", "1"), ("d/e", CANARY), ("d/f/g", "")],
        "b is missing, d/f/g is missing Some(Object)",
    );
    check(&[("a", "1")], "d is left over Some(Object)");
    check(&[("d/e", CANARY)], "a is left over Some(Object)");
    // A file in place of a directory, and vice versa.
    check(
        &[("a/b", "1"), ("d", CANARY)],
        "a/b is missing, d is missing Some(Object)",
    );
    // A name that begins like a directory is not in it.
    check(
        &[("a", "1"), ("d-e", "1"), ("d/e", CANARY)],
        "d-e is missing Some(Object)",
    );
}

#[test]
fn tokens_and_certificates_only_have_to_exist() {
    // beside-kubelet 31
    let kubelet = KubeletVolumes::new();
    let certificate = Origin::PodCertificate { signer: "s" };
    let computed = projection(&[
        (
            "ca.crt",
            "ca",
            key(Kind::ConfigMap, "kube-root-ca.crt", "ca.crt"),
        ),
        ("key", "", certificate),
        ("token", "", TOKEN),
    ]);
    kubelet.write(
        &PROJECTED,
        &[("ca.crt", "ca"), ("key", CANARY), ("token", CANARY)],
    );
    let found = kubelet.compare(&PROJECTED, &projected(), &computed);
    assert!(found.is_none(), "{found:?}");
    kubelet.write(&PROJECTED, &[("ca.crt", "ca"), ("key", CANARY)]);
    let found = kubelet.compare(&PROJECTED, &projected(), &computed);
    assert_eq!(shown(&found), "token is missing None");
}

#[test]
fn cluster_authorities_are_a_reason_of_their_own() {
    // beside-kubelet 26
    let kubelet = KubeletVolumes::new();
    for name in ["kube-root-ca.crt", "openshift-service-ca.crt"] {
        let computed = projection(&[
            ("ca.crt", "new", key(Kind::ConfigMap, name, "ca.crt")),
            ("s", "1", key(Kind::Secret, "s", "s")),
        ]);
        kubelet.write(&PROJECTED, &[("ca.crt", "old"), ("s", "1")]);
        let found = kubelet.compare(&PROJECTED, &projected(), &computed);
        assert_eq!(shown(&found), "ca.crt differs Some(ClusterAuthority)");
        kubelet.write(&PROJECTED, &[("ca.crt", "old"), ("s", "2")]);
        let found = kubelet.compare(&PROJECTED, &projected(), &computed);
        assert_eq!(shown(&found), "ca.crt differs, s differs Some(Object)");
        // A Secret of that name is one like any other.
        let computed = projection(&[("ca.crt", "new", key(Kind::Secret, name, "ca.crt"))]);
        let found = kubelet.compare(&PROJECTED, &projected(), &computed);
        assert_eq!(found.reason(), Some(TouchReason::Object));
    }
    kubelet.write(&CONFIG_MAP, &[("old", "")]);
    let found = kubelet.compare(
        &CONFIG_MAP,
        &config_map("kube-root-ca.crt"),
        &Projection::default(),
    );
    assert_eq!(shown(&found), "old is left over Some(ClusterAuthority)");
}

#[test]
fn trust_anchors_are_a_set() {
    let kubelet = KubeletVolumes::new();
    let bundle = |ders: &[&str]| -> String {
        let ders = ders
            .iter()
            .map(|der| pem::encode_certificate(der.as_bytes()));
        ders.collect()
    };
    let text = bundle(&["one", "two"]);
    let computed = projection(&[("t", &text, Origin::TrustBundle)]);
    let volume = volume(serde_json::json!({"name": "v", "projected": {"sources": [
        {"clusterTrustBundle": {"name": "b", "path": "t"}},
    ]}}));
    for (ders, is_same) in [
        (&["two", "one"][..], true),
        (&["two", "one", "one"], true),
        (&["two"], false),
        (&["two", "one", "three"], false),
    ] {
        kubelet.write(&PROJECTED, &[("t", &bundle(ders))]);
        let found = kubelet.compare(&PROJECTED, &volume, &computed);
        assert_eq!(found.is_none(), is_same, "{ders:?}");
        assert_eq!(found.reason(), (!is_same).then_some(TouchReason::Object));
    }
}

#[test]
fn unknown_annotations_are_ignored_and_others_are_no_reason() {
    // beside-kubelet 17
    let kubelet = KubeletVolumes::new();
    let volume = volume(serde_json::json!({"name": "v", "downwardAPI": {}}));
    let id = volume_of(VolumeKind::DownwardApi);
    let text = "a=\"1\"\nz=\"larder.dev/\"\n";
    let seen = "metadata.annotations['kubernetes.io/config.seen']";
    let computed = projection(&[
        ("all", text, Origin::Field("metadata.annotations")),
        ("one", "1", Origin::Field("metadata.annotations['a']")),
        ("seen", "", Origin::Field(seen)),
    ]);
    let on_disk = |first: &str| {
        format!(
            "{first}\nkubernetes.io/config.seen=\"x\"\nkubernetes.io/config.source=\"api\"\nlarder.dev/refresh=\"t\"\nz=\"larder.dev/\""
        )
    };
    kubelet.write(
        &id,
        &[("all", &on_disk("a=\"1\"")), ("one", "1"), ("seen", "now")],
    );
    let found = kubelet.compare(&id, &volume, &computed);
    assert!(found.is_none(), "{found:?}");
    kubelet.write(
        &id,
        &[("all", &on_disk("a=\"2\"")), ("extra", ""), ("one", "2")],
    );
    let found = kubelet.compare(&id, &volume, &computed);
    assert_eq!(
        shown(&found),
        "all differs, one differs, seen is missing, extra is left over None"
    );
}

#[test]
fn differences_are_counted_and_only_some_are_named() {
    let kubelet = KubeletVolumes::new();
    kubelet.write(&CONFIG_MAP, &[]);
    let names: Vec<_> = (0..100).map(|number| format!("{number:03}")).collect();
    let files: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), "1", of_config_map(name)))
        .collect();
    let found = kubelet.compare(&CONFIG_MAP, &config_map("c"), &projection(&files));
    assert_eq!((found.count, found.named.len()), (100, 8));
}

#[test]
fn comparison_continues_where_its_time_was_up() {
    let kubelet = KubeletVolumes::new();
    let names: Vec<_> = (0..40)
        .map(|number| format!("d{}/e/f{number:02}", number / 8))
        .collect();
    let computed = kubelet.write_paths(&names);
    let directory = KubeletDir {
        open_budget: Duration::ZERO,
        ..kubelet.open(Mounts::NotExpected)
    };
    let compare = |files: &[(&str, &str, Origin<'_>)]| {
        let projection = projection(files);
        let found = directory.compare(&CONFIG_MAP, &config_map("c"), &projection);
        found.unwrap().differences.count
    };
    assert_eq!(compare(&computed), 0);
    assert_eq!(compare(&computed[..39]), 1);
    fs::write(kubelet.data(&CONFIG_MAP, &names[17]), "2").unwrap();
    fs::remove_file(kubelet.data(&CONFIG_MAP, &names[23])).unwrap();
    assert_eq!(compare(&computed), 2);
}

#[test]
fn comparison_stops_when_its_time_is_up() {
    let kubelet = KubeletVolumes::new();
    let names: Vec<_> = (0..1000).map(|number| format!("f{number}")).collect();
    let computed = projection(&kubelet.write_paths(&names));
    let map = config_map("c");
    let compare = || {
        let directory = sys::open_root(&kubelet.data(&CONFIG_MAP, "")).unwrap();
        let mut comparer = Comparer::new(&map, &computed, "", PathBuf::new());
        let mut pauses = 0;
        while !comparer.advance(&directory, Duration::ZERO).unwrap() {
            pauses += 1;
        }
        (comparer.finish().count, pauses)
    };
    // One after each file, and one after the listing.
    assert_eq!(compare(), (0, 1000 + 1));
    fs::write(kubelet.data(&CONFIG_MAP, "extra"), "").unwrap();
    assert_eq!(compare().0, 1);
}

#[test]
fn set_is_seen_whole_however_often_it_is_replaced() {
    let kubelet = KubeletVolumes::new();
    let names: Vec<_> = (0..50).map(|number| format!("d/{number}")).collect();
    let files = |text: &'static str| -> Vec<(&str, &'static str)> {
        names.iter().map(|name| (name.as_str(), text)).collect()
    };
    let computed: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), "odd", of_config_map(name)))
        .collect();
    let computed = projection(&computed);
    kubelet.write(&CONFIG_MAP, &files("even"));
    let directory = kubelet.open(Mounts::NotExpected);
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for swap in 0..50 {
                let text = if swap % 2 == 0 { "odd" } else { "even" };
                kubelet.write(&CONFIG_MAP, &files(text));
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            match directory.compare(&CONFIG_MAP, &config_map("c"), &computed) {
                Ok(found) => {
                    let count = found.differences.count;
                    assert!(count == 0 || count == names.len(), "{count}");
                }
                Err(UnknownContent::Replaced { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
}

#[test]
fn subpath_shows_what_the_container_started_with() {
    // beside-kubelet 32
    let kubelet = KubeletVolumes::new();
    let mounts = kubelet
        .root
        .path()
        .join("pods")
        .join(UID)
        .join("volume-subpaths/v/app");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(mounts.join("1"))
        .unwrap();
    fs::write(mounts.join("0"), "1").unwrap();
    fs::write(mounts.join("1/b"), "2").unwrap();
    let id = |index, sub_path| SubPathId {
        volume: CONFIG_MAP,
        container: "app",
        index,
        sub_path,
    };
    let directory = kubelet.open(Mounts::NotExpected);
    let compare = |id: &SubPathId<'_>, files: &[(&str, &str)]| {
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (*path, *text, of_config_map(path)))
            .collect();
        let projection = projection(&files);
        let found = directory.compare_subpath(id, &config_map("c"), &projection);
        found
            .map(|found| shown(&found))
            .map_err(|error| error.to_string())
    };
    let same = Ok(" None".to_owned());
    let files = [("a", "1"), ("d/b", "2")];
    assert_eq!(compare(&id(0, "a"), &files), same);
    assert_eq!(compare(&id(0, "..data/a"), &files), same);
    assert_eq!(compare(&id(1, "d"), &files), same);
    assert_eq!(compare(&id(1, "./d/"), &files), same);
    // The volume itself is never out of date.
    assert_eq!(compare(&id(1, "."), &files), same);
    let differs = |text: &str| Ok(format!("{text} Some(Object)"));
    assert_eq!(compare(&id(0, "a"), &[("a", "2")]), differs("a differs"));
    assert_eq!(
        compare(&id(0, "a"), &[("b", "1")]),
        differs("a is left over")
    );
    assert_eq!(
        compare(&id(1, "d"), &[("d/b", "2"), ("d/c", ""), ("e", "")]),
        differs("d/c is missing")
    );
    assert_eq!(
        compare(&id(1, "d"), &[("d/c", "")]),
        differs("d/c is missing, d/b is left over")
    );
    let not_set_up = Err("not set up by the kubelet".to_owned());
    assert_eq!(compare(&id(2, "a"), &files), not_set_up);
    // The file that the kubelet mounts on.
    let directory = kubelet.open(Mounts::Required);
    let error = directory
        .compare_subpath(&id(0, "a"), &config_map("c"), &Projection::default())
        .unwrap_err();
    assert!(matches!(error, UnknownContent::NotVisible), "{error}");
}

#[test]
fn deep_paths_are_compared_at_every_level() {
    let kubelet = KubeletVolumes::new();
    // Deeper than the ancestors that stay open.
    let deep = "d/".repeat(300) + "f";
    kubelet.write(&CONFIG_MAP, &[(&deep, "1"), ("a/b", "1")]);
    let computed = projection(&[
        ("a/b", "1", of_config_map("b")),
        (&deep, "1", of_config_map("f")),
    ]);
    let directories = [OPEN_BUDGET, Duration::ZERO].map(|open_budget| KubeletDir {
        open_budget,
        ..kubelet.open(Mounts::NotExpected)
    });
    let compare = |directory: &KubeletDir| {
        let found = directory.compare(&CONFIG_MAP, &config_map("c"), &computed);
        found.unwrap().differences.count
    };
    assert_eq!(directories.each_ref().map(compare), [0, 0]);
    let middle = kubelet.data(&CONFIG_MAP, &"d/".repeat(200));
    fs::write(middle.join("extra"), "").unwrap();
    assert_eq!(directories.each_ref().map(compare), [1, 1]);
}
