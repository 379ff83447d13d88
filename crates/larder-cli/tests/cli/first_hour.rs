//! Mistakes that everybody makes once, and what larder says to them.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use rustix::process::Signal;

use crate::{
    Desk,
    apiserver::api,
    run::{Agent, desk, key, pod, put, until},
};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: demo}
spec: {containers: [{name: c, image: i}]}
";

#[test]
fn an_empty_directory_is_an_error_and_subdirectories_are_searched_on_request() {
    let desk = Desk::with([]);
    fs::create_dir_all(desk.path().join("k8s/base/.git")).unwrap();
    let run = desk.run("render -f k8s");
    assert_eq!(run.code, 2, "{run:?}");
    assert!(
        run.stderr
            .contains("read 0 files; subdirectories are not searched"),
        "{run:?}"
    );
    fs::write(desk.path().join("k8s/base/pod.yaml"), POD).unwrap();
    fs::write(desk.path().join("k8s/base/.git/other.yaml"), "nonsense: [").unwrap();
    assert_eq!(desk.run("refs -f k8s").code, 2);
    for command in ["render -R -f k8s", "refs --recursive -f k8s"] {
        let run = desk.run(command);
        assert_eq!((run.code, &*run.stderr), (0, ""), "{command}");
        assert!(run.stdout.contains("web"), "{command}");
    }
    // What was not searched deserves a look.
    fs::write(
        desk.path().join("k8s/pod.yaml"),
        POD.replace("name: web", "name: top"),
    )
    .unwrap();
    let unsearched =
        "k8s has manifests in subdirectories, which are not searched (-R searches them)";
    for (command, code) in [("render -f k8s", 0), ("render -f k8s --strict", 1)] {
        let run = desk.run(command);
        assert_eq!(run.code, code, "{run:?}");
        assert!(run.stdout.contains("; 1 warning"), "{run:?}");
        let said = [&*run.stdout, &run.stderr].concat();
        assert!(said.contains(unsearched), "{run:?}");
    }
    assert_eq!(desk.run("render -R -f k8s --strict").code, 0);
    // A link to a directory above leads nowhere.
    std::os::unix::fs::symlink("..", desk.path().join("k8s/base/up")).unwrap();
    assert_eq!(desk.run("render -R -f k8s").code, 0);
}

#[test]
fn a_pod_in_the_place_of_a_file_or_without_its_namespace_is_understood() {
    let desk = Desk::with([("app.yaml", POD)]);
    let run = desk.run("render -f app.yaml web");
    assert_eq!(run.code, 1);
    assert!(
        run.stderr.contains("if it is a pod, write --pod web"),
        "{run:?}"
    );
    for command in [
        "render -f app.yaml --pod web",
        "exec -f app.yaml --pod web -- true",
    ] {
        let run = desk.run(command);
        let expected = "no pod default/web in the manifests; did you mean demo/web?";
        assert!(run.stderr.contains(expected), "{run:?}");
    }
}

#[test]
fn messages_of_common_mistakes_say_what_to_write() {
    let secret =
        "{apiVersion: v1, kind: Secret, metadata: {name: s}, data: {password: 'hunter2!'}}";
    let desk = Desk::with([
        ("secret.yaml", secret),
        (
            "tab.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n\tname: s\n",
        ),
    ]);
    fs::create_dir(desk.path().join("k8s")).unwrap();
    for (command, expected) in [
        (
            "render -f secret.yaml",
            "data[password]: value is not base64; text belongs in stringData",
        ),
        ("render -f tab.yaml", "line 4: tabs disallowed"),
        ("render -f tab.yaml", "; YAML is indented with spaces"),
        ("render k8s", "to read k8s, write -f k8s"),
        ("exec k8s -- true", "to read k8s, write -f k8s"),
    ] {
        let run = desk.run(command);
        assert!(run.stderr.contains(expected), "{command}: {run:?}");
        assert!(!run.stderr.contains("hunter2"), "{run:?}");
    }
}

#[test]
fn what_was_not_read_is_named_in_every_format() {
    let desk = Desk::with([("app.yaml", POD), ("bad.yaml", "kind: [")]);
    for format in ["json", "yaml", "tree", "html"] {
        let run = desk.run(&format!("render -f app.yaml -f bad.yaml -o {format}"));
        assert_eq!(run.code, 1, "{run:?}");
        assert!(run.stderr.contains("bad.yaml"), "{run:?}");
        assert_eq!(run.stdout.contains("bad.yaml"), format != "tree", "{run:?}");
    }
    let run = desk.run("render -f app.yaml -f bad.yaml -o json");
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["notRead"][0]["path"], "bad.yaml");
}

#[test]
fn a_helm_template_is_recognized() {
    let desk = Desk::with([
        (
            "value.yaml",
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {{ .Values.name }}\n",
        ),
        (
            "block.yaml",
            "apiVersion: v1\nkind: ConfigMap\n{{- if .Values.x }}\ndata: {}\n{{- end }}\n",
        ),
        (
            "first.yaml",
            "{{- if .Values.x }}\napiVersion: v1\n{{- end }}\n",
        ),
        ("alone.yaml", "{{-\n"),
    ]);
    for file in ["value.yaml", "block.yaml", "first.yaml", "alone.yaml"] {
        let run = desk.run(&format!("render -f {file}"));
        assert!(
            run.stderr
                .contains("this looks like a Helm template: render it first"),
            "{run:?}"
        );
    }
}

#[test]
fn an_item_of_a_list_has_one_line_in_all_messages() {
    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: a}\n\
                - apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: a}\n";
    let json = r#"{"apiVersion": "v1", "kind": "List", "items": [
{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}},
{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}]}"#;
    let desk = Desk::with([("l.yaml", list), ("l.json", json)]);
    for (file, second, first) in [("l.yaml", 7, 4), ("l.json", 3, 2)] {
        let run = desk.run(&format!("render -f {file}"));
        let expected = format!(
            "{file}: document 1, item 2, line {second}: ConfigMap \"a\": already defined in {file}: document 1, item 1, line {first}"
        );
        assert!(run.stderr.contains(&expected), "{run:?}");
    }
}

#[tokio::test]
async fn kubectl_is_let_in_and_a_deleted_pod_is_gone() {
    let desk = desk();
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.env_clear();
    let mut agent = Agent::spawn(
        &desk,
        command,
        "--manifests m --node-name n1 --kubeconfig-out kubeconfig",
    );
    agent.summary();
    let kubeconfig = desk.path().join("kubeconfig");
    until("the volume", || key(&desk, "web", "a").is_some()).await;
    let pods = api::<Pod>(&kubeconfig).await;
    pods.delete("web", &DeleteParams::default()).await.unwrap();
    let gone = async {
        while pods.get_opt("web").await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), gone)
        .await
        .unwrap();
    assert_eq!(agent.signal(Signal::TERM), Some(0));
    assert!(!kubeconfig.exists(), "it would lead nowhere");
}

#[tokio::test]
async fn status_has_kubectls_formats_and_answers_probes() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    let status = |args: &str| desk.run(&format!("status --root-dir root {args}"));
    assert_eq!(status("--wait").code, 0);
    assert_eq!(status("-o name").stdout, "default/web\n");
    assert_eq!(status("-n other -o name").stdout, "");
    assert_eq!(status("-A -o name").stdout, "default/web\n");
    assert!(
        status("-o yaml").stdout.contains("\n  - name: web\n")
            || status("-o yaml").stdout.contains("name: web\n")
    );
    let phases = status("-o jsonpath={.pods[*].phase}");
    assert_eq!((phases.code, &*phases.stdout), (0, "Delivered"));
    assert_eq!(status("-o jsonpath={.x").code, 2);
    assert_eq!(status("-o xml").code, 2);
    for check in ["healthz", "readyz"] {
        let run = status(&format!("--check {check}"));
        assert_eq!((run.code, &*run.stdout), (0, "ok\n"), "{run:?}");
    }
    assert_eq!(agent.signal(Signal::TERM), Some(0));
    assert_eq!(status("--check healthz").code, 1);
}

#[tokio::test]
async fn tree_is_redrawn_on_a_terminal() {
    if Command::new("script").arg("--version").output().is_err() {
        return;
    }
    let desk = desk();
    let larder = env!("CARGO_BIN_EXE_larder");
    // With `exec`, no shell stays that Ctrl-C ends, too.
    let run = format!("exec {larder} run --manifests m --node-name n1 --root-dir root");
    let mut terminal = Command::new("script")
        .args(["-qefc", &run, "typescript"])
        .current_dir(desk.path())
        .env_clear()
        .env("TERM", "xterm")
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let shown = || fs::read_to_string(desk.path().join("typescript")).unwrap_or_default();
    until("the tree", || shown().contains("serves 1 pod")).await;
    put(&desk, "late.yaml", &pod("late", "app"));
    until("the new tree", || shown().contains("serves 2 pods")).await;
    // In place: the cursor went back to its first line.
    let tree = shown();
    let (before, _) = tree.split_once("serves 2 pods").unwrap();
    assert!(
        before.rsplit('\n').next().unwrap().contains("A\r"),
        "{tree:?}"
    );
    assert_eq!(desk.run("status --root-dir root --wait").code, 0);
    // Ctrl-C, as typed.
    terminal.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    assert!(terminal.wait().unwrap().success());
    // What is logged above the tree stays whole.
    let log = shown();
    let line = log.lines().find(|line| line.contains("shutting down"));
    assert!(
        line.unwrap().trim_end().ends_with("volumes stay in place"),
        "{log:?}"
    );
}
