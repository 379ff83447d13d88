//! An agent in a mount namespace: what it mounts is seen by containers, or nothing is mounted.

mod stacked;

use std::{
    fs,
    os::unix::fs::symlink,
    process::{Command, Stdio},
};

use rustix::process::Signal;

use crate::{
    Desk,
    fake_agent::is_root,
    run::{Agent, put, until},
};

const SECRET: &str = "apiVersion: v1
kind: Secret
metadata: {name: key}
stringData: {key: 'VALUE'}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  volumes: [{name: key, secret: {secretName: key}}]
  containers: [{name: main, image: i, volumeMounts: [{name: key, mountPath: /key}]}]
";

/// A directory with a pod that reads a Secret.
fn desk() -> Desk {
    let desk = Desk::with([]);
    fs::create_dir(desk.path().join("m")).unwrap();
    set(&desk, "1");
    desk
}

fn set(desk: &Desk, value: &str) {
    put(desk, "web.yaml", &SECRET.replace("VALUE", value));
}

/// Runs an agent in a mount namespace of its own, which `script` prepares, until it ends by itself.
async fn refused(desk: &Desk, script: &str) -> String {
    let script = format!("{script}; exec \"$0\" run --manifests m --root-dir root");
    let mut child = Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-ec",
            &script,
            env!("CARGO_BIN_EXE_larder"),
        ])
        .current_dir(desk.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("the agent to end", || child.try_wait().unwrap().is_some()).await;
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test]
async fn agent_whose_mounts_no_container_sees_is_refused() {
    if !is_root() {
        return;
    }
    let desk = desk();
    for script in ["true", "mkdir -p root; mount --bind root root"] {
        let errors = refused(&desk, script).await;
        let expected = "containers do not see what this process mounts there";
        assert!(errors.contains(expected), "{script}: {errors}");
    }
}

#[tokio::test]
async fn agent_whose_mounts_no_container_sees_works_in_memory() {
    if !is_root() {
        return;
    }
    let desk = desk();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    symlink(memory.path(), desk.path().join("root")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", env!("CARGO_BIN_EXE_larder")]);
    let mut agent = Agent::spawn(&desk, command, "--manifests m --node-name n1");
    agent.first_line();
    let file = memory
        .path()
        .join("by-name/default/web/volumes/kubernetes.io~secret/key/key");
    until("the file outside", || {
        fs::read(&file).is_ok_and(|found| found == b"1")
    })
    .await;
    assert_eq!(agent.signal(Signal::TERM), Some(0));
}

#[tokio::test]
async fn agent_that_does_not_see_earlier_mounts_hides_none() {
    if !is_root() {
        return;
    }
    let desk = desk();
    let shown = || {
        let path = "root/by-name/default/web/volumes/kubernetes.io~secret/key/key";
        fs::read_to_string(desk.path().join(path)).unwrap_or_default()
    };
    let mut agent = Agent::start(&desk);
    until("the Secret", || shown() == "1").await;
    agent.signal(Signal::TERM);
    set(&desk, "2");
    // Shared with the machine, but without the mounts in it.
    let script = "mount --bind root root; mount --make-shared root";
    let errors = refused(&desk, script).await;
    assert!(
        errors.contains("an earlier agent has mounted a tmpfs there"),
        "{errors}"
    );
    assert_eq!(shown(), "1");
    let _agent = Agent::start(&desk);
    until("the edit", || shown() == "2").await;
}
