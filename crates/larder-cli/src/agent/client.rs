//! Requests to a running agent, over the socket in its root directory.
//!
//! Invariants:
//! 1. An agent is trusted only if root or this user owns its root directory, its socket and the process behind it.
//! 2. A path in a response is used only if it is in the root directory.
//! 3. A response is bounded, in size and in time.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use larder_agent::root_dir;
use larder_files::ownership;
use rustix::net::sockopt::socket_peercred;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::root_dir::{TrustedDir, trusted_users};
use crate::output::because;

/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer: some hundred times that of a full node.
const MAX_ANSWER_BYTES: usize = 256 << 20;
/// The line between the head of an answer and its document.
const END_OF_HEAD: &[u8] = b"\r\n\r\n";

/// The socket of the agent that a package runs.
const SERVICE: &str = "/run/larder/agent.sock";

/// No agent is listening, at least not now.
#[derive(Debug, thiserror::Error)]
#[error(
    "no agent is listening on {} (is `larder run` running with the same --root-dir?){}",
    socket.display(),
    of_service()
)]
pub(crate) struct NotListening {
    socket: PathBuf,
    source: anyhow::Error,
}

/// A running agent that this user may trust.
#[derive(Debug)]
pub(crate) struct AgentClient {
    root: TrustedDir,
    /// For messages.
    socket: PathBuf,
    /// Longest wait for an answer.
    timeout: Duration,
}

impl AgentClient {
    /// Finds the agent with this root directory.
    ///
    /// # Errors
    ///
    /// There is no such directory, or another user may write to it.
    pub(crate) fn new(root_dir: &Path) -> anyhow::Result<Self> {
        let socket = root_dir::socket(root_dir);
        let root = TrustedDir::open(root_dir).map_err(|error| explain(error, &socket))?;
        Ok(Self {
            root,
            socket,
            timeout: TIMEOUT,
        })
    }

    /// Waits for an answer no longer than this.
    #[must_use]
    pub(crate) fn within(mut self, most: Duration) -> Self {
        self.timeout = self.timeout.min(most);
        self
    }

    /// Asks for the document at `path`; `None` if the agent has none there.
    ///
    /// # Errors
    ///
    /// No trusted agent answers, or its answer cannot be read.
    pub(crate) fn ask<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<Option<T>> {
        let (status, body) = self.request("GET", path, "")?;
        match status.as_str() {
            "200" => {}
            "404" => return Ok(None),
            _ => {
                let why = because(&reason(&body));
                bail!("the agent answered with status {status}, expected 200{why}")
            }
        }
        let document = serde_json::from_slice(&body);
        document
            .context("cannot read the agent's answer (is it of another version of larder?)")
            .map(Some)
    }

    /// Asks for the text at `path`; returns whether the agent has one and is well, and its text.
    ///
    /// # Errors
    ///
    /// No trusted agent answers.
    pub(crate) fn text(&self, path: &str) -> anyhow::Result<(bool, String)> {
        let (status, body) = self.request("GET", path, "")?;
        Ok((status == "200", String::from_utf8_lossy(&body).into_owned()))
    }

    /// Sets `path` to `text`.
    ///
    /// # Errors
    ///
    /// No trusted agent answers, or it rejects the text.
    pub(crate) fn put(&self, path: &str, text: &str) -> anyhow::Result<()> {
        let (status, body) = self.request("PUT", path, text)?;
        if status.starts_with('2') {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&body);
        bail!("the agent rejected it: {}", why.trim());
    }

    /// The status and the body of the answer to one request.
    fn request(&self, method: &str, path: &str, body: &str) -> anyhow::Result<(String, Vec<u8>)> {
        let request = format!(
            "{method} {path} HTTP/1.0\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut answer = self
            .connect()
            .and_then(|stream| Ok(exchange(stream, &request, self.timeout)?))
            .map_err(|error| explain(error, &self.socket))?;
        let mut windows = answer.windows(END_OF_HEAD.len());
        let head = windows
            .position(|window| window == END_OF_HEAD)
            .context("cannot read the agent's answer: expected HTTP")?;
        let status = answer.split(|byte| *byte == b' ').nth(1);
        let status = String::from_utf8_lossy(status.unwrap_or_default()).into_owned();
        answer.drain(..head + END_OF_HEAD.len());
        Ok((status, answer))
    }

    /// A path from an answer, without links.
    ///
    /// # Errors
    ///
    /// It leads out of the root directory.
    pub(crate) fn path(&self, path: &str) -> anyhow::Result<PathBuf> {
        let root = &self.root.path;
        let outside = || {
            let root = root.display();
            format!("cannot use {path} from the agent's answer: expected a path below {root}")
        };
        let path = Path::new(path);
        let below = path.strip_prefix(root).with_context(outside)?;
        let is_plain = |component| matches!(component, Component::Normal(_));
        if !below.components().all(is_plain) || below == Path::new("") {
            bail!(outside());
        }
        match fs::canonicalize(path) {
            Ok(real) if real.starts_with(root) => Ok(real),
            Ok(_) => bail!(outside()),
            // A missing file is the caller's error, with a better message.
            Err(_) => Ok(path.to_owned()),
        }
    }

    /// A connection on which the agent sends the document at `path`, after the head of its answer.
    ///
    /// # Errors
    ///
    /// No trusted agent listens.
    pub(crate) fn stream(&self, path: &str) -> anyhow::Result<UnixStream> {
        let opened = self.connect().and_then(|mut stream| {
            stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
            Ok(stream)
        });
        opened.map_err(|error| explain(error, &self.socket))
    }

    fn connect(&self) -> anyhow::Result<UnixStream> {
        let name = self
            .socket
            .file_name()
            .and_then(|name| name.to_str())
            .expect("the agent's socket has a name");
        let stream = UnixStream::connect(self.root.socket(name)?)?;
        let peer = socket_peercred(&stream).map_err(io::Error::from)?;
        let user = peer.uid.as_raw();
        if ![0, ownership::user()].contains(&user) {
            let (socket, trusted) = (self.socket.display(), trusted_users());
            bail!("cannot trust the agent on {socket}: it runs as user {user}, expected {trusted}");
        }
        Ok(stream)
    }
}

/// Why the agent has no document: the error of its API, or the text of a page.
fn reason(body: &[u8]) -> String {
    let document = serde_json::from_slice::<Value>(body);
    let error = document.as_ref().ok().and_then(|all| all["error"].as_str());
    error.map_or_else(
        || String::from_utf8_lossy(body).trim().to_owned(),
        str::to_owned,
    )
}

/// A hint for an ordinary user whose command did not address the service's agent: that agent answers only root.
fn of_service() -> &'static str {
    if !rustix::process::geteuid().is_root() && Path::new(SERVICE).exists() {
        "; the agent of the service, in /run/larder, answers root only"
    } else {
        ""
    }
}

/// Adds the advice for errors of the system; other errors explain themselves.
fn explain(error: anyhow::Error, socket: &Path) -> anyhow::Error {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    let shown = socket.display();
    match kind {
        None => error,
        Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => anyhow!(NotListening {
            socket: socket.to_owned(),
            source: error,
        }),
        Some(io::ErrorKind::PermissionDenied) => error.context(format!(
            "permission denied on {shown}: only root and the user that runs the agent may connect"
        )),
        Some(_) => error.context(format!("cannot ask the agent on {shown}")),
    }
}

/// HTTP/1.0, so that the end of the answer is the end of the connection.
fn exchange(mut stream: UnixStream, request: &str, timeout: Duration) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + timeout;
    stream.set_write_timeout(Some(timeout))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let why = format!("no whole answer within {:.1} s", timeout.as_secs_f64());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(answer),
            Ok(count) if answer.len() + count > MAX_ANSWER_BYTES => {
                let why = format!("the answer exceeds {} MiB", MAX_ANSWER_BYTES >> 20);
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The next round reports it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
