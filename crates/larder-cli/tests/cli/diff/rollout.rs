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
        ("wave.pusher.com/update-on-config-change: 'true'", true),
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

#[test]
fn zero_that_the_api_server_drops_is_no_difference_of_the_template() {
    let from = [deployment(""), map("", "info")].concat();
    let with = |field: &str| {
        let to = [deployment(""), map("", "debug")].concat();
        to.replace("restartPolicy", &format!("{field}, restartPolicy"))
    };
    assert_eq!(rolls_out(&from, &with("hostNetwork: false")), false);
    assert_eq!(rolls_out(&from, &with("nodeSelector: {}")), false);
    assert_eq!(
        rolls_out(&from, &with("shareProcessNamespace: false")),
        true
    );
}

#[test]
fn kind_that_is_not_known_neither_rolls_out_nor_waits_for_somebody() {
    let side = |version: &str, kind: &str, spec: &str, level: &str| {
        deployment("")
            .replace("apps/v1", version)
            .replace("kind: Deployment", &format!("kind: {kind}"))
            .replace("spec: {selector", &format!("spec: {{{spec} selector"))
            .replace("image: i,", &format!("image: i, args: [{level}],"))
            + &map("", level)
    };
    let of = |version: &str, kind: &str, spec: &str| {
        let sides = ["info", "debug"].map(|level| side(version, kind, spec, level));
        rolls_out(&sides[0], &sides[1])
    };
    assert_eq!(of("example.com/v1", "Foo", ""), Value::Null);
    assert_eq!(of("argoproj.io/v1alpha1", "Rollout", ""), true);
    assert_eq!(of("apps.kruise.io/v1alpha1", "BroadcastJob", ""), false);
    let paused = "updateStrategy: {rollingUpdate: {paused: true}},";
    assert_eq!(of("apps.kruise.io/v1beta1", "StatefulSet", paused), false);
    let openshift = "apps.openshift.io/v1";
    assert_eq!(of(openshift, "DeploymentConfig", ""), true);
    assert_eq!(of(openshift, "DeploymentConfig", "triggers: [],"), false);
    let sides = ["info", "debug"].map(|level| side("example.com/v1", "Foo", "", level));
    let tree = run(&sides[0], &sides[1], "").stdout;
    assert!(
        tree.contains("whether Foo.example.com web does it is not known"),
        "{tree}"
    );
}

#[test]
fn change_that_the_api_server_rejects_needs_the_workload_to_be_made_again() {
    let side = |kind: &str, spec: &str, level: &str| {
        let workload = workload(kind, "", spec, &format!("annotations: {{l: {level}}}"));
        [&*workload, &map("", level)].concat()
    };
    let check = |from: &str, to: &str, workload: &str, field: &str| {
        assert_eq!(rolls_out(from, to), false);
        let tree = run(from, to, "").stdout;
        let words = format!(
            "until somebody deletes {workload} and makes it again: the API server rejects a change of {field}"
        );
        assert!(tree.contains(&words), "{tree}");
    };
    let deployment = side("Deployment", "", "debug");
    let selector = deployment.replace("matchLabels: {app: web}", "matchLabels: {app: web, l: x}");
    let selector = selector.replace("labels: {app: web}", "labels: {app: web, l: x}");
    let from = side("Deployment", "", "info");
    check(&from, &selector, "Deployment web", "spec.selector");
    let sides = [("a", "info"), ("b", "debug")];
    let sides =
        sides.map(|(name, level)| side("StatefulSet", &format!("serviceName: {name},"), level));
    check(&sides[0], &sides[1], "StatefulSet web", "spec.serviceName");
    let sides = ["info", "debug"].map(|level| side("Job", "", level));
    check(&sides[0], &sides[1], "Job web", "spec.template");
    let pod = |value: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: ns}}\n\
             spec: {{containers: [{{name: c, image: i, env: [{{name: A, value: {value}}}]}}]}}\n"
        )
    };
    check(&pod("a"), &pod("b"), "pod p", "spec");
}

/// A workload with a volume that shows an annotation and a ConfigMap, which the container and an init container mount.
fn watcher(kind: &str, restart_policy: &str, note: &str, level: &str) -> String {
    let spec = format!(
        "spec: {{initContainers: [{{name: init, image: i, {restart_policy} volumeMounts: [{{name: v, mountPath: /v}}]}}], \
         containers: [{{name: c, image: i, volumeMounts: [{{name: v, mountPath: /v}}, {{name: w, mountPath: /w}}]}}], volumes: [\
         {{name: v, configMap: {{name: app}}}}, {{name: w, downwardAPI: {{items: [{{path: note, fieldRef: {{fieldPath: \
         \"metadata.annotations['note']\"}}}}]}}}}]}}"
    );
    let metadata = format!("labels: {{a: b}}, annotations: {{note: {note}}}");
    let workload = match kind {
        "Pod" => format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: ns, {metadata}}}\n{spec}\n"
        ),
        _ => format!(
            "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: web, namespace: ns}}\n\
             spec: {{selector: {{matchLabels: {{a: b}}}}, template: {{metadata: {{{metadata}}}, {spec}}}}}\n"
        ),
    };
    [&*workload, &map("", level)].concat()
}

#[test]
fn init_container_has_ended_and_sees_no_update_unless_it_is_a_sidecar() {
    for (policy, verdict) in [("", "restart"), ("restartPolicy: Always,", "live")] {
        let sides = ["info", "debug"].map(|level| watcher("Deployment", policy, "x", level));
        let containers = &diff(&sides[0], &sides[1])["pods"][0]["containers"];
        assert_eq!(containers["init"]["verdict"], verdict, "{containers:#}");
        assert_eq!(containers["c"]["verdict"], "live", "{containers:#}");
    }
}

#[test]
fn running_pod_sees_its_own_annotations_and_not_those_of_the_template() {
    for (kind, verdict, rolls_out) in [
        ("Pod", "live", Value::Null),
        ("Deployment", "restart", true.into()),
    ] {
        let sides = ["one", "two"].map(|note| watcher(kind, "", note, "info"));
        let container = &diff(&sides[0], &sides[1])["pods"][0]["containers"]["c"];
        assert_eq!(container["verdict"], verdict, "{kind}: {container:#}");
        assert_eq!(container["rollsOut"], rolls_out, "{kind}");
    }
}

#[test]
fn variables_of_services_count_where_a_command_line_has_them_or_the_pod_asks_for_others() {
    let service = |ip: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: db, namespace: ns}}\n\
             spec: {{clusterIP: {ip}, ports: [{{port: 80}}]}}\n"
        )
    };
    let side = |args: &str, ip: &str| {
        let args = format!("image: i, args: ['{args}'],");
        deployment("").replace("image: i,", &args) + &map("", "info") + &service(ip)
    };
    let sides = |args: &str| ["10.0.0.1", "10.0.0.2"].map(|ip| side(args, ip));
    let [from, to] = sides("$(DB_SERVICE_HOST)");
    let report = diff(&from, &to);
    let container = &report["pods"][0]["containers"]["c"];
    let change = json!({"from": "10.0.0.1", "to": "10.0.0.2"});
    assert_eq!(container["env"]["changed"]["DB_SERVICE_HOST"], change);
    for other in ["$$(DB_SERVICE_HOST)", "$(OTHER)", "DB_SERVICE_HOST"] {
        let [from, to] = sides(other);
        assert_eq!(diff(&from, &to)["pods"], json!([]), "{other}");
    }
    // It asks for them no longer: that is no matter of its namespace.
    let [from, _] = sides("x");
    let to = from.replace("restartPolicy", "enableServiceLinks: false, restartPolicy");
    let report = diff(&from, &to);
    assert_eq!(report["services"], Value::Null);
    let removed = &report["pods"][0]["containers"]["c"]["env"]["removed"];
    assert_eq!(removed.as_array().unwrap().len(), 7, "{report:#}");
}
