//! `larder-sidecar`, from outside: processes against an API server, embedded or real.

#[path = "../../../larder-sidecar/tests/shared/application.rs"]
mod application;
mod canaries;
mod charts;
mod disk;
mod forms;
mod memory;
pub(crate) mod metrics;
mod native;
mod volumes;
mod webhooks;

use std::{
    net::TcpStream,
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use http::Request;
use kube::Client;
use larder_e2e::{Identity, Server, reserved_port};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{Desk, run::until, service::get};

/// An API server, and a directory in which sidecars run.
struct World {
    desk: Desk,
    _server: Server,
    client: Client,
    kubeconfig: String,
}

/// A running sidecar. Dropped, it is killed.
struct Sidecar {
    child: Child,
    port: u16,
}

impl World {
    async fn new() -> Self {
        let server = Server::start().await.unwrap();
        let kubeconfig = server.kubeconfig(Identity::Admin).unwrap();
        Self {
            desk: Desk::with([]),
            client: server.client().await.unwrap(),
            kubeconfig: kubeconfig.display().to_string(),
            _server: server,
        }
    }

    fn path(&self) -> &Path {
        self.desk.path()
    }

    /// Creates an object of namespace `default`.
    async fn create(&self, kind: &str, mut object: Value) {
        object["apiVersion"] = "v1".into();
        object["kind"] = kind.into();
        object["metadata"]["namespace"] = "default".into();
        let path = format!("/api/v1/namespaces/default/{}s", kind.to_lowercase());
        let request = Request::post(path).body(object.to_string().into_bytes());
        let created = self.client.request::<Value>(request.unwrap()).await;
        created.unwrap();
    }

    /// Changes fields of an object of namespace `default`.
    async fn change(&self, kind: &str, name: &str, fields: Value) {
        let path = format!("/api/v1/namespaces/default/{}s/{name}", kind.to_lowercase());
        let request = Request::patch(path)
            .header("content-type", "application/merge-patch+json")
            .body(fields.to_string().into_bytes());
        let changed = self.client.request::<Value>(request.unwrap()).await;
        changed.unwrap();
    }

    /// `larder-sidecar` with these variables, for namespace `default` and the directory `folder`.
    fn sidecar(&self, args: &[&str], variables: &[(&str, &str)]) -> Command {
        let mut command = sidecar(&self.desk, args);
        command
            .envs([("NAMESPACE", "default"), ("FOLDER", "folder")])
            .envs([("KUBECONFIG", &*self.kubeconfig), ("HEALTH_PORT", "0")])
            .envs([("LARDER_STATE_DIR", "state"), ("LARDER_DEBOUNCE", "10ms")])
            .envs(variables.iter().copied());
        command
    }
}

impl Sidecar {
    /// Starts `command`, which listens at a free port, the value of `HEALTH_PORT`.
    fn start(mut command: Command) -> Self {
        let port = reserved_port().unwrap();
        command
            .env("HEALTH_HOST", "127.0.0.1")
            .env("HEALTH_PORT", port.to_string());
        Self::start_at(port, command)
    }

    /// The same with flags that say the port.
    fn start_at(port: u16, mut command: Command) -> Self {
        let child = command.spawn().unwrap();
        Self { child, port }
    }

    /// Status and body at `path`; `None` while nothing listens.
    fn ask(&self, path: &str) -> Option<(String, String)> {
        let address = format!("127.0.0.1:{}", self.port);
        TcpStream::connect(&address).ok()?;
        Some(get(&address, path, "*/*"))
    }

    /// Waits until a probe at `path` succeeds.
    async fn until_ok(&self, path: &str) {
        let is_ok = || self.ask(path).is_some_and(|(status, _)| status == "200");
        until(path, is_ok).await;
    }

    fn signal(&mut self, signal: Signal) -> Option<i32> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.unwrap(), signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `larder-sidecar` without variables.
fn sidecar(desk: &Desk, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder-sidecar"));
    command
        .args(args)
        .current_dir(desk.path())
        .env_clear()
        .stdin(Stdio::null());
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
