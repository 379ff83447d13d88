//! Processes that report when a hook has reached them, and the benchmark's receiver of these reports.
//!
//! They run in other mount namespaces or end at once, so each sends one datagram: its tag, and the time by the clock
//! that all processes of the machine share.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    os::unix::net::UnixDatagram,
    path::Path,
    thread,
    time::Duration,
};

use anyhow::Context as _;
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::timeout,
};

use crate::PATIENCE;

/// Tag of requests.
pub(super) const HTTP: &str = "http";
/// Sent once a receiver handles its signal.
const READY: &str = "ready";

/// The time that all processes share.
pub(super) fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// Plays the role that the first argument names; false if it names none.
pub(crate) fn run(role: &str, tag: &str, socket: &Path) -> anyhow::Result<bool> {
    let at = now();
    match role {
        "--stamp" => send(socket, tag, &at.as_nanos().to_string())?,
        "--receive" => {
            let runtime = tokio::runtime::Builder::new_current_thread();
            { runtime }
                .enable_all()
                .build()?
                .block_on(receive(tag, socket))?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

async fn receive(tag: &str, socket: &Path) -> anyhow::Result<()> {
    let mut hangups = signal(SignalKind::hangup())?;
    send(socket, tag, READY)?;
    while hangups.recv().await.is_some() {
        send(socket, tag, &now().as_nanos().to_string())?;
    }
    Ok(())
}

fn send(socket: &Path, tag: &str, text: &str) -> anyhow::Result<()> {
    UnixDatagram::unbound()?.send_to(format!("{tag} {text}").as_bytes(), socket)?;
    Ok(())
}

/// A hook has reached the process with this tag, or that process is ready.
struct Hit {
    tag: String,
    at: Option<Duration>,
}

/// The reports that the benchmark receives.
pub(super) struct Hits(mpsc::UnboundedReceiver<Hit>);

impl Hits {
    /// Listens to processes at `socket`, and to requests; the port of these.
    pub(super) fn listen(socket: &Path) -> anyhow::Result<(Self, u16)> {
        let (sender, hits) = mpsc::unbounded_channel();
        let datagrams = UnixDatagram::bind(socket)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        // Both threads end with the process.
        let requests = sender.clone();
        thread::spawn(move || {
            let mut buffer = [0; 256];
            while let Ok(length) = datagrams.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                let Some((tag, at)) = text.split_once(' ') else {
                    continue;
                };
                let at = at.parse().ok().map(Duration::from_nanos);
                let tag = tag.to_owned();
                if sender.send(Hit { tag, at }).is_err() {
                    return;
                }
            }
        });
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut lines = BufReader::new(stream);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && lines.read_line(&mut head).unwrap_or(0) > 0 {}
                let (tag, at) = (HTTP.to_owned(), Some(now()));
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                // The client may have disconnected.
                let _ = lines.get_mut().write_all(answer);
                if requests.send(Hit { tag, at }).is_err() {
                    return;
                }
            }
        });
        Ok((Self(hits), port))
    }

    /// Forgets what came late.
    pub(super) fn clear(&mut self) {
        while self.0.try_recv().is_ok() {}
    }

    /// When the process with this tag is reached next.
    pub(super) async fn next(&mut self, tag: &str) -> anyhow::Result<Duration> {
        self.within(tag, PATIENCE).await
    }

    /// The same within `time`.
    pub(super) async fn within(&mut self, tag: &str, time: Duration) -> anyhow::Result<Duration> {
        let hit = self.find(time, |hit| hit.tag == tag && hit.at.is_some());
        let hit = hit.await.with_context(|| format!("{tag} is not reached"))?;
        Ok(hit.at.unwrap_or_default())
    }

    /// Waits until the receiver with this tag is ready.
    pub(super) async fn ready(&mut self, tag: &str) -> anyhow::Result<()> {
        let hit = self.find(PATIENCE, |hit| hit.tag == tag && hit.at.is_none());
        hit.await.with_context(|| format!("{tag} does not start"))?;
        Ok(())
    }

    async fn find(&mut self, time: Duration, is_it: impl Fn(&Hit) -> bool) -> Option<Hit> {
        let search = async {
            loop {
                let hit = self.0.recv().await?;
                if is_it(&hit) {
                    return Some(hit);
                }
            }
        };
        timeout(time, search).await.ok().flatten()
    }
}
