//! Bad input: named with file, document, line and field; everything else continues.

use std::fs;

use expect_test::{Expect, expect};

use crate::Desk;

/// A pod that is well; its being rendered shows that a bad neighbour does no harm.
const GOOD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: good}\nspec: {containers: [{name: c, image: i}]}\n---\n";

/// Renders a good pod followed by `bad`, and checks what is said about the latter.
#[track_caller]
fn check(bad: &str, expected: Expect) {
    let run = Desk::with([("app.yaml", &format!("{GOOD}{bad}"))]).run("render -f app.yaml");
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stdout.starts_with("default/good"), "{run:?}");
    expected.assert_eq(&run.stderr);
}

#[test]
fn invalid_yaml_is_located() {
    check(
        "a: b: c\n",
        expect![[r#"
        larder: app.yaml: document 2, line 6: mapping values are not allowed in this context
    "#]],
    );
    check(
        "a: [1, 2\n",
        expect![[r#"
        larder: app.yaml: document 2, line 6: unclosed bracket '['
    "#]],
    );
    check(
        "a:\n\t- tab\n",
        expect![[r#"
        larder: app.yaml: document 2, line 7: tabs disallowed within this context (block indentation); YAML is indented with spaces
    "#]],
    );
}

#[test]
fn unknown_kinds_are_named() {
    check(
        "apiVersion: v1\nkind: ConfigMaps\nmetadata: {name: a}\n",
        expect![[r#"
            larder: app.yaml: document 2, line 7: ConfigMaps "a": no matches for kind "ConfigMaps" in version "v1"; did you mean ConfigMap of v1?
        "#]],
    );
}

#[test]
fn duplicate_names_and_keys_are_rejected() {
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
    check(
        &format!("{map}---\n{map}"),
        expect![[r#"
        larder: app.yaml: document 3, line 10: ConfigMap "a": already defined in app.yaml: document 2, line 6
    "#]],
    );
    check(
        &format!("{map}data:\n  k: '1'\n  k: '2'\n"),
        expect![[r#"
        larder: app.yaml: document 2, line 11: key "k" is already set on line 10
    "#]],
    );
}

#[test]
fn values_of_the_wrong_type_are_named() {
    check(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  DEBUG: on\n",
        expect![[r#"
            larder: app.yaml: document 2, line 10: ConfigMap "a": data[DEBUG]: expected a string, found a boolean (quote it)
        "#]],
    );
}

#[test]
fn numbers_out_of_range_are_named() {
    for number in ["99999999999999999999", "1.5"] {
        check(
            &format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p, generation: {number}}}\n"),
            expect![[r#"
                larder: app.yaml: document 2, line 8: Pod "p": metadata.generation: expected a whole number, found one that is too large or a fraction
            "#]],
        );
    }
}

#[test]
fn hostile_keys_and_paths_are_rejected() {
    check(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {../../etc/cron.d/x: ''}\n",
        expect![[r#"
            larder: app.yaml: document 2, line 9: ConfigMap "a": [data[../../etc/cron.d/x]: Invalid value: "../../etc/cron.d/x": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+'), data[../../etc/cron.d/x]: Invalid value: "../../etc/cron.d/x": must not start with '..']
        "#]],
    );
    check(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c, image: i}]\n  volumes:\n  - name: v\n    configMap: {name: a, items: [{key: k, path: ../x}, {key: k, path: ..data}]}\n",
        expect![[r#"
            larder: app.yaml: document 2, line 13: Pod "p": [spec.volumes[0].configMap.items[0].path: Invalid value: "../x": must not contain '..', spec.volumes[0].configMap.items[1].path: Invalid value: "..data": must not start with '..']
        "#]],
    );
}

#[test]
fn too_large_objects_are_rejected() {
    let value = "x".repeat((1 << 20) + 1);
    check(
        &format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata: {{k: {value}}}\n"),
        expect![[r#"
            larder: app.yaml: document 2, line 9: ConfigMap "a": data: Too long: may not be more than 1048576 bytes
        "#]],
    );
}

#[test]
fn nul_in_a_variable_stops_its_container() {
    let run = Desk::with([(
        "app.yaml",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {k: YQBi}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c, image: i, envFrom: [{secretRef: {name: s}}]}, {name: d, image: i}]\n",
    )])
    .run("render -f app.yaml");
    assert_eq!(run.code, 1);
    assert!(
        run.stdout
            .contains("container c  environment variable \"k\" contains a NUL byte"),
        "{}",
        run.stdout
    );
    assert!(run.stdout.contains("container d"), "{}", run.stdout);
}

#[test]
fn missing_objects_and_keys_have_the_kubelets_messages() {
    let run = Desk::with([(
        "app.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - {name: c, image: i, env: [{name: A, valueFrom: {configMapKeyRef: {name: m, key: k}}}], volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]}\n  volumes: [{name: v, secret: {secretName: s}}, {name: w, configMap: {name: m, items: [{key: k, path: p}]}}]\n",
    )])
    .run("render -f app.yaml");
    assert_eq!(run.code, 1);
    expect![[r#"
        default/p  app.yaml: document 2, line 5
        ├─ does not start
        │  ├─ container c  couldn't find key k in ConfigMap default/m
        │  ├─ volume v     secret "s" not found
        │  └─ volume w     configmap references non-existent config key: k
        └─ container c
           ├─ not started: couldn't find key k in ConfigMap default/m
           ├─ A   ConfigMap m has no key k
           ├─ /v  volume v: Secret s, read-only
           │  └─ not filled: secret "s" not found
           └─ /w  volume w: ConfigMap m, read-only
              └─ not filled: configmap references non-existent config key: k

        1 pod, 1 does not start
    "#]]
    .assert_eq(&run.stdout);
}

#[test]
fn misspelt_field_is_a_warning() {
    let pod = GOOD.replace("image: i", "image: i, evn: []");
    let run = Desk::with([("app.yaml", &*pod)]).run("render -f app.yaml");
    assert_eq!(run.code, 0);
    expect![[r#"
        larder: warning: app.yaml: document 1, line 4: Pod "good": unknown field "spec.containers[0].evn", ignored; did you mean "env"?
    "#]].assert_eq(&run.stderr);
}

#[test]
fn unreadable_input_ends_with_2_and_nothing_is_done() {
    let desk = Desk::with([]);
    let run = desk.run("render -f nope.yaml");
    assert_eq!((run.code, &*run.stdout), (2, ""));
    expect![[r#"
        larder: cannot read nope.yaml: No such file or directory (os error 2)
        larder: no manifest could be read
    "#]]
    .assert_eq(&run.stderr);
    fs::write(desk.path().join("binary.yaml"), b"a: 1\n\xff\n").unwrap();
    assert_eq!(desk.run("render -f binary.yaml").code, 2);
}

#[test]
fn one_unreadable_file_leaves_the_others_readable() {
    let desk = Desk::with([("app.yaml", GOOD)]);
    let run = desk.run("refs -f app.yaml nope.yaml");
    assert_eq!(run.code, 1);
    assert!(run.stdout.contains("good"), "{run:?}");
    // A command that would run with half of its manifests, or is one of them by mistake, does not.
    let run = desk.run("exec -f app.yaml env");
    assert_eq!((run.code, &*run.stdout), (125, ""));
    assert!(run.stderr.contains("after --"), "{run:?}");
}

#[test]
fn errors_contain_no_secret_bytes() {
    for bad in [
        "stringData: {k: hunter2: x}",
        "data: {k: hunter2!}",
        "data: hunter2",
        "stringData: [hunter2]",
        "stringData: {k: \"hunter2",
    ] {
        let text = format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\n{bad}\n");
        let run = Desk::with([("app.yaml", &text)]).run("render -f app.yaml");
        assert_eq!(run.code, 1, "{bad}");
        assert!(
            !run.stderr.contains("hunter2") && !run.stdout.contains("hunter2"),
            "{run:?}"
        );
    }
}

#[test]
fn directory_of_kustomize_or_helm_names_the_command_that_makes_its_manifests() {
    for (file, expected) in [
        (
            "kustomization.yaml",
            "kubectl kustomize . | larder render -f -",
        ),
        ("Chart.yaml", "helm template . | larder render -f -"),
    ] {
        let run = Desk::with([(file, "name: web\n")]).run("render -f .");
        assert_ne!(run.code, 0, "{run:?}");
        assert!(run.stderr.contains(expected), "{run:?}");
    }
}
