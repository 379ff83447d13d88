//! Credentials of the agent appear in no output: log at level trace, status and metrics over both listeners, start-up.
//!
//! The transport has the same tests for its errors and its log (`larder-transport`, `tests/canaries`).

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::Path,
    process::Command,
};

use kube::config::Kubeconfig;
use larder_agent::root_dir;
use larder_e2e::{Identity, Server};
use serde_json::Value;

use crate::{
    Desk,
    run::{Agent, until},
};

/// The text that must not be seen.
const CANARY: &str = "c4n4ry";
/// The same in base64.
const ENCODED: &str = "YzRuNHJ5";

#[track_caller]
fn check(what: &str, text: &str) {
    for canary in [CANARY, ENCODED] {
        assert!(!text.contains(canary), "{what} has a credential: {text}");
    }
}

/// Kubeconfigs that give no credentials, each with the canary wherever a credential or output of a plugin may stand.
fn broken(desk: &Desk, mut config: Value) -> Vec<(&'static str, String)> {
    let script = desk.path().join("plugin");
    fs::write(
        &script,
        format!("echo '{CANARY}'; echo '{CANARY}' >&2; exit 3"),
    )
    .unwrap();
    let token = desk.path().join("token");
    fs::write(&token, format!("{CANARY}\u{1}\n{CANARY}")).unwrap();
    let mut with_user = |user: Value| {
        config["users"][0]["user"] = user;
        config.to_string()
    };
    let exec = serde_json::json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "sh",
        "args": [script, CANARY], "env": [{"name": "PASSWORD", "value": CANARY}],
    }});
    vec![
        ("plugin", with_user(exec)),
        (
            "token file",
            with_user(serde_json::json!({"tokenFile": token})),
        ),
        (
            "client key",
            with_user(serde_json::json!({
                "client-certificate-data": ENCODED, "client-key-data": ENCODED,
            })),
        ),
        (
            "type",
            with_user(serde_json::json!({"token": [CANARY], "password": {"a": CANARY}})),
        ),
        (
            "syntax",
            format!("users:\n- name: u\n  user:\n    token: \"{CANARY}\n    password: [{CANARY}"),
        ),
    ]
}

/// The agent's answers over the socket of its root directory, and over TCP.
fn answers(root: &Path, address: &str, path: &str) -> [String; 2] {
    let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let (mut over_socket, mut over_tcp) = (String::new(), String::new());
    let mut socket = UnixStream::connect(root_dir::socket(root)).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    socket.read_to_string(&mut over_socket).unwrap();
    let mut tcp = TcpStream::connect(address).unwrap();
    tcp.write_all(request.as_bytes()).unwrap();
    tcp.read_to_string(&mut over_tcp).unwrap();
    [over_socket, over_tcp]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_with_broken_credentials_shows_none() {
    let desk = Desk::with([]);
    let server = Server::start().await.unwrap();
    let good = server.kubeconfig(Identity::Node).unwrap();
    for (what, kubeconfig) in broken(&desk, read(&good)) {
        fs::write(desk.path().join("kubeconfig"), kubeconfig).unwrap();
        let output = Command::new("timeout")
            .args(["60", env!("CARGO_BIN_EXE_larder"), "run"])
            .args([
                "--root-dir",
                "root",
                "--node-name",
                "n0",
                "--kubeconfig",
                "kubeconfig",
            ])
            .env("LARDER_LOG", "trace")
            .current_dir(desk.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{what}: {output:?}");
        check(what, &String::from_utf8_lossy(&output.stdout));
        check(what, &String::from_utf8_lossy(&output.stderr));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_broken_while_they_are_rotated_are_not_shown() {
    let desk = Desk::with([]);
    let mut server = Server::start().await.unwrap();
    let path = desk.path().join("kubeconfig");
    let good = server.kubeconfig(Identity::Node).unwrap();
    for (what, kubeconfig) in broken(&desk, read(&good)) {
        server.renew_credentials().unwrap();
        fs::copy(&good, &path).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
        command.env_clear().env("LARDER_LOG", "trace");
        command.env("PATH", std::env::var_os("PATH").unwrap());
        let mut agent = Agent::spawn(&desk, command, "--kubeconfig kubeconfig --node-name n0");
        let listening = agent.event("listening");
        let address = listening["address"].as_str().unwrap().to_owned();
        let log = agent.collect_log();
        until("the agent's pods", || {
            let [status, _] = answers(&desk.path().join("root"), &address, "/readyz");
            status.starts_with("HTTP/1.1 200")
        })
        .await;

        fs::write(&path, kubeconfig).unwrap();
        server.expire_credentials().await.unwrap();
        until("the failure in the log", || {
            log.lock().contains("failed to renew the credentials")
        })
        .await;
        until("the failure in the status", || {
            let [status, _] = answers(&desk.path().join("root"), &address, "/metrics");
            status.contains(r#"outcome="failed""#)
        })
        .await;
        for path in ["/status", "/metrics", "/healthz", "/readyz"] {
            for answer in answers(&desk.path().join("root"), &address, path) {
                check(&format!("{what}: {path}"), &answer);
            }
        }
        for format in ["table", "json"] {
            let run = desk.run(&format!("status --root-dir root -o {format}"));
            check(what, &run.stdout);
            check(what, &run.stderr);
        }
        assert_eq!(agent.signal(rustix::process::Signal::TERM), Some(0));
        check(what, &log.lock());
    }
}

/// The kubeconfig at `path`.
fn read(path: &Path) -> Value {
    serde_json::to_value(Kubeconfig::read_from(path).unwrap()).unwrap()
}
