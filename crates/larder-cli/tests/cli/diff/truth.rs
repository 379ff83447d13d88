//! Each verdict holds for every way to fill in what is not known, or names what decides. The smallest inputs.

use serde_json::{Value, json};

use super::{diff, run};
use crate::Desk;

/// A trust anchor.
const PEM: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBMDCB46ADAgECAhRQGJInvmSSajyHUm57tXk6xuVo7DAFBgMrZXAwDTELMAkG\n\
A1UEAwwCY2EwIBcNMjYxMTI4MjEwNjI0WhgPMjEyNjExMDQyMTA2MjRaMA0xCzAJ\n\
BgNVBAMMAmNhMCowBQYDK2VwAyEAEnZjPSnw3xTdrJDcJfLcswZWh1TP4evuP4Ro\n\
m56E8eOjUzBRMB0GA1UdDgQWBBRTzKW8/6aR/tkSY7O2ExkmWqvwhDAfBgNVHSME\n\
GDAWgBRTzKW8/6aR/tkSY7O2ExkmWqvwhDAPBgNVHRMBAf8EBTADAQH/MAUGAytl\n\
cANBAI2+si0ljm0doK2HLc3FDIjpIXhvuFbSsaTZdIUiuIDFk++Ihxm3VjiLQUD+\n\
tJnMOdkS6GWk/JNbyhj3EbTqiQA=\n\
-----END CERTIFICATE-----\n";

/// A pod with one container.
pub(super) fn pod(container: &str, rest: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: ns}}\nspec:\n  {rest}\n  containers:\n  - {{name: c, image: i, {container}}}\n"
    )
}

pub(super) fn object(kind: &str, name: &str, data: &str) -> String {
    let field = if kind == "Secret" {
        "stringData"
    } else {
        "data"
    };
    format!(
        "---\napiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: ns}}\n{field}: {data}\n"
    )
}

pub(super) fn map(name: &str, data: &str) -> String {
    object("ConfigMap", name, data)
}

/// The container `c`; null if it is the same.
#[track_caller]
pub(super) fn container(from: &str, to: &str) -> Value {
    diff(from, to)["pods"][0]["containers"]["c"].clone()
}

/// Checks the verdict, and what is not known of the container.
#[track_caller]
pub(super) fn check(from: &str, to: &str, verdict: &str, unknown: &[&str]) {
    let found = container(from, to);
    if verdict == "same" {
        return assert_eq!(found, Value::Null, "{found:#}");
    }
    assert_eq!(found["verdict"], verdict, "{found:#}");
    let named = found.get("unknown").cloned().unwrap_or(json!([]));
    assert_eq!(named, json!(unknown), "{found:#}");
}

#[test]
fn unknown_part_of_a_volume_hides_no_variable() {
    let with = |x: &str| {
        pod(
            &format!(
                "env: [{{name: X, value: '{x}'}}], envFrom: [{{secretRef: {{name: outside}}}}], volumeMounts: [{{name: v, mountPath: /v, subPathExpr: $(A)}}]"
            ),
            "volumes: [{name: v, emptyDir: {}}]",
        )
    };
    check(&with("1"), &with("2"), "restart", &["secret outside"]);
    check(&with("1"), &with("1"), "same", &[]);
}

#[test]
fn default_below_an_optional_key_differs_if_the_key_is_missing() {
    let optional =
        "{name: LEVEL, valueFrom: {secretKeyRef: {name: outside, key: LEVEL, optional: true}}}";
    let from_map = pod(
        &format!("envFrom: [{{configMapRef: {{name: defaults}}}}], env: [{optional}]"),
        "",
    );
    let side = |level: &str| {
        [
            from_map.as_str(),
            &map("defaults", &format!("{{LEVEL: {level}}}")),
        ]
        .concat()
    };
    check(
        &side("info"),
        &side("debug"),
        "unknown",
        &["secret outside"],
    );
    // What differs is named, too.
    let text = run(&side("info"), &side("debug"), "").stdout;
    assert!(text.contains("; else ConfigMap defaults"), "{text}");
    let found = container(&side("info"), &side("debug"));
    let source = "Secret outside, key LEVEL, which is not known; else ConfigMap defaults";
    assert_eq!(
        found["env"]["changed"]["LEVEL"]["source"],
        json!({"from": source, "to": source})
    );
    let literal = |level: &str| {
        pod(
            &format!("env: [{{name: LEVEL, value: {level}}}, {optional}]"),
            "",
        )
    };
    check(
        &literal("info"),
        &literal("debug"),
        "unknown",
        &["secret outside"],
    );
    let through = |level: &str| {
        let reference = "{name: ARG, value: --level=$(LEVEL)}";
        pod(
            &format!("env: [{{name: LEVEL, value: {level}}}, {optional}, {reference}]"),
            "",
        )
    };
    let found = container(&through("info"), &through("debug"));
    assert!(found["env"]["changed"].get("ARG").is_some(), "{found:#}");
    // A key that must be there stands above any default.
    let required = |level: &str| literal(level).replace(", optional: true", "");
    check(&required("info"), &required("debug"), "same", &[]);
}

#[test]
fn no_value_is_two_texts_at_once() {
    let key = |name: &str| {
        format!("{{name: {name}, valueFrom: {{secretKeyRef: {{name: outside, key: k}}}}}}")
    };
    let with = |env: [&str; 2]| pod(&format!("env: [{}]", env.join(", ")), "");
    let from = with([&key("A"), &key("B")]);
    let literal = |a: &str, b: &str| {
        with([
            &format!("{{name: A, value: {a}}}"),
            &format!("{{name: B, value: {b}}}"),
        ])
    };
    check(&from, &literal("x", "x"), "unknown", &["secret outside"]);
    check(&from, &literal("x", "z"), "restart", &["secret outside"]);
}

#[test]
fn file_below_an_optional_one_is_named() {
    let sources = "{configMap: {name: defaults}}, {secret: {name: outside, optional: true, items: [{key: k, path: level}]}}";
    let side = |level: &str| {
        pod(
            "volumeMounts: [{name: v, mountPath: /v}]",
            &format!("volumes: [{{name: v, projected: {{sources: [{sources}]}}}}]"),
        ) + &map("defaults", &format!("{{level: {level}}}"))
    };
    let found = container(&side("info"), &side("debug"));
    assert_eq!(
        (&found["verdict"], &found["unknown"]),
        (&json!("unknown"), &json!(["secret outside"]))
    );
    let source = "Secret outside, key k, which is not known; else ConfigMap defaults";
    assert_eq!(
        found["files"]["changed"]["/v/level"]["source"],
        json!({"from": source, "to": source}),
        "{found:#}"
    );
    let text = run(&side("info"), &side("debug"), "").stdout;
    assert!(text.contains(source), "{text}");
    let rendered =
        Desk::with([("app.yaml", &side("info"))]).run("render -f app.yaml --assume-missing");
    assert!(rendered.stdout.contains(source), "{rendered:?}");
}

#[test]
fn container_that_would_not_start_names_all_that_it_needs() {
    let secret =
        |name: &str| format!("{{name: S, valueFrom: {{secretKeyRef: {{name: {name}, key: k}}}}}}");
    let key = |key: &str| {
        format!("{{name: X, valueFrom: {{configMapKeyRef: {{name: app, key: {key}}}}}}}")
    };
    let side = |env: &[String], volume: &str| {
        let sources =
            format!("[{{configMap: {{name: {volume}}}}}, {{secret: {{name: {volume}-s}}}}]");
        pod(
            &format!(
                "env: [{}], volumeMounts: [{{name: v, mountPath: /v}}]",
                env.join(", ")
            ),
            &format!("volumes: [{{name: v, projected: {{sources: {sources}}}}}]"),
        ) + &map("app", "{a: x}")
    };
    let from = side(&[key("a"), secret("old")], "files") + &map("files", "{f: x}");
    for (env, volume) in [
        // A variable that cannot be set, and a volume that cannot be filled.
        ([key("b"), secret("new")], "files"),
        ([key("a"), secret("new")], "gone"),
    ] {
        let to = side(&env, volume) + &map("other", "{f: x}");
        let to = to.replace("name: gone}", "name: files}");
        let found = container(&from, &to);
        assert_eq!(found["verdict"], "fails", "{found:#}");
        let unless = found["unless"].as_array().unwrap();
        assert!(unless.contains(&json!({"what": "secret new"})), "{found:#}");
        assert_eq!(
            unless.contains(&json!({"what": "secret gone-s"})),
            volume == "gone",
            "{found:#}"
        );
    }
}

#[test]
fn order_of_unknown_objects_may_decide() {
    let from = |sources: &str| pod(&format!("envFrom: [{sources}]"), "") + &map("db", "{URL: x}");
    let (outside, db) = ("{secretRef: {name: outside}}", "{configMapRef: {name: db}}");
    let one = from(&[outside, db].join(", "));
    let other = from(&[db, outside].join(", "));
    check(&one, &other, "unknown", &["secret outside"]);
    // No name of one is a name of the other.
    let prefixed = |sources: [&str; 2]| {
        from(&sources.join(", ")).replace("{secretRef", "{prefix: X_, secretRef")
    };
    check(
        &prefixed([outside, db]),
        &prefixed([db, outside]),
        "same",
        &[],
    );
    let two = "{secretRef: {name: other}}";
    check(
        &from(&[outside, two].join(", ")),
        &from(&[two, outside].join(", ")),
        "unknown",
        &["secret other", "secret outside"],
    );
}

#[test]
fn key_that_an_object_lacks_is_no_unknown() {
    let reference = |key: &str, optional: &str| {
        let source = format!("{{configMapKeyRef: {{name: app, key: {key}{optional}}}}}");
        pod(&format!("env: [{{name: X, valueFrom: {source}}}]"), "") + &map("app", "{url: x}")
    };
    let found = container(&reference("ulr", ", optional: true"), &reference("ulr", ""));
    assert_eq!(found["verdict"], "fails");
    let error = "couldn't find key ulr in ConfigMap ns/app; did you mean \"url\"?";
    assert_eq!(found["error"], error);
    let found = container(&reference("url", ""), &reference("ulr", ""));
    assert_eq!(
        (&found["verdict"], &found["error"]),
        (&json!("fails"), &json!(error))
    );
    // One without data may be filled by a controller.
    let empty = |optional: &str| reference("url", optional).replace("{url: x}", "{}");
    check(&empty(""), &empty(""), "same", &[]);
    check(
        &empty(", optional: true"),
        &empty(""),
        "unknown",
        &["configmap app"],
    );
}

#[test]
fn account_behind_a_token_is_content() {
    let token = "{serviceAccountToken: {path: token}}";
    let projected = |account: &str| {
        pod(
            "volumeMounts: [{name: t, mountPath: /t}]",
            &format!(
                "serviceAccountName: {account}\n  automountServiceAccountToken: false\n  volumes: [{{name: t, projected: {{sources: [{token}]}}}}]"
            ),
        )
    };
    check(&projected("a"), &projected("b"), "restart", &[]);
    check(&projected("a"), &projected("a"), "same", &[]);
    let automatic = |rest: &str| pod("tty: false", &format!("serviceAccountName: a\n  {rest}"));
    let found = container(
        &automatic(""),
        &automatic("automountServiceAccountToken: false"),
    );
    assert_eq!(found["verdict"], "restart");
    assert_eq!(
        found["mounts"]["removed"],
        json!(["/var/run/secrets/kubernetes.io/serviceaccount"])
    );
    // The account says it.
    let account = "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, namespace: ns}\nautomountServiceAccountToken: false\n";
    let with_account = automatic("") + account;
    check(&automatic(""), &with_account, "restart", &[]);
}

#[test]
fn workload_is_its_kind_and_name() {
    let workload = |kind: &str| {
        let version = if kind == "Job" { "batch/v1" } else { "apps/v1" };
        format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: tempo, namespace: ns}}\nspec:\n  selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: {{a: b}}}}\n    spec: {{restartPolicy: {}, containers: [{{name: c, image: i}}]}}\n",
            if kind == "Job" { "Never" } else { "Always" }
        )
    };
    for kind in ["DaemonSet", "StatefulSet", "Job"] {
        let report = diff(&workload("Deployment"), &workload(kind));
        let changes: Vec<_> = report["pods"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pod| &pod["change"])
            .collect();
        assert_eq!(changes.len(), 2, "{kind}: {report:#}");
        assert!(changes.contains(&&json!("added")) && changes.contains(&&json!("removed")));
    }
    let both = [&*workload("Deployment"), "---\n", &*workload("StatefulSet")].concat();
    let report = diff(&both, &both);
    assert_eq!(report.get("notRead"), None, "{report:#}");
    let report = diff(&workload("Deployment"), &both);
    assert_eq!(report["pods"].as_array().unwrap().len(), 1, "{report:#}");
}

#[test]
fn what_the_documents_had_is_missing_without_it() {
    let reads = |key: &str| {
        pod(
            &format!(
                "env: [{{name: X, valueFrom: {{configMapKeyRef: {{name: app, key: {key}}}}}}}]"
            ),
            "",
        )
    };
    let from = reads("A") + &map("app", "{A: x}");
    check(&from, &reads("B"), "fails", &[]);
    let bundle = "---\napiVersion: certificates.k8s.io/v1beta1\nkind: ClusterTrustBundle\nmetadata: {name: ca}\nspec: {trustBundle: PEM}\n";
    let reads = pod(
        "volumeMounts: [{name: t, mountPath: /t}]",
        "volumes: [{name: t, projected: {sources: [{clusterTrustBundle: {name: ca, path: ca.pem}}]}}]",
    );
    let bundle = bundle.replace("PEM", &json!(PEM).to_string());
    check(&[&*reads, &bundle].concat(), &reads, "fails", &[]);
    check(&reads, &reads, "same", &[]);
}

#[test]
fn new_reference_to_what_no_document_has_is_named_first() {
    let reads = |name: &str| {
        pod(&format!("envFrom: [{{secretRef: {{name: {name}}}}}]"), "")
            + &object("Secret", "web-env", "{url: x}")
    };
    let found = container(&reads("web-env"), &reads("web-evn"));
    assert_eq!(found["verdict"], "unknown");
    assert_eq!(
        found["unless"],
        json!([{"what": "secret web-evn", "hint": "web-env"}])
    );
    assert_eq!(found["unknown"], json!(["secret web-evn"]));
    let text = run(&reads("web-env"), &reads("web-evn"), "").stdout;
    let words = "would not start unless there is secret web-evn; did you mean \"web-env\"?";
    assert!(text.contains(words), "{text}");
    // It was needed before.
    check(&reads("web-evn"), &reads("web-evn"), "same", &[]);
    // An object without data is there; a controller may give it the key.
    let empty = object("ConfigMap", "app", "{}");
    let reads_nothing = pod("", "") + &empty;
    let reads_key = "env: [{name: X, valueFrom: {configMapKeyRef: {name: app, key: level}}}]";
    let found = container(&reads_nothing, &(pod(reads_key, "") + &empty));
    assert_eq!(
        found["unless"],
        json!([{"what": "configmap app key level"}])
    );
    let key = |key: &str| {
        pod(
            &format!(
                "env: [{{name: X, valueFrom: {{secretKeyRef: {{name: outside, key: {key}}}}}}}]"
            ),
            "",
        )
    };
    let found = container(&key("a"), &key("b"));
    assert_eq!(
        found["unless"],
        json!([{"what": "secret outside key b"}]),
        "{found:#}"
    );
    // A new pod needs all of it.
    let report = diff(&object("Secret", "other", "{a: b}"), &key("a"));
    let found = &report["pods"][0]["containers"]["c"];
    // The verdict is what follows if it is there.
    assert_eq!(
        (&found["verdict"], &found["unless"]),
        (&json!("starts"), &json!([{"what": "secret outside"}]))
    );
}

#[test]
fn volume_of_one_container_keeps_all_from_starting() {
    let side = |data: &str| {
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ns}\nspec:\n  containers:\n  - {name: a, image: i, volumeMounts: [{name: v, mountPath: /v}]}\n  - {name: b, image: i}\n  volumes: [{name: v, configMap: {name: app, items: [{key: k, path: k}]}}]\n".to_owned() + &map("app", data)
    };
    let report = diff(&side("{k: x}"), &side("{other: x}"));
    for name in ["a", "b"] {
        assert_eq!(
            report["pods"][0]["containers"][name]["verdict"], "fails",
            "{report:#}"
        );
    }
    let report = diff(&side("{other: x}"), &side("{k: x}"));
    assert_eq!(report["pods"][0]["containers"]["b"]["verdict"], "starts");
}

#[test]
fn content_that_moves_is_the_same() {
    let reads = |kind: &str, name: &str| {
        pod(
            &format!("env: [{{name: X, valueFrom: {{{kind}KeyRef: {{name: {name}, key: k}}}}}}]"),
            "",
        ) + &map("a", "{k: x}")
            + &object("Secret", "b", "{k: x}")
    };
    check(&reads("secret", "b"), &reads("configMap", "a"), "same", &[]);
}

#[test]
fn pod_has_no_uid_before_it_exists() {
    let field = "env: [{name: ID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}], volumeMounts: [{name: a, mountPath: /a}]";
    let volume = "volumes: [{name: a, downwardAPI: {items: [{path: all, fieldRef: {fieldPath: metadata.annotations}}]}}]";
    let desk = Desk::with([("app.yaml", &pod(field, volume))]);
    let read = |args: &str| -> Value {
        let run = desk.run(args);
        serde_json::from_str(&run.stdout).expect(&run.stderr)
    };
    let report = read("render -f app.yaml -o json");
    let container = &report["pods"][0]["containers"]["c"];
    assert_eq!(
        (&container["env"]["ID"], &container["unknown"]["ID"]),
        (&json!(""), &json!("metadata.uid"))
    );
    assert!(
        report["pods"][0]["volumes"]["a"]["unknown"]
            .get("all")
            .is_some(),
        "{report:#}"
    );
    assert_eq!(report["version"], 1);
    let stated = pod(field, volume).replace("name: p,", "name: p, uid: u-1,");
    let desk = Desk::with([("app.yaml", &stated)]);
    let run = desk.run("render -f app.yaml -o json");
    assert!(!run.stdout.contains("unknown"), "{run:?}");
}

#[test]
fn variable_of_a_service_that_is_not_listed_is_not_known() {
    let with = |reference: &str, rest: &str| {
        pod(&format!("env: [{{name: URL, value: '{reference}'}}]"), rest)
    };
    let rendered = |text: &str| -> Value {
        let desk = Desk::with([("app.yaml", text)]);
        let run = desk.run("render -f app.yaml -o json");
        serde_json::from_str::<Value>(&run.stdout).expect(&run.stderr)["pods"][0]["containers"]["c"]
            .take()
    };
    let found = rendered(&with("$(DB_SERVICE_HOST)", ""));
    assert_eq!(
        (&found["env"], &found["unknown"]),
        (&json!({"URL": ""}), &json!({"URL": "service db"}))
    );
    let off = "enableServiceLinks: false";
    let found = rendered(&with("$(DB_SERVICE_HOST)", off));
    assert_eq!(
        (&found["env"]["URL"], found.get("unknown")),
        (&json!("$(DB_SERVICE_HOST)"), None)
    );
    let found = rendered(&with("$(KUBERNETES_SERVICE_HOST)", off));
    assert_eq!(found["unknown"]["URL"], "service kubernetes");
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: ns}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}\n";
    let found = rendered(&(with("$(DB_SERVICE_HOST) $(DB_PORT_81_TCP)", "") + service));
    assert_eq!(
        (&found["env"]["URL"], found.get("unknown")),
        (&json!("10.0.0.1 $(DB_PORT_81_TCP)"), None)
    );
    // Its variables are those of new pods; no container restarts for them.
    let report = diff(&with("x", ""), &(with("x", "") + service));
    assert_eq!(report["pods"], json!([]));
    assert!(
        report["services"]["ns"]["added"]
            .as_array()
            .unwrap()
            .contains(&json!("DB_SERVICE_HOST"))
    );
    // As of each object, what the documents of one side have is missing on the other.
    let refers = with("$(DB_SERVICE_HOST)", "");
    let with_service = refers.clone() + service;
    check(&refers, &with_service, "restart", &[]);
    check(&with_service, &refers, "restart", &[]);
    let found = container(&refers, &with_service);
    let change = json!({"from": "$(DB_SERVICE_HOST)", "to": "10.0.0.1"});
    assert_eq!(found["env"]["changed"]["URL"], change);
    // It gets an address, which is no reference.
    let new = with_service.replace("clusterIP: 10.0.0.1, ", "");
    check(&refers, &new, "restart", &["clusterIP of service db"]);
    // Every cluster has this one.
    let own = |text: &str| {
        text.replace("DB_SERVICE", "KUBERNETES_SERVICE")
            .replace("name: db", "name: kubernetes")
    };
    check(
        &own(&refers),
        &own(&with_service),
        "unknown",
        &["service kubernetes"],
    );
}

#[test]
fn certificate_of_a_pod_is_not_known() {
    let side = |signer: &str| {
        pod(
            "volumeMounts: [{name: v, mountPath: /v}]",
            &format!(
                "volumes: [{{name: v, projected: {{sources: [{{podCertificate: {{signerName: {signer}, keyType: ED25519, credentialBundlePath: all.pem}}}}]}}}}]"
            ),
        )
    };
    let text = side("example.com/a");
    check(&text, &text, "same", &[]);
    check(
        &text,
        &side("example.com/b"),
        "unknown",
        &[
            "pod certificate of example.com/a",
            "pod certificate of example.com/b",
        ],
    );
    let desk = Desk::with([("app.yaml", &text)]);
    let run = desk.run("render -f app.yaml -o json");
    let report: Value = serde_json::from_str(&run.stdout).expect(&run.stderr);
    let volume = &report["pods"][0]["volumes"]["v"];
    assert_eq!(
        (
            &volume["files"]["all.pem"]["data"],
            &volume["unknown"]["all.pem"]
        ),
        (&json!(""), &json!("pod certificate of example.com/a"))
    );
    // A command here cannot have it.
    let run = desk.run("exec -f app.yaml -- true");
    assert_ne!(run.code, 0, "{run:?}");
    assert!(run.stderr.contains("issued by a cluster only"), "{run:?}");
}

#[test]
fn ready_pod_has_its_account_claim_and_readable_files() {
    let mounts = "volumeMounts: [{name: s, mountPath: /s}]";
    let secret = |rest: &str| {
        pod(
            mounts,
            &format!(
                "{rest}\n  volumes: [{{name: s, secret: {{secretName: b, defaultMode: 0400}}}}]"
            ),
        ) + &object("Secret", "b", "{k: x}")
    };
    let ready = "ready to start: every reference is met";
    let shown = |text: &str| {
        Desk::with([("app.yaml", text)])
            .run("render -f app.yaml")
            .stdout
    };
    for (text, words) in [
        (
            secret("serviceAccountName: robot"),
            "ServiceAccount robot is not among the manifests",
        ),
        (
            secret("securityContext: {runAsUser: 1000}"),
            "/s/k: user 1000 cannot read it: mode 0400",
        ),
        (
            pod(
                "volumeMounts: [{name: d, mountPath: /d}]",
                "volumes: [{name: d, persistentVolumeClaim: {claimName: data}}]",
            ),
            "PersistentVolumeClaim data is not among the manifests",
        ),
    ] {
        let text = shown(&text);
        assert!(text.contains(words) && !text.contains(ready), "{text}");
    }
    for text in [
        secret("securityContext: {runAsUser: 1000, fsGroup: 2000}"),
        secret("securityContext: {runAsUser: 0}"),
        secret("serviceAccountName: robot")
            + "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: robot, namespace: ns}\n",
    ] {
        let text = shown(&text);
        assert!(text.contains(ready), "{text}");
    }
}

#[test]
fn container_that_starts_on_neither_side_is_no_same() {
    let nul = |x: &str| {
        pod(
            &format!("env: [{{name: NUL, value: \"a\\0\"}}, {{name: X, value: '{x}'}}]"),
            "",
        )
    };
    let found = container(&nul("1"), &nul("2"));
    assert_eq!(found["verdict"], "neither", "{found:#}");
    assert_eq!(
        found["env"]["changed"]["X"],
        json!({"from": "1", "to": "2"})
    );
    let report = diff(&nul("1"), &nul("1"));
    let what = report["unknown"][0]["what"].as_str().unwrap();
    assert!(
        what.starts_with("would start on neither side"),
        "{report:#}"
    );
}

#[test]
fn mounts_are_in_the_json_of_render() {
    let text = pod(
        "volumeMounts: [{name: v, mountPath: /v, subPath: a, readOnly: true}, {name: v, mountPath: /w}]",
        "volumes: [{name: v, emptyDir: {}}]",
    );
    let desk = Desk::with([("app.yaml", &text)]);
    let run = desk.run("render -f app.yaml -o json");
    let report: Value = serde_json::from_str(&run.stdout).expect(&run.stderr);
    let expected = json!([
        {"path": "/v", "volume": "v", "subPath": "a", "readOnly": true},
        {"path": "/w", "volume": "v", "readOnly": false},
        {"path": "/var/run/secrets/kubernetes.io/serviceaccount", "volume": "kube-api-access", "readOnly": true},
    ]);
    assert_eq!(report["pods"][0]["containers"]["c"]["mounts"], expected);
}
