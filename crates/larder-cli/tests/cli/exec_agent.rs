//! `larder exec` in a pod of a running agent.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    os::unix::{
        fs::{PermissionsExt as _, symlink},
        net::UnixListener,
        process::CommandExt as _,
    },
    process::Command,
    thread,
    time::Duration,
};

use larder_projection::disk::{empty_dir_path, is_in_memory};
use rustix::process::{Signal, geteuid};

use crate::{
    Desk,
    exec::{Running, larder_for_everybody, may_mount},
    run::{Agent, until},
};

const POD: &str = "apiVersion: v1
kind: Pod
metadata: {name: web, namespace: prod}
spec:
  containers:
  - name: web
    image: i
    env:
    - {name: WORD, valueFrom: {configMapKeyRef: {name: app, key: word}}}
    - {name: PASSWORD, valueFrom: {secretKeyRef: {name: tls, key: password}}}
    volumeMounts:
    - {name: config, mountPath: /larder-test/config}
    - {name: config, mountPath: /larder-test/word, subPath: word}
    - {name: config, mountPath: /larder-test/named, subPathExpr: $(WORD)}
    - {name: tls, mountPath: /larder-test/tls}
    - {name: scratch, mountPath: /larder-test/scratch}
  - name: waiting
    image: i
    env:
    - {name: A, valueFrom: {secretKeyRef: {name: missing, key: a}}}
  volumes:
  - {name: config, configMap: {name: app}}
  - {name: tls, secret: {secretName: tls}}
  - {name: scratch, emptyDir: {}}
";
/// How `larder exec` finds pod and agent.
const WHERE: [&str; 4] = ["--root-dir", "root", "--pod", "prod/web"];

fn desk() -> Desk {
    let desk = Desk::with([]);
    fs::create_dir(desk.path().join("m")).unwrap();
    put(&desk, "one", "x");
    let secret = "{apiVersion: v1, kind: Secret, metadata: {name: tls, namespace: prod}, stringData: {password: hunter2}}";
    fs::write(desk.path().join("m/tls.yaml"), secret).unwrap();
    fs::write(desk.path().join("m/web.yaml"), POD).unwrap();
    desk
}

/// Gives the ConfigMap these values.
fn put(desk: &Desk, word: &str, other: &str) {
    let text = format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: app, namespace: prod}}, data: {{word: {word}, other: {other}, one: '1'}}}}"
    );
    fs::write(desk.path().join("m/app.yaml"), text).unwrap();
}

fn serving(desk: &Desk) -> Agent<'_> {
    let mut agent = Agent::start(desk);
    agent.summary();
    agent
}

#[test]
fn command_sees_what_the_agent_delivers() {
    // projection 65
    if !may_mount() {
        return;
    }
    let desk = desk();
    let mut agent = serving(&desk);
    let script =
        "cd /larder-test; echo $WORD $PASSWORD $(cat config/other) $(cat word) $(cat named) $(cat tls/password)
        echo no > config/new || echo read-only; echo kept > scratch/file; echo ready
        i=0; while [ $i -lt 2400 ] && [ $(cat word) = one ]; do i=$((i+1)); sleep 0.05; done
        echo $(cat config/word) $(cat word) $(cat config/other) $(cat scratch/file)";
    let mut running = Running::with(&desk, &WHERE, script);
    assert_eq!(running.line(), "one hunter2 x one 1 hunter2");
    assert_eq!([running.line(), running.line()], ["read-only", "ready"]);
    put(&desk, "two", "z");
    // Also by subPath, which the kubelet leaves as it was.
    assert_eq!(running.end(), ("two two z kept\n".to_owned(), Some(0)));
    // Nothing of the agent's was changed, so it goes on, and leaves a clean directory.
    assert!(
        !desk
            .path()
            .join("root/by-name/prod/web/volume-subpaths")
            .exists()
    );
    agent.signal(Signal::TERM);
}

#[tokio::test]
async fn commands_of_a_pod_share_its_empty_dir_until_the_pod_is_gone() {
    if !may_mount() {
        return;
    }
    let desk = desk();
    let text = POD.replace(
        "{name: scratch, emptyDir: {}}",
        "{name: scratch, emptyDir: {}}\n  - {name: memory, emptyDir: {medium: Memory}}",
    );
    let memory = "    - {name: memory, mountPath: /larder-test/memory}\n  - name: waiting";
    let text = text.replace("  - name: waiting", memory);
    fs::write(desk.path().join("m/web.yaml"), text).unwrap();
    let mut agent = serving(&desk);
    let mut one = Running::with(
        &desk,
        &WHERE,
        "cd /larder-test; echo a > scratch/a; echo b > memory/b; echo ready; read end",
    );
    assert_eq!(one.line(), "ready");
    let mut two = Running::with(
        &desk,
        &WHERE,
        "cd /larder-test; cat scratch/a; ls memory; echo c > scratch/c; echo end; read end",
    );
    assert_eq!(two.line(), "a");
    let root = fs::File::open(desk.path().join("root")).unwrap();
    if is_in_memory(root).unwrap() {
        assert_eq!(two.line(), "b");
    }
    assert_eq!(two.line(), "end");
    let volume = desk
        .path()
        .join("root/by-name/prod/web")
        .canonicalize()
        .unwrap();
    let volume = empty_dir_path(&volume, "scratch");
    assert_eq!(fs::read_to_string(volume.join("c")).unwrap(), "c\n");
    for mut running in [one, two] {
        running.write("\n");
        running.end();
    }
    // It outlives the commands, and goes with the pod.
    assert_eq!(fs::read_to_string(volume.join("a")).unwrap(), "a\n");
    fs::remove_file(desk.path().join("m/web.yaml")).unwrap();
    let pod = volume.ancestors().nth(3).unwrap();
    until("the end of the pod", || !pod.exists()).await;
    agent.signal(Signal::TERM);
}

#[test]
fn change_at_the_agent_signals_or_restarts_the_command() {
    if !may_mount() {
        return;
    }
    let desk = desk();
    let mut agent = serving(&desk);
    let args = [&WHERE[..], &["--on-change", "restart"]].concat();
    let script =
        "echo $WORD $(cat /larder-test/word) $(cat /larder-test/config/other); exec sleep 600";
    let mut running = Running::with(&desk, &args, script);
    assert_eq!(running.line(), "one one x");
    put(&desk, "two", "x");
    // The new word names no key, and its subPath therefore an empty directory.
    loop {
        let line = running.line();
        if line == "two two x" {
            break;
        }
        // The volume may be there before the variable.
        assert_eq!(line, "one two x");
    }
    running.signal(Signal::TERM);
    assert_eq!(running.end(), (String::new(), Some(128 + 15)));

    let args = [&WHERE[..], &["--on-change", "signal:SIGHUP"]].concat();
    let script = "trap 'cat /larder-test/config/other; exit 5' HUP; echo ready; i=0; while [ $i -lt 2400 ]; do i=$((i+1)); sleep 0.05; done";
    let mut running = Running::with(&desk, &args, script);
    assert_eq!(running.line(), "ready");
    put(&desk, "two", "z");
    assert_eq!(running.end(), ("z".to_owned(), Some(5)));
    agent.signal(Signal::TERM);
}

// on-change 66
#[test]
fn object_that_is_left_out_sends_no_signal() {
    if !may_mount() {
        return;
    }
    let desk = desk();
    let left_out = |other: &str| {
        put(&desk, "one", other);
        let annotated = "{name: app, annotations: {larder.dev/on-change: 'false'}, ";
        let path = desk.path().join("m/app.yaml");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, text.replace("{name: app, ", annotated)).unwrap();
    };
    left_out("x");
    let mut agent = serving(&desk);
    let args = [&WHERE[..], &["--on-change", "signal:SIGHUP"]].concat();
    let script = "trap 'echo HUP' HUP; trap 'exit 0' TERM; cd /larder-test; last=
        while :; do now=$(cat config/other); [ \"$now\" = \"$last\" ] || echo $now; last=$now; sleep 0.02; done";
    let mut running = Running::with(&desk, &args, script);
    assert_eq!(running.line(), "x");
    left_out("z");
    assert_eq!(running.line(), "z");
    let secret = desk.path().join("m/tls.yaml");
    let text = fs::read_to_string(&secret).unwrap();
    fs::write(secret, text.replace("hunter2", "hunter3")).unwrap();
    assert_eq!(running.line(), "HUP");
    running.signal(Signal::TERM);
    assert_eq!(running.end(), (String::new(), Some(0)));
    agent.signal(Signal::TERM);
}

#[test]
fn change_while_volumes_are_looked_at_fires_its_hook() {
    if !may_mount() {
        return;
    }
    let desk = desk();
    let mut agent = serving(&desk);
    let volume = desk
        .path()
        .join("root/by-name/prod/web/volumes/kubernetes.io~configmap/config");
    let args = [
        &WHERE[..],
        &["--on-change", "signal:SIGHUP", "--on-change-debounce", "0s"],
    ]
    .concat();
    let script =
        "trap 'exit 5' HUP; echo ready; i=0; while [ $i -lt 200 ]; do i=$((i+1)); sleep 0.05; done";
    for round in 0..30 {
        // As the agent swaps a volume, at a time that moves over the first look of `exec`.
        let set = format!("..0{round}");
        fs::create_dir(volume.join(&set)).unwrap();
        for key in ["word", "other"] {
            fs::write(volume.join(&set).join(key), round.to_string()).unwrap();
        }
        symlink(&set, volume.join("..data_tmp")).unwrap();
        let mut running = Running::with(&desk, &args, script);
        assert_eq!(running.line(), "ready");
        thread::park_timeout(Duration::from_millis(round));
        fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
        assert_eq!(running.end(), (String::new(), Some(5)), "round {round}");
    }
    agent.signal(Signal::TERM);
}

#[test]
fn signal_reaches_the_command_while_an_agent_is_silent() {
    if !may_mount() {
        return;
    }
    let desk = desk();
    let mut agent = serving(&desk);
    let args = [&WHERE[..], &["--on-change", "signal:SIGHUP"]].concat();
    let script =
        "trap 'echo got; read line; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let mut running = Running::with(&desk, &args, script);
    assert_eq!(running.line(), "ready");
    // Another agent takes over, and never answers.
    agent.signal(Signal::TERM);
    let socket = desk.path().join("root/agent.sock");
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o600)).unwrap();
    let volume = desk
        .path()
        .join("root/by-name/prod/web/volumes/kubernetes.io~configmap/config");
    fs::create_dir(volume.join("..1")).unwrap();
    symlink("..1", volume.join("..data_tmp")).unwrap();
    fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    let (mut asked, _) = listener.accept().unwrap();
    running.signal(Signal::TERM);
    assert_eq!(running.line(), "got");
    // It still waits for the answer.
    asked.set_nonblocking(true).unwrap();
    let closed = loop {
        match asked.read(&mut [0; 1024]) {
            Ok(0) => break true,
            Ok(_) => {}
            Err(error) => break error.kind() != ErrorKind::WouldBlock,
        }
    };
    assert!(!closed, "the signal waited for the agent");
    running.write("\n");
    assert_eq!(running.end(), (String::new(), Some(7)));
}

#[test]
fn exec_explains_why_an_agent_cannot_provide_a_container() {
    let desk = desk();
    let exec = |more: &str| {
        let run = desk.run(&format!("exec --root-dir root {more} -- true"));
        assert_eq!(run.code, 125, "{}", run.stderr);
        run.stderr
    };
    fs::create_dir(desk.path().join("root")).unwrap();
    let error = exec("--pod prod/web");
    assert!(error.contains("no agent is listening on"), "{error}");
    let mut agent = serving(&desk);
    let error = exec("--pod prod/other");
    assert!(
        error.contains("the agent serves no pod prod/other"),
        "{error}"
    );
    let error = exec("--pod prod/web -c other");
    assert!(error.contains("pod web has no container other"), "{error}");
    assert_eq!(
        exec("--pod prod/web -c waiting"),
        "larder: container waiting of pod prod/web cannot start: its environment is not delivered: secret \"missing\" not found\n"
    );
    assert_eq!(desk.run("exec --root-dir root -- true").code, 125);
    assert_eq!(
        desk.run("exec --root-dir root -f m --pod web -- true").code,
        125
    );
    agent.signal(Signal::TERM);
}

#[test]
fn only_the_user_of_an_agent_can_read_its_pods() {
    let desk = desk();
    let mut agent = serving(&desk);
    // Over HTTP: of no user.
    let listening = agent.event("listening");
    let address = listening["address"].as_str().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /pods/prod/web HTTP/1.0\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 404"), "{answer}");

    let socket = fs::metadata(desk.path().join("root/agent.sock")).unwrap();
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);
    if geteuid().is_root() {
        // Even with a root directory that every user may enter.
        let root = desk.path().join("root");
        fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
        let args = "exec --root-dir root --pod prod/web -- true";
        let output = Command::new(larder_for_everybody(&desk))
            .args(args.split(' '))
            .current_dir(desk.path())
            .uid(65534)
            .gid(65534)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125), "{error}");
        assert!(
            error.contains("only root and the user that runs the agent may connect"),
            "{error}"
        );
    }
    agent.signal(Signal::TERM);
}
