//! Ends of commands: nothing outside of the process keeps one of them from exiting.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{Ipv4Addr, UdpSocket},
    process::{Child, Command, Stdio},
};

use larder_e2e::reserved_port;
use rustix::{
    fs::{Mode, OFlags, open},
    process::{Pid, Signal, kill_process},
};

use crate::{
    Desk,
    exec::{desk, edit},
    fake_agent::is_root,
    run::{Agent, PATIENCE, until},
};

/// A name server that answers nothing. The C library waits for it for minutes.
struct SilentNameServer(UdpSocket);

impl SilentNameServer {
    /// Each has an address of loopback for itself: of this process, by its `number`.
    fn start(number: u8) -> Self {
        let [_, _, c, d] = std::process::id().to_be_bytes();
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 64 + number, c, d), 53)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    /// Starts a program of this package that asks this name server.
    fn spawn(
        &self,
        desk: &Desk,
        program: &str,
        args: &[&str],
        variables: &[(&str, &str)],
    ) -> Child {
        let server = self.0.local_addr().unwrap().ip();
        let text = format!("nameserver {server}\noptions timeout:30 attempts:5\n");
        fs::write(desk.path().join("resolv.conf"), text).unwrap();
        Command::new("unshare")
            .args(["--mount", "sh", "-ec"])
            .args([
                "mount --bind resolv.conf /etc/resolv.conf; exec \"$@\"",
                "sh",
            ])
            .arg(program)
            .args(args)
            .current_dir(desk.path())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Waits for a lookup, which goes on for minutes.
    fn is_asked(&self) {
        self.0.recv(&mut [0; 512]).unwrap();
    }
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Its exit code, long before a lookup is over.
async fn exit_code(mut child: Child) -> Option<i32> {
    let mut ended = None;
    until("the end of the command", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    })
    .await;
    ended.unwrap().code()
}

fn write_kubeconfig(desk: &Desk) {
    let text = "
        {apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
        users: [{name: u, user: {token: t}}], clusters: [{name: c, cluster: {server: 'https://silent.example'}}]}";
    fs::write(desk.path().join("kubeconfig"), text).unwrap();
}

#[tokio::test]
async fn lookup_that_takes_minutes_keeps_no_command_from_exiting() {
    if !is_root() {
        return;
    }
    let (larder, server) = (env!("CARGO_BIN_EXE_larder"), SilentNameServer::start(0));

    let agent = Desk::with([]);
    write_kubeconfig(&agent);
    // No container sees what is mounted here, so nothing is.
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let args = [
        "run",
        "--kubeconfig",
        "kubeconfig",
        "--node-name",
        "n1",
        "--root-dir",
        root.path().to_str().unwrap(),
    ];
    let run = server.spawn(&agent, larder, &args, &[]);
    server.is_asked();
    send(&run, Signal::TERM);
    assert_eq!(exit_code(run).await, Some(0), "larder run");

    let (around, server) = (desk(""), SilentNameServer::start(1));
    let hook = "http://silent.example/reload";
    let args = [
        "exec",
        "-f",
        "app.yaml",
        "--on-change",
        &format!("http:{hook}"),
        "--",
        "sh",
        "-c",
        "echo ready; cat",
    ];
    let mut exec = server.spawn(&around, larder, &args, &[]);
    let mut line = String::new();
    let mut stdout = BufReader::new(exec.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    edit(&around, "two", "1");
    server.is_asked();
    drop(exec.stdin.take());
    assert_eq!(exit_code(exec).await, Some(0), "larder exec");

    let (pod, server) = (Desk::with([]), SilentNameServer::start(2));
    write_kubeconfig(&pod);
    let port = reserved_port().unwrap().to_string();
    let variables = [
        ("LABEL", "l"),
        ("FOLDER", "f"),
        ("NAMESPACE", "n"),
        ("KUBECONFIG", "kubeconfig"),
        ("HEALTH_PORT", &port),
        ("LARDER_STATE_DIR", "state"),
    ];
    let sidecar = server.spawn(&pod, env!("CARGO_BIN_EXE_larder-sidecar"), &[], &variables);
    server.is_asked();
    send(&sidecar, Signal::TERM);
    assert_eq!(exit_code(sidecar).await, Some(0), "larder-sidecar");
}

#[tokio::test]
async fn second_signal_ends_an_agent_that_hangs() {
    let desk = crate::run::desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    // The pipe of its log is full and not read, so the message about the shutdown blocks it.
    let log = format!("/proc/{}/fd/2", agent.pid().as_raw_nonzero());
    let log = open(log, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
    while rustix::io::write(&log, b"\n").is_ok() {}
    kill_process(agent.pid(), Signal::INT).unwrap();
    let mut code = None;
    // Two threads may take the first two at the same time, each as the first one.
    until("the end of the agent", || {
        kill_process(agent.pid(), Signal::TERM).unwrap();
        code = agent.ended();
        code.is_some()
    })
    .await;
    assert!(matches!(code, Some(130 | 143)), "{code:?}");
}
