//! Clients of `--listen`: whatever they do, delivery continues.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::Command,
};

use larder_connections::raise_descriptor_limit;

use crate::run::{Agent, config_map, desk, key, pod, put, until};

/// More than the agent below may open files.
const CLIENTS: usize = 1100;

/// The answer at `path`.
fn get(address: SocketAddr, host: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test]
async fn half_sent_requests_do_not_stop_delivery() {
    raise_descriptor_limit();
    let desk = desk();
    let mut command = Command::new("bash");
    command.args([
        "-c",
        r#"ulimit -n 256; exec "$0" "$@""#,
        env!("CARGO_BIN_EXE_larder"),
    ]);
    let mut agent = Agent::spawn(&desk, command, "--manifests m --node-name n1");
    let listening = agent.event("listening");
    let address = listening["address"].as_str().unwrap().parse().unwrap();
    agent.summary();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = TcpStream::connect(address).unwrap();
            // The agent may have closed it already, in favor of a newer one.
            let _ = client.write_all(b"GET /status HTTP/1.1\r\nHost: h\r\nx: ");
            client
        })
        .collect();
    put(&desk, "app.yaml", &config_map("app", "a: '2'"));
    put(&desk, "two.yaml", &pod("two", "app"));
    until("the change", || {
        key(&desk, "web", "a").as_deref() == Some("2")
    })
    .await;
    until("the new pod", || {
        key(&desk, "two", "a").as_deref() == Some("2")
    })
    .await;
    assert!(get(address, "h", "/healthz").ends_with("ok\n"));
    drop(clients);
    // A name of another site that leads here.
    let refused = get(address, "evil.example", "/status");
    assert!(refused.starts_with("HTTP/1.1 421 "), "{refused}");
    // Of two names, none decides.
    for hosts in [["localhost", "evil.example"], ["evil.example", "localhost"]] {
        let refused = get(address, &hosts.join("\r\nHost: "), "/status");
        assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    }
}
