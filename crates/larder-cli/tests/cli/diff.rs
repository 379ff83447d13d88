//! `larder diff`.

mod certain;
mod facts;
mod gate;
mod makers;
mod markdown;
mod memory;
mod outside;
mod property;
mod recipes;
mod reviewer;
mod rollout;
mod sides;
mod sub_paths;
mod trees;
mod truth;
mod unknown;
mod verdicts;

use std::{
    ffi::OsStr,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::{Desk, Run, apiserver::Server};

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: prod}
spec:
  containers:
  - name: web
    image: i
    env: [{name: LEVEL, valueFrom: {configMapKeyRef: {name: app, key: level, optional: true}}}]
    volumeMounts: [{name: cfg, mountPath: /etc/app}]
  - name: side
    image: i
    volumeMounts: [{name: cfg, mountPath: /one, subPath: b}, {name: tls, mountPath: /tls}]
  volumes:
  - {name: cfg, configMap: {name: app}}
  - {name: tls, secret: {secretName: tls, optional: true}}
"#;

fn map(data: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: app, namespace: prod}}\ndata: {data}\n"
    )
}

fn secret(data: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: tls, namespace: prod}}\nstringData: {data}\n"
    )
}

/// Runs `larder diff` of two manifests.
#[track_caller]
fn run(from: &str, to: &str, args: &str) -> Run {
    let desk = Desk::with([("from.yaml", from), ("to.yaml", to)]);
    desk.run(&format!(
        "diff --from-file from.yaml --to-file to.yaml {args}"
    ))
}

/// The differences between two manifests as JSON.
#[track_caller]
fn diff(from: &str, to: &str) -> Value {
    diff_with(from, to, "")
}

#[track_caller]
fn diff_with(from: &str, to: &str, args: &str) -> Value {
    let run = run(from, to, &format!("-o json {args}"));
    let report: Value = serde_json::from_str(&run.stdout).expect(&run.stderr);
    let mut parts = ["pods", "unreferenced", "unseen"].iter();
    let is_empty = parts.all(|part| report[part].as_array().is_none_or(Vec::is_empty));
    assert_eq!(run.code, i32::from(!is_empty), "{run:?}");
    report
}

#[test]
fn json_has_values_modes_and_unreferenced_objects() {
    let from = [POD, &map("{level: info, a: '1', old: x}")].concat();
    let to = POD.replace(
        "configMap: {name: app}",
        "configMap: {name: app, defaultMode: 0400}",
    );
    let unused = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: unused, namespace: prod}\ndata: {a: b}\n";
    let to = [&to, &*map("{a: '2', new: 'y'}"), unused].concat();
    let expected = expect![[r#"
        {
          "pods": [
            {
              "change": "changed",
              "containers": {
                "side": {
                  "env": {
                    "added": {},
                    "changed": {},
                    "removed": []
                  },
                  "files": {
                    "added": {},
                    "changed": {},
                    "removed": []
                  },
                  "unknown": [
                    "secret tls"
                  ],
                  "verdict": "same"
                },
                "web": {
                  "env": {
                    "added": {},
                    "changed": {},
                    "removed": [
                      "LEVEL"
                    ]
                  },
                  "files": {
                    "added": {
                      "/etc/app/new": {
                        "data": "eQ==",
                        "mode": "0400"
                      }
                    },
                    "changed": {
                      "/etc/app/a": {
                        "from": "MQ==",
                        "mode": {
                          "from": "0644",
                          "to": "0400"
                        },
                        "to": "Mg=="
                      }
                    },
                    "removed": [
                      "/etc/app/level",
                      "/etc/app/old"
                    ]
                  },
                  "rollsOut": false,
                  "verdict": "restart"
                }
              },
              "name": "web",
              "namespace": "prod",
              "rollsOut": false
            }
          ],
          "unknown": [
            {
              "container": "side",
              "namespace": "prod",
              "pod": "web",
              "what": "secret tls"
            }
          ],
          "unreferenced": [
            {
              "kind": "ConfigMap",
              "name": "unused",
              "namespace": "prod"
            }
          ],
          "version": 1
        }"#]];
    expected.assert_eq(&format!("{:#}", diff(&from, &to)));
}

#[test]
fn values_of_secrets_are_null_unless_asked_for() {
    let pod = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: prod}
spec:
  containers:
  - name: web
    image: i
    env:
    - {name: KEY, valueFrom: {secretKeyRef: {name: tls, key: key}}}
    - {name: URL, value: "https://$(KEY)@host"}
    volumeMounts: [{name: tls, mountPath: /tls}]
  volumes: [{name: tls, secret: {secretName: tls}}]
"#;
    let from = [pod, &secret("{key: hunter2, old: hunter3}")].concat();
    let to = [pod, &secret("{key: hunter4, new: hunter5}")].concat();
    let container = &diff(&from, &to)["pods"][0]["containers"]["web"];
    let hidden = json!({"from": null, "to": null});
    assert_eq!(
        container["env"]["changed"],
        json!({"KEY": hidden, "URL": hidden})
    );
    assert_eq!(container["files"]["changed"], json!({"/tls/key": hidden}));
    assert_eq!(container["files"]["added"]["/tls/new"]["data"], Value::Null);
    let shown = diff_with(&from, &to, "--show-secrets");
    let container = &shown["pods"][0]["containers"]["web"];
    assert_eq!(
        container["env"]["changed"]["URL"],
        json!({"from": "https://hunter2@host", "to": "https://hunter4@host"})
    );
    for format in ["tree", "json", "markdown", "html"] {
        let run = run(&from, &to, &format!("-o {format}"));
        assert!(!run.stdout.contains("hunter"), "{run:?}");
        // In base64.
        assert!(!run.stdout.contains("aHVudGVy"), "{run:?}");
    }
}

const FROM: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: prod}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata:
      labels: {app: web}
      annotations: {larder.dev/on-change: "signal:SIGHUP"}
    spec:
      containers:
      - name: web
        image: i
        envFrom: [{configMapRef: {name: app}}]
        volumeMounts: [{name: cfg, mountPath: /etc/app}]
      - {name: side, image: i, volumeMounts: [{name: cfg, mountPath: /cfg}]}
      - {name: job, image: i, env: [{name: T, valueFrom: {secretKeyRef: {name: token, key: t}}}]}
      volumes: [{name: cfg, configMap: {name: files}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: app, namespace: prod}
data: {LEVEL: info, OLD: "1"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: files, namespace: prod}
data:
  app.conf: |
    level = info
    port = 80
    user = web
---
apiVersion: v1
kind: Secret
metadata: {name: token, namespace: prod}
stringData: {t: hunter2}
"#;

/// [`FROM`], edited.
fn to() -> String {
    FROM.replace("port = 80", "port = 8080")
        .replace("LEVEL: info, OLD: \"1\"", "LEVEL: debug, NEW: \"a\\nb\"")
        .replace("{t: hunter2}", "{other: hunter2}")
        + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: loose, namespace: prod}\n"
}

#[track_caller]
fn check_output(args: &str, expected: Expect) {
    let run = run(FROM, &to(), args);
    assert_eq!((run.code, &*run.stderr), (1, ""));
    expected.assert_eq(&without_time(&run.stdout));
}

/// The output, without the time of the comparison.
fn without_time(output: &str) -> String {
    let lines = output
        .lines()
        .map(|line| match line.split_once(", compared on ") {
            Some((sides, _)) => format!("{sides}, compared on TIME\n"),
            None => format!("{line}\n"),
        });
    lines.collect()
}

// on-change 66, 68
#[test]
fn hook_does_not_run_for_an_object_that_is_left_out() {
    let name = "{name: files, namespace: prod";
    let annotated = format!("{name}, annotations: {{larder.dev/on-change: 'false'}}");
    let left_out = |text: &str| text.replace(name, &annotated);
    let hooks = |from: &str, to: &str| diff(from, to)["pods"][0]["hooks"].clone();
    assert!(hooks(FROM, &to()).is_array());
    // The annotation counts that is there after the change.
    assert_eq!(hooks(FROM, &left_out(&to())), Value::Null);
    assert_eq!(hooks(&left_out(FROM), &left_out(&to())), Value::Null);
    assert!(hooks(&left_out(FROM), &to()).is_array());
}

#[test]
fn tree_shows_each_container_with_its_verdict() {
    check_output(
        "",
        expect![[r#"
            prod/web  Deployment web, to.yaml: document 1, line 2
            ├─ container job       would not start: couldn't find key t in Secret prod/token
            ├─ container web       needs a restart: variables; keeps the old value until somebody restarts it
            │  ├─ variables
            │  │  ├─ ~ LEVEL  "info" → "debug"  ConfigMap app
            │  │  ├─ + NEW    ConfigMap app
            │  │  │  @@ -0,0 +1,2 @@
            │  │  │  +a
            │  │  │  +b
            │  │  └─ - OLD    "1"               ConfigMap app
            │  └─ sees shared change 1
            ├─ container side      sees it without a restart
            │  └─ sees shared change 1
            └─ hook 0-signal runs  signal:SIGHUP  volume cfg changed

            shared change 1  2 containers see it
            ├─ ~ app.conf  0644  ConfigMap files
            │  @@ -1,3 +1,3 @@
            │   level = info
            │  -port = 80
            │  +port = 8080
            │   user = web
            └─ seen by
               └─ prod/web  web, side

            changed objects that no pod references
            └─ ~ ConfigMap prod/loose

            1 pod differs (containers: 1 would not start, 1 needs a restart and keeps the old value until somebody restarts it, 1 sees it without a restart); 1 unreferenced object differs
        "#]],
    );
}

#[test]
fn nothing_is_printed_without_a_difference() {
    let run = run(FROM, FROM, "");
    assert_eq!((run.code, &*run.stdout, &*run.stderr), (0, "", ""));
}

#[test]
fn containers_that_start_on_neither_side_are_named() {
    // A process cannot have this value.
    let nul = POD.replace("env: [", "env: [{name: X, value: \"a\\0\"}, ");
    let run = run(&nul, &nul, "");
    assert_eq!((run.code, &*run.stderr), (0, ""));
    let reason = "would start on neither side: environment variable \"X\" contains a NUL byte";
    assert!(run.stdout.contains(reason), "{run:?}");
}

#[test]
fn errors_exit_with_2() {
    let desk = Desk::with([("good.yaml", FROM), ("bad.yaml", "kind: [")]);
    fs::create_dir(desk.path().join("empty")).unwrap();
    for args in [
        "diff",
        "diff --from-file good.yaml",
        "diff -f good.yaml",
        "diff -f good.yaml --to main",
        "diff -f good.yaml --from main --kubeconfig k",
        "diff --from-file missing.yaml --to-file good.yaml",
        "diff --from-file good.yaml --to-file empty",
        "diff -f good.yaml --kubeconfig missing",
        // No repository.
        "diff -f good.yaml --from HEAD",
    ] {
        let run = desk.run(args);
        assert_eq!((run.code, &*run.stdout), (2, ""), "{args}: {run:?}");
        assert!(!run.stderr.is_empty(), "{args}");
    }
    // What could be read is compared.
    let run = desk.run("diff --from-file good.yaml --to-file good.yaml bad.yaml");
    assert_eq!(run.code, 2);
    assert!(
        run.stdout.contains("not read: bad.yaml: document 1"),
        "{run:?}"
    );
    assert!(
        run.stderr.starts_with("larder: to: bad.yaml: document 1"),
        "{run:?}"
    );
}

#[test]
fn flags_of_two_forms_are_bad_usage() {
    let desk = Desk::with([("a.yaml", FROM)]);
    for (args, flag) in [
        ("-f a.yaml --from HEAD --to-file a.yaml", "--to-file"),
        ("--from HEAD --to-file missing.yaml", "--to-file"),
        (
            "--from-file a.yaml --to-file a.yaml --to no-such",
            "--to <REV>",
        ),
        ("-f a.yaml --kubeconfig k --to HEAD", "--to <REV>"),
        ("-f a.yaml --kubeconfig k --to-file a.yaml", "--to-file"),
        ("-f a.yaml --from HEAD --context x", "--context"),
        (
            "--from-file a.yaml --to-file a.yaml --context x",
            "--context",
        ),
        ("-f - --from HEAD", "-f -"),
        ("--from-file - --to-file -", "--to-file -"),
    ] {
        let run = desk.run_with_input(&format!("diff {args}"), FROM);
        assert_eq!((run.code, &*run.stdout), (2, ""), "{args}: {run:?}");
        let conflict = run.stderr.contains(flag) && run.stderr.contains("cannot be used with");
        assert!(conflict, "{args}: {run:?}");
    }
    for args in [
        "--from-file - --to-file a.yaml",
        "--from-file a.yaml --to-file -",
    ] {
        let run = desk.run_with_input(&format!("diff {args}"), FROM);
        assert_eq!((run.code, &*run.stderr), (0, ""), "{args}: {run:?}");
    }
}

#[test]
fn objects_of_other_kinds_are_counted_in_every_output() {
    let rollout =
        "---\napiVersion: argoproj.io/v1alpha1\nkind: Rollout\nmetadata: {name: r}\nspec: {n: 1}\n";
    let (from, to) = (
        [FROM, rollout].concat(),
        [FROM, &rollout.replace('1', "2")].concat(),
    );
    for format in ["tree", "json", "markdown", "html"] {
        let run = run(&from, &to, &format!("-o {format}"));
        assert_eq!(run.code, 0, "{run:?}");
        let sentence = "skipped 1 object of other kinds: 1 Rollout.argoproj.io";
        assert!(run.stdout.contains(sentence), "{run:?}");
        assert_eq!(run.stderr, format!("larder: {sentence}\n"));
    }
}

#[test]
fn key_of_a_secret_that_selects_a_file_is_hidden() {
    let pod = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: prod}
spec:
  containers:
  - name: web
    image: i
    env: [{name: K, valueFrom: {secretKeyRef: {name: tls, key: key}}}]
    volumeMounts: [{name: v, mountPath: /v, subPathExpr: $(K)}]
  volumes: [{name: v, configMap: {name: app}}]
"#;
    let with = |key: &str| {
        [
            pod,
            &map("{hunter2: one, hunter4: two}"),
            &secret(&format!("{{key: {key}}}")),
        ]
        .concat()
    };
    let (from, to) = (with("hunter2"), with("hunter4"));
    let desk = Desk::with([("from.yaml", &*from), ("to.yaml", &*to)]);
    for command in [
        "diff --from-file from.yaml --to-file to.yaml -o tree",
        "diff --from-file from.yaml --to-file to.yaml -o markdown",
        "diff --from-file from.yaml --to-file to.yaml -o html",
        "render -f from.yaml -o tree",
        "render -f from.yaml -o html",
    ] {
        let run = desk.run(command);
        assert!(run.stdout.contains("hidden"), "{command}: {run:?}");
        assert!(!run.stdout.contains("hunter"), "{command}: {run:?}");
        let run = desk.run(&format!("{command} --show-secrets"));
        assert!(run.stdout.contains("hunter2"), "{command}: {run:?}");
    }
}

/// A repository with [`FROM`] in `k8s/app.yaml` of its first commit, and [`to`] in the working tree.
struct Checkout {
    desk: Desk,
}

impl Checkout {
    fn new() -> Self {
        let checkout = Self {
            desk: Desk::with([]),
        };
        checkout.git("init -q -b main");
        fs::create_dir(checkout.path().join("k8s")).unwrap();
        checkout.write("k8s/app.yaml", FROM);
        checkout.commit("first");
        checkout.write("k8s/app.yaml", &to());
        checkout
    }

    fn path(&self) -> &Path {
        self.desk.path()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    fn commit(&self, tag: &str) {
        self.git("add -A");
        self.git("-c user.name=n -c user.email=e -c commit.gpgsign=false commit -q -m text");
        self.git(&format!("tag {tag}"));
    }

    fn git(&self, args: &str) {
        let mut git = Command::new("git");
        let git = git.args(args.split_whitespace()).current_dir(self.path());
        let git = git
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env_remove("GIT_DIR");
        assert!(git.status().unwrap().success(), "git {args}");
    }

    /// Runs `larder diff`, as a hook of git would.
    fn diff(&self, directory: &str, args: &[&str]) -> Run {
        let path = std::env::var_os("PATH").unwrap();
        self.diff_with(path, directory, args)
    }

    /// The same with another `PATH`.
    fn diff_with(&self, path: impl AsRef<OsStr>, directory: &str, args: &[&str]) -> Run {
        let output = Command::new(env!("CARGO_BIN_EXE_larder"))
            .arg("diff")
            .args(args)
            .current_dir(self.path().join(directory))
            .env_clear()
            .env("PATH", path)
            .env("GIT_DIR", ".git")
            .env("GIT_INDEX_FILE", ".git/index")
            .stdin(Stdio::null())
            .output();
        output.unwrap().into()
    }
}

#[test]
fn file_that_a_checkout_changes_is_named_and_not_read() {
    let checkout = Checkout::new();
    for (attribute, text, is_read) in [
        ("working-tree-encoding=SHIFT_JIS", "", false),
        ("working-tree-encoding=UTF-8", "", true),
        ("ident", "# $Id$\n", false),
        ("ident", "", true),
        ("filter=own", "", false),
        ("text eol=crlf", "", true),
    ] {
        checkout.write(".gitattributes", &format!("*.yaml {attribute}\n"));
        // git would convert it.
        checkout.git("config core.attributesFile /dev/null");
        checkout.write("k8s/app.yaml", &(text.to_owned() + FROM));
        checkout.git("-c filter.own.clean=cat add -A");
        checkout.git("-c user.name=n -c user.email=e -c commit.gpgsign=false commit -q --allow-empty -m text");
        let run = checkout.diff(".", &["-f", "k8s", "--from", "HEAD"]);
        let name = attribute.split('=').next().unwrap();
        assert_eq!(run.code == 2, !is_read, "{attribute}: {run:?}");
        let is_named = run.stderr.contains(name) && run.stderr.contains("k8s/app.yaml");
        assert_eq!(is_named, !is_read, "{attribute}: {run:?}");
    }
}

#[test]
fn bare_repository_has_a_message_of_its_own() {
    let checkout = Checkout::new();
    checkout.git("clone -q --bare . bare.git");
    fs::create_dir(checkout.path().join("bare.git/k8s")).unwrap();
    // It is not in a working tree.
    let elsewhere = tempfile::tempdir().unwrap();
    let moved = elsewhere.path().join("bare.git");
    fs::rename(checkout.path().join("bare.git"), &moved).unwrap();
    let run = checkout.diff(moved.to_str().unwrap(), &["-f", "k8s", "--from", "HEAD"]);
    assert_eq!(run.code, 2, "{run:?}");
    assert!(run.stderr.contains("is a bare repository"), "{run:?}");
}

#[test]
fn revisions_of_git_are_compared() {
    let checkout = Checkout::new();
    let expected = diff(FROM, &to());
    let check = |directory: &str, args: &[&str], expected: &Value| {
        let run = checkout.diff(directory, &[args, &["-o", "json"]].concat());
        let found: Value = serde_json::from_str(&run.stdout).expect(&run.stderr);
        assert_eq!(&found, expected, "{args:?}: {run:?}");
    };
    check(".", &["-f", "k8s", "--from", "HEAD"], &expected);
    check(".", &["-f", "k8s/app.yaml", "--from", "first"], &expected);
    check("k8s", &["-f", ".", "--from", "main"], &expected);
    check("k8s", &["-f", "app.yaml", "--from", "main"], &expected);
    check(".", &["-R", "-f", ".", "--from", "main"], &expected);
    // The first revision has no other file, and a second one has all.
    checkout.write("k8s/more.yaml", &POD.replace("name: web", "name: more"));
    fs::remove_file(checkout.path().join("k8s/app.yaml")).unwrap();
    checkout.commit("second");
    let more = POD.replace("name: web", "name: more");
    let expected = diff(FROM, &more);
    check(
        ".",
        &["-f", "k8s", "--from", "first", "--to", "second"],
        &expected,
    );
    let expected = diff(&more, FROM);
    check(
        ".",
        &["-f", "k8s", "--from", "second", "--to", "first"],
        &expected,
    );
    // A directory that is new, and one without a difference.
    fs::create_dir(checkout.path().join("new")).unwrap();
    checkout.write("new/app.yaml", FROM);
    check(".", &["-f", "new", "--from", "main"], &diff("", FROM));
    check(".", &["-f", "k8s", "--from", "main"], &diff(&more, &more));
}

#[test]
fn hostile_names_are_only_names() {
    let checkout = Checkout::new();
    fs::create_dir(checkout.path().join("k8s/.hidden")).unwrap();
    for name in [
        "--output=x.yaml",
        "a b\n:(top)*.yaml",
        ".hidden/a.yaml",
        "x\u{1b}.yaml",
    ] {
        let text = format!("# {name:?}\n");
        checkout.write(&format!("k8s/{name}"), &text);
    }
    checkout.commit("hostile");
    let run = checkout.diff(".", &["-f", "k8s", "--from", "hostile"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(
        run.stdout
            .contains("No container sees a difference; not compared: subdirectories of k8s")
    );
    for revision in [
        "--output=pwned",
        "--upload-pack=touch pwned",
        "-h",
        "",
        "main:k8s",
        "main^{tree}",
        "..",
        "main..first",
        ":/first",
        "no-such",
        "main\n",
    ] {
        let run = checkout.diff(".", &["-f", "k8s", &format!("--from={revision}")]);
        // git finds a commit by its message.
        if revision != ":/first" {
            assert_eq!((run.code, &*run.stdout), (2, ""), "{revision:?}: {run:?}");
        }
    }
    assert!(!checkout.path().join("pwned").exists());
}

#[test]
fn api_server_is_asked_for_named_objects_only() {
    let desk = Desk::with([("new.yaml", &to())]);
    fs::create_dir(desk.path().join("m")).unwrap();
    let other = POD
        .replace("name: web", "name: other")
        .replace("name: app", "name: app-2");
    let unused = map("{a: '1'}").replace("name: app", "name: unused");
    fs::write(
        desk.path().join("m/app.yaml"),
        [FROM, "---", &other, &unused].concat(),
    )
    .unwrap();
    let (_server, _) = Server::start(
        &desk,
        "--manifests m --kubeconfig-out kubeconfig --audit-log audit.jsonl",
    );
    let ask = |args: &str| desk.run(&format!("diff --kubeconfig kubeconfig {args} -o json"));
    let run = ask("-f new.yaml");
    // Nothing says what was applied before, so no key is removed.
    let kept = to().replace("NEW: ", "OLD: \"1\", NEW: ");
    let kept = kept.replace("{other: hunter2}", "{t: hunter2, other: hunter2}");
    let mut expected = diff(FROM, &kept);
    // It is in the manifests, but no container of them sees it.
    assert_eq!(expected["unreferenced"].take()[0]["name"], "loose");
    expected["unreferenced"] = json!([]);
    expected["notCompared"] =
        json!(["1 object of the manifests is not compared: no container in them sees it"]);
    let found: Value = serde_json::from_str(&run.stdout).expect(&run.stderr);
    assert_eq!((run.code, &found), (1, &expected));
    assert_eq!(
        run.stderr,
        "larder: 1 object of the manifests is not compared: no container in them sees it\n"
    );
    // What the manifests lack stays.
    let (deployment, _) = FROM.split_once("---").unwrap();
    fs::write(desk.path().join("pod.yaml"), deployment).unwrap();
    let run = ask("-f pod.yaml");
    assert_eq!((run.code, &*run.stderr), (0, ""), "{run:?}");
    // A pod that the API server lacks.
    fs::write(
        desk.path().join("pod.yaml"),
        deployment.replace("name: web, n", "name: new, n"),
    )
    .unwrap();
    let run = ask("-f pod.yaml");
    assert_eq!(run.code, 1);
    assert!(run.stdout.contains(r#""change": "added""#), "{run:?}");

    let audit = fs::read_to_string(desk.path().join("audit.jsonl")).unwrap();
    let requests: std::collections::BTreeSet<_> = audit
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|request| {
            !request["user_agent"]
                .as_str()
                .unwrap()
                .contains("manifests")
        })
        .map(|request| {
            let path = request["path"].as_str().unwrap();
            format!("{} {path}", request["verb"].as_str().unwrap())
        })
        .collect();
    let requests: Vec<_> = requests.into_iter().collect();
    expect![[r#"
        get /api/v1/namespaces/prod/configmaps/app
        get /api/v1/namespaces/prod/configmaps/files
        get /api/v1/namespaces/prod/pods/new
        get /api/v1/namespaces/prod/pods/web
        get /api/v1/namespaces/prod/secrets/token
        get /apis/apps/v1/namespaces/prod/deployments/new
        get /apis/apps/v1/namespaces/prod/deployments/web"#]]
    .assert_eq(&requests.join("\n"));
}

#[test]
fn api_server_that_is_not_there_is_an_error() {
    let desk = Desk::with([("new.yaml", FROM)]);
    let (server, _) = Server::start(&desk, "--kubeconfig-out kubeconfig");
    fs::copy(desk.path().join("kubeconfig"), desk.path().join("kept")).unwrap();
    drop(server);
    let run = desk.run("diff -f new.yaml --kubeconfig kept");
    assert_eq!((run.code, &*run.stdout), (2, ""), "{run:?}");
}
