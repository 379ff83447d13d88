//! `larder run` as a service: notifications to systemd, reloads, the log level, and the z-pages.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixDatagram,
    process::Command,
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    Desk,
    run::{Agent, desk, put},
};

/// Longest wait for a message.
const PATIENCE: Duration = Duration::from_mins(1);

/// Pods from manifests, and a configuration file.
const ORIGIN: &str = "--manifests m --node-name n1 --config agent.yaml";

/// A service manager that hears the agent of a desk.
struct Manager {
    messages: mpsc::Receiver<String>,
}

impl Manager {
    fn new(desk: &Desk) -> Self {
        let socket = UnixDatagram::bind(desk.path().join("notify")).unwrap();
        let (sender, messages) = mpsc::channel();
        // The kernel holds few messages, and the agent does not wait. The thread ends with the test's process.
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = socket.recv(&mut buffer) {
                let message = String::from_utf8_lossy(&buffer[..length]);
                if sender.send(message.into_owned()).is_err() {
                    return;
                }
            }
        });
        Self { messages }
    }

    /// Reads messages up to one with this line.
    #[track_caller]
    fn until(&self, line: &str) -> String {
        loop {
            let message = self.messages.recv_timeout(PATIENCE);
            let message = message.unwrap_or_else(|error| panic!("no message with {line}: {error}"));
            if message.lines().any(|found| found.starts_with(line)) {
                return message;
            }
        }
    }
}

/// An agent with a configuration file and a service manager.
fn start<'a>(desk: &'a Desk, config: &str) -> (Agent<'a>, Manager) {
    fs::write(desk.path().join("agent.yaml"), config).unwrap();
    let manager = Manager::new(desk);
    let mut command = larder();
    command
        .env("NOTIFY_SOCKET", desk.path().join("notify"))
        .env("WATCHDOG_USEC", "300000");
    (Agent::spawn(desk, command, ORIGIN), manager)
}

fn larder() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.env_clear();
    command
}

pub(crate) fn get(address: &str, path: &str, accept: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address.parse::<SocketAddr>().unwrap()).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\naccept: {accept}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap();
    (status.to_owned(), body.to_owned())
}

#[test]
fn systemd_hears_of_start_health_reload_and_end() {
    let desk = desk();
    let (mut agent, manager) = start(&desk, "");
    manager.until("READY=1");
    // The first pass is done by then.
    assert!(desk.path().join("root/by-name/default/web").exists());
    manager.until("STATUS=1 of 1 pods delivered");
    manager.until("WATCHDOG=1");
    manager.until("WATCHDOG=1");
    agent.hang_up();
    assert!(manager.until("RELOADING=1").contains("MONOTONIC_USEC="));
    manager.until("READY=1");
    assert_eq!(agent.signal(Signal::TERM), Some(0));
    manager.until("STOPPING=1");
}

#[test]
fn reload_takes_up_what_it_can_and_names_the_rest() {
    let desk = desk();
    let (mut agent, manager) = start(&desk, "syncFrequency: 1m\n");
    manager.until("READY=1");
    let first = agent.event("listening")["address"].clone();
    let config = |text: &str| fs::write(desk.path().join("agent.yaml"), text).unwrap();

    config("syncFrequency: 2m\nmaxRequestsInFlight: 7\nstaticPodPath: pods\n");
    agent.hang_up();
    let event = agent.event("changed fields need a restart, keeping their values");
    assert_eq!(event["fields"], "maxRequestsInFlight, staticPodPath");
    let event = agent.event("configuration reloaded");
    assert_eq!(event["fields"], "syncFrequency");
    let (_, text) = get(first.as_str().unwrap(), "/configz", "*/*");
    let used: Value = serde_json::from_str(&text).unwrap();
    let used = &used["agentconfiguration"];
    assert_eq!(used["syncFrequency"], "2m0s");
    assert_eq!(used["maxRequestsInFlight"], 64);

    config("syncFreqency: 2m\n");
    agent.hang_up();
    let event = agent.event("failed to reload the configuration, keeping the one in use");
    let error = event["error"].as_str().unwrap();
    assert!(error.contains("line 1: unknown field"), "{error}");
    // The watch continues.
    put(&desk, "two.yaml", &crate::run::pod("two", "app"));
    manager.until("STATUS=2 of 2 pods delivered");
}

#[test]
fn reload_takes_up_hooks() {
    let desk = desk();
    let (mut agent, manager) = start(&desk, "");
    manager.until("READY=1");
    let hooks = || {
        let run = desk.run("status -o json --root-dir root");
        let status: Value = serde_json::from_str(&run.stdout).unwrap();
        status["pods"][0]["onChange"].clone()
    };
    assert!(hooks().as_array().is_none_or(Vec::is_empty), "{}", hooks());
    let config = |text: &str| fs::write(desk.path().join("agent.yaml"), text).unwrap();
    config(
        "onChange: [{name: hup, pods: [default/web], signal: SIGHUP}]\nonChangeParallelism: 3\n",
    );
    agent.hang_up();
    let event = agent.event("configuration reloaded");
    assert_eq!(event["fields"], "onChange, onChangeParallelism");
    while hooks()[0]["name"] != "hup" {}
    let pod = fs::canonicalize(desk.path().join("root/by-name/default/web")).unwrap();
    while !pod.join("on-change.json").exists() {}

    // What cannot be used changes nothing.
    config("onChange: [{pods: [default/web], signal: SIGFOO}]\n");
    agent.hang_up();
    let event = agent.event("failed to reload the configuration, keeping the one in use");
    let error = event["error"].as_str().unwrap();
    assert!(error.contains("expected one of SIGHUP"), "{error}");
    assert_eq!(hooks()[0]["name"], "hup");

    config("");
    agent.hang_up();
    agent.event("configuration reloaded");
    while pod.join("on-change.json").exists() {}
    assert!(hooks().as_array().is_none_or(Vec::is_empty), "{}", hooks());
}

#[test]
fn reload_moves_the_http_api() {
    let desk = desk();
    fs::write(desk.path().join("agent.yaml"), "").unwrap();
    let mut agent = Agent::spawn_silent(&desk, larder(), ORIGIN);
    agent.summary();
    let config = |text: &str| fs::write(desk.path().join("agent.yaml"), text).unwrap();
    config("listen: 127.0.0.1:0\n");
    agent.hang_up();
    assert_eq!(agent.event("configuration reloaded")["fields"], "listen");
    let address = agent.event("listening")["address"].clone();
    let address = address.as_str().unwrap().to_owned();
    assert_eq!(get(&address, "/healthz", "*/*").0, "200");
    config("");
    agent.hang_up();
    assert_eq!(agent.event("configuration reloaded")["fields"], "listen");
    // Its address is free again as soon as the server has ended.
    let address: SocketAddr = address.parse().unwrap();
    while std::net::TcpListener::bind(address).is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn log_level_is_shown_and_set_at_run_time() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    let run = desk.run("log-level --root-dir root");
    assert_eq!((run.code, &*run.stdout), (0, "info\n"), "{run:?}");
    let run = desk.run("log-level --root-dir root debug");
    assert_eq!((run.code, &*run.stdout, &*run.stderr), (0, "", ""));
    let run = desk.run("log-level --root-dir root");
    assert_eq!(run.stdout, "debug\n");
    // A level below info is logged from now on.
    while agent.any_event()["level"] != "DEBUG" {
        put(&desk, "two.yaml", &crate::run::pod("two", "app"));
    }
    let run = desk.run("log-level --root-dir root debgu");
    assert_eq!(run.code, 1);
    assert!(
        run.stderr.contains("unknown log level \"debgu\""),
        "{run:?}"
    );
    assert_eq!(desk.run("log-level --root-dir root").stdout, "debug\n");
}

#[test]
fn z_pages_show_version_flags_and_configuration() {
    let desk = desk();
    let config = "staticPodURL: http://user:hunter2@127.0.0.1:1/\nstaticPodURLHeader: {Authorization: [hunter2]}\n";
    let (mut agent, _manager) = start(&desk, config);
    let address = agent.event("listening")["address"].clone();
    let address = address.as_str().unwrap();
    let (status, text) = get(address, "/statusz", "*/*");
    assert_eq!(status, "200");
    assert!(text.starts_with("\nlarder statusz\nWarning: "), "{text}");
    let (_, text) = get(address, "/flagz", "*/*");
    assert!(text.contains("\nnode-name=n1\n"), "{text}");
    let (_, text) = get(address, "/configz", "*/*");
    let config: Value = serde_json::from_str(&text).unwrap();
    let config = &config["agentconfiguration"];
    assert_eq!(config["staticPodURL"], "http://127.0.0.1:1/");
    assert_eq!(
        config["staticPodURLHeader"],
        json!({"Authorization": ["<masked>"]})
    );
    for page in ["/statusz", "/flagz", "/configz", "/status", "/metrics"] {
        let (_, text) = get(address, page, "*/*");
        assert!(!text.contains("hunter2"), "{page}: {text}");
        // Over HTTP the log level is out of reach.
        assert_eq!(get(address, "/log-level", "*/*").0, "404");
    }
}
