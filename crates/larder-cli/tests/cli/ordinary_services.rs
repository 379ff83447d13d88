//! Services of the machine that are not root, and read the volumes of a pod by its `fsGroup`.

use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::geteuid;

use crate::{Desk, run::Agent};

/// A pod for the service of the group `group`, with a Secret and a ConfigMap.
fn pod(name: &str, group: u32) -> String {
    format!(
        "kind: Secret
apiVersion: v1
metadata: {{name: {name}}}
stringData: {{password: of-{name}}}
---
kind: Pod
apiVersion: v1
metadata: {{name: {name}}}
spec:
  nodeName: n1
  securityContext: {{fsGroup: {group}}}
  volumes:
  - {{name: login, secret: {{secretName: {name}, defaultMode: 0440}}}}
  - {{name: open, secret: {{secretName: {name}}}}}
  containers:
  - name: main
    image: example
    env: [{{name: PASSWORD, valueFrom: {{secretKeyRef: {{name: {name}, key: password}}}}}}]
    volumeMounts: [{{name: login, mountPath: /login}}, {{name: open, mountPath: /open}}]
---
"
    )
}

/// What the user reads from the file, if it may.
fn read_as(user: u32, path: &Path) -> Option<String> {
    let output = Command::new("cat")
        .arg(path)
        .uid(user)
        .gid(user)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    output.status.success().then_some(text)
}

#[test]
fn service_of_an_ordinary_user_reads_its_own_files_and_no_others() {
    if !geteuid().is_root() {
        return;
    }
    let manifests = [pod("web", 4711), pod("db", 4712)].concat();
    let desk = Desk::with([]);
    fs::create_dir(desk.path().join("m")).unwrap();
    fs::write(desk.path().join("m/pods.yaml"), manifests).unwrap();
    fs::set_permissions(desk.path(), Permissions::from_mode(0o711)).unwrap();
    let mut agent = Agent::start(&desk);
    agent.summary();

    let root = desk.path().join("root");
    let pod = |name: &str| root.join("by-name/default").join(name);
    let file = |name: &str, volume: &str| -> PathBuf {
        pod(name)
            .join("volumes/kubernetes.io~secret")
            .join(volume)
            .join("password")
    };
    for volume in ["login", "open"] {
        let own = read_as(4711, &file("web", volume));
        assert_eq!(own.as_deref(), Some("of-web"), "{volume}");
        for (user, name) in [(4711, "db"), (4712, "web"), (4713, "web")] {
            assert_eq!(
                read_as(user, &file(name, volume)),
                None,
                "{user}: {volume} of {name}"
            );
        }
    }
    // Neither the names of pods nor variables, nor the agent's own files.
    let lists = |path: &Path| {
        let listed = Command::new("ls").arg(path).uid(4711).gid(4711).output();
        listed.unwrap().status.success()
    };
    for path in ["", "pods", "by-name", "by-name/default"] {
        assert!(!lists(&root.join(path)), "{path:?}");
    }
    let variables = pod("web").join("containers/main/env.json");
    assert!(variables.exists());
    assert_eq!(read_as(4711, &variables), None);
    for name in fs::read_dir(&root).unwrap() {
        let path = name.unwrap().path();
        assert!(path.is_dir() || read_as(4711, &path).is_none(), "{path:?}");
    }
}

// Attack: another user of the machine asks, locks and replaces what the agent has in its root directory.
#[test]
fn another_user_gets_nothing_from_the_agent_and_changes_nothing() {
    if !geteuid().is_root() {
        return;
    }
    let desk = Desk::with([]);
    fs::create_dir(desk.path().join("m")).unwrap();
    fs::write(desk.path().join("m/pods.yaml"), pod("web", 4711)).unwrap();
    fs::set_permissions(desk.path(), Permissions::from_mode(0o711)).unwrap();
    let mut agent = Agent::start(&desk);
    agent.summary();
    let root = desk.path().join("root");
    let tree = || {
        let mut entries: Vec<_> = ["", "by-name", "by-name/default", "pods"]
            .iter()
            .flat_map(|directory| fs::read_dir(root.join(directory)).unwrap())
            .map(|entry| {
                let path = entry.unwrap().path();
                let found = fs::symlink_metadata(&path).unwrap();
                (path, found.uid(), found.mode(), found.ino())
            })
            .collect();
        entries.sort();
        entries
    };
    let before = tree();

    let script = r#"
import fcntl, os, socket, sys
root = sys.argv[1]
def attempt(name, action):
    try:
        action()
        print(name)
    except OSError:
        pass
def ask():
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(10)
    stream.connect(root + "/agent.sock")
    stream.sendall(b"GET /status HTTP/1.0\r\n\r\n")
    if not stream.recv(1):
        raise OSError
for flags in os.O_RDONLY, os.O_WRONLY, os.O_RDWR:
    attempt("lock", lambda: fcntl.flock(os.open(root + "/agent.lock", flags), fcntl.LOCK_EX | fcntl.LOCK_NB))
attempt("ask", ask)
for name in "agent.sock", "agent.lock", "by-name", "by-name/default", "by-name/default/web", "pods", "of-mine":
    path = root + "/" + name
    attempt("unlink " + name, lambda: os.unlink(path))
    attempt("rename " + name, lambda: os.rename(path, path + ".old"))
    attempt("link " + name, lambda: os.symlink("/etc", path))
    attempt("make " + name, lambda: os.mkdir(path))
    attempt("put into " + name, lambda: os.symlink("/etc", path + "/evil"))
    attempt("chmod " + name, lambda: os.chmod(path, 0o777))
for name in "", "by-name", "by-name/default", "pods":
    attempt("list " + name, lambda: os.listdir(root + "/" + name))
"#;
    // Neither a stranger nor the user of the pod's group.
    for user in [4713, 4711] {
        let output = Command::new("python3")
            .args(["-c", script])
            .arg(&root)
            .uid(user)
            .gid(user)
            .output()
            .unwrap();
        assert!(output.status.success(), "{user}: {output:?}");
        assert!(output.stdout.is_empty(), "{user}: {output:?}");
    }
    assert_eq!(tree(), before);
    // The agent still serves its own user.
    let status = desk.run("status --root-dir root");
    assert!(status.stdout.contains("default/web"), "{status:?}");
}
