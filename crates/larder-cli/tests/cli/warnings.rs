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
