//! Questions to a running agent, over the socket in its root directory.

use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use larder_agent::root_dir;
use serde::de::DeserializeOwned;

/// Longest wait for the agent's answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks the agent of `root_dir` for the document at `path`; `None` if it has none there.
///
/// # Errors
///
/// No agent answers, or not us, or not in our words.
pub(crate) fn ask<T: DeserializeOwned>(root_dir: &Path, path: &str) -> anyhow::Result<Option<T>> {
    let socket = root_dir::socket(root_dir);
    let answer = exchange(&socket, path).map_err(|error| {
        let socket = socket.display();
        let text = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                format!("the agent at {socket} answers only the user that runs it, and root")
            }
            _ => format!(
                "no agent answers at {socket} (does `larder run` run, with the same --root-dir?)"
            ),
        };
        anyhow!(error).context(text)
    })?;
    let head = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .context("the answer of the agent is not HTTP")?;
    match answer.split(|byte| *byte == b' ').nth(1) {
        Some(b"200") => {}
        Some(b"404") => return Ok(None),
        status => bail!(
            "the answer of the agent is {}",
            String::from_utf8_lossy(status.unwrap_or_default())
        ),
    }
    let document = serde_json::from_slice(&answer[head + 4..]);
    document
        .context("the agent is of another version of larder")
        .map(Some)
}

/// HTTP/1.0, so that the end of the answer is the end of the connection.
fn exchange(socket: &Path, path: &str) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}
