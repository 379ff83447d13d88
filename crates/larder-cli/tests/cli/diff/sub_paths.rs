//! Files mounted by `subPath`: whether a running container sees their change.

use super::{run, verdicts::check_verdicts};
use crate::Desk;

/// The lines of containers in the tree, without the rest.
#[track_caller]
fn verdicts(from: &str, to: &str) -> Vec<String> {
    let shown = run(from, to, "").stdout;
    let lines = shown
        .lines()
        .filter_map(|line| line.split_once("─ container "));
    lines.map(|(_, verdict)| verdict.to_owned()).collect()
}

/// A pod with a file and a directory by subPath.
const SUB_PATHS: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, annotations: {larder.dev/subpath-updates: "true"}}
spec:
  containers:
  - {name: file, image: i, volumeMounts: [{name: v, mountPath: /a.conf, subPath: a}]}
  - {name: part, image: i, volumeMounts: [{name: v, mountPath: /part/, subPath: d}]}
  volumes:
  - name: v
    configMap: {name: m, items: [{key: a, path: a}, {key: b, path: d/b}, {key: c, path: d/c}], optional: true}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: m}
data: {a: "1", b: "1", c: "1"}
"#;

#[test]
fn file_by_sub_path_is_seen_without_a_restart_if_the_pod_asks_for_updates() {
    let changed = |pod: &str| pod.replace("a: \"1\", b: \"1\"", "a: \"2\", b: \"2\"");
    let live = [("file", "live"), ("part", "live")];
    check_verdicts(SUB_PATHS, &changed(SUB_PATHS), &live);
    assert_eq!(
        verdicts(SUB_PATHS, &changed(SUB_PATHS)),
        ["file", "part"].map(|name| format!(
            "{name}  sees it without a restart, by larder.dev/subpath-updates"
        ))
    );
    let rendered = Desk::with([("pod.yaml", SUB_PATHS)])
        .run("render -f pod.yaml")
        .stdout;
    let sees = "sees changes without a restart, by larder.dev/subpath-updates";
    assert_eq!(rendered.matches(sees).count(), 2, "{rendered}");
    for annotations in ["{}", "{larder.dev/subpath-updates: \"false\"}"] {
        let asks = "{larder.dev/subpath-updates: \"true\"}";
        let pod = SUB_PATHS.replace(asks, annotations);
        let restart = [("file", "restart"), ("part", "restart")];
        check_verdicts(&pod, &changed(&pod), &restart);
        let shown = verdicts(&pod, &changed(&pod)).concat();
        let hint = "needs a restart: files mounted by subPath (the annotation larder.dev/subpath-updates: \"true\" \
                    updates them)";
        assert_eq!(shown.matches(hint).count(), 2, "{shown}");
        // The annotation is taken from the second side: it is that of the pod that runs then.
        check_verdicts(&pod, &changed(SUB_PATHS), &live);
        check_verdicts(SUB_PATHS, &changed(&pod), &restart);
    }
}

// subpath 4
#[test]
fn set_of_a_volume_is_mounted_as_a_directory_of_plain_files() {
    let pod = SUB_PATHS.replace("subPath: d}", "subPath: ..data}");
    let changed = pod.replace("b: \"1\"", "b: \"2\"");
    check_verdicts(&pod, &changed, &[("file", "same"), ("part", "live")]);
    let not_asked = |pod: &str| pod.replace("\"true\"", "\"false\"");
    let restart = [("file", "same"), ("part", "restart")];
    check_verdicts(&not_asked(&pod), &not_asked(&changed), &restart);
    let rendered = Desk::with([("pod.yaml", &*pod)]).run("render -f pod.yaml");
    assert!(!rendered.stdout.contains("empty directory"), "{rendered:?}");
    let inside = pod.replace("..data}", "..data/d/b}");
    let changed = inside.replace("b: \"1\"", "b: \"2\"");
    check_verdicts(&inside, &changed, &[("file", "same"), ("part", "live")]);
}

// subpath 10
// subpath 11
#[test]
fn file_by_sub_path_that_larder_leaves_alone_needs_a_restart() {
    let data = "{a: \"1\", b: \"1\", c: \"1\"}";
    let with = |data_of: &str| SUB_PATHS.replace(data, data_of);
    let check = |from: &str, to: &str, file: &str, part: &str| {
        check_verdicts(&with(from), &with(to), &[("file", file), ("part", part)]);
    };
    // Of a directory, files may come and go, but not all of them.
    check(data, "{a: \"1\", b: \"1\"}", "same", "live");
    check("{a: \"1\", b: \"1\"}", data, "same", "live");
    check(data, "{a: \"1\"}", "same", "restart");
    check("{a: \"1\"}", data, "same", "live");
    // The container keeps the file, or has an empty directory in its place.
    check(data, "{b: \"1\", c: \"1\"}", "restart", "same");
    check("{b: \"1\", c: \"1\"}", data, "restart", "same");
    let gone = verdicts(SUB_PATHS, &with("{b: \"1\", c: \"1\"}"));
    let why = "needs a restart: files mounted by subPath, which cannot be replaced";
    assert!(gone[0].contains(why), "{gone:?}");
    // A directory in place of a file.
    let turned = SUB_PATHS.replace("path: a}", "path: a/b}");
    let turned = verdicts(SUB_PATHS, &turned);
    assert!(turned[0].contains("needs a restart"), "{turned:?}");
    // Something else is mounted on the directory.
    let covered = |text: &str| {
        let mounts = "subPath: d}, {name: v, mountPath: /part/b, subPath: b}]";
        SUB_PATHS
            .replace("subPath: d}]", mounts)
            .replace("c: \"1\"", text)
    };
    check_verdicts(
        &covered("c: \"1\""),
        &covered("c: \"2\""),
        &[("file", "same"), ("part", "restart")],
    );
}
