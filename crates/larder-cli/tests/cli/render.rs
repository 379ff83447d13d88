//! `larder render`.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown, symlink},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use expect_test::{Expect, expect};
use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::{Desk, exec::may_mount};

const APP: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: app, namespace: prod}
data: {PORT: "8080", app.properties: "a=1\n"}
---
apiVersion: v1
kind: Secret
metadata: {name: db, namespace: prod}
stringData: {password: hunter2}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: prod}
spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: prod}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      initContainers:
      - {name: init, image: i, env: [{name: X, valueFrom: {secretKeyRef: {name: tls, key: k}}}]}
      containers:
      - name: web
        image: i
        envFrom: [{configMapRef: {name: app}}, {configMapRef: {name: extra, optional: true}}]
        env:
        - {name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password}}}
        - {name: URL, value: "postgres://u:$(PASSWORD)@db"}
        volumeMounts:
        - {name: config, mountPath: /etc/app}
        - {name: scratch, mountPath: /tmp}
        - {name: config, mountPath: /one, subPath: app.properties}
        - {name: all, mountPath: /all}
      volumes:
      - {name: config, configMap: {name: app}}
      - {name: scratch}
      - name: all
        projected:
          sources:
          - serviceAccountToken: {path: token}
          - secret: {name: db, items: [{key: password, path: p/w, mode: 0400}]}
      - {name: unused, secret: {secretName: nope}}
"#;

const GOOD: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: app}
data: {a: '1'}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, configMap: {name: app}}]
";

#[track_caller]
fn check_tree(manifest: &str, args: &str, code: i32, expected: Expect) {
    let run = Desk::with([("app.yaml", manifest)]).run(&format!("render -f app.yaml {args}"));
    assert_eq!(run.code, code, "{run:?}");
    expected.assert_eq(&run.stdout);
}

#[test]
fn tree_explains_why_a_pod_fails_and_hides_secrets() {
    check_tree(
        APP,
        "",
        1,
        expect![[r#"
            prod/web  Deployment web, app.yaml: document 4, line 17
            ├─ does not start
            │  └─ init container init  secret "tls" not found
            ├─ init container init
            │  ├─ not started: secret "tls" not found
            │  └─ X  Secret tls not found
            ├─ container web
            │  ├─ environment: 11 variables
            │  │  ├─ PORT            "8080"          ConfigMap app
            │  │  ├─ app.properties  "a=1\n"         ConfigMap app
            │  │  ├─ PASSWORD        <hidden, 7 B>   Secret db, key password
            │  │  ├─ URL             <hidden, 23 B>  from the pod
            │  │  ├─ 7 variables of Service prod/web
            │  │  └─ optional, missing: ConfigMap extra
            │  ├─ /etc/app  volume config: ConfigMap app, read-only
            │  │  ├─ PORT            0644  4 B  ConfigMap app
            │  │  └─ app.properties  0644  4 B  ConfigMap app
            │  ├─ /tmp      volume scratch: emptyDir
            │  ├─ /one      app.properties of volume config: ConfigMap app, read-only  needs a restart to see changes, or larder.dev/subpath-updates: "true"
            │  │  └─ app.properties  0644  4 B  ConfigMap app
            │  └─ /all      volume all: projected, read-only
            │     ├─ p/w    0400  7 B   Secret db, key password
            │     └─ token  0644  61 B  token of service account default (a placeholder)
            └─ mounted by no container
               └─ volume unused: Secret nope
                  └─ not filled: secret "nope" not found

            1 pod, 1 does not start
        "#]],
    );
}

#[test]
fn tree_shows_secrets_on_request() {
    let desk = Desk::with([("app.yaml", APP)]);
    assert!(!desk.run("render -f app.yaml").stdout.contains("hunter2"));
    let shown = desk.run("render -f app.yaml --show-secrets").stdout;
    assert!(
        shown.contains(r#""hunter2""#) && shown.contains(r#""postgres://u:hunter2@db""#),
        "{shown}"
    );
}

#[test]
fn page_is_one_file_with_contents_and_without_secrets() {
    let desk = Desk::with([("app.yaml", APP)]);
    let run = desk.run("render -f app.yaml -o html");
    assert_eq!((run.code, &*run.stderr), (1, ""));
    assert!(!run.stdout.contains("hunter2"));
    for text in [
        "1 pod, 1 does not start",
        "prod/web",
        "a=1",
        "&quot;8080&quot;",
        "ConfigMap app",
    ] {
        assert!(run.stdout.contains(text), "{text}");
    }
    let policy = "content=\"default-src 'none'; style-src 'sha256-";
    assert!(run.stdout.contains(policy), "{}", run.stdout);
    let shown = desk.run("render -f app.yaml -o html --show-secrets").stdout;
    assert!(shown.contains("hunter2"));
}

#[test]
fn healthy_pod_is_ready_to_start() {
    check_tree(
        GOOD,
        "",
        0,
        expect![[r#"
            default/web  app.yaml: document 2, line 7
            ├─ ready to start: every reference is met
            └─ container c
               └─ /v  volume v: ConfigMap app, read-only
                  └─ a  0644  1 B  ConfigMap app

            1 pod, every ConfigMap and Secret is there
        "#]],
    );
}

#[test]
fn tree_names_all_that_is_missing_and_where_it_is() {
    let manifest = "
apiVersion: v1
kind: Secret
metadata: {name: db, namespace: other}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: app}
data: {a: '1'}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: c
    image: i
    envFrom: [{secretRef: {name: db}}, {configMapRef: {name: none, optional: true}}]
    env:
    - {name: A, valueFrom: {configMapKeyRef: {name: app, key: a}}}
    - {name: B, valueFrom: {configMapKeyRef: {name: app, key: b}}}
    - {name: C, valueFrom: {secretKeyRef: {name: nope, key: c}}}
    volumeMounts: [{name: v, mountPath: /v}]
  - name: d
    image: i
    volumeMounts: [{name: v, mountPath: /v, subPathExpr: $(NOPE)/x}]
  volumes: [{name: v, secret: {secretName: db}}]
";
    check_tree(
        manifest,
        "",
        1,
        expect![[r#"
            default/web  app.yaml: document 3, line 11
            ├─ does not start
            │  ├─ container c  secret "db" not found   exists only in namespace other; pods can't cross namespaces
            │  ├─ container d  missing value for NOPE  a subPathExpr refers to it
            │  └─ volume v     secret "db" not found   exists only in namespace other; pods can't cross namespaces
            ├─ container c
            │  ├─ not started: secret "db" not found
            │  ├─ envFrom  Secret db not found         exists only in namespace other; pods can't cross namespaces
            │  ├─ B        ConfigMap app has no key b
            │  ├─ C        Secret nope not found
            │  └─ /v       volume v: Secret db, read-only
            │     └─ not filled: secret "db" not found
            └─ container d
               └─ not started: missing value for NOPE

            1 pod, 1 does not start
        "#]],
    );
}

#[test]
fn tree_names_what_only_a_running_pod_has() {
    let manifest = "apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: required
    image: i
    env: [{name: A, valueFrom: {fileKeyRef: {volumeName: shared, path: app.env, key: A}}}]
  - name: optional
    image: i
    env: [{name: A, valueFrom: {fileKeyRef: {volumeName: shared, path: app.env, key: A, optional: true}}}]
    volumeMounts:
    - {name: shared, mountPath: /shared}
    - {name: config, mountPath: /etc/app.conf, subPath: app.conf}
    - {name: config, mountPath: /etc/motd, subPath: motd}
  - name: unnamed
    image: i
    volumeMounts: [{name: shared, mountPath: /shared, subPathExpr: $(A)}]
  volumes:
  - {name: shared, emptyDir: {}}
  - {name: config, configMap: {name: app, optional: true, items: [{key: motd, path: motd}, {key: app.conf, path: app.conf}]}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: app}, data: {motd: hello}}
";
    let run = Desk::with([("app.yaml", manifest)]).run("render -f app.yaml");
    assert_eq!(run.code, 1);
    expect![[r#"
        default/web  app.yaml: document 1, line 1
        ├─ does not start
        │  └─ container unnamed  missing value for A  a subPathExpr refers to it
        ├─ container required
        │  └─ environment: 1 variable
        │     └─ A  <known when it runs: app.env of volume shared key A>  key A of file app.env in volume shared
        ├─ container optional
        │  ├─ environment: 1 variable
        │  │  └─ A  <known when it runs: app.env of volume shared key A>  key A of file app.env in volume shared
        │  ├─ /shared        volume shared: emptyDir
        │  ├─ /etc/app.conf  app.conf of volume config: ConfigMap app, read-only  needs a restart to see changes, or larder.dev/subpath-updates: "true"
        │  │  ├─ the volume has no app.conf: the container gets an empty directory
        │  │  └─ optional, missing: key app.conf of ConfigMap app
        │  └─ /etc/motd      motd of volume config: ConfigMap app, read-only      needs a restart to see changes, or larder.dev/subpath-updates: "true"
        │     └─ motd  0644  5 B  ConfigMap app
        ├─ container unnamed
        │  └─ not started: missing value for A
        └─ what deserves a look
           └─ container optional  /etc/app.conf: volume config has no app.conf, so it is an empty directory

        1 pod, 1 does not start; 1 warning
    "#]].assert_eq(&run.stdout);
}

#[test]
fn json_has_the_documented_shape() {
    let run = Desk::with([("app.yaml", GOOD)]).run("render -f app.yaml -o json");
    assert_eq!((run.code, &*run.stderr), (0, ""));
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let expected = json!({"pods": [{
        "namespace": "default", "name": "web", "uid": "f9c383d8-514f-84fc-966e-12af832e10ba",
        "references": {"configMaps": ["app"], "secrets": []},
        "containers": {"c": {"env": {}, "mounts": [
            {"path": "/v", "volume": "v", "readOnly": true},
            {"path": "/var/run/secrets/kubernetes.io/serviceaccount", "volume": "kube-api-access", "readOnly": true},
        ]}},
        "volumes": {"v": {"files": {"a": {"mode": "0644", "data": "MQ=="}}}},
    }], "version": 1});
    assert_eq!(report, expected);
}

// projection 44
#[test]
fn group_of_the_pod_may_read_each_file() {
    let group = "securityContext: {fsGroup: 2000}\n  volumes: [{name: v, configMap: {name: app, defaultMode: 0400}}]";
    let manifest = GOOD.replace("volumes: [{name: v, configMap: {name: app}}]", group);
    check_tree(
        &manifest,
        "",
        0,
        expect![[r#"
            default/web  app.yaml: document 2, line 7
            ├─ ready to start: every reference is met
            └─ container c
               └─ /v  volume v: ConfigMap app, read-only
                  └─ a  0440, group 2000  1 B  ConfigMap app

            1 pod, every ConfigMap and Secret is there
        "#]],
    );
    let run = Desk::with([("app.yaml", &*manifest)]).run("render -f app.yaml -o json");
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let pod = &report["pods"][0];
    assert_eq!(pod["fsGroup"], 2000);
    assert_eq!(pod["volumes"]["v"]["files"]["a"]["mode"], "0400");
}

#[test]
fn errors_of_one_part_leave_the_others_rendered() {
    let run = Desk::with([("app.yaml", APP)]).run("render -f app.yaml -o json");
    assert_eq!(run.code, 1);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let pod = &report["pods"][0];
    assert_eq!(
        pod["containers"]["init"],
        json!({"error": "secret \"tls\" not found"})
    );
    assert_eq!(
        pod["containers"]["web"]["env"]["URL"],
        "postgres://u:hunter2@db"
    );
    assert_eq!(
        pod["volumes"]["unused"],
        json!({"error": "secret \"nope\" not found"})
    );
    assert_eq!(pod["volumes"]["all"]["files"]["p/w"]["mode"], "0400");
    assert!(pod["volumes"].get("scratch").is_none());
}

#[test]
fn pod_flag_selects_one_pod() {
    let good = GOOD.replace("metadata: {", "metadata: {namespace: default, ");
    let both = format!("{good}---{APP}");
    let desk = Desk::with([("app.yaml", &both)]);
    for args in [
        "--pod default/web",
        "--pod web",
        "--pod prod/web -o json",
        "-n prod --pod web",
    ] {
        let run = desk.run(&format!("render -f app.yaml {args}"));
        let is_prod = args.contains("prod");
        assert_eq!(
            run.stdout.contains("hunter2") || run.stdout.contains("prod/web"),
            is_prod,
            "{args}"
        );
    }
    let run = desk.run("render -f app.yaml --pod prod/nope");
    assert_eq!((run.code, &*run.stdout), (1, ""));
    assert_eq!(run.stderr, "larder: no pod prod/nope in the manifests\n");
}

#[test]
fn node_manifest_provides_the_facts_of_the_node() {
    let pod = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: c
    image: i
    env:
    - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
";
    let node = "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {allocatable: {cpu: '4'}}\n";
    let desk = Desk::with([("pod.yaml", pod), ("node.yaml", node)]);
    let with_node = desk.run("render -f pod.yaml node.yaml -o json");
    let report: Value = serde_json::from_str(&with_node.stdout).unwrap();
    assert_eq!(
        report["pods"][0]["containers"]["c"]["env"],
        json!({"CPU": "4", "NODE": "node-1"})
    );
    let without = desk.run("render -f pod.yaml -o json");
    let report: Value = serde_json::from_str(&without.stdout).unwrap();
    let container = &report["pods"][0]["containers"]["c"];
    assert_eq!(without.code, 0, "{without:?}");
    assert_eq!(container["env"], json!({"CPU": "", "NODE": ""}));
    assert_eq!(
        container["unknown"],
        json!({"CPU": "limits.cpu", "NODE": "spec.nodeName"})
    );
}

#[test]
fn trust_bundles_are_projected_and_bad_ones_reported() {
    // projection 73
    let anchor = include_str!("../../../larder-objects/src/x509/root.pem");
    let bundle = |name: &str, anchors: &str| {
        json!({"apiVersion": "certificates.k8s.io/v1beta1", "kind": "ClusterTrustBundle",
            "metadata": {"name": name}, "spec": {"trustBundle": anchors}})
        .to_string()
    };
    let source = json!({"clusterTrustBundle": {"name": "corp", "path": "ca.pem"}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
        "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "ca", "mountPath": "/ca"}]}],
        "volumes": [{"name": "ca", "projected": {"sources": [source]}}]}})
    .to_string();
    let good = bundle("corp", &format!("our authority\n{anchor}"));
    let bad = bundle("corp", "not PEM");
    let desk = Desk::with([("pod.yaml", &pod), ("good.yaml", &good), ("bad.yaml", &bad)]);
    let run = desk.run("render -f pod.yaml good.yaml -o json");
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let file = &report["pods"][0]["volumes"]["ca"]["files"]["ca.pem"];
    let data = BASE64.decode(file["data"].as_str().unwrap()).unwrap();
    assert_eq!((run.code, data), (0, anchor.as_bytes().to_vec()));
    let run = desk.run("render -f pod.yaml bad.yaml -o json");
    assert_eq!(run.code, 1);
    for (text, said) in [
        (&run.stderr, "at least one trust anchor must be provided"),
        (
            &run.stdout,
            "clustertrustbundle.certificates.k8s.io \\\"corp\\\" not found",
        ),
    ] {
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn standard_input_directories_and_files_are_read() {
    let desk = Desk::with([("web.yaml", GOOD)]);
    let from_stdin = desk.run_with_input("render -f - -o json", GOOD);
    assert_eq!(from_stdin.code, 0, "{from_stdin:?}");
    assert_eq!(desk.run("render -f . -o json").stdout, from_stdin.stdout);
    let (map, pod) = GOOD.split_once("---").unwrap();
    let split = Desk::with([("a.yaml", map), ("b.yml", pod)]);
    for args in ["-f a.yaml -f b.yml", "-f a.yaml b.yml"] {
        assert_eq!(
            split.run(&format!("render {args} -o json")).stdout,
            from_stdin.stdout
        );
    }
}

#[test]
fn volumes_are_written_with_their_modes_and_follow_edits() {
    let desk = Desk::with([("app.yaml", APP)]);
    assert_eq!(desk.run("render -f app.yaml --to out").code, 1);
    let pod = desk.path().join("out/prod/web");
    let read = |path: &str| fs::read_to_string(pod.join(path)).unwrap();
    assert_eq!(read("config/PORT"), "8080");
    assert_eq!(read("all/p/w"), "hunter2");
    let mode = |path: &str| fs::metadata(pod.join(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("all/p/w"), mode("config/PORT")), (0o400, 0o644));
    assert_eq!(mode("") & 0o007, 0, "others stay outside");
    assert!(!pod.join("unused").exists() && !pod.join("scratch").exists());

    fs::write(desk.path().join("app.yaml"), APP.replace("8080", "9090")).unwrap();
    desk.run("render -f app.yaml --to out");
    assert_eq!(read("config/PORT"), "9090");
}

#[test]
fn file_that_is_in_the_way_of_a_volumes_is_named_and_kept() {
    let desk = Desk::with([("app.yaml", GOOD)]);
    let volume = desk.path().join("out/default/web/v");
    fs::create_dir_all(&volume).unwrap();
    fs::write(volume.join("a"), "mine").unwrap();
    let run = desk.run("render -f app.yaml --to out");
    assert_eq!(run.code, 1, "{run:?}");
    let said = "cannot write out/default/web/v/a: something else is there";
    assert!(run.stderr.contains(said), "{run:?}");
    assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "mine");
}

#[test]
fn unwritable_volume_is_named_and_the_others_are_written() {
    let desk = Desk::with([("app.yaml", APP)]);
    fs::create_dir_all(desk.path().join("out/prod/web")).unwrap();
    fs::write(desk.path().join("out/prod/web/config"), "in the way").unwrap();
    let run = desk.run("render -f app.yaml --to out");
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("out/prod/web/config"), "{}", run.stderr);
    assert!(desk.path().join("out/prod/web/all/p/w").exists());
}

#[test]
fn volumes_are_not_written_through_links_or_to_another_user() {
    for planted in ["out/prod", "out/prod/web", "out/prod/web/config"] {
        let desk = Desk::with([("app.yaml", APP)]);
        let planted = desk.path().join(planted);
        let elsewhere = desk.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::create_dir_all(planted.parent().unwrap()).unwrap();
        symlink(&elsewhere, &planted).unwrap();
        let run = desk.run("render -f app.yaml --to out");
        assert_eq!(run.code, 1);
        assert!(
            run.stderr.contains("expected a directory"),
            "{}",
            run.stderr
        );
        assert_eq!(
            fs::read_dir(&elsewhere).unwrap().count(),
            0,
            "{planted:?} was followed"
        );
    }
    if geteuid().is_root() {
        let desk = Desk::with([("app.yaml", APP)]);
        let planted = desk.path().join("out/prod");
        fs::create_dir_all(&planted).unwrap();
        chown(&planted, Some(65534), None).unwrap();
        let run = desk.run("render -f app.yaml --to out");
        assert!(
            run.stderr
                .contains("cannot write to out/prod: it belongs to user 65534, expected user 0"),
            "{}",
            run.stderr
        );
        assert_eq!(fs::read_dir(&planted).unwrap().count(), 0);
    }
}

/// A pod as charts have it: with a token and the cluster's authorities.
const TOKEN: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes:
  - name: v
    projected:
      sources:
      - serviceAccountToken: {path: token}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
";

#[test]
fn tree_assumes_the_config_map_that_every_namespace_has() {
    check_tree(
        TOKEN,
        "",
        0,
        expect![[r#"
            default/web  app.yaml: document 1, line 2
            ├─ ready to start: every reference is met
            └─ container c
               └─ /v  volume v: projected, read-only
                  ├─ ca.crt  0644  76 B  ConfigMap kube-root-ca.crt (a placeholder: every namespace has it)
                  └─ token   0644  61 B  token of service account default (a placeholder)

            1 pod, every ConfigMap and Secret is there
        "#]],
    );
    // Only the one key that a cluster publishes.
    let other = TOKEN.replace("key: ca.crt", "key: other");
    let run = Desk::with([("app.yaml", &*other)]).run("render -f app.yaml");
    assert_eq!(run.code, 1, "{run:?}");
    // The manifests' own wins.
    let map = "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: kube-root-ca.crt}, data: {ca.crt: mine}}";
    let own = format!("{TOKEN}{map}");
    let run = Desk::with([("app.yaml", &*own)]).run("render -f app.yaml");
    assert!(!run.stdout.contains("every namespace has it"), "{run:?}");
}

#[test]
fn json_assumes_cluster_objects_only_when_asked() {
    let desk = Desk::with([("app.yaml", TOKEN)]);
    let run = desk.run("render -f app.yaml -o json");
    assert_eq!(run.code, 1);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(
        report["pods"][0]["volumes"]["v"],
        json!({"error": "configmap \"kube-root-ca.crt\" not found"})
    );
    let run = desk.run("render -f app.yaml -o json --assume-cluster");
    assert_eq!(run.code, 0);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let file = &report["pods"][0]["volumes"]["v"]["files"]["ca.crt"];
    assert_eq!(file["mode"], "0644");
    assert_eq!(
        report["pods"][0]["references"],
        json!({"configMaps": ["kube-root-ca.crt"], "secrets": []})
    );
}

#[test]
fn service_account_is_the_default_one_of_a_cluster() {
    let variable = "env: [{name: SA, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}]";
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{{name: c, image: i, {variable}}}]}}\n"
    );
    let desk = Desk::with([("app.yaml", &pod)]);
    let account = |args: &str| {
        let run = desk.run(&format!("render -f app.yaml -o json {args}"));
        let report: Value = serde_json::from_str(&run.stdout).unwrap();
        report["pods"][0]["containers"]["c"]["env"]["SA"].clone()
    };
    assert_eq!(account("--assume-cluster"), "default");
    assert_eq!(account(""), "");
}

#[test]
fn env_file_is_not_known_before_the_pod_runs() {
    let pod = |mounts: &str| {
        format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  initContainers: [{{name: init, image: i{mounts}}}]
  containers:
  - name: c
    image: i
    env:
    - {{name: A, valueFrom: {{fileKeyRef: {{volumeName: e, path: a.env, key: A}}}}}}
    - {{name: B, valueFrom: {{fileKeyRef: {{volumeName: e, path: a.env, key: B, optional: true}}}}}}
  volumes: [{{name: e, emptyDir: {{}}}}]
"
        )
    };
    let desk = Desk::with([(
        "app.yaml",
        &*pod(", volumeMounts: [{name: e, mountPath: /e}]"),
    )]);
    let run = desk.run("render -f app.yaml -o json");
    assert_eq!(run.code, 0, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let expected = json!({"A": "a.env of volume e key A", "B": "a.env of volume e key B"});
    let container = &report["pods"][0]["containers"]["c"];
    assert_eq!(container["env"], json!({"A": "", "B": ""}));
    assert_eq!(container["unknown"], expected);
    if may_mount() {
        let run = desk.run("exec -f app.yaml -- /bin/sh -c true");
        assert_eq!(run.code, 0, "{run:?}");
        let note =
            "not known here, so empty: A (a.env of volume e key A), B (a.env of volume e key B)";
        assert!(run.stderr.contains(note), "{run:?}");
    }

    let run = Desk::with([("app.yaml", &*pod(""))]).run("render -f app.yaml -o json");
    assert_eq!(run.code, 1, "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let error = "cannot find the volume \"e\" referenced by FileKeyRef; no container mounts it";
    assert_eq!(
        report["pods"][0]["containers"]["c"],
        json!({"error": error})
    );
}

#[test]
fn skipped_kinds_are_counted_on_one_line() {
    let role = "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r}\n";
    let run = Desk::with([("app.yaml", &format!("{GOOD}{role}"))]).run("render -f app.yaml");
    assert_eq!(run.code, 0);
    assert_eq!(
        run.stderr,
        "larder: skipped 1 object of other kinds: 1 Role.rbac.authorization.k8s.io\n"
    );
}

// on-change 5
#[test]
fn hooks_of_annotations_are_shown_and_their_errors_fail() {
    let annotated = |text: &str| {
        let annotations = format!("annotations:\n    {}", text.replace('\n', "\n    "));
        GOOD.replace(
            "metadata: {name: web}",
            &format!("metadata:\n  name: web\n  {annotations}"),
        )
    };
    let text = "on-change.larder.dev/c: signal:SIGHUP\nlarder.dev/on-change: |\n  - volumes: [v]\n    http: {port: 9090, path: /-/reload}\n    \
                debounce: 1s\n  - {container: c, restart: true, volumes: []}";
    let desk = Desk::with([("app.yaml", &annotated(text))]);
    let run = desk.run("render -f app.yaml");
    assert_eq!(run.code, 0, "{run:?}");
    for shown in [
        "on change 0-http",
        "http:9090/-/reload",
        "on change 1-restart",
        "no volume and variables",
        "on change 0-signal",
        "signal:SIGHUP",
        "on-change.larder.dev/c",
    ] {
        assert!(run.stdout.contains(shown), "{shown}: {run:?}");
    }
    let json: Value = serde_json::from_str(&desk.run("render -f app.yaml -o json").stdout).unwrap();
    let hooks = &json["pods"][0]["onChange"]["on-change.larder.dev/c"]["hooks"];
    assert_eq!(
        *hooks,
        json!([{"name": "0-signal", "action": "signal:SIGHUP"}])
    );

    let desk = Desk::with([("app.yaml", &annotated("larder.dev/on-change: reload"))]);
    let run = desk.run("render -f app.yaml");
    assert_eq!(run.code, 1, "{run:?}");
    let problem = "\"reload\": expected none, restart, restart:environment, signal:NAME, http:PORT/PATH or a list";
    assert!(run.stdout.contains(problem), "{run:?}");
}

#[test]
fn failing_pods_come_first_and_the_last_line_is_the_sum() {
    let pod = |name: &str, container: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: c, image: i{container}}}]}}}}\n"
        )
    };
    let missing = ", envFrom: [{configMapRef: {name: nope}}]";
    let warned = ", args: [$(PORT)]";
    let fine: String = (0..998)
        .map(|number| pod(&format!("p{number}"), ""))
        .collect();
    let both = [fine.clone(), pod("fails", missing), pod("warned", warned)].concat();
    for (text, first, sum) in [
        (
            fine.clone(),
            "default/p0",
            "998 pods, every ConfigMap and Secret is there",
        ),
        (
            both,
            "default/fails",
            "1000 pods, 1 does not start; 1 warning",
        ),
        (
            pod("warned", warned) + "---\nkind: [",
            "default/warned",
            "1 pod, every ConfigMap and Secret is there; 1 warning; 1 not read",
        ),
    ] {
        let desk = Desk::with([("app.yaml", &text)]);
        let run = desk.run("render -f app.yaml");
        assert!(
            run.stdout.starts_with(&format!("{first}  ")),
            "{}",
            &run.stdout[..200]
        );
        assert_eq!(run.stdout.lines().last(), Some(sum));
        let page = desk.run("render -f app.yaml -o html").stdout;
        assert!(page.contains(sum), "{sum}");
    }
}

#[test]
fn what_deserves_a_look_takes_the_green_from_the_headline() {
    let painted = |text: &str| {
        let desk = Desk::with([("app.yaml", text)]);
        let mut larder = std::process::Command::new(env!("CARGO_BIN_EXE_larder"));
        larder
            .args(["render", "-f", "app.yaml"])
            .current_dir(desk.path())
            .env_clear();
        let output = larder.env("CLICOLOR_FORCE", "1").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    let is_green = |line: &str| line.contains("\x1b[32m");
    let fine = painted(GOOD);
    assert!(
        is_green(&fine[1]) && is_green(fine.last().unwrap()),
        "{fine:?}"
    );
    let warned = painted(&GOOD.replace("image: i,", "image: i, args: [$(A), $(B)],"));
    let headline = "\x1b[33mevery ConfigMap and Secret is there; 2 warnings\x1b[0m";
    assert!(warned[1].ends_with(headline), "{warned:?}");
    assert!(!is_green(warned.last().unwrap()), "{warned:?}");
    // What is optional and missing is not there.
    let optional = "image: i, args: [$(A)], envFrom: [{configMapRef: {name: x, optional: true}}],";
    let absent = painted(&GOOD.replace("image: i,", optional));
    assert!(
        absent[1].contains("every required ConfigMap and Secret is there; 1 warning"),
        "{absent:?}"
    );
    let hook = GOOD.replace(
        "metadata: {name: web}",
        "metadata: {name: web, annotations: {larder.dev/on-change: nothing}}",
    );
    assert!(!is_green(&painted(&hook)[1]), "an invalid hook");
}
