//! Mount tables and mount points in volumes.

use larder_projection::{
    MountError, MountTable, Propagation, RuntimeFeatures, VolumeKind, VolumePath, mounts,
    nested_mount_points,
};
use serde_json::{Value, json};

use super::World;

fn world(mounts: Value, env: Value) -> World {
    World::new(json!({
        "containers": [{"name": "c", "volumeMounts": mounts, "env": env}],
        "volumes": [
            {"name": "cm", "configMap": {"name": "cm"}},
            {"name": "s", "secret": {"secretName": "s"}},
            {"name": "d", "downwardAPI": {}},
            {"name": "p", "projected": {}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "host", "hostPath": {"path": "/srv"}},
        ],
    }))
}

impl World {
    fn mounts(&self, runtime: RuntimeFeatures) -> Result<MountTable<'_>, MountError> {
        let environment = self.environment_of("c").unwrap();
        mounts(&self.pod, self.container("c"), &environment, runtime)
    }

    #[track_caller]
    fn check_mounts_fail(&self, text: &str) {
        let error = self.mounts(RuntimeFeatures::default()).unwrap_err();
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn object_volumes_are_read_only_and_others_as_requested() {
    let names = ["cm", "s", "d", "p", "tmp", "host"];
    let entries: Vec<_> = names
        .iter()
        .map(|name| json!({"name": name, "mountPath": format!("/{name}"), "readOnly": *name == "host"}))
        .collect();
    let world = world(json!(entries), json!([]));
    let table = world.mounts(RuntimeFeatures::default()).unwrap();
    let seen: Vec<_> = table
        .iter()
        .map(|mount| (mount.index, mount.kind, mount.read_only))
        .collect();
    assert_eq!(
        seen,
        [
            (0, Some(VolumeKind::ConfigMap), true),
            (1, Some(VolumeKind::Secret), true),
            (2, Some(VolumeKind::DownwardApi), true),
            (3, Some(VolumeKind::Projected), true),
            (4, None, false),
            (5, None, true),
        ]
    );
    assert!(table[5].volume.host_path.is_some());
}

#[test]
fn mount_paths_become_absolute_and_modes_are_kept() {
    let world = world(
        json!([
            {"name": "cm", "mountPath": "etc//app/", "mountPropagation": "None"},
            {"name": "tmp", "mountPath": "/a", "mountPropagation": "HostToContainer"},
            {"name": "tmp", "mountPath": "/b", "mountPropagation": "Bidirectional"},
        ]),
        json!([]),
    );
    let table = world.mounts(RuntimeFeatures::default()).unwrap();
    assert_eq!(table[0].mount_path, "/etc/app");
    let propagation: Vec<_> = table.iter().map(|mount| mount.propagation).collect();
    assert_eq!(
        propagation,
        [
            Propagation::Private,
            Propagation::HostToContainer,
            Propagation::Bidirectional
        ]
    );
}

#[test]
fn invalid_mounts_are_rejected() {
    // projection 66
    let check = |entry: Value, text: &str| {
        let mut entry = entry;
        entry["mountPath"] = json!("/m");
        world(json!([entry]), json!([])).check_mounts_fail(text);
    };
    check(
        json!({"name": "none"}),
        "cannot find volume \"none\" to mount into container \"c\"",
    );
    check(
        json!({"name": "cm", "subPath": "/abs"}),
        "error SubPath `/abs` must not be an absolute path",
    );
    check(
        json!({"name": "cm", "subPath": "a/../b"}),
        "unable to provision SubPath `a/../b`: must not contain '..'",
    );
    check(
        json!({"name": "cm", "mountPropagation": "Sideways"}),
        "invalid MountPropagation mode: \"Sideways\"",
    );
}

#[test]
fn recursive_read_only_asks_for_read_only_and_no_propagation() {
    let entry = |read_only: bool, propagation: Value, mode: &str| {
        world(
            json!([{"name": "tmp", "mountPath": "/m", "readOnly": read_only, "mountPropagation": propagation, "recursiveReadOnly": mode}]),
            json!([]),
        )
    };
    // projection 80
    let mut options = entry(false, Value::Null, "Disabled");
    let container = &mut options.pod.spec.as_mut().unwrap().containers[0];
    container.volume_mounts.as_mut().unwrap()[0].bind_mount_options = Some(vec!["exec".to_owned()]);
    options.check_mounts_fail("invalid bind mount option: \"exec\"");
    let none = Value::Null;
    let able = RuntimeFeatures {
        recursive_read_only: true,
    };
    let start = "failed to resolve recursive read-only mode: volume \"tmp\" requested recursive read-only mode, but it is not ";
    entry(false, none.clone(), "Enabled").check_mounts_fail(&format!("{start}read-only"));
    entry(true, json!("HostToContainer"), "IfPossible").check_mounts_fail(&format!(
        "{start}compatible with propagation \"HostToContainer\""
    ));
    entry(true, none.clone(), "Enabled")
        .check_mounts_fail(&format!("{start}supported by the runtime"));
    entry(true, none.clone(), "Often").check_mounts_fail(
        "failed to resolve recursive read-only mode: unknown recursive read-only mode \"Often\"",
    );
    for (mode, runtime, expected) in [
        ("Disabled", able, false),
        ("IfPossible", RuntimeFeatures::default(), false),
        ("IfPossible", able, true),
        ("Enabled", able, true),
    ] {
        let world = entry(true, json!("None"), mode);
        assert_eq!(
            world.mounts(runtime).unwrap()[0].recursive_read_only,
            expected,
            "{mode}"
        );
    }
}

/// The sub path that `expression` gives with `POD_NAME=bar` and some odd variables.
fn sub_path(expression: &str) -> Result<Option<String>, String> {
    let env = json!([
        {"name": "POD_NAME", "value": "bar"},
        {"name": "EMPTY", "value": ""},
        {"name": "UP", "value": ".."},
        {"name": "TMP", "value": "/tmp"},
    ]);
    let world = world(
        json!([{"name": "tmp", "mountPath": "/m", "subPathExpr": expression}]),
        env,
    );
    let table = world
        .mounts(RuntimeFeatures::default())
        .map_err(|error| error.to_string())?;
    Ok(table[0].sub_path.as_deref().map(str::to_owned))
}

#[test]
fn sub_path_expressions_are_expanded_and_need_all_their_variables() {
    // projection 67
    assert_eq!(sub_path("foo/$(POD_NAME)"), Ok(Some("foo/bar".to_owned())));
    assert_eq!(sub_path("$$(POD_NAME)"), Ok(Some("$(POD_NAME)".to_owned())));
    assert_eq!(sub_path(""), Ok(None));
    for (expression, text) in [
        (
            "$(NONE)/$(EMPTY)/$(A)/$(NONE)",
            "missing value for A, EMPTY, NONE",
        ),
        ("foo/$()", "missing value for "),
        ("$(EMPTY)", "missing value for EMPTY"),
        ("$(POD_NAME$(UP))", "missing value for POD_NAME$(UP"),
        (
            "$(UP)",
            "unable to provision SubPath `..`: must not contain '..'",
        ),
        (
            "$(TMP)",
            "error SubPath `/tmp` must not be an absolute path",
        ),
    ] {
        assert_eq!(sub_path(expression), Err(text.to_owned()), "{expression}");
    }
}

#[test]
fn a_sub_path_heals_when_its_annotation_comes() {
    // projection 67
    let env = json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['sub']"}}}]);
    let mut world = world(
        json!([{"name": "tmp", "mountPath": "/m", "subPathExpr": "$(A)"}]),
        env,
    );
    world.check_mounts_fail("missing value for A");
    world.pod.metadata.annotations = Some([("sub".to_owned(), "there".to_owned())].into());
    let table = world.mounts(RuntimeFeatures::default()).unwrap();
    assert_eq!(table[0].sub_path.as_deref(), Some("there"));
}

fn nested(mounts: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let mounts: Vec<_> = mounts
        .iter()
        .map(|(name, path)| json!({"name": name, "mountPath": path}))
        .collect();
    let world = World::new(json!({"containers": [{"name": "c", "volumeMounts": mounts}]}));
    let mut points = nested_mount_points(&world.pod);
    let points = points.remove("v").unwrap_or_else(|| Ok(Vec::new()));
    let points = points.map_err(|error| error.to_string())?;
    Ok(points.iter().map(ToString::to_string).collect())
}

#[test]
fn only_outermost_mount_points_below_a_volume_are_found() {
    // projection 70
    for (mounts, expected) in [
        (&[("v", "/dir")][..], &[][..]),
        (
            &[
                ("v", "/dir"),
                ("o", "/dir/nested"),
                ("o", "/dir/nested/other"),
                ("o", "/dir/nested2"),
            ],
            &["nested", "nested2"],
        ),
        (&[("v", "/dir"), ("o", "/dir-x"), ("o", "/other")], &[]),
        (&[("v", "/dir/"), ("o", "/dir//a/./b/")], &["a/b"]),
        (
            &[
                ("v", "/dir"),
                ("v", "/dir/again"),
                ("v", "/two"),
                ("o", "/two/x"),
            ],
            &["again", "x"],
        ),
        (&[("o", "/dir"), ("v", "/dir/nested")], &[]),
        (
            &[
                ("v", "/dir"),
                ("o", "/dir/a"),
                ("o", "/dir/a-b"),
                ("o", "/dir/a/c"),
            ],
            &["a", "a-b"],
        ),
        (&[("v", "dir"), ("o", "dir/rel")], &["rel"]),
    ] {
        let expected: Vec<_> = expected.iter().map(|&point| point.to_owned()).collect();
        assert_eq!(nested(mounts), Ok(expected), "{mounts:?}");
    }
}

#[test]
fn mount_points_outside_or_with_reserved_names_are_rejected() {
    // projection 70
    let text = "unable to create nested volume mountpoints: invalid container mount point ../dir";
    assert_eq!(nested(&[("v", "../dir")]), Err(text.to_owned()));
    assert_eq!(
        nested(&[("v", "/dir"), ("o", "/dir/..data")]),
        Err("unable to create nested volume mountpoints".to_owned())
    );
}

#[test]
fn mount_points_of_all_containers_count_once() {
    let mounts = json!([{"name": "v", "mountPath": "/d"}, {"name": "o", "mountPath": "/d/n"}]);
    let world = World::new(json!({
        "initContainers": [{"name": "i", "volumeMounts": mounts}],
        "containers": [{"name": "c", "volumeMounts": mounts}],
        "ephemeralContainers": [{"name": "e", "volumeMounts": [{"name": "v", "mountPath": "/x"}, {"name": "o", "mountPath": "/x/m"}]}],
    }));
    let mut points = nested_mount_points(&world.pod);
    let points = points.remove("v").unwrap().unwrap();
    let points: Vec<_> = points.iter().map(VolumePath::as_str).collect();
    assert_eq!(points, ["m", "n"]);
}
