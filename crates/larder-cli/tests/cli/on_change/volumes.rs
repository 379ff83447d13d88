//! Changes that fire: of some files, of several volumes, of variables.

use super::harness::*;
use crate::{
    Desk,
    exec::{Running, desk, edit, may_mount, web_pod},
};

// on-change 15, 16, 17
#[test]
fn only_other_bytes_of_matching_files_fire() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let hook = "[{signal: HUP, paths: [k*]}]";
    let mut running = start(&desk, &["--on-change", hook]);
    let write = |text: &str| desk.replace("app.yaml", text);
    // A label, a mode, and another file.
    let manifest = crate::exec::manifest("one", "1", "");
    let labeled = manifest.replace("{name: app}", "{name: app, labels: {a: b}}");
    write(&labeled);
    write(&labeled.replace(
        "configMap: {name: app}",
        "configMap: {name: app, defaultMode: 0600}",
    ));
    write(&labeled.replace("other: x", "other: y"));
    write(&manifest.replace("key: one", "key: last"));
    assert_eq!(running.line(), "HUP last");
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 24
#[test]
fn stale_sub_path_is_named_and_the_hook_fires() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let flags = ["--on-change", "signal:HUP", "--subpath-updates=false"];
    let mut running = Running::with_errors(&desk, &flags, WAIT);
    assert_eq!(running.line(), "ready 1");
    edit(&desk, "two", "1");
    assert_eq!(running.line(), "HUP two");
    assert_eq!(
        running.error_line(),
        "larder: container web mounts config by subPath: only a restart shows it the new file"
    );
    assert_eq!(end(running), (String::new(), Some(0)));
}

/// A pod with two volumes of one ConfigMap, one of an optional Secret, and variables, one of which hides a key.
fn several(key: &str, hidden: &str, shown: &str, secret: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: app}}, data: {{key: {key}}}}}
---
{{apiVersion: v1, kind: ConfigMap, metadata: {{name: env}}, data: {{A: '{hidden}', B: '{shown}'}}}}
{secret}
---
{}",
        web_pod(
            "envFrom: [{configMapRef: {name: env}}], env: [{name: A, value: own}], volumeMounts: [
    {name: one, mountPath: /larder-test/one},
    {name: two, mountPath: /larder-test/two},
    {name: maybe, mountPath: /larder-test/maybe}]",
            "{name: one, configMap: {name: app}}, {name: two, configMap: {name: app}},
    {name: maybe, secret: {secretName: maybe, optional: true}}",
        )
    )
}

const SECRET: &str =
    "---\n{apiVersion: v1, kind: Secret, metadata: {name: maybe}, stringData: {key: s}}";

/// Prints what it sees at each signal.
const SEVERAL: &str =
    "trap 'echo $(cd /larder-test; cat one/key two/key; cat maybe/key 2>/dev/null)' HUP
    trap 'exit 0' TERM; echo ready $A $B; while :; do sleep 100 & wait $!; done";

// on-change 19, 20
#[test]
fn volumes_that_change_together_send_one_signal() {
    if !may_mount() {
        return;
    }
    let desk = Desk::with([("app.yaml", several("a", "1", "1", "").as_str())]);
    let mut running = Running::start(&desk, &["--on-change", "signal:HUP"], SEVERAL);
    assert_eq!(running.line(), "ready own 1");
    desk.replace("app.yaml", &several("b", "1", "1", ""));
    assert_eq!(running.line(), "bb");
    // An optional object that comes, and one that goes.
    desk.replace("app.yaml", &several("b", "1", "1", SECRET));
    assert_eq!(running.line(), "bbs");
    desk.replace("app.yaml", &several("b", "1", "1", ""));
    assert_eq!(running.line(), "bb");
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 22
#[test]
fn hidden_variable_restarts_nothing() {
    if !may_mount() {
        return;
    }
    let desk = Desk::with([("app.yaml", several("a", "1", "1", "").as_str())]);
    let flags = [
        "--on-change",
        "restart:environment",
        "--on-change",
        "signal:HUP",
    ];
    let mut running = Running::start(&desk, &flags, SEVERAL);
    assert_eq!(running.line(), "ready own 1");
    desk.replace("app.yaml", &several("a", "2", "1", ""));
    // What comes next shows that nothing came before.
    desk.replace("app.yaml", &several("b", "2", "1", ""));
    assert_eq!(running.line(), "bb");
    desk.replace("app.yaml", &several("b", "2", "2", ""));
    assert_eq!(running.line(), "ready own 2");
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 21
#[test]
fn volume_that_fails_holds_no_other_back() {
    if !may_mount() {
        return;
    }
    let text = |one: &str, two: &str| {
        several("a", "1", "1", "")
            .replace("data: {key: a}", &format!("data: {{{one}}}"))
            .replace(
                "name: two, configMap: {name: app}",
                "name: two, configMap: {name: two}",
            )
            .replace(
                "name: one, configMap: {name: app}",
                "name: one, configMap: {name: app, items: [{key: key, path: key}]}",
            )
            + &format!(
                "---\n{{apiVersion: v1, kind: ConfigMap, metadata: {{name: two}}, data: {{key: {two}}}}}\n"
            )
    };
    let desk = Desk::with([("app.yaml", text("key: a", "x").as_str())]);
    let flags = ["--on-change", "signal:HUP"];
    let mut running = Running::with_errors(&desk, &flags, SEVERAL);
    assert_eq!(running.line(), "ready own 1");
    desk.replace("app.yaml", &text("other: b", "z"));
    assert_eq!(running.line(), "az");
    let line = running.error_line();
    assert!(
        line.contains("cannot update volume one, keeping its last good copy"),
        "{line}"
    );
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 66
#[test]
fn object_that_is_left_out_sends_no_signal() {
    if !may_mount() {
        return;
    }
    let app = |key: &str, secret: &str| {
        let annotated = "{name: app, annotations: {larder.dev/on-change: 'false'}}";
        several(key, "1", "1", secret).replacen("{name: app}", annotated, 1)
    };
    let desk = Desk::with([("app.yaml", app("a", "").as_str())]);
    let script = "trap 'echo HUP' HUP; trap 'exit 0' TERM; cd /larder-test; last=
        while :; do now=$(cat one/key two/key); [ \"$now\" = \"$last\" ] || echo $now; last=$now; sleep 0.02; done";
    let mut running = Running::start(&desk, &["--on-change", "signal:HUP"], script);
    assert_eq!(running.line(), "aa");
    desk.replace("app.yaml", &app("b", ""));
    let mut line = running.line();
    while line != "bb" {
        // One volume is there before the other.
        assert!(["ab", "ba"].contains(&line.as_str()), "{line}");
        line = running.line();
    }
    desk.replace("app.yaml", &app("b", SECRET));
    assert_eq!(running.line(), "HUP");
    assert_eq!(end(running), (String::new(), Some(0)));
}
