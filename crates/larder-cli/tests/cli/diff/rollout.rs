//! Whether a workload replaces its pods by itself, or they must be restarted by hand.

use serde_json::{Value, json};

use super::{diff, run};

/// A workload of this kind, whose container reads the variable `LEVEL` of ConfigMap app.
fn workload(kind: &str, annotations: &str, spec: &str, template: &str) -> String {
    let (version, below) = match kind {
        "CronJob" => ("batch/v1", "jobTemplate: {spec: {template: "),
        "Job" => ("batch/v1", "{template: "),
        _ => ("apps/v1", "template: "),
    };
    let pod = format!(
        "{{metadata: {{labels: {{app: web}}, {template}}}, spec: {{restartPolicy: {}, containers: [{{name: c, image: i, \
         env: [{{name: LEVEL, valueFrom: {{configMapKeyRef: {{name: app, key: level}}}}}}]}}]}}}}",
        if version == "batch/v1" {
            "Never"
        } else {
            "Always"
        }
    );
    let own = match kind {
        "CronJob" => format!("{{schedule: '* * * * *', {below}{pod}}}}}}}"),
        "Job" => format!("{below}{pod}}}"),
        _ => format!("{{selector: {{matchLabels: {{app: web}}}}, {spec} {below}{pod}}}"),
    };
    format!(
        "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: web, namespace: ns, annotations: {{{annotations}}}}}\nspec: {own}\n"
    )
}

fn deployment(annotations: &str) -> String {
    workload("Deployment", annotations, "", "")
}

/// ConfigMap app.
fn map(annotations: &str, level: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: app, namespace: ns, annotations: {{{annotations}}}}}\n\
         data: {{level: {level}}}\n"
    )
}

/// `rollsOut` of the pod, which its container has as well.
#[track_caller]
fn rolls_out(from: &str, to: &str) -> Value {
    let report = diff(from, to);
    let pod = &report["pods"][0];
    let container = &pod["containers"]["c"];
    assert_eq!(container["verdict"], "restart", "{report:#}");
    assert_eq!(container["rollsOut"], pod["rollsOut"], "{report:#}");
    pod["rollsOut"].clone()
}

/// Whether `workload` replaces its pods if only the ConfigMap differs.
#[track_caller]
fn rolls_out_for_map(workload: &str) -> Value {
    let side = |level: &str| [workload, &map("", level)].concat();
    rolls_out(&side("info"), &side("debug"))
}

#[test]
fn change_of_an_object_alone_replaces_no_pod() {
    for kind in [
        "Deployment",
        "StatefulSet",
        "DaemonSet",
        "ReplicaSet",
        "Job",
    ] {
        let workload = workload(kind, "", "", "");
        assert_eq!(rolls_out_for_map(&workload), false, "{kind}");
    }
    // Each run of it has new pods.
    assert_eq!(rolls_out_for_map(&workload("CronJob", "", "", "")), true);
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ns, annotations: {reloader.stakater.com/auto: 'true'}}\n\
        spec: {containers: [{name: c, image: i, envFrom: [{configMapRef: {name: app}}]}]}\n";
    assert_eq!(rolls_out_for_map(pod), false);
}

#[test]
fn template_that_differs_replaces_pods_and_defaults_are_no_difference() {
    let with_template = |template: &str, level: &str| {
        [&*workload("Deployment", "", "", template), &map("", level)].concat()
    };
    let from = with_template("", "info");
    let checksum = "annotations: {checksum/config: abc}";
    assert_eq!(rolls_out(&from, &with_template(checksum, "debug")), true);
    // What the API server would store is the same.
    let same = with_template("annotations: {}, ", "debug")
        .replace("image: i,", "image: i, imagePullPolicy: Always, args: [],")
        .replace("restartPolicy", "dnsPolicy: ClusterFirst, restartPolicy");
    assert_eq!(rolls_out(&from, &same), false);
    let limits = |amount: &str, level: &str| {
        let limits = format!("image: i, resources: {{limits: {{cpu: {amount}}}}},");
        with_template("", level).replace("image: i,", &limits)
    };
    assert_eq!(
        rolls_out(&limits("1000m", "info"), &limits("'1'", "debug")),
        false
    );
    assert_eq!(
        rolls_out(&limits("1000m", "info"), &limits("'2'", "debug")),
        true
    );
}

#[test]
fn name_with_a_hash_is_a_difference_of_the_template() {
    let side = |hash: &str, level: &str| {
        [&*deployment(""), &map("", level)]
            .concat()
            .replace("name: app,", &format!("name: app-{hash},"))
    };
    assert_eq!(
        rolls_out(&side("bm6m88fk92", "info"), &side("7t9d4hk2c8", "debug")),
        true
    );
}

#[test]
fn workload_that_does_not_replace_its_pods_keeps_the_old_value_though_its_template_differs() {
    for (kind, spec) in [
        ("StatefulSet", "updateStrategy: {type: OnDelete},"),
        ("DaemonSet", "updateStrategy: {type: OnDelete},"),
        (
            "StatefulSet",
            "updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1}},",
        ),
        ("Deployment", "paused: true,"),
        ("ReplicaSet", ""),
    ] {
        let side = |level: &str| {
            let workload = workload(
                kind,
                "reloader.stakater.com/auto: 'true'",
                spec,
                &format!("annotations: {{l: {level}}}"),
            );
            [&*workload, &map("", level)].concat()
        };
        assert_eq!(
            rolls_out(&side("info"), &side("debug")),
            false,
            "{kind} {spec}"
        );
    }
    let rolling = "updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 0}},";
    let side = |level: &str| {
        let workload = workload(
            "StatefulSet",
            "",
            rolling,
            &format!("annotations: {{l: {level}}}"),
        );
        [&*workload, &map("", level)].concat()
    };
    assert_eq!(rolls_out(&side("info"), &side("debug")), true);
}

#[test]
fn controllers_that_watch_objects_replace_pods() {
    for (annotations, expected) in [
        ("reloader.stakater.com/auto: 'true'", true),
        ("reloader.stakater.com/auto: 'false'", false),
        ("configmap.reloader.stakater.com/auto: 'true'", true),
        ("secret.reloader.stakater.com/auto: 'true'", false),
        ("configmap.reloader.stakater.com/reload: 'other, app'", true),
        ("configmap.reloader.stakater.com/reload: 'a.*'", true),
        ("configmap.reloader.stakater.com/reload: ap", false),
        ("configmap.reloader.stakater.com/reload: '('", false),
        ("secret.reloader.stakater.com/reload: app", false),
        ("wave.pusher.com/update-config-on-change: 'true'", true),
        ("configmap.fabric8.io/update-on-change: app", true),
        // It acts on what it makes.
        ("operator.1password.io/auto-restart: 'true'", false),
        (
            "reloader.stakater.com/auto: 'true', configmaps.exclude.reloader.stakater.com/reload: app",
            false,
        ),
    ] {
        assert_eq!(
            rolls_out_for_map(&deployment(annotations)),
            expected,
            "{annotations}"
        );
        // Those of the pods count, where the workload has none.
        let of_pods = workload(
            "Deployment",
            "",
            "",
            &format!("annotations: {{{annotations}}}"),
        );
        assert_eq!(rolls_out_for_map(&of_pods), expected, "{annotations}");
    }
}

#[test]
fn search_needs_the_mark_of_the_object_and_ignore_excludes_it() {
    let check = |annotations: &str, mark: &str, expected: bool| {
        let side = |level: &str| [&*deployment(annotations), &map(mark, level)].concat();
        assert_eq!(
            rolls_out(&side("info"), &side("debug")),
            expected,
            "{annotations} {mark}"
        );
    };
    let search = "reloader.stakater.com/search: 'true'";
    check(search, "reloader.stakater.com/match: 'true'", true);
    check(search, "", false);
    check(
        "reloader.stakater.com/auto: 'true'",
        "reloader.stakater.com/ignore: 'true'",
        false,
    );
}

#[test]
fn operator_replaces_pods_for_the_secrets_that_it_makes() {
    let side = |item: &str| {
        let deployment = deployment("operator.1password.io/auto-restart: 'true'");
        let deployment = deployment.replace("configMapKeyRef", "secretKeyRef");
        let maker = format!(
            "---\napiVersion: onepassword.com/v1\nkind: OnePasswordItem\nmetadata: {{name: app, namespace: ns}}\n\
             spec: {{itemPath: {item}}}\n"
        );
        [deployment, maker].concat()
    };
    let report = diff(&side("vaults/a/items/b"), &side("vaults/a/items/c"));
    let container = &report["pods"][0]["containers"]["c"];
    // Nobody knows whether the values differ.
    assert_eq!(
        (&container["verdict"], &container["rollsOut"]),
        (&json!("unknown"), &json!(true)),
        "{report:#}"
    );
}

#[test]
fn who_acts_is_said_in_words_and_counted() {
    let pods = |level: &str| {
        let by_hand = deployment("").replace("name: web,", "name: by-hand,");
        let reloaded = deployment("reloader.stakater.com/auto: 'true'");
        [&*by_hand, "---\n", &reloaded, &map("", level)].concat()
    };
    let run = run(&pods("info"), &pods("debug"), "-o markdown");
    for expected in [
        "(containers: 1 needs a restart and keeps the old value until somebody restarts it, \
         1 needs a restart and rolls out by itself)",
        "needs a restart: variables; keeps the old value until somebody restarts it |",
        "needs a restart: variables; rolls out by itself: Reloader acts on configmap app |",
    ] {
        assert!(run.stdout.contains(expected), "{expected}\n{}", run.stdout);
    }
}

#[test]
fn file_that_a_running_container_sees_needs_nobody() {
    let side = |level: &str| {
        let pod = "spec: {containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, configMap: {name: app}}]}";
        let deployment = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, namespace: ns}}\n\
             spec: {{selector: {{matchLabels: {{a: b}}}}, template: {{metadata: {{labels: {{a: b}}}}, {pod}}}}}\n"
        );
        [&*deployment, &map("", level)].concat()
    };
    let report = diff(&side("info"), &side("debug"));
    let pod = &report["pods"][0];
    assert_eq!(pod["containers"]["c"]["verdict"], "live");
    assert_eq!(
        (&pod["rollsOut"], &pod["containers"]["c"]["rollsOut"]),
        (&Value::Null, &Value::Null)
    );
}
