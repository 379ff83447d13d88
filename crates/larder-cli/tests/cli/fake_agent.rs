//! `larder exec` and `larder status` with an agent that another user controls, or that answers with foreign paths.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{
        fs::{PermissionsExt as _, chown, symlink},
        net::{UnixListener, UnixStream},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::{fs::Uid, process::geteuid, thread::set_thread_uid};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Desk, exec::larder_for_everybody};

/// An ordinary user.
const USER: u32 = 65534;
/// A user that is neither root nor [`USER`].
const OTHER: u32 = 65533;

/// Whether tests can create files of several users; CI must be able to.
pub(crate) fn is_root() -> bool {
    let root = geteuid().is_root();
    assert!(root || std::env::var_os("CI").is_none(), "CI must be root");
    root
}

/// A root directory with nothing in it.
fn root_dir(desk: &Desk) -> PathBuf {
    let root = desk.path().join("root");
    fs::create_dir(&root).unwrap();
    set_mode(&root, 0o755);
    root
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Answers every request on `listener` with the next document.
fn answer(listener: UnixListener, mut next: impl FnMut() -> Value + Send + 'static) {
    let reply = move |stream: UnixStream| {
        let mut lines = BufReader::new(&stream).lines();
        while lines
            .next()
            .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
        {}
        // A client that does not trust this agent has gone.
        let _ = write!(&stream, "HTTP/1.0 200 OK\r\n\r\n{}", next());
    };
    thread::spawn(move || listener.incoming().flatten().for_each(reply));
}

/// An agent of this user in `root`, with a pod whose files are at the given paths.
fn serve_pod(root: &Path, environment: &str, volume: &str) {
    let delivery = json!({"phase": "Delivered", "since": "2026-01-01T00:00:00Z"});
    let with = |mut value: Value| {
        let fields = delivery.as_object().unwrap().clone();
        value.as_object_mut().unwrap().extend(fields);
        value
    };
    let status = with(json!({
        "namespace": "prod", "name": "web", "uid": "u", "source": "api",
        "path": root.join("pods/u"),
        "volumes": [with(json!({"name": "v", "type": "configMap", "path": volume, "files": 1}))],
        "containers": [with(json!({"name": "c", "path": environment}))],
    }));
    let pod = json!({"metadata": {"name": "web", "namespace": "prod", "uid": "u"}, "spec": {
        "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "configMap": {"name": "app"}}]}});
    let document = json!({"status": status, "pod": pod});
    answer(listener(root), move || document.clone());
}

/// The socket of an agent of this user in `root`.
fn listener(root: &Path) -> UnixListener {
    let listener = UnixListener::bind(root.join("agent.sock")).unwrap();
    set_mode(&root.join("agent.sock"), 0o600);
    listener
}

/// Both commands that ask an agent; neither may use this one's answer.
#[track_caller]
fn check_rejected(desk: &Desk, expected: &str) {
    for command in ["status", "exec --pod prod/web -- /bin/echo executed"] {
        let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
        let code = if name == "exec" { 125 } else { 1 };
        let run = desk.run(&format!("{name} --root-dir root {rest}"));
        assert_eq!((run.code, &*run.stdout), (code, ""), "{command}: {run:?}");
        assert!(run.stderr.contains(expected), "{command}: {run:?}");
    }
}

#[test]
fn root_directory_of_another_user_is_not_trusted() {
    if !is_root() {
        return;
    }
    let desk = Desk::with([]);
    let root = root_dir(&desk);
    let environment = root.join("env.json");
    fs::write(&environment, r#"{"LD_PRELOAD":"/tmp/evil.so"}"#).unwrap();
    let path = environment.to_str().unwrap();
    serve_pod(&root, path, root.to_str().unwrap());
    chown(&root, Some(USER), None).unwrap();
    check_rejected(
        &desk,
        "cannot trust root: it belongs to user 65534, expected root\n",
    );
}

#[test]
fn root_directory_that_others_may_write_to_is_not_trusted() {
    for mode in [0o777, 0o775, 0o1777] {
        let desk = Desk::with([]);
        let root = root_dir(&desk);
        serve_pod(&root, "", "");
        set_mode(&root, mode);
        let expected =
            format!("cannot trust root: other users may write to it (mode {mode:04o})\n");
        check_rejected(&desk, &expected);
    }
}

#[test]
fn socket_of_another_user_is_not_trusted() {
    if !is_root() {
        return;
    }
    let desk = Desk::with([]);
    let root = root_dir(&desk);
    serve_pod(&root, "", "");
    chown(root.join("agent.sock"), Some(USER), None).unwrap();
    check_rejected(
        &desk,
        "agent.sock: it belongs to user 65534, expected root\n",
    );
}

#[test]
fn link_to_another_socket_is_not_followed() {
    let desk = Desk::with([]);
    let root = root_dir(&desk);
    serve_pod(&root, "", "");
    fs::rename(root.join("agent.sock"), desk.path().join("other.sock")).unwrap();
    symlink("../other.sock", root.join("agent.sock")).unwrap();
    check_rejected(&desk, "agent.sock: expected a socket\n");
}

#[test]
fn agent_process_of_another_user_is_not_trusted() {
    if !is_root() {
        return;
    }
    let desk = Desk::with([]);
    set_mode(desk.path(), 0o755);
    let root = root_dir(&desk);
    set_mode(&root, 0o777);
    let socket = root.join("agent.sock");
    // The kernel keeps the credentials of the thread that listens.
    let listener = thread::spawn(move || {
        set_thread_uid(Uid::from_raw(USER)).unwrap();
        UnixListener::bind(socket).unwrap()
    });
    answer(listener.join().unwrap(), || json!({}));
    chown(root.join("agent.sock"), Some(0), None).unwrap();
    set_mode(&root, 0o755);
    check_rejected(&desk, "it runs as user 65534, expected root\n");
}

#[test]
fn paths_outside_the_root_directory_are_rejected() {
    let check = |environment: &str, volume: &str| {
        let desk = Desk::with([]);
        let root = root_dir(&desk);
        let root_path = root.to_str().unwrap();
        let expand = |path: &str| path.replace("ROOT", root_path);
        fs::write(root.join("env.json"), "{}").unwrap();
        fs::create_dir(root.join("volume")).unwrap();
        symlink("/etc", root.join("link")).unwrap();
        fs::write(desk.path().join("outside.json"), "{}").unwrap();
        serve_pod(&root, &expand(environment), &expand(volume));
        desk.run("exec --root-dir root --pod prod/web -- /bin/echo executed")
    };
    for (environment, volume, path) in [
        ("ROOT/env.json", "/etc", "/etc"),
        ("ROOT/env.json", "ROOT/../root", "ROOT/../root"),
        ("ROOT/env.json", "ROOT/link", "ROOT/link"),
        ("ROOT/env.json", "ROOT", "ROOT"),
        ("ROOT/env.json", "volume", "volume"),
        (
            "ROOT/../outside.json",
            "ROOT/volume",
            "ROOT/../outside.json",
        ),
    ] {
        let run = check(environment, volume);
        assert_eq!((run.code, &*run.stdout), (125, ""), "{path}: {run:?}");
        let end = path.trim_start_matches("ROOT");
        assert!(
            run.stderr.contains("cannot use ")
                && run.stderr.contains(&format!(
                    "{end} from the agent's answer: expected a path below"
                )),
            "{path}: {run:?}"
        );
    }
}

/// A run of `larder` as [`USER`], whose default root directory is `larder-65534` on the desk.
fn as_user(desk: &Desk, larder: &Path, args: &str) -> Command {
    let mut command = Command::new(larder);
    command
        .args(args.split(' '))
        .current_dir(desk.path())
        .env_clear()
        .env("TMPDIR", desk.path())
        .uid(USER)
        .gid(USER);
    command
}

#[test]
fn default_root_directory_made_by_another_user_is_not_trusted() {
    if !is_root() {
        return;
    }
    let desk = Desk::with([]);
    let larder = larder_for_everybody(&desk);
    set_mode(desk.path(), 0o1777);
    let root = desk.path().join(format!("larder-{USER}"));
    let own = desk.path().join("own");
    fs::create_dir(&own).unwrap();
    chown(&own, Some(USER), None).unwrap();
    let check = |expected: &str| {
        for args in ["status", "exec --pod web -- true", "run --manifests ."] {
            let output = as_user(&desk, &larder, args).output().unwrap();
            let error = String::from_utf8(output.stderr).unwrap();
            let code = if args.starts_with("exec") { 125 } else { 1 };
            assert_eq!(output.status.code(), Some(code), "{args}: {error}");
            assert!(error.contains(expected), "{args}: {error}");
        }
    };
    fs::create_dir(&root).unwrap();
    chown(&root, Some(OTHER), None).unwrap();
    check("belongs to user 65533, expected root or user 65534");
    fs::remove_dir(&root).unwrap();
    symlink(&own, &root).unwrap();
    check("expected a directory");
}

#[test]
fn default_root_directory_is_closed_to_other_users() {
    if !is_root() {
        return;
    }
    let desk = Desk::with([]);
    let larder = larder_for_everybody(&desk);
    set_mode(desk.path(), 0o1777);
    fs::create_dir(desk.path().join("m")).unwrap();
    let mut agent = as_user(&desk, &larder, "run --manifests m")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The summary, printed once the agent serves.
    let mut summary = String::new();
    let mut stdout = BufReader::new(agent.stdout.take().unwrap());
    stdout.read_line(&mut summary).unwrap();
    let root = desk.path().join(format!("larder-{USER}"));
    let mode = fs::metadata(root).unwrap().permissions().mode();
    let status = as_user(&desk, &larder, "status").output().unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert_eq!(mode & 0o7777, 0o700, "{summary}");
    assert!(status.status.success(), "{status:?}");
}

/// The status of an agent with one pod, which has these fields besides.
fn status_of_pod(fields: &Value) -> Value {
    let mut pod = json!({"namespace": "prod", "name": "web", "uid": "u", "source": "api", "path": "/r",
        "since": "2026-01-01T00:00:00Z", "volumes": [], "containers": []});
    let fields = fields.as_object().unwrap().clone();
    pod.as_object_mut().unwrap().extend(fields);
    json!({"node": "n1", "rootDir": "/r", "started": "2026-01-01T00:00:00Z", "changeDetection": "Watch",
        "watchScope": "Object", "silentSources": [], "problems": [], "pods": [pod], "objects": []})
}

#[test]
fn wait_returns_once_everything_has_stayed_delivered() {
    let desk = Desk::with([]);
    let root = root_dir(&desk);
    // The agent has yet to see an edit when it is first asked.
    let phases = ["Delivered", "Waiting", "Delivered", "Delivered"];
    let (mut phases, asked) = (phases.into_iter(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&asked);
    answer(listener(&root), move || {
        count.fetch_add(1, Ordering::Relaxed);
        status_of_pod(&json!({"phase": phases.next().unwrap_or("Waiting")}))
    });
    let run = desk.run("status --root-dir root --wait --timeout 1m");
    assert_eq!(run.code, 0, "{run:?}");
    assert_eq!(asked.load(Ordering::Relaxed), 4);
}

#[test]
fn wait_ends_in_time_though_the_agent_hangs() {
    let desk = Desk::with([]);
    let _listener = listener(&root_dir(&desk));
    let began = Instant::now();
    let run = desk.run("status --root-dir root --wait --timeout 1s");
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!((run.code, &*run.stdout), (1, ""));
    let expected = "no whole answer within 1.0 s\n";
    assert!(run.stderr.ends_with(expected), "{run:?}");
}

#[test]
fn timed_out_wait_names_a_hook_that_has_not_succeeded() {
    let desk = Desk::with([]);
    let hook = json!({"name": "reload", "action": "signal:SIGHUP", "place": "larder.dev/on-change",
        "state": "Retrying", "since": null, "reason": "no such process", "attempts": 2, "lastSuccess": null});
    let status = status_of_pod(&json!({"phase": "Delivered", "onChange": [hook]}));
    answer(listener(&root_dir(&desk)), move || status.clone());
    for pods in ["", " prod/web"] {
        let run = desk.run(&format!("status --root-dir root --wait --timeout 0s{pods}"));
        let why = "prod/web (hook reload is Retrying: no such process)";
        let expected = format!("larder: not everything was delivered within 0 s: {why}\n");
        assert_eq!((run.code, run.stderr), (1, expected));
    }
}
