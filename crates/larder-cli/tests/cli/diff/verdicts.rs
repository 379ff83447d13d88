//! Which differences a running container sees.

use super::*;

/// Checks the verdicts of the containers of the only pod that differs; of none, if `expected` is empty.
#[track_caller]
pub(super) fn check_verdicts(from: &str, to: &str, expected: &[(&str, &str)]) {
    let report = diff(from, to);
    let containers = report["pods"][0]["containers"].as_object();
    let found: Vec<_> = containers
        .into_iter()
        .flatten()
        .map(|(name, container)| (name.as_str(), container["verdict"].as_str().unwrap()))
        .collect();
    assert_eq!(found, expected, "{report:#}");
}

#[test]
fn change_of_an_immutable_object_needs_a_restart() {
    let hook = "{name: web, namespace: prod, annotations: {larder.dev/on-change: 'signal:SIGHUP'}}";
    let pod = POD.replace("{name: web, namespace: prod}", hook);
    let immutable = |data: &str| map(data) + "immutable: true\n";
    let (one, two) = ("{a: '1', b: '1'}", "{a: '2', b: '1'}");
    let base = [&*pod, &immutable(one)].concat();
    let restart = [("side", "same"), ("web", "restart")];
    // The API server rejects each of these; a running container does not see a recreated object either.
    for to in [immutable(two), map(two), immutable("{b: '1'}")] {
        check_verdicts(&base, &[&*pod, &to].concat(), &restart);
    }
    let changed = [&*pod, &immutable(two)].concat();
    let report = diff(&base, &changed);
    assert_eq!(
        report["pods"][0]["containers"]["web"]["immutable"],
        json!(["configmap app"])
    );
    assert_eq!(report["pods"][0]["hooks"], Value::Null, "{report:#}");
    for format in ["tree", "markdown", "html"] {
        let shown = run(&base, &changed, &format!("-o {format}")).stdout;
        let why = "needs a restart: an immutable object (the API server rejects this change;";
        assert!(shown.contains(why), "{shown}");
    }
    // It becomes immutable with this change, or its data stays as it is.
    let before = [&*pod, &map(one)].concat();
    let live = [("side", "same"), ("web", "live")];
    check_verdicts(&before, &changed, &live);
    check_verdicts(&before, &base, &[]);
    let secret = |value: &str| secret(&format!("{{key: {value}}}")) + "immutable: true\n";
    let with = |value: &str| [&*base, &secret(value)].concat();
    check_verdicts(
        &with("one"),
        &with("two"),
        &[("side", "restart"), ("web", "same")],
    );
}

#[test]
fn key_of_an_immutable_object_that_something_else_makes_needs_a_restart() {
    let pod = concat!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: prod}\nspec:\n",
        "  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]\n",
        "  volumes: [{name: v, secret: {secretName: db, optional: true, items: [{key: a, path: a}]}}]\n",
        "---\napiVersion: v1\nkind: Secret\nmetadata: {name: db, namespace: prod}\n",
    );
    let from = format!("{pod}stringData: {{b: '1'}}\nimmutable: true\n");
    let to = format!("{pod}data: {{a: 'ENC[x]'}}\nsops: {{mac: m}}\n");
    check_verdicts(&from, &to, &[("c", "restart")]);
}

#[test]
fn verdict_follows_from_what_a_running_container_sees() {
    let data = map("{level: info, a: '1', b: '1'}");
    let base = [POD, &data].concat();
    let with = |data: &str| [POD, &map(data)].concat();
    // A file of a volume; the other container has another file by subPath.
    check_verdicts(
        &base,
        &with("{level: info, a: '2', b: '1'}"),
        &[("side", "same"), ("web", "live")],
    );
    check_verdicts(
        &base,
        &with("{level: info, a: '1', b: '2'}"),
        &[("side", "restart"), ("web", "live")],
    );
    check_verdicts(
        &base,
        &with("{level: debug, a: '1', b: '1'}"),
        &[("side", "same"), ("web", "restart")],
    );
    check_verdicts(&base, &base, &[]);
    // The same object in another place of the text.
    check_verdicts(&base, &[&data, "---", POD].concat(), &[]);
    let secret = secret("{key: one}");
    check_verdicts(
        &base,
        &[&base, &*secret].concat(),
        &[("side", "live"), ("web", "same")],
    );
    // Mounts.
    let moved = base.replace("mountPath: /etc/app", "mountPath: /etc/web");
    check_verdicts(&base, &moved, &[("side", "same"), ("web", "restart")]);
    let renamed = base.replace("configMap: {name: app}", "configMap: {name: app-2}");
    // How a volume is filled is not seen; but a pod that runs follows the object that it had.
    let filled = |data: &str| [&*renamed, &data.replace("name: app", "name: app-2")].concat();
    check_verdicts(&base, &filled(&data), &[]);
    let other = map("{level: info, a: '2', b: '1'}");
    check_verdicts(
        &base,
        &filled(&other),
        &[("side", "same"), ("web", "restart")],
    );
    // Starts, and no start.
    check_verdicts(&base, POD, &[("side", "fails"), ("web", "fails")]);
    check_verdicts(POD, &base, &[("side", "starts"), ("web", "starts")]);
    check_verdicts(POD, &format!("{POD}\n# still"), &[]);
    // Containers and pods that come and go.
    let side = base.find("  - name: side").unwrap()..base.find("  volumes:").unwrap();
    let mut alone = base.clone();
    alone.replace_range(side, "");
    check_verdicts(&alone, &base, &[("side", "starts"), ("web", "same")]);
    check_verdicts(&base, &alone, &[("side", "restart"), ("web", "same")]);
    check_verdicts(&data, &base, &[("side", "starts"), ("web", "starts")]);
    check_verdicts(&data, POD, &[("side", "fails"), ("web", "fails")]);
    let report = diff(&base, &data);
    let removed =
        json!({"namespace": "prod", "name": "web", "change": "removed", "containers": {}});
    assert_eq!(report["pods"], json!([removed]));
}

#[test]
fn other_owner_group_or_mode_of_a_file_needs_a_restart() {
    let pod = |user: &str, volume: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  {user}\n  containers: [{{name: web, image: i, \
            volumeMounts: [{{name: v, mountPath: /v}}]}}]\n  volumes: [{{name: v, {volume}}}]\n"
        )
    };
    let token = "projected: {sources: [{serviceAccountToken: {path: token}}]}";
    let user = |user: u32| pod(&format!("securityContext: {{runAsUser: {user}}}"), token);
    let restart = [("web", "restart")];
    check_verdicts(&user(1000), &user(2000), &restart);
    check_verdicts(&pod("", token), &user(2000), &restart);
    let run = run(&user(1000), &user(2000), "");
    let why = "needs a restart: mounts, modes, owners or groups of files";
    assert!(run.stdout.contains(why), "{run:?}");
    let fields = |mode: &str| {
        let field = "fieldRef: {fieldPath: metadata.name}";
        pod(
            "",
            &format!("downwardAPI: {{{}}}", mode.replace("FIELD", field)),
        )
    };
    for (from, to) in [
        (
            "items: [{path: a, FIELD}]",
            "defaultMode: 0400, items: [{path: a, FIELD}]",
        ),
        (
            "items: [{path: a, FIELD}]",
            "items: [{path: a, mode: 0400, FIELD}]",
        ),
    ] {
        check_verdicts(&fields(from), &fields(to), &restart);
    }
    // The group of the pod may read every file, whatever its mode.
    let group = |group: &str| {
        let file = "downwardAPI: {defaultMode: 0400, items: [{path: a, fieldRef: {fieldPath: metadata.name}}]}";
        pod(group, file)
    };
    let (without, with) = (group(""), group("securityContext: {fsGroup: 2000}"));
    check_verdicts(&without, &with, &restart);
    let run = super::run(&without, &with, "");
    assert!(run.stdout.contains("0400 → 0440, group 2000"), "{run:?}");
    assert_eq!(
        diff(&without, &with)["pods"][0]["containers"]["web"]["files"]["changed"]["/v/a"]["group"],
        json!({"from": null, "to": 2000})
    );
}

#[test]
fn container_does_not_start_behind_an_init_container_that_does_not() {
    let side = |value: &str, init: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m, namespace: ns}}\ndata: {{k: v}}\n---\n\
             apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, namespace: ns}}\n\
             spec: {{selector: {{matchLabels: {{a: b}}}}, template: {{metadata: {{labels: {{a: b}}}}, spec: {{{init} \
             containers: [{{name: c, image: i, env: [{{name: A, value: '{value}'}}]}}]}}}}}}\n"
        )
    };
    let init = |key: &str| {
        format!(
            "initContainers: [{{name: x, image: i, env: [{{name: K, valueFrom: {{configMapKeyRef: {{name: m, key: {key}}}}}}}]}}],"
        )
    };
    let from = side("1", "");
    for value in ["1", "2"] {
        let report = diff(&from, &side(value, &init("nope")));
        let containers = &report["pods"][0]["containers"];
        for (name, before) in [("x", ""), ("c", "init container x: ")] {
            assert_eq!(containers[name]["verdict"], "fails", "{report:#}");
            let error = format!("{before}couldn't find key nope in ConfigMap ns/m");
            assert_eq!(containers[name]["error"], error, "{report:#}");
        }
    }
    let report = diff(&from, &side("2", &init("k")));
    assert_eq!(report["pods"][0]["containers"]["c"]["verdict"], "restart");
    // What is not known of it is not known of those behind it.
    let outside = init("k").replace("name: m,", "name: outside,");
    let report = diff(&from, &side("2", &outside));
    let unless = &report["pods"][0]["containers"]["c"]["unless"];
    assert_eq!(unless[0]["what"], "configmap outside", "{report:#}");
}
