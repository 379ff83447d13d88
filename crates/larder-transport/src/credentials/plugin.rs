//! Exec plugins: commands that print credentials.
//!
//! Contract: client-go 1.36, `plugin/pkg/client/auth/exec`. Intentionally different: a plugin has [`TIMEOUT`] to answer
//! and [`MAX_OUTPUT_BYTES`] for its output, it has no standard input, and its standard error is dropped, because it
//! would end up in the log.
//!
//! Invariants:
//! 1. Arguments, environment and output of a plugin reach no error.
//! 2. An answer is parsed on a blocking thread: it may be anything.
//! 3. A plugin is killed, with the processes of its group, when its answer is late, too long or no longer needed.

use std::{process::Stdio, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::HeaderValue;
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::AsyncReadExt as _,
    process::Command,
    task::spawn_blocking,
    time::{Instant, timeout},
};
use zeroize::Zeroizing;

use super::{
    kubeconfig::{Cluster, Exec, Variable, yaml},
    secret::{SecretText, bearer},
    tls::Identity,
};
use crate::setup_error::PluginError;

/// Time that a plugin has to print its credentials and exit: less than a request has, so that its error names the plugin.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);
/// How long before the expiry of its credentials a plugin runs again, at most: a fifth of their life if that is less.
const RENEW_BEFORE: Duration = Duration::from_mins(1);
/// Longest output that is read, in bytes. A token has some thousand at most, a chain of certificates with its key ten.
const MAX_OUTPUT_BYTES: usize = 64 << 10;
/// Name of the cluster extension that configures plugins.
const EXTENSION: &str = "client.authentication.k8s.io/exec";

/// An exec plugin as configured.
#[derive(Clone)]
pub(super) struct Plugin {
    api_version: Option<String>,
    command: String,
    args: Vec<SecretText>,
    env: Vec<Variable>,
    /// The API server, for plugins that ask for it.
    cluster: Option<Value>,
}

/// The credentials from a plugin.
#[derive(Clone)]
pub(super) struct Issued {
    pub(super) token: Option<HeaderValue>,
    pub(super) identity: Option<Identity>,
    pub(super) expiry: Option<Expiry>,
}

/// When credentials end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expiry {
    pub(super) at: Instant,
    /// When the plugin runs again.
    pub(super) renew_at: Instant,
}

impl Expiry {
    /// The expiry of credentials that were issued at `now` for `left`.
    pub(super) fn new(now: Instant, left: Duration) -> Self {
        // A time beyond what an instant can hold is as good as a year.
        let at = now
            .checked_add(left)
            .unwrap_or(now + Duration::from_hours(365 * 24));
        let early = RENEW_BEFORE.min(left / 5);
        Self {
            at,
            renew_at: at - early,
        }
    }
}

impl Issued {
    pub(super) fn is_renewal_due(&self, now: Instant) -> bool {
        self.expiry.is_some_and(|expiry| expiry.renew_at <= now)
    }

    /// The credentials in a plugin's output, whose version must be the expected one if there is one.
    fn read(output: &[u8], api_version: Option<&str>) -> Result<Self, PluginError> {
        let text = str::from_utf8(output).map_err(|_| PluginError::Malformed)?;
        let answers: Vec<Answer> = yaml(text).map_err(|_| PluginError::Malformed)?;
        let answer = answers.into_iter().next().ok_or(PluginError::Malformed)?;
        if api_version.is_some() && answer.api_version.as_deref() != api_version {
            return Err(PluginError::Version);
        }
        let status = answer.status.ok_or(PluginError::NoCredentials)?;
        let identity = status
            .client_certificate_data
            .zip(status.client_key_data)
            .map(|(certificate, key)| Identity {
                certificate: pem(&certificate),
                key: pem(&key),
            });
        let token = match &status.token {
            Some(token) if !token.trim().is_empty() => {
                Some(bearer(token).ok_or(PluginError::NoCredentials)?)
            }
            _ => None,
        };
        if token.is_none() && identity.is_none() {
            return Err(PluginError::NoCredentials);
        }
        let expiry = status
            .expiration_timestamp
            .map(|text| text.parse::<Timestamp>())
            .transpose()
            .map_err(|_| PluginError::Malformed)?
            .map(|at| Expiry::new(Instant::now(), left(at)));
        Ok(Self {
            token,
            identity,
            expiry,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    api_version: Option<String>,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<SecretText>,
    client_certificate_data: Option<SecretText>,
    client_key_data: Option<SecretText>,
}

impl Plugin {
    /// The plugin that a kubeconfig names. `authority` is the PEM text of the authorities of `cluster`.
    pub(super) fn new(
        exec: Exec,
        cluster: &Cluster,
        authority: Option<&[u8]>,
    ) -> Result<Self, PluginError> {
        if exec.interactive_mode.as_deref() == Some("Always") {
            return Err(PluginError::Interactive);
        }
        let info = exec
            .provide_cluster_info
            .then(|| cluster_info(cluster, authority));
        Ok(Self {
            api_version: exec.api_version,
            command: exec
                .command
                .filter(|command| !command.is_empty())
                .ok_or(PluginError::NoCommand)?,
            args: exec.args.unwrap_or_default(),
            env: exec.env.unwrap_or_default(),
            cluster: info,
        })
    }

    /// Name of the command, for errors.
    pub(super) fn name(&self) -> &str {
        command_name(&self.command)
    }

    /// Runs the plugin.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the plugin.
    pub(super) async fn run(&self) -> Result<Issued, PluginError> {
        let output = timeout(TIMEOUT, self.output())
            .await
            .unwrap_or(Err(PluginError::Timeout(TIMEOUT)))?;
        let expected = self.api_version.clone();
        let read = spawn_blocking(move || Issued::read(&output, expected.as_deref()));
        // A parser that panics has not understood it.
        read.await.unwrap_or(Err(PluginError::Malformed))
    }

    async fn output(&self) -> Result<Zeroizing<Vec<u8>>, PluginError> {
        let info = json!({
            "apiVersion": self.api_version,
            "kind": "ExecCredential",
            "spec": match &self.cluster {
                None => json!({"interactive": false}),
                Some(cluster) => json!({"interactive": false, "cluster": cluster}),
            },
        });
        let mut command = Command::new(&self.command);
        command.args(self.args.iter().map(|argument| &**argument));
        for variable in &self.env {
            // The system has no variables with these characters, and `Command` panics or fails on them.
            if !variable.name.is_empty() && !variable.name.contains(['=', '\0']) {
                command.env(&variable.name, &*variable.value);
            }
        }
        command.env("KUBERNETES_EXEC_INFO", info.to_string());
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(PluginError::Start)?;
        let mut group = Group(child.id());
        let mut stdout = child.stdout.take().expect("it is piped");
        let mut output = Zeroizing::new(Vec::with_capacity(MAX_OUTPUT_BYTES + 1));
        while output.len() <= MAX_OUTPUT_BYTES {
            let room = MAX_OUTPUT_BYTES + 1 - output.len();
            let mut limited = (&mut stdout).take(room as u64);
            let read = limited.read_buf(&mut *output).await;
            if read.map_err(PluginError::Read)? == 0 {
                break;
            }
        }
        if output.len() > MAX_OUTPUT_BYTES {
            return Err(PluginError::TooLong {
                limit_bytes: MAX_OUTPUT_BYTES,
            });
        }
        let status = child.wait().await.map_err(PluginError::Read)?;
        // Its id may belong to another process from now on.
        group.0 = None;
        if !status.success() {
            return Err(PluginError::Failed(status));
        }
        Ok(output)
    }
}

/// Name of a command, without its directory and without what looks like arguments.
pub(super) fn command_name(command: &str) -> &str {
    let command = command.split_whitespace().next().unwrap_or_default();
    command.rsplit('/').next().unwrap_or_default()
}

/// Ends the processes of a plugin's group.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        let id = self.0.and_then(|id| i32::try_from(id).ok());
        if let Some(group) = id.and_then(Pid::from_raw) {
            // Usually all of them have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn pem(text: &SecretText) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(text.as_bytes().to_vec())
}

/// The time until `at` on the wall clock; zero if that has passed.
#[expect(
    clippy::disallowed_methods,
    reason = "expiry is a time on the wall clock; it is compared with that clock here and nowhere else"
)]
fn left(at: Timestamp) -> Duration {
    let left = at.duration_since(Timestamp::now());
    Duration::try_from(left).unwrap_or_default()
}

/// The cluster as a plugin gets it (`client.authentication.k8s.io`, `Cluster`).
fn cluster_info(cluster: &Cluster, authority: Option<&[u8]>) -> Value {
    let mut info = json!({
        "server": cluster.server.as_deref(),
        "proxy-url": cluster.proxy_url.as_deref(),
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "disable-compression": cluster.disable_compression,
        "certificate-authority-data": authority.map(|pem| BASE64.encode(pem)),
    });
    if let Some(fields) = info.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let mut extensions = cluster.extensions.iter().flatten();
    if let Some(own) = extensions.find(|extension| extension.name == EXTENSION) {
        info["config"] = own.extension.clone();
    }
    info
}

#[cfg(test)]
mod tests;
