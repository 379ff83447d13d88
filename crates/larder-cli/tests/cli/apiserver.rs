//! `larder apiserver`, from outside.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
};

use k8s_openapi::{NamespaceResourceScope, api::core::v1::ConfigMap};
use kube::{
    Api, Client, Config, Resource,
    api::PostParams,
    config::{KubeConfigOptions, Kubeconfig},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::Desk;

/// A server that is ended with the test.
pub(crate) struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl Server {
    /// Starts it and waits until it says where it listens.
    pub(crate) fn start(desk: &Desk, args: &str) -> (Self, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_larder"))
            .arg("apiserver")
            .args(args.split_whitespace())
            .current_dir(desk.path())
            .env_clear()
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut server = Self {
            stdout: BufReader::new(child.stdout.take().unwrap()),
            stderr: BufReader::new(child.stderr.take().unwrap()),
            child,
        };
        let mut line = String::new();
        server.stdout.read_line(&mut line).unwrap();
        (server, line)
    }

    /// Asks it to end, and returns its exit code.
    fn end(mut self, signal: Signal) -> Option<i32> {
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .unwrap();
        kill_process(pid, signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The objects of namespace `default`, by way of a kubeconfig.
pub(crate) async fn api<K>(kubeconfig: &Path) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    // Without this machine's proxy: the server is local.
    config.proxy_url = None;
    Api::namespaced(Client::try_from(config).unwrap(), "default")
}

const MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app}\ndata: {k: one}\n";

#[tokio::test]
async fn server_serves_manifests_over_tls_and_exits_cleanly() {
    let desk = Desk::with([]);
    fs::create_dir(desk.path().join("manifests")).unwrap();
    fs::write(desk.path().join("manifests/app.yaml"), MAP).unwrap();
    // The certificate is valid for any address.
    let args = "--listen 127.77.66.55:0 --manifests manifests --kubeconfig-out kubeconfig --audit-log audit.jsonl";
    let (server, line) = Server::start(&desk, args);
    assert!(
        line.starts_with("listening on https://127.77.66.55:"),
        "{line:?}"
    );

    let kubeconfig = desk.path().join("kubeconfig");
    let maps = api::<ConfigMap>(&kubeconfig).await;
    let app = maps.get("app").await.unwrap();
    assert_eq!(app.data.unwrap()["k"], "one");
    let mut new = ConfigMap::default();
    new.metadata.name = Some("new".to_owned());
    maps.create(&PostParams::default(), &new).await.unwrap();

    assert_eq!(server.end(Signal::TERM), Some(0));
    assert!(!kubeconfig.exists(), "it would lead nowhere");
    let audit = fs::read_to_string(desk.path().join("audit.jsonl")).unwrap();
    let records: Vec<Value> = audit
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let verbs: Vec<_> = records
        .iter()
        .map(|record| record["verb"].as_str().unwrap())
        .collect();
    assert_eq!(verbs, ["get", "create"]);
    assert_eq!(
        records[0]["path"],
        "/api/v1/namespaces/default/configmaps/app"
    );
    assert_eq!(records[0]["status"], 200);
    for field in ["time", "query", "user_agent"] {
        assert!(records[0][field].is_string(), "{field}");
    }
}

#[test]
fn missing_kubeconfig_flag_is_pointed_out() {
    let (mut server, _) = Server::start(&Desk::with([]), "--listen 127.0.0.1:0");
    let mut line = String::new();
    server.stderr.read_line(&mut line).unwrap();
    assert!(line.contains("--kubeconfig-out"), "{line:?}");
    assert_eq!(server.end(Signal::INT), Some(0));
}

#[test]
fn startup_errors_name_their_cause() {
    let desk = Desk::with([]);
    for (args, code, words) in [
        ("--manifests nope", 2, "nope"),
        ("--audit-log nope/audit", 1, "nope/audit"),
        ("--kubeconfig-out nope/kubeconfig", 1, "nope/kubeconfig"),
        ("--listen 192.0.2.1:1", 1, "192.0.2.1:1"),
        ("--listen nonsense", 2, "nonsense"),
    ] {
        let run = desk.run(&format!("apiserver {args}"));
        assert_eq!(run.code, code, "{args}: {run:?}");
        assert!(run.stderr.contains(words), "{args}: {}", run.stderr);
    }
}
