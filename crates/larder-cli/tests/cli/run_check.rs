//! `larder run --check`: what is wrong is said beforehand, and nothing is started.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use crate::{Desk, run::Agent};

const POD: &str = "apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations:
    larder.dev/on-change: |
      # reload

        - {signal: HUP, volumes: [config]}
    on-change.larder.dev/web: http:8080/-/reload
    larder.dev/subpath-updates: \"true\"
spec:
  containers: [{name: web, image: i, volumeMounts: [{name: config, mountPath: /c}]}]
  volumes: [{name: config, configMap: {name: app}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: app}
data: {a: '1'}
";

#[test]
fn what_is_right_is_exit_code_0() {
    let desk = Desk::with([
        ("agent.yaml", "manifests: .\nnodeName: n1\nrootDir: root\n"),
        ("app.yml", POD),
    ]);
    // The configuration is no manifest, but in their directory.
    fs::create_dir(desk.path().join("m")).unwrap();
    fs::rename(desk.path().join("app.yml"), desk.path().join("m/app.yaml")).unwrap();
    for args in [
        "run --check --manifests m --root-dir root",
        "run --check --manifests m --config agent.yaml",
    ] {
        let run = desk.run(args);
        assert_eq!(
            (run.code, &*run.stderr, &*run.stdout),
            (0, "larder: no problem found\n", "")
        );
    }
    assert!(!desk.path().join("root").exists(), "nothing is started");
}

#[test]
fn everything_that_is_wrong_is_named() {
    let config = "nodeName: n1\nonChange:\n- pods: [a/b]\n  signla: HUP\n";
    let wrong = POD
        .replace("larder.dev/on-change:", "larder.dev/on-chnage:")
        .replace("on-change.larder.dev/web:", "on-chnage.larder.dev/web:")
        .replace(
            "larder.dev/subpath-updates: \"true\"",
            "larder.dev/subpath-update: \"true\"",
        )
        .replace("\ndata:", "\ndta:");
    let others = "
apiVersion: v1
kind: Pod
metadata:
  name: worker
  annotations:
    larder.dev/on-change: '[{signal: HUP, container: wroker}, {signal: HUP, name: b}]'
    on-change.larder.dev/worker: signal:HPU
    larder.dev/subpath-updates: 'yes'
spec: {containers: [{name: worker, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: rejected}
spec: {containers: []}
";
    let desk = Desk::with([("agent.yaml", config)]);
    fs::create_dir(desk.path().join("m")).unwrap();
    desk.replace("m/a.yaml", &wrong);
    desk.replace("m/b.yaml", others);
    let run = desk.run("run --check --manifests m --config agent.yaml --root-dir root");
    assert_eq!(run.code, 1);
    for problem in [
        "agent.yaml: line 4: onChange[0]: unknown field \"signla\"",
        "unknown field \"dta\"",
        "annotation larder.dev/on-chnage: larder knows no such annotation; did you mean \"larder.dev/on-change\"?",
        "annotation on-chnage.larder.dev/web: larder knows no such annotation; did you mean \"on-change.larder.dev/web\"?",
        "annotation larder.dev/subpath-update: larder knows no such annotation; did you mean \"larder.dev/subpath-updates\"?",
        "annotation larder.dev/subpath-updates: neither \"true\" nor \"false\"",
        "annotation larder.dev/on-change: [0].container: no container \"wroker\"",
        "annotation on-change.larder.dev/worker: expected one of SIGHUP",
        "spec.containers",
    ] {
        let lines = run.stderr.lines().filter(|line| line.contains(problem));
        assert_eq!(lines.count(), 1, "{problem}: {}", run.stderr);
    }
    assert!(!desk.path().join("root").exists(), "nothing is started");
}

#[test]
fn directory_that_cannot_be_read_is_a_problem() {
    let run = Desk::with([]).run("run --check --manifests none --root-dir root");
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("none"), "{run:?}");
}

#[test]
fn manifests_are_those_that_the_agent_reads() {
    let desk = Desk::with([("elsewhere.yaml", POD)]);
    let directory = desk.path().join("m");
    fs::create_dir(&directory).unwrap();
    // A link to any place, the lock of an editor, and what an interrupted writer leaves.
    symlink("../elsewhere.yaml", directory.join("app.yaml")).unwrap();
    symlink("user@host.1", directory.join(".#app.yaml")).unwrap();
    fs::write(directory.join("..app.yaml"), "kind: [").unwrap();
    let check = "run --check --manifests m --root-dir root";
    let run = desk.run(check);
    assert_eq!(
        (run.code, &*run.stderr),
        (0, "larder: no problem found\n"),
        "{run:?}"
    );
    desk.replace("elsewhere.yaml", "kind: [");
    assert_eq!(desk.run(check).code, 1, "the link is read");
    desk.replace("elsewhere.yaml", POD);
    // Other users may write to the directory, so the link may be theirs.
    fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
    let run = desk.run(check);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("leads out of the directory"), "{run:?}");
}

#[test]
fn static_pods_are_those_that_the_agent_reads() {
    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: a, annotations: {larder.dev/on-change: nothing}}, \
        spec: {containers: [{name: c, image: i}]}}";
    let two = format!("{pod}\n---\n{}", pod.replace("name: a,", "name: b,"));
    let desk = Desk::with([("agent.yaml", "staticPodPath: pods\nrootDir: root\n")]);
    fs::create_dir(desk.path().join("pods")).unwrap();
    // Any name but hidden ones and those of backups.
    desk.replace("pods/a.manifest", &two);
    desk.replace("pods/.hidden.yaml", "kind: [");
    desk.replace("pods/a.yaml.bak", "kind: [");
    let run = desk.run("run --check --config agent.yaml");
    assert_eq!(run.code, 1);
    let lines: Vec<_> = run.stderr.lines().collect();
    let [more, annotation, found] = &*lines else {
        panic!("{run:?}")
    };
    assert!(more.contains("a.manifest"), "{more}");
    assert!(
        annotation.contains("static pod default/a-") && annotation.contains("larder.dev/on-change"),
        "{annotation}"
    );
    assert_eq!(*found, "larder: 2 problems found");
}

/// Names the files below a directory that contain `text`.
fn files_with(dir: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(files_with(&path, text));
        } else if kind.is_file()
            && String::from_utf8_lossy(&fs::read(&path).unwrap()).contains(text)
        {
            found.push(path);
        }
    }
    found
}

#[test]
fn encrypted_values_are_not_delivered() {
    let secret = "---
apiVersion: v1
kind: Secret
metadata: {name: db}
stringData: {url: 'ENC[AES256_GCM,data:x]'}
sops: {mac: m}
";
    let pod = POD.replace("configMap: {name: app}", "secret: {secretName: db}");
    let desk = Desk::with([]);
    fs::create_dir(desk.path().join("m")).unwrap();
    fs::write(desk.path().join("m/app.yaml"), pod + secret).unwrap();
    let run = desk.run("run --check --manifests m --root-dir root");
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("sops -d"), "{run:?}");
    let mut agent = Agent::start(&desk);
    agent.summary();
    let delivered = files_with(&desk.path().join("root"), "ENC[");
    assert!(delivered.is_empty(), "{delivered:?}");
}

#[test]
fn kubeconfig_that_cannot_be_used_is_named_as_run_names_it() {
    let kubeconfig = |user: &str, cluster: &str| {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: \"https://127.0.0.1:1\"{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        )
    };
    let desk = Desk::with([
        ("good", &*kubeconfig("token: t", "")),
        ("malformed", &kubeconfig("token: [", "")),
        (
            "authority",
            &kubeconfig("token: t", ", certificate-authority: /nonexistent"),
        ),
    ]);
    let check = |args: &str| desk.run(&format!("run --check --root-dir root --node-name n {args}"));
    assert_eq!(check("--kubeconfig /dev/null").code, 0);
    let run = check("--kubeconfig good");
    assert_eq!((run.code, &*run.stderr), (0, "larder: no problem found\n"));
    for (args, words) in [
        ("--kubeconfig none", "failed to read"),
        ("--kubeconfig malformed", "malformed YAML"),
        ("--kubeconfig authority", "certificate authority"),
        ("--kubeconfig good --context nope", "nope"),
    ] {
        let run = check(args);
        assert_eq!(run.code, 1, "{args}: {run:?}");
        assert!(run.stderr.contains(words), "{args}: {run:?}");
        assert!(run.stderr.ends_with("1 problem found\n"), "{args}: {run:?}");
    }
    assert!(!desk.path().join("root").exists(), "nothing is started");
}
