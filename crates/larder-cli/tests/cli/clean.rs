//! `larder clean`, and what agents leave behind.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::Signal;

use crate::{
    Desk,
    run::{Agent, desk, key, put, until},
};

/// Paths of mounts below `directory`.
fn mounts(directory: &Path) -> usize {
    let directory = directory.canonicalize().unwrap();
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let paths = table.lines().filter_map(|line| line.split(' ').nth(1));
    paths
        .filter(|path| Path::new(path).starts_with(&directory))
        .count()
}

const SECRET_POD: &str = "
apiVersion: v1
kind: Secret
metadata: {name: login}
stringData: {user: bob}
---
apiVersion: v1
kind: Pod
metadata: {name: vault, annotations: {on-change.larder.dev/c: signal:SIGHUP}}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: login, mountPath: /login}]}]
  volumes: [{name: login, secret: {secretName: login}}]
";

#[tokio::test]
async fn a_stopped_agent_is_removed_with_its_mounts_and_a_running_one_is_not() {
    let desk = desk();
    put(&desk, "vault.yaml", SECRET_POD);
    let root = desk.path().join("root");
    let mut agent = Agent::start(&desk);
    agent.summary();
    until("the volume", || key(&desk, "web", "a").is_some()).await;
    let login = root.join("by-name/default/vault/volumes/kubernetes.io~secret/login/user");
    until("the Secret", || login.exists()).await;

    let run = desk.run("clean --root-dir root");
    assert_eq!(run.code, 1, "{run:?}");
    assert!(
        run.stderr.contains("in use by another larder agent"),
        "{run:?}"
    );
    assert!(login.exists());

    assert_eq!(agent.signal(Signal::TERM), Some(0));
    assert!(!root.join("agent.sock").exists(), "nothing listens on it");
    let run = desk.run("clean --root-dir root --dry-run");
    assert_eq!((run.code, &*run.stderr), (0, ""));
    assert!(
        run.stdout
            .contains("would remove pod default/vault: 1 volume\n"),
        "{run:?}"
    );
    assert!(login.exists());

    fs::write(root.join("notes.txt"), "mine").unwrap();
    let run = desk.run("clean --root-dir root");
    assert_eq!((run.code, &*run.stderr), (0, ""));
    assert!(run.stdout.contains("removed pod default/web: "), "{run:?}");
    assert!(run.stdout.contains("has other files: notes.txt"), "{run:?}");
    assert_eq!(mounts(&root), 0);
    assert_eq!(fs::read_dir(&root).unwrap().count(), 1);
    fs::remove_file(root.join("notes.txt")).unwrap();

    let run = desk.run("clean --root-dir root");
    assert_eq!(run.code, 0);
    assert!(run.stderr.contains("no agent has used"), "{run:?}");
    // A program with its own use of larder's writer, or a kubelet, locks no root directory.
    let foreign = root.join("pods/uid/volumes/kubernetes.io~secret/key");
    fs::create_dir_all(&foreign).unwrap();
    let run = desk.run("clean --root-dir root");
    assert_eq!(run.code, 1);
    assert!(run.stderr.contains("nothing was removed"), "{run:?}");
    assert!(foreign.exists());
}

/// Every file below a directory, with its content.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else {
            files.insert(path.clone(), fs::read(path).unwrap());
        }
    }
    files
}

// Attack on oneself: a root directory that a kubelet has, too.
#[tokio::test]
async fn neither_run_nor_clean_touches_what_is_a_kubelets() {
    let desk = desk();
    let root = desk.path().join("root");
    let pods = root.join("pods");
    let put = |path: &str| {
        let path = pods.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "kubelet").unwrap();
    };
    fs::create_dir_all(root.join("plugins_registry")).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o750)).unwrap();
    for path in [
        "k1/etc-hosts",
        "k1/containers/c/0a1b2c3d",
        "k1/volumes/kubernetes.io~secret/login/..2026/user",
        "k2/volumes/kubernetes.io~projected/kube-api-access/..2026/token",
        "k2/volumes/kubernetes.io~configmap/app/key",
        "k2/plugins/kubernetes.io~empty-dir/wrapped_app/ready",
    ] {
        put(path);
    }
    let of_kubelet = files(&pods);
    // A pod of an earlier agent, whose removal shows that others were looked at.
    put("gone/volumes/kubernetes.io~configmap/app/key");
    fs::create_dir_all(root.join("by-name/default")).unwrap();
    symlink("../../pods/gone", root.join("by-name/default/gone")).unwrap();

    let mut agent = Agent::start(&desk);
    agent.summary();
    until("the volume", || key(&desk, "web", "a").is_some()).await;
    until("the removal", || !pods.join("gone").exists()).await;
    assert_eq!(agent.signal(Signal::TERM), Some(0));
    for path in of_kubelet.keys() {
        assert!(path.exists(), "{}", path.display());
    }

    let run = desk.run("clean --root-dir root");
    assert_eq!((run.code, &*run.stderr), (0, ""));
    assert!(run.stdout.contains("removed pod default/web: "), "{run:?}");
    assert!(!run.stdout.contains("removed pod k"), "{run:?}");
    assert_eq!(files(&pods), of_kubelet);
    assert!(!root.join("by-name").exists());
}

#[tokio::test]
async fn clean_removes_the_directory_itself_if_nothing_else_is_in_it() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    until("the volume", || key(&desk, "web", "a").is_some()).await;
    assert_eq!(agent.signal(Signal::INT), Some(0));
    let run = desk.run("clean --root-dir root");
    assert_eq!((run.code, &*run.stderr), (0, ""));
    assert!(!desk.path().join("root").exists());
}

#[tokio::test]
async fn clean_says_removed_of_nothing_that_is_still_there() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    until("the volume", || key(&desk, "web", "a").is_some()).await;
    assert_eq!(agent.signal(Signal::TERM), Some(0));
    let copies = desk.path().join("root/static-pods");
    fs::create_dir_all(copies.join("of somebody else")).unwrap();
    let run = desk.run("clean --root-dir root");
    assert_eq!((run.code, &*run.stderr), (0, ""));
    let removed = |line: &&str| line.starts_with("removed ");
    let removed: Vec<_> = run.stdout.lines().filter(removed).collect();
    let record = desk.path().join("root/manifests.json");
    let record = format!("removed {}", record.display());
    assert_eq!(removed, ["removed pod default/web: 1 volume", &record]);
    assert!(
        run.stdout.contains("has other files: static-pods"),
        "{run:?}"
    );
    assert!(copies.exists());
}

#[test]
fn a_start_that_fails_leaves_nothing_behind() {
    let desk = Desk::with([]);
    let run = desk.run("run --root-dir root --manifests missing");
    assert_eq!(run.code, 2, "{run:?}");
    assert!(!desk.path().join("root").exists());
    let status = desk.run("status --root-dir root");
    assert!(
        status.stderr.contains("no agent is listening"),
        "{status:?}"
    );
}

/// Completion scripts are read by their shells, where these are installed.
#[test]
fn completion_scripts_are_valid_in_their_shells() {
    let desk = Desk::with([]);
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "-n")] {
        let script = desk.run(&format!("completion {shell}")).stdout;
        let path = desk.path().join(shell);
        fs::write(&path, script).unwrap();
        let checked = Command::new(shell)
            .arg(check)
            .arg(&path)
            .stdin(Stdio::null())
            .status();
        // A shell that is missing reads no completions.
        if let Ok(status) = checked {
            assert!(status.success(), "{shell}");
        }
    }
}
