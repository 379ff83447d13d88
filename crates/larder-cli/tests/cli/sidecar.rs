//! `larder sidecar`, from outside.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::Desk;

const CANARY: &str = "canary-of-the-sidecar";

/// Runs `larder sidecar` with these variables.
fn sidecar(desk: &Desk, args: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_larder"))
        .arg("sidecar")
        .args(args)
        .current_dir(desk.path())
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn end(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.unwrap(), signal).unwrap();
}

// sidecar 1, 3
#[test]
fn form_is_chosen_by_flags_or_variables() {
    let desk = Desk::with([]);
    let refused = |args: &[&str], variables: &[(&str, &str)], text: &str| {
        let output = sidecar(&desk, args, variables);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(text), "{}", stderr(&output));
    };
    refused(&[], &[], "give one of three forms");
    let label = ("LABEL", "l");
    refused(&[], &[label], "FOLDER: is required");
    let bad = [
        label,
        ("FOLDER", "/f"),
        ("NAMESPACE", "n"),
        ("RESOURCE", "x"),
        ("REQ_METHOD", "y"),
    ];
    refused(&[], &bad, "RESOURCE: expected");
    refused(&[], &bad, "REQ_METHOD: expected");
    let both = ["--config-map", "n/a:/d", "--volume-dir", "/e"];
    refused(&both, &[], "another form");
    refused(
        &["--volume-dir", "/e"],
        &[label],
        "--webhook-url is required",
    );
    refused(&["--config-map", "a:/d"], &[], "the namespace is unknown");
    refused(
        &["--config-map", "n/a:/d", "--secret", "n/b:/d/e"],
        &[],
        "/d/e is inside /d",
    );
    let hook = ["--config-map", "n/a:/d", "--on-change", "restart"];
    refused(&hook, &[], "a sidecar cannot restart containers");
}

// sidecar 2
#[test]
fn called_as_configmap_reload_it_takes_the_flags_of_that_program_only() {
    let desk = Desk::with([]);
    let link = desk.path().join("configmap-reload");
    symlink(env!("CARGO_BIN_EXE_larder"), &link).unwrap();
    let command = || {
        let mut command = Command::new(&link);
        command.current_dir(desk.path()).env_clear();
        command
    };
    let output = command().arg("--config-map=n/a:/d").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    fs::create_dir_all(desk.path().join("volume")).unwrap();
    let mut child = command()
        .args(["-volume-dir=volume", "-webhook-url=http://127.0.0.1:1/"])
        .arg("-web.listen-address=127.0.0.1:0")
        .env("LABEL", "ignored")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("listening")));
    end(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// An API server with these manifests, and its kubeconfig.
fn api_server(desk: &Desk) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args([
            "apiserver",
            "--listen",
            "127.0.0.1:0",
            "--manifests",
            "manifests",
        ])
        .args(["--kubeconfig-out", "kubeconfig"])
        .current_dir(desk.path())
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    while !Path::new(&desk.path().join("kubeconfig")).exists() {
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ends: {line}");
    }
    child
}

// sidecar 34, 48, 63
#[test]
fn objects_become_files_and_no_value_is_in_the_log() {
    let desk = Desk::with([]);
    let manifests = desk.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    let text = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a, namespace: 'n', labels: {{l: '1'}}}}\ndata: {{a.json: '{{}}'}}\n---\n\
         apiVersion: v1\nkind: Secret\nmetadata: {{name: s, namespace: 'n', labels: {{l: '1'}}}}\nstringData: {{s: {CANARY}}}\n"
    );
    fs::write(manifests.join("objects.yaml"), text).unwrap();
    let mut server = api_server(&desk);
    let folder = desk.path().join("folder");
    let state = desk.path().join("state").display().to_string();
    let url = format!("http://user:{CANARY}@127.0.0.1:1/reload?token={CANARY}");
    let variables = [
        ("LABEL", "l"),
        ("RESOURCE", "both"),
        ("METHOD", "LIST"),
        ("NAMESPACE", "n"),
        ("FOLDER", "folder"),
        ("KUBECONFIG", "kubeconfig"),
        ("HEALTH_PORT", "0"),
        ("LOG_LEVEL", "DEBUG"),
        ("REQ_URL", &url),
        ("REQ_METHOD", "POST"),
        ("REQ_PAYLOAD", CANARY),
        ("REQ_USERNAME", "user"),
        ("REQ_PASSWORD", CANARY),
        ("REQ_RETRY_BACKOFF_FACTOR", "0"),
        ("LARDER_DEBOUNCE", "10ms"),
        ("LARDER_STATE_DIR", &state),
    ];
    let output = sidecar(&desk, &[], &variables);
    let log = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert_eq!(fs::read_to_string(folder.join("a.json")).unwrap(), "{}");
    assert_eq!(fs::read_to_string(folder.join("s")).unwrap(), CANARY);
    assert!(
        log.contains("request failed") && !log.contains(CANARY),
        "{log}"
    );
    for line in log.lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let names: Vec<_> = event.as_object().unwrap().keys().collect();
        assert_eq!(names, ["level", "msg", "time"]);
    }

    let once = [
        "--config-map",
        "n/a:volume",
        "--secret",
        "n/s:volume,mode=0400",
        "--once",
    ];
    let kubeconfig = ["--kubeconfig", "kubeconfig", "--state-dir", &state];
    let output = sidecar(&desk, &[&once[..], &kubeconfig].concat(), &[("LABEL", "l")]);
    let log = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{log}");
    let volume = desk.path().join("volume");
    assert_eq!(fs::read_to_string(volume.join("s")).unwrap(), CANARY);
    assert!(log.contains("variables of the label form are ignored") && !log.contains(CANARY));
    let missing = [
        "--config-map",
        "n/none:other",
        "--once",
        "--once-timeout",
        "1s",
    ];
    let output = sidecar(&desk, &[&missing[..], &kubeconfig].concat(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("n/none"), "{}", stderr(&output));
    end(&server, Signal::TERM);
    server.wait().unwrap();
}
