//! Files of ConfigMap, Secret and projected volumes.

use larder_objects::Kind;
use larder_projection::{Origin, SourceError, Unavailable};
use serde_json::{Value, json};

use super::World;

#[test]
fn all_keys_become_files_with_the_default_mode() {
    // projection 24
    World::with_volume(json!({"configMap": {"name": "cm", "defaultMode": 0o644}}))
        .config_map("cm", json!({"foo": "foo\n", "bar": "bar"}))
        .binary("cm", "bin", b"b")
        .check_files(&[
            ("bar", 0o644, "bar"),
            ("bin", 0o644, "b"),
            ("foo", 0o644, "foo\n"),
        ]);
    World::with_volume(json!({"secret": {"secretName": "s", "defaultMode": 0o400}}))
        .secret("s", &[("foo", b"1")])
        .check_files(&[("foo", 0o400, "1")]);
}

#[test]
fn items_choose_keys_paths_and_modes() {
    // projection 25, 26
    World::with_volume(
        json!({"configMap": {"name": "cm", "defaultMode": 0o644, "items": [
        {"key": "foo", "path": "path/to/1/2/3/foo.txt"}]}}),
    )
    .config_map("cm", json!({"foo": "1", "bar": "2"}))
    .check_files(&[("path/to/1/2/3/foo.txt", 0o644, "1")]);
    World::with_volume(json!({"secret": {"secretName": "s", "defaultMode": 0o640, "items": [
        {"key": "foo", "path": "foo.txt", "mode": 0o400}, {"key": "foo", "path": "again"}, {"key": "bar", "path": "b"}]}}))
    .secret("s", &[("foo", b"1"), ("bar", b"2")])
    .check_files(&[("again", 0o640, "1"), ("b", 0o640, "2"), ("foo.txt", 0o400, "1")]);
}

#[test]
fn a_missing_key_fails_or_is_skipped_if_optional() {
    // projection 27
    let items = json!([{"key": "none", "path": "n"}, {"key": "foo", "path": "f"}]);
    for (kind, text) in [
        (
            json!({"configMap": {"name": "x", "defaultMode": 0o644}}),
            "configmap references non-existent config key: none",
        ),
        (
            json!({"secret": {"secretName": "x", "defaultMode": 0o644}}),
            "references non-existent secret key: none",
        ),
    ] {
        for optional in [false, true] {
            let mut volume = kind.clone();
            for source in volume.as_object_mut().unwrap().values_mut() {
                source["items"] = items.clone();
                source["optional"] = json!(optional);
            }
            let world = World::with_volume(volume)
                .config_map("x", json!({"foo": "1"}))
                .secret("x", &[("foo", b"1")]);
            if optional {
                world.check_files(&[("f", 0o644, "1")]);
                assert_eq!(world.projection().unwrap().absent[0].key, Some("none"));
            } else {
                world.check_volume_fails(text);
                assert!(world.projection().unwrap_err().is_missing());
            }
        }
    }
}

#[test]
fn only_optional_objects_may_be_absent() {
    // projection 28, 36
    let volume = |optional: bool| {
        World::with_volume(
            json!({"secret": {"secretName": "x", "defaultMode": 0o644, "optional": optional}}),
        )
    };
    volume(true).missing(Kind::Secret, "x").check_files(&[]);
    volume(false)
        .missing(Kind::Secret, "x")
        .check_volume_fails("secret \"x\" not found");
    volume(true)
        .unavailable(
            Kind::Secret,
            "x",
            Unavailable::failed("secrets \"x\" is forbidden"),
        )
        .check_volume_fails("secrets \"x\" is forbidden");
    volume(true).check_volume_fails("secret \"x\" was not gathered");
}

#[test]
fn an_invalid_item_path_fails_the_volume() {
    // projection 29
    for (path, text) in [
        (
            "..sneaky",
            "invalid path: must not start with '..': ..sneaky",
        ),
        ("/abs", "invalid path: must be relative path: /abs"),
        ("a/../b", "invalid path: must not contain '..': a/../b"),
        (
            "./..data",
            "invalid path: must not start with '..': ./..data",
        ),
        ("", "invalid path: must not be empty: \"\""),
    ] {
        World::with_volume(
            json!({"secret": {"secretName": "s", "defaultMode": 0o644, "items": [
            {"key": "a", "path": "good"}, {"key": "a", "path": path}]}}),
        )
        .secret("s", &[("a", b"1")])
        .check_volume_fails(text);
    }
}

#[test]
fn binary_data_is_kept_byte_for_byte() {
    // projection 32
    let bytes = [0xde, 0xca, 0xfe, 0xba, 0xd0, 0xfe, 0xff];
    let world = World::with_volume(json!({"configMap": {"name": "cm", "defaultMode": 0o644}}))
        .config_map("cm", json!({}))
        .binary("cm", "b", &bytes);
    assert_eq!(&*world.projection().unwrap().payload["b"].data, bytes);
}

#[test]
fn a_key_in_both_maps_is_text_only_with_items() {
    let world = |items| {
        World::with_volume(
            json!({"configMap": {"name": "cm", "defaultMode": 0o644, "items": items}}),
        )
        .config_map("cm", json!({"k": "text"}))
        .binary("cm", "k", b"binary")
    };
    world(json!([])).check_files(&[("k", 0o644, "binary")]);
    world(json!([{"key": "k", "path": "k"}])).check_files(&[("k", 0o644, "text")]);
}

#[test]
fn object_bytes_are_borrowed() {
    let world = World::with_volume(json!({"secret": {"secretName": "s", "defaultMode": 0o644}}))
        .secret("s", &[("a", b"1")]);
    let secret = world.inputs.secrets["s"].as_ref().unwrap();
    let projection = world.projection().unwrap();
    let (file, value) = (&projection.payload["a"].data, &secret.data["a"]);
    assert_eq!(file.as_ptr(), value.as_ptr());
}

#[test]
fn a_volume_without_default_mode_fails() {
    // projection 72
    let text = "no defaultMode used, not even the default value for it";
    for volume in [
        json!({"configMap": {"name": "cm"}}),
        json!({"secret": {"secretName": "s"}}),
        json!({"downwardAPI": {}}),
        json!({"projected": {"sources": []}}),
    ] {
        World::with_volume(volume).check_volume_fails(text);
    }
}

#[test]
fn bits_above_the_permissions_are_dropped() {
    World::with_volume(json!({"configMap": {"name": "cm", "defaultMode": 0o4755}}))
        .config_map("cm", json!({"a": "1"}))
        .check_files(&[("a", 0o755, "1")]);
}

#[test]
fn a_projected_volume_holds_all_its_sources() {
    // projection 38
    World::with_volume(json!({"projected": {"defaultMode": 0o644, "sources": [
        {"downwardAPI": {"items": [{"path": "podname", "fieldRef": {"fieldPath": "metadata.name"}, "mode": 0o400}]}},
        {"secret": {"name": "s", "items": [{"key": "a", "path": "s/a"}]}},
        {"configMap": {"name": "cm"}},
        {},
    ]}}))
    .secret("s", &[("a", b"1")])
    .config_map("cm", json!({"c": "2"}))
    .check_files(&[("c", 0o644, "2"), ("podname", 0o400, "web"), ("s/a", 0o644, "1")]);
}

#[test]
fn a_later_source_overwrites_an_earlier_one_also_after_cleaning() {
    // projection 39
    let sources = |path| {
        World::with_volume(json!({"projected": {"defaultMode": 0o644, "sources": [
            {"configMap": {"name": "cm", "items": [{"key": "a", "path": "x/a"}]}},
            {"secret": {"name": "s", "items": [{"key": "a", "path": path}]}},
        ]}}))
        .config_map("cm", json!({"a": "1"}))
        .secret("s", &[("a", b"2")])
    };
    for path in ["x/a", "x//a", "./x/a"] {
        let world = sources(path);
        world.check_files(&[("x/a", 0o644, "2")]);
        let projection = world.projection().unwrap();
        assert!(matches!(
            projection.origins["x/a"],
            Origin::Key {
                kind: Kind::Secret,
                ..
            }
        ));
    }
}

#[test]
fn one_failing_source_fails_the_volume_with_all_failures() {
    // projection 40
    let world = World::with_volume(json!({"projected": {"defaultMode": 0o644, "sources": [
        {"configMap": {"name": "cm"}},
        {"secret": {"name": "gone"}},
        {"configMap": {"name": "cm", "items": [{"key": "none", "path": "n"}]}},
        {"secret": {"name": "gone"}},
    ]}}))
    .config_map("cm", json!({"a": "1"}))
    .missing(Kind::Secret, "gone");
    let error = world.projection().unwrap_err();
    assert_eq!(error.errors().len(), 3);
    assert_eq!(
        error.to_string(),
        "[secret \"gone\" not found, configmap references non-existent config key: none]"
    );
    let one = World::with_volume(json!({"projected": {"defaultMode": 0o644, "sources": [
        {"secret": {"name": "gone"}}, {"secret": {"name": "gone"}}]}}))
    .missing(Kind::Secret, "gone");
    one.check_volume_fails("secret \"gone\" not found");
}

#[test]
fn a_file_that_is_also_a_directory_is_refused() {
    // projection 18, where the kubelet notices it when it writes
    for paths in [["foo", "foo/bar"], ["foo/bar", "foo"], ["foo", "foo/a/b"]] {
        let items = paths.map(|path| json!({"key": "a", "path": path}));
        let world = World::with_volume(
            json!({"configMap": {"name": "cm", "defaultMode": 0o644, "items": items}}),
        )
        .config_map("cm", json!({"a": "1"}));
        let error = world.projection().unwrap_err();
        assert!(
            matches!(&error.errors()[0], SourceError::Conflict(path) if path.as_str() == "foo")
        );
    }
}

#[test]
fn one_object_in_two_volumes_gives_two_payloads() {
    // projection 34
    let volume =
        |name: &str| json!({"name": name, "configMap": {"name": "cm", "defaultMode": 0o644}});
    let world = World::new(json!({"volumes": [volume("a"), volume("b")]}))
        .config_map("cm", json!({"k": "1"}));
    for volume in world.pod.spec.as_ref().unwrap().volumes.as_ref().unwrap() {
        let projection = larder_projection::project(&world.pod, volume, &world.inputs).unwrap();
        assert_eq!(&*projection.payload["k"].data, b"1");
    }
}

#[test]
fn other_volumes_have_no_payload() {
    World::with_volume(json!({"emptyDir": {}}))
        .check_volume_fails("volume \"v\" is not of a kind that is filled from objects");
}

#[test]
fn a_file_belongs_to_the_user_of_its_item_or_of_the_volume() {
    // projection 75, 76
    let items = json!([{"key": "a", "path": "a"}, {"key": "b", "path": "b", "user": 0}, {"key": "c", "path": "c", "user": 7}]);
    let map = |user: Option<i64>, items: &Value| json!({"name": "cm", "secretName": "s", "defaultMode": 0o644, "defaultUser": user, "items": items});
    let world = |volume: Value| {
        World::with_volume(volume)
            .config_map("cm", json!({"a": "1", "b": "2", "c": "3"}))
            .secret("s", &[("a", b"1"), ("b", b"2"), ("c", b"3")])
    };
    for kind in ["configMap", "secret"] {
        for (user, items, owners) in [
            (None, &Value::Null, [None, None, None]),
            (Some(0), &Value::Null, [Some(0); 3]),
            (Some(5), &Value::Null, [Some(5); 3]),
            (None, &items, [None, Some(0), Some(7)]),
            (Some(5), &items, [Some(5), Some(0), Some(7)]),
        ] {
            let world = world(json!({kind: map(user, items)}));
            let projection = world.projection().unwrap();
            let files = projection.payload.values();
            let found: Vec<_> = files.map(|file| (file.mode, file.owner)).collect();
            assert_eq!(found, owners.map(|owner| (0o644, owner)), "{kind} {user:?}");
            assert_eq!(projection.names_owner, owners[1].is_some());
        }
    }
    let name = json!({"apiVersion": "v1", "fieldPath": "metadata.name"});
    let files =
        json!([{"path": "a", "fieldRef": name}, {"path": "b", "fieldRef": name, "user": 7}]);
    let sources = json!([{"configMap": {"name": "cm", "items": items}}, {"secret": {"name": "s"}}, {"downwardAPI": {"items": files}}]);
    for (volume, a, b) in [
        (
            json!({"downwardAPI": {"defaultMode": 0o644, "items": files}}),
            None,
            Some(7),
        ),
        (
            json!({"downwardAPI": {"defaultMode": 0o644, "defaultUser": 0, "items": files}}),
            Some(0),
            Some(7),
        ),
        (
            json!({"projected": {"defaultMode": 0o644, "defaultUser": 5, "sources": sources}}),
            Some(5),
            Some(7),
        ),
    ] {
        let world = world(volume);
        let payload = world.projection().unwrap().payload;
        assert_eq!((payload["a"].owner, payload["b"].owner), (a, b));
    }
}

#[test]
fn an_owner_that_is_no_user_fails_the_volume() {
    // projection 75
    for user in [-1, 1_i64 << 31, i64::MAX] {
        World::with_volume(
            json!({"secret": {"secretName": "s", "defaultMode": 0o400, "defaultUser": user}}),
        )
        .secret("s", &[("k", b"v")])
        .check_volume_fails(&format!(
            "{user} is no user: must be between 0 and 2147483647, inclusive"
        ));
    }
}
