//! What `larder render` says deserves a look, in every format.

use serde_json::{Value, json};

use crate::Desk;

const APP: &str = r#"
{apiVersion: v1, kind: ConfigMap, metadata: {name: app}, data: {a: "1", A: "1", dup: x}}
---
{apiVersion: v1, kind: Secret, metadata: {name: tls}, stringData: {password: "c4n4ry\n", A: "2", dup: z}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: web
    image: i
    command: [sh, -c, "echo $(date) $(PORT) $(A)"]
    envFrom: [{configMapRef: {name: app}}, {secretRef: {name: tls, optional: true}}]
    env:
    - {name: URL, value: "http://$(LATER):$$(PORT)"}
    - {name: LATER, value: x}
    - {name: LATER, value: "$(URL)"}
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: tls, key: password}}}
    volumeMounts:
    - {name: cfg, mountPath: /etc/app.conf, subPath: app.conf}
    - {name: cfg, mountPath: /etc/a, subPath: a}
    - {name: all, mountPath: /all}
  volumes:
  - {name: cfg, configMap: {name: app, defaultMode: 400}}
  - name: all
    projected:
      sources: [{configMap: {name: app}}, {secret: {name: tls, items: [{key: dup, path: dup, mode: 440}]}}]
"#;

fn pod(desk: &Desk) -> Value {
    let run = desk.run("render -f app.yaml -o json");
    assert_eq!(run.code, 0, "{run:?}");
    serde_json::from_str::<Value>(&run.stdout).unwrap()["pods"][0].take()
}

#[test]
fn what_deserves_a_look_is_named_in_every_format() {
    let desk = Desk::with([("app.yaml", APP)]);
    let pod = pod(&desk);
    let container = json!([
        "/etc/app.conf: volume cfg has no app.conf, so it is an empty directory",
        "URL: $(LATER) stays as it is: no earlier variable has this name",
        "the command has $(PORT), which stays as it is: no variable has this name",
        "A: set by ConfigMap app, then by Secret tls; the last one counts",
        "LATER: set by env, then by env; the last one counts",
        "dup: set by ConfigMap app, then by Secret tls; the last one counts",
        "password: the value of a Secret ends in a newline",
        "PASSWORD: the value of a Secret ends in a newline",
    ]);
    assert_eq!(pod["containers"]["web"]["warnings"], container);
    let mode = "defaultMode: 400 is a decimal number, the mode 0620; the mode 0400 is written 0400";
    assert_eq!(pod["volumes"]["cfg"]["warnings"], json!([mode]));
    let twice = "dup: 2 sources have this path; the last one counts";
    let item = "mode of dup: 440 is a decimal number, the mode 0670; the mode 0440 is written 0440";
    assert_eq!(pod["volumes"]["all"]["warnings"], json!([item, twice]));
    for format in ["tree", "html"] {
        let run = desk.run(&format!("render -f app.yaml -o {format}"));
        assert_eq!(run.code, 0);
        for text in ["what deserves a look", "stays as it is", mode, twice] {
            assert!(run.stdout.contains(text), "{format} {text}: {run:?}");
        }
        assert!(!run.stdout.contains("c4n4ry"), "{run:?}");
    }
}

/// What a run with `-o json` says about its only pod, and outside of pods.
fn report(desk: &Desk, args: &str) -> (Value, Value) {
    let run = desk.run(&format!("render -f app.yaml -o json {args}"));
    let mut report = serde_json::from_str::<Value>(&run.stdout).unwrap();
    (report["pods"][0].take(), report["warnings"].take())
}

#[test]
fn secrets_of_other_volumes_and_of_registries_are_named_if_missing() {
    let text = "{apiVersion: v1, kind: Secret, metadata: {name: share}}\n---\n\
        apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  imagePullSecrets: [{name: pull}, {name: share}]\n  \
        containers:\n  - {name: web, image: i, volumeMounts: [{name: a, mountPath: /a}, {name: b, mountPath: /b}]}\n  \
        - {name: side, image: i}\n  volumes:\n  \
        - {name: a, csi: {driver: d, nodePublishSecretRef: {name: shaer}}}\n  \
        - {name: b, azureFile: {secretName: share, shareName: s}}\n  \
        - {name: unused, csi: {driver: d, nodePublishSecretRef: {name: none}}}\n";
    let desk = Desk::with([("app.yaml", text)]);
    let volume = "volume a: Secret shaer is not among the manifests; did you mean \"share\"?";
    let pull = "Secret pull is not among the manifests";
    let (pod, top) = report(&desk, "");
    assert_eq!(pod["containers"]["web"]["warnings"], json!([volume]));
    assert_eq!(pod["containers"]["side"].get("warnings"), None);
    let pull_of_pod = format!("default/web: imagePullSecrets: {pull}");
    assert_eq!(top, json!([pull_of_pod]));
    let run = desk.run("render -f app.yaml");
    assert_eq!(run.code, 0, "{run:?}");
    let verdict = format!("starts if these are there, which are not known\n│  └─ {volume}\n");
    assert!(run.stdout.contains(&verdict), "{run:?}");
    assert!(
        run.stdout.contains(&format!("imagePullSecrets  {pull}")),
        "{run:?}"
    );
    assert!(!run.stdout.contains("ready"), "{run:?}");
    let run = desk.run("render -f app.yaml -o html");
    assert!(run.stdout.contains("Secret shaer"), "{run:?}");
    // Taken as there.
    let (_, top) = report(&desk, "--assume-missing");
    assert_eq!(top, json!(null));
}

#[test]
fn not_every_reference_is_met_though_the_pod_starts() {
    let pod = |more: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers: [{{name: web, image: i}}]\n  {more}\n"
        )
    };
    for more in [
        "imagePullSecrets: [{name: pull}]",
        "volumes: [{name: v, configMap: {name: none}}]",
    ] {
        let run = Desk::with([("app.yaml", &pod(more))]).run("render -f app.yaml");
        let verdict = "ready to start, but not every reference is met";
        assert!(run.stdout.contains(verdict), "{run:?}");
    }
}

#[test]
fn what_is_on_standard_error_is_in_json_and_on_the_page() {
    let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  template:\n    spec:\n      \
        containers: [{name: web, image: i, envfrom: []}]\n---\n\
        {apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {name: r}}\n";
    let desk = Desk::with([("app.yaml", text), ("kustomization.yaml", "")]);
    let expected = [
        "./app.yaml: document 1, line 7: Deployment \"web\": unknown field \"spec.template.spec.containers[0].envfrom\", \
            ignored; did you mean \"envFrom\"?",
        "./app.yaml: document 1, line 5: Deployment \"web\": spec.selector: Required value; the API server rejects it",
        ". has a kustomization.yaml, so its manifests are made by kustomize: kubectl kustomize . | larder render -f -",
        "skipped 1 object of other kinds: 1 Rollout.argoproj.io",
    ];
    let run = desk.run("render -f . -o json");
    assert_eq!(run.code, 0, "{run:?}");
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(json["warnings"], json!(expected));
    for text in expected {
        assert!(run.stderr.contains(text), "{text}: {run:?}");
    }
    let page = desk.run("render -f . -o html").stdout;
    for text in [
        "containers[0].envfrom",
        "spec.selector",
        "kubectl kustomize",
        "1 Rollout",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
}

#[test]
fn annotations_of_larder_that_do_nothing_are_named() {
    let annotated = |annotations: &str| {
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, annotations: {{{annotations}}}}}\n\
            spec: {{containers: [{{name: web, image: i}}]}}\n"
        );
        let desk = Desk::with([("app.yaml", &pod)]);
        let (_, top) = report(&desk, "");
        (top, desk.run("render -f app.yaml").stdout)
    };
    let (top, tree) = annotated("larder.dev/onchange: restart, larder.dev/subpath-updates: 'yes'");
    let expected = [
        "default/web: annotation larder.dev/onchange: larder knows no such annotation; did you mean \"larder.dev/on-change\"?",
        "default/web: annotation larder.dev/subpath-updates: neither \"true\" nor \"false\", so it is ignored",
    ];
    assert_eq!(top, json!(expected));
    assert!(
        tree.contains("did you mean \"larder.dev/on-change\"?"),
        "{tree}"
    );
    let known = "larder.dev/on-change: restart, larder.dev/refresh-policy: never, \
        larder.dev/subpath-updates: 'false', example.com/larder.dev: x";
    assert_eq!(annotated(known).0, json!(null));
}

#[test]
fn optional_reference_that_is_missing_may_be_misspelled_or_rejected() {
    let text = "
{apiVersion: v1, kind: ConfigMap, metadata: {name: app}, data: {level: info}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: broken}
data:
  port: 8080
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: web
    image: i
    envFrom: [{configMapRef: {name: ap, optional: true}}, {configMapRef: {name: unlike, optional: true}}]
    env: [{name: L, valueFrom: {configMapKeyRef: {name: app, key: levle, optional: true}}}]
    volumeMounts: [{name: v, mountPath: /v}]
  volumes: [{name: v, configMap: {name: broken, optional: true}}]
";
    let desk = Desk::with([("app.yaml", text)]);
    let (pod, _) = report(&desk, "");
    let container = [
        "optional, missing: ConfigMap ap; did you mean \"app\"?",
        "optional, missing: key levle of ConfigMap app; did you mean \"level\"?",
    ];
    let volume = "optional, missing: ConfigMap broken; rejected: app.yaml line 8";
    assert_eq!(pod["containers"]["web"]["warnings"], json!(container));
    assert_eq!(pod["volumes"]["v"]["warnings"], json!([volume]));
    let tree = desk.run("render -f app.yaml").stdout;
    for (start, end) in [
        ("missing: ConfigMap ap;", "did you mean \"app\"?"),
        ("missing: key levle", "did you mean \"level\"?"),
        ("missing: ConfigMap broken", "rejected: app.yaml line 8"),
        ("missing: ConfigMap unlike", "unlike"),
    ] {
        let mut lines = tree.lines();
        let line = lines.find(|line| line.contains(start)).unwrap_or_default();
        assert!(line.ends_with(end), "{start}: {tree}");
    }
}

#[test]
fn nothing_is_said_about_an_ordinary_pod() {
    let ordinary = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: web, image: i, \
        command: [sh, -c, 'echo $$(A) $(A) $(date)'], env: [{name: A, value: '$5 $(x'}, {name: B, value: '$(A)'}], \
        volumeMounts: [{name: s, mountPath: /s}]}\n  \
        volumes: [{name: s, secret: {secretName: s, optional: true, defaultMode: 0400}}]\n";
    let desk = Desk::with([("app.yaml", ordinary)]);
    let pod = pod(&desk);
    assert_eq!(pod["containers"]["web"].get("warnings"), None);
    assert_eq!(pod["volumes"]["s"].get("warnings"), None);
    assert!(!desk.run("render -f app.yaml").stdout.contains("deserves"));
}

#[test]
fn file_mounted_below_a_volume_of_objects_is_named() {
    let with = |around: &str, key: &str| {
        format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: app}}, data: {{a: x, {key}: z}}}}\n---\n\
            apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers:\n  - {{name: web, image: i, \
            volumeMounts: [{{name: v, mountPath: /etc/v/}}, {{name: o, mountPath: /etc/v/extra.conf, subPath: a}}, \
            {{name: o, mountPath: /etc/v/dir}}, {{name: o, mountPath: /etc/vv, subPath: a}}]}}\n  \
            volumes: [{{name: v, {around}}}, {{name: o, configMap: {{name: app}}}}]\n"
        )
    };
    let warning = "/etc/v/extra.conf: a file cannot be mounted below /etc/v, as volume v gets a directory for it: \
        the container does not start";
    for (around, key, expected) in [
        ("configMap: {name: app}", "b", json!([warning])),
        // The directory takes the place of the key.
        ("configMap: {name: app}", "extra.conf", json!([warning])),
        (
            "secret: {secretName: s, optional: true}",
            "b",
            json!([warning]),
        ),
        ("emptyDir: {}", "b", json!(null)),
    ] {
        let desk = Desk::with([("app.yaml", &with(around, key))]);
        let found = &pod(&desk)["containers"]["web"]["warnings"];
        assert_eq!(*found, expected, "{around} {key}");
    }
}

#[test]
fn optional_key_that_is_missing_sets_nothing() {
    let text = "{apiVersion: v1, kind: ConfigMap, metadata: {name: app}, data: {A: x, B: x, C: x}}\n---\n\
        apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: web\n    image: i\n    \
        envFrom: [{configMapRef: {name: app}}]\n    env:\n    \
        - {name: A, valueFrom: {configMapKeyRef: {name: app, key: none, optional: true}}}\n    \
        - {name: B, valueFrom: {secretKeyRef: {name: none, key: b, optional: true}}}\n    \
        - {name: C, valueFrom: {configMapKeyRef: {name: app, key: A, optional: true}}}\n";
    let desk = Desk::with([("app.yaml", text)]);
    let twice = "C: set by ConfigMap app, then by env; the last one counts";
    assert_eq!(pod(&desk)["containers"]["web"]["warnings"], json!([twice]));
}

#[test]
fn environment_that_the_kernel_rejects_is_named() {
    let service = |index: u32| {
        format!(
            "---\n{{apiVersion: v1, kind: Service, metadata: {{name: s{index}}}, spec: {{clusterIP: 10.0.0.1, ports: [{{port: 80}}]}}}}\n"
        )
    };
    let services = (0..9000).map(service).collect::<Vec<_>>().concat();
    let pod_of = |value: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers:\n  - {{name: web, image: i, env: [{{name: BIG, value: '{value}'}}]}}\n"
        )
    };
    // The kernel counts `BIG=`, the value and a zero byte.
    let most = (128 << 10) - "BIG=\0".len();
    for (size, more, expected) in [
        (most, "", json!(null)),
        (
            most + 1,
            "",
            json!(
                "BIG: 128.0 KiB, more than the kernel takes for one variable (128.0 KiB): no process starts"
            ),
        ),
        (1, &*services, json!("enableServiceLinks")),
    ] {
        let text = pod_of(&"x".repeat(size)) + more;
        let desk = Desk::with([("app.yaml", &text)]);
        let warning = &pod(&desk)["containers"]["web"]["warnings"][0];
        match more {
            "" => assert_eq!(*warning, expected),
            _ => assert!(
                warning.to_string().contains(expected.as_str().unwrap()),
                "{warning}"
            ),
        }
    }
}

#[test]
fn missing_object_was_rejected_or_is_spelled_otherwise() {
    let text = r#"
{apiVersion: v1, kind: ConfigMap, metadata: {name: app}, data: {level: info}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: config}
data:
  port: 8080
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: web
    image: i
    env:
    - {name: A, valueFrom: {configMapKeyRef: {name: config, key: port}}}
    - {name: B, valueFrom: {configMapKeyRef: {name: apq, key: level}}}
    - {name: C, valueFrom: {configMapKeyRef: {name: app, key: levle}}}
    - {name: D, valueFrom: {configMapKeyRef: {name: nothing-alike, key: level}}}
    volumeMounts: [{name: v, mountPath: /v}]
  volumes: [{name: v, configMap: {name: config}}]
"#;
    let desk = Desk::with([("config.yaml", text)]);
    let run = desk.run("render -f config.yaml");
    assert_eq!(run.code, 1);
    let line = |name: &str| {
        let lines = run.stdout.lines();
        let mut lines = lines.filter(|line| line.contains(name));
        lines.next().unwrap_or_default().to_owned()
    };
    for (start, end) in [
        ("─ A  ", "rejected: config.yaml line 8"),
        ("─ B  ", "did you mean \"app\"?"),
        ("─ C  ", "did you mean \"level\"?"),
        ("─ D  ", "ConfigMap nothing-alike not found"),
        ("─ volume v", "rejected: config.yaml line 8"),
    ] {
        assert!(line(start).ends_with(end), "{start}: {run:?}");
    }
    let run = desk.run("render -f config.yaml -o json");
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let pod = &report["pods"][0];
    for part in [&pod["containers"]["web"], &pod["volumes"]["v"]] {
        let error = "configmap \"config\" not found; rejected: config.yaml line 8";
        assert_eq!(part["error"], error);
    }
    for (args, message) in [
        ("--pod wbe", "did you mean \"web\"?"),
        (
            "--pod web -c wbe",
            "pod web has no container wbe; did you mean \"web\"?",
        ),
        ("--pod web -c x", "pod web has no container x; it has web"),
    ] {
        let run = desk.run(&format!("exec -f config.yaml {args} -- true"));
        assert!(run.stderr.contains(message), "{args}: {run:?}");
    }
}

#[test]
fn links_that_only_one_user_may_follow_are_named() {
    let text = "{apiVersion: v1, kind: Secret, metadata: {name: tls}, stringData: {a: x, b: z}}\n---\n\
        apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  securityContext: {runAsUser: 1000}\n  containers:\n  \
        - name: web\n    image: i\n    volumeMounts: [{name: token, mountPath: /t}, {name: tls, mountPath: /s}]\n  volumes:\n  \
        - {name: token, projected: {sources: [{serviceAccountToken: {path: token}}]}}\n  \
        - {name: tls, secret: {secretName: tls}}\n";
    let desk = Desk::with([("app.yaml", text)]);
    let pod = pod(&desk);
    let warning = "token: only user 1000 may follow the link where fs.protected_symlinks is set; all others, root \
        included, find the file in ..data";
    assert_eq!(pod["volumes"]["token"]["warnings"], json!([warning]));
    assert_eq!(pod["volumes"]["tls"]["warnings"], json!(null));
}

#[test]
fn volume_at_the_root_and_a_certificate_without_a_signer_are_named() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  \
        - {name: web, image: i, volumeMounts: [{name: c, mountPath: /.}]}\n  volumes:\n  \
        - name: c\n    projected: {sources: [{podCertificate: {signerName: x.y/z, keyType: ED25519, credentialBundlePath: c}}]}\n";
    let desk = Desk::with([("app.yaml", text)]);
    let pod = pod(&desk);
    let warning =
        "/: no runtime mounts a volume at the root of a container: the container does not start";
    assert_eq!(pod["containers"]["web"]["warnings"], json!([warning]));
    let warning = "its certificate is issued by the signer x.y/z of a cluster; larder run --manifests has none";
    assert_eq!(pod["volumes"]["c"]["warnings"], json!([warning]));
}

#[test]
fn ephemeral_container_has_no_part_in_the_start_of_its_pod() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{name: web, image: i}]\n  \
        ephemeralContainers: [{name: debug, image: i, env: [{name: A, valueFrom: {configMapKeyRef: {name: m, key: k}}}]}]\n";
    let desk = Desk::with([("app.yaml", text)]);
    let run = desk.run("render -f app.yaml");
    assert!(
        run.stdout
            .contains("ready to start, but not every reference is met"),
        "{run:?}"
    );
    assert_eq!(run.code, 1, "{run:?}");
}
