//! What neither side has: taken as equal, and named in every output.

use serde_json::{Value, json};

use super::{diff, run, secret};
use crate::Desk;

/// Variables and files of a Secret that is kept elsewhere, an address, and variables of the pod's own.
const POD: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: prod}
spec:
  template:
    spec:
      containers:
      - name: web
        image: i
        env:
        - {name: LEVEL, value: info}
        - {name: PASSWORD, valueFrom: {secretKeyRef: {name: shop-tls, key: password}}}
        - {name: HOST_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: MEMORY, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
        - {name: URL, value: "http://$(HOST_IP):80"}
        volumeMounts: [{name: tls, mountPath: /tls}]
      volumes: [{name: tls, secret: {secretName: shop-tls}}]
"#;

#[track_caller]
fn container(from: &str, to: &str) -> Value {
    diff(from, to)["pods"][0]["containers"]["web"].clone()
}

#[test]
fn what_neither_side_has_hides_nothing_else() {
    let found = container(POD, &POD.replace("value: info", "value: debug"));
    assert_eq!(found["verdict"], "restart");
    let changed = json!({"LEVEL": {"from": "info", "to": "debug"}});
    assert_eq!(found["env"]["changed"], changed);
    assert_eq!(
        found["files"],
        json!({"added": {}, "removed": [], "changed": {}})
    );
    let unknown = [
        "limits.memory",
        "metadata.name",
        "secret shop-tls",
        "status.hostIP",
    ];
    assert_eq!(found["unknown"], json!(unknown));
}

#[test]
fn no_difference_is_said_with_what_is_not_known() {
    let report = diff(POD, POD);
    assert_eq!(report["pods"], json!([]));
    let what = report["unknown"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["what"] == "secret shop-tls");
    let part = json!({"namespace": "prod", "pod": "web", "workload": "Deployment web", "container": "web", "what": "secret shop-tls"});
    assert_eq!(what, Some(&part));
    for format in ["tree", "markdown", "html"] {
        let run = run(POD, POD, &format!("-o {format}"));
        assert_eq!(run.code, 0);
        assert!(
            run.stdout.contains("No container sees a difference."),
            "{run:?}"
        );
        for what in ["secret shop-tls", "status.hostIP"] {
            assert!(run.stdout.contains(what), "{format}: {run:?}");
        }
    }
}

#[test]
fn unknown_values_are_compared_by_what_they_are_made_of() {
    let found = container(POD, &POD.replace("$(HOST_IP):80", "$(HOST_IP):81"));
    let change = json!({"from": "", "to": "", "unknown": {
        "from": "http://$(status.hostIP):80", "to": "http://$(status.hostIP):81"}});
    assert_eq!(found["env"]["changed"], json!({"URL": change}));
    // Both keys may have one value, and the new one may be missing.
    let found = container(POD, &POD.replace("key: password", "key: user"));
    assert_eq!(found["verdict"], "unknown");
    assert_eq!(
        found["unless"],
        json!([{"what": "secret shop-tls key user"}])
    );
    assert!(found["env"]["changed"].get("PASSWORD").is_some(), "{found}");
    let found = container(
        POD,
        &POD.replace("secretName: shop-tls", "secretName: other"),
    );
    assert!(found["files"]["changed"].get("/tls/*").is_some(), "{found}");
    // A text that looks like an unknown value is none.
    let literal = POD.replace("http://$(HOST_IP):80", "http://$$(status.hostIP):80");
    assert_eq!(container(POD, &literal)["verdict"], "restart");
}

#[test]
fn what_one_side_lacks_is_a_difference() {
    let with = [
        POD,
        &secret("{password: hunter2}").replace("name: tls", "name: shop-tls"),
    ]
    .concat();
    assert_eq!(container(POD, &with)["verdict"], "starts");
    let found = container(&with, POD);
    assert_eq!(found["verdict"], "fails");
    assert_eq!(found["error"], "secret \"shop-tls\" not found");
    // A key that both lack, of an object that both have: it has exactly its keys.
    let other = with.replace("{password:", "{user:");
    let report = diff(&other, &other);
    let whats = report["unknown"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["what"]);
    let expected =
        "would start on neither side: couldn't find key password in Secret prod/shop-tls";
    assert!(whats.clone().any(|what| what == expected), "{report}");
}

#[test]
fn key_that_looks_misspelled_is_named_with_the_likely_one() {
    let with = |key: &str| {
        let object = "\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: app, namespace: prod}, data: {LEVEL: info}}\n";
        let env = format!("valueFrom: {{configMapKeyRef: {{name: app, key: {key}}}}}");
        POD.replace("value: info", &env) + object
    };
    for format in ["tree", "markdown", "html"] {
        let run = run(&with("LEVEL"), &with("LEVL"), &format!("-o {format}"));
        assert_eq!(run.code, 1, "{run:?}");
        let text = run.stdout.replace("&quot;", "\"").replace("&#34;", "\"");
        let expected = "couldn't find key LEVL in ConfigMap prod/app; did you mean \"LEVEL\"?";
        let text = text.replace("&#39;", "'").replace("&#x27;", "'");
        assert!(text.contains(expected), "{format}: {text}");
    }
    let desk = Desk::with([("app.yaml", &with("LEVL"))]);
    let run = desk.run("render -f app.yaml --assume-missing -o json");
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let error = &report["pods"][0]["containers"]["web"]["error"];
    let expected = "couldn't find key LEVL in ConfigMap prod/app; did you mean \"LEVEL\"?";
    assert_eq!(error, expected);
}

#[test]
fn variables_of_an_unknown_object_are_unknown_too() {
    let pod = |value: &str| {
        POD.replace(
            "        env:\n",
            "        envFrom: [{prefix: DB_, secretRef: {name: db}}]\n        env:\n",
        )
        .replace("value: info", &format!("value: \"{value}\""))
    };
    let found = container(&pod("$(DB_USER)"), &pod("$(DB_PASSWORD)"));
    assert_eq!(found["env"]["changed"]["LEVEL"]["from"], Value::Null);
    assert_eq!(
        container(&pod("$(DB_USER)"), &pod("$(DB_USER)")),
        Value::Null
    );
    // Nothing sets this one.
    let found = container(&pod("$(USER)"), &pod("$(DB_USER)"));
    assert_eq!(found["env"]["changed"]["LEVEL"]["from"], "$(USER)");
}

#[test]
fn render_names_what_only_a_running_pod_has() {
    let with = [
        POD,
        &secret("{password: hunter2}").replace("name: tls", "name: shop-tls"),
    ]
    .concat();
    let stateful = with.replace("kind: Deployment", "kind: StatefulSet");
    let desk = Desk::with([
        ("app.yaml", &with),
        ("set.yaml", &stateful),
        ("pod.yaml", POD),
    ]);
    let read = |args: &str, code: i32| -> Value {
        let run = desk.run(args);
        assert_eq!(run.code, code, "{run:?}");
        serde_json::from_str::<Value>(&run.stdout).unwrap()["pods"][0].take()
    };
    let pod = read("render -f app.yaml -o json", 0);
    let found = &pod["containers"]["web"];
    assert_eq!(found["env"]["URL"], "");
    let unknown = json!({"HOST_IP": "status.hostIP", "POD_NAME": "metadata.name", "MEMORY": "limits.memory",
        "URL": "http://$(status.hostIP):80"});
    assert_eq!(found["unknown"], unknown);
    assert_eq!(pod["volumes"]["tls"].get("unknown"), None);
    let pod = read("render -f set.yaml -o json", 0);
    assert_eq!(pod["containers"]["web"]["env"]["POD_NAME"], "web-0");
    // Without the Secret.
    let pod = read("render -f pod.yaml -o json", 1);
    assert!(pod["containers"]["web"].get("error").is_some(), "{pod}");
    let pod = read("render --assume-missing -f pod.yaml -o json", 0);
    let unknown = &pod["containers"]["web"]["unknown"];
    assert_eq!(unknown["PASSWORD"], "secret shop-tls key password");
    assert_eq!(
        pod["volumes"]["tls"]["unknown"],
        json!({"*": "secret shop-tls"})
    );
    let run = desk.run("render --assume-missing -f pod.yaml");
    assert!(!run.stdout.contains("every reference is met"), "{run:?}");
    assert!(
        run.stdout.contains("known when it runs: status.hostIP"),
        "{run:?}"
    );
    assert!(run.stdout.contains("not known: secret shop-tls"), "{run:?}");
}

#[test]
fn what_is_assumed_is_not_named_as_missing() {
    let map = "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: app, namespace: prod}, data: {a: x}}\n";
    let key = "valueFrom: {configMapKeyRef: {name: app, key: level}}";
    let text = POD.replace("value: info", key);
    let text = text.replace(
        "mountPath: /tls",
        "mountPath: /tls, subPathExpr: \"$(NONE)\"",
    ) + map;
    let desk = Desk::with([("app.yaml", &text)]);
    let run = desk.run("render --assume-missing -f app.yaml");
    assert_eq!(run.code, 1, "{run:?}");
    assert!(!run.stdout.contains("not found"), "{run:?}");
    assert!(run.stdout.contains("has no key"), "{run:?}");
    let run = desk.run("render -f app.yaml");
    for missing in [
        "Secret shop-tls not found",
        "ConfigMap app has no key level",
    ] {
        assert!(run.stdout.contains(missing), "{run:?}");
    }
}

#[test]
fn part_of_a_volume_that_is_not_known_differs_from_a_literal_one() {
    let pod = |sub_path: &str| {
        let mount = format!("volumeMounts: [{{name: tls, mountPath: /tls, {sub_path}}}]");
        POD.replace("volumeMounts: [{name: tls, mountPath: /tls}]", &mount)
    };
    let (unknown, literal) = (
        pod(r#"subPathExpr: "$(POD_NAME)""#),
        pod("subPath: web-a.b"),
    );
    let names = pod("subPath: web-1");
    // Nobody knows that the pod has another name.
    for literal in [&literal, &names] {
        let found = container(&unknown, literal);
        assert_eq!(found["verdict"], "unknown");
        assert!(found["mounts"]["changed"].get("/tls").is_some(), "{found}");
    }
    let other = pod("subPath: metadata.name");
    assert_eq!(container(&unknown, &other)["verdict"], "restart");
    assert_eq!(container(&unknown, &unknown), Value::Null);
    // Any part of the volume may be the one.
    let with = |value: &str| {
        let object = secret(&format!("{{web-x: {value}, password: a}}"));
        [
            unknown.as_str(),
            &object.replace("name: tls", "name: shop-tls"),
        ]
        .concat()
    };
    let found = container(&with("a"), &with("b"));
    assert_eq!(found["verdict"], "unknown");
    let unknown = found["unknown"].as_array().unwrap();
    assert!(unknown.contains(&json!("metadata.name")), "{found}");
    let desk = Desk::with([("app.yaml", &with("a"))]);
    let run = desk.run("render -f app.yaml");
    assert!(
        run.stdout
            .contains("<known when it runs: metadata.name> of volume tls")
            && !run.stdout.contains("the volume has no"),
        "{run:?}"
    );
}

#[test]
fn part_of_a_volume_that_a_secret_names_is_hidden() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: prod}\nspec:\n  \
        volumes: [{name: e, configMap: {name: c, optional: true}}]\n  \
        containers:\n  - {name: web, image: i, env: [{name: P, valueFrom: {secretKeyRef: {name: tls, key: p}}}], \
        volumeMounts: [{name: e, mountPath: /e, subPathExpr: a/$(P)}]}\n";
    let with = |secret: &str| [secret, pod].concat();
    let (from, to) = (
        with(&(secret("{p: c4n4ry}") + "---\n")),
        with(&(secret("{p: other-c4n4ry}") + "---\n")),
    );
    let desk = Desk::with([("app.yaml", &from)]);
    for format in ["tree", "html"] {
        let run = desk.run(&format!("render -f app.yaml -o {format}"));
        assert!(run.stdout.contains("of volume e"), "{run:?}");
        assert!(!run.stdout.contains("c4n4ry"), "{run:?}");
    }
    for format in ["tree", "markdown", "html", "json"] {
        let run = run(&from, &to, &format!("-o {format}"));
        assert_eq!(run.code, 1, "{run:?}");
        assert!(!run.stdout.contains("c4n4ry"), "{run:?}");
    }
}

#[test]
fn object_that_no_container_sees_is_a_difference() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  imagePullSecrets: [{name: registry}]\n  \
        containers: [{name: web, image: i}]\n  volumes: [{name: v, configMap: {name: app}}]\n---\n\
        apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app}\ndata: {a: '1'}\n";
    let secret =
        "---\napiVersion: v1\nkind: Secret\nmetadata: {name: registry}\nstringData: {a: b}\n";
    let (from, to) = ([pod, secret].concat(), pod.replace("'1'", "'2'"));
    let report = diff(&from, &to);
    assert_eq!(report["pods"], json!([]));
    let object =
        |kind: &str, name: &str| json!({"kind": kind, "namespace": "default", "name": name});
    assert_eq!(
        report["unseen"],
        json!([object("ConfigMap", "app"), object("Secret", "registry")])
    );
    let run = run(&from, &to, "-o markdown");
    assert_eq!(run.code, 1, "{run:?}");
    assert!(
        run.stdout
            .contains("2 objects that no compared container sees differ"),
        "{run:?}"
    );
    assert!(run.stdout.contains("~ Secret default/registry"), "{run:?}");
}
