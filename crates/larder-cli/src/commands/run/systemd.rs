//! The service manager: notifies systemd of the agent's state, by the protocol of sd_notify(3).
//!
//! Invariants:
//! 1. `READY=1` is sent after the first pass over all pods, and after [`READY_TIMEOUT`] at the latest: an agent that
//!    cannot reach its API server serves what it has, and must not be restarted for that.
//! 2. The watchdog is fed only while the agent is healthy, by the runtime that does the work. A runtime that hangs
//!    feeds nothing.
//! 3. Without a service manager nothing is sent. A message that cannot be sent is dropped: the watchdog is the check.

use std::{
    cell::Cell,
    convert::Infallible,
    env,
    ffi::OsString,
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

use larder_agent::{
    agent::AgentHandle,
    status::{AgentOverview, Phase},
};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::debug;

use super::summary::is_ready_within;

/// Longest time until the agent counts as started.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two updates of the status line, at the start and without a watchdog; also the longest with one.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// The connection to the service manager, or to none.
#[derive(Debug)]
pub(super) struct ServiceManager {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
    /// Whether `READY=1` was sent.
    is_started: Cell<bool>,
}

impl ServiceManager {
    /// The service manager that the environment names: `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.
    pub(super) fn from_env() -> Self {
        let socket = env::var_os("NOTIFY_SOCKET").and_then(|address| {
            let connected = connect(&address).inspect_err(|error| {
                debug!(%error, "failed to reach the service manager, continuing without it");
            });
            connected.ok()
        });
        let variable = |name| env::var(name).ok();
        let watchdog = watchdog(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
        Self {
            socket,
            watchdog,
            is_started: Cell::new(false),
        }
    }

    /// Follows `agent` until it is dropped: readiness, the watchdog, and a status line.
    pub(super) async fn follow(&self, agent: &AgentHandle) -> Infallible {
        if self.socket.is_none() {
            return std::future::pending().await;
        }
        let start = Instant::now();
        let mut line = String::new();
        let mut is_ready = false;
        while !is_ready && start.elapsed() < READY_TIMEOUT {
            self.send(&format!("STATUS={}", starting(&agent.overview())));
            is_ready = is_ready_within(agent, STATUS_INTERVAL).await;
        }
        debug!(is_ready, after = ?start.elapsed(), "started");
        self.send("READY=1");
        self.is_started.set(true);
        let period = self.watchdog.map_or(STATUS_INTERVAL, |limit| limit / 3);
        let mut ticks = interval(period.min(STATUS_INTERVAL));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.watchdog.is_some() && agent.health().is_healthy() {
                self.send("WATCHDOG=1");
            }
            let new = summary(&agent.overview());
            // Sent again if the manager has not read its earlier messages yet.
            if new != line && self.send(&format!("STATUS={new}")) {
                line = new;
            }
        }
    }

    /// The configuration is being reloaded. A reload during the start is a part of it.
    pub(super) fn reloading(&self) {
        if !self.is_started.get() {
            return;
        }
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// The reload is over, with or without success.
    pub(super) fn reloaded(&self) {
        if self.is_started.get() {
            self.send("READY=1");
        }
    }

    /// The agent is shutting down.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=shutting down, volumes stay in place");
    }

    /// Returns whether the message was sent, or there is no service manager.
    fn send(&self, message: &str) -> bool {
        let Some(socket) = &self.socket else {
            return true;
        };
        let sent = socket.send(message.as_bytes());
        let failed = |error: &_| debug!(%error, "failed to notify the service manager");
        sent.inspect_err(failed).is_ok()
    }
}

/// A path, or a name in the abstract namespace after `@`.
fn connect(address: &OsString) -> io::Result<UnixDatagram> {
    let bytes = address.as_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    // A manager that does not read must not stop the agent.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The time within which the watchdog must be fed, if this process has to.
fn watchdog(usec: Option<String>, pid: Option<String>) -> Option<Duration> {
    let usec = usec?.parse().ok().filter(|&usec| usec > 0)?;
    let is_ours = pid.is_none_or(|pid| pid.parse() == Ok(std::process::id()));
    is_ours.then(|| Duration::from_micros(usec))
}

/// One line about an agent that has not finished its first pass.
fn starting(status: &AgentOverview) -> String {
    if !status.silent_sources.is_empty() {
        let sources = status.silent_sources.join(", ");
        return format!("waiting for the pods of: {sources}");
    }
    let (tried, pods) = (status.tried(), status.pods.len());
    format!("first pass: {tried} of {pods} pods")
}

/// One line about a running agent.
fn summary(status: &AgentOverview) -> String {
    let pods = status.pods.iter();
    let done = pods.filter(|pod| matches!(pod.delivery.phase, Phase::Delivered | Phase::Ended));
    let (done, all) = (done.count(), status.pods.len());
    let mut parts = vec![format!("{done} of {all} pods delivered")];
    if !status.silent_sources.is_empty() {
        let sources = status.silent_sources.join(", ");
        parts.push(format!("no report from: {sources}"));
    }
    if let problems @ 1.. = status.problems.len() {
        parts.push(format!("problems: {problems}"));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn watchdog_of_another_process_is_not_ours() {
        let minute = || Some("60000000".to_owned());
        let own = std::process::id().to_string();
        assert_eq!(watchdog(minute(), None), Some(Duration::from_mins(1)));
        assert_eq!(watchdog(minute(), Some(own)), Some(Duration::from_mins(1)));
        assert_eq!(watchdog(minute(), Some("1".to_owned())), None);
        for nonsense in ["0", "-1", "x", ""] {
            assert_eq!(watchdog(Some(nonsense.to_owned()), None), None);
        }
        assert_eq!(watchdog(None, None), None);
    }

    /// A manager, and the connection to it, before the agent has started.
    fn connected(folder: &Path) -> (UnixDatagram, ServiceManager) {
        let path = folder.join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let service = ServiceManager {
            socket: Some(connect(&path.into_os_string()).unwrap()),
            watchdog: None,
            is_started: Cell::new(false),
        };
        (manager, service)
    }

    #[test]
    fn reload_during_the_start_does_not_end_it() {
        let folder = tempfile::tempdir().unwrap();
        let (manager, service) = connected(folder.path());
        service.reloading();
        service.reloaded();
        service.is_started.set(true);
        service.reloading();
        service.reloaded();
        for expected in ["RELOADING=1", "READY=1"] {
            let mut buffer = [0; 128];
            let length = manager.recv(&mut buffer).unwrap();
            assert!(buffer[..length].starts_with(expected.as_bytes()));
        }
    }

    #[test]
    fn manager_that_does_not_read_gets_no_more_messages() {
        let folder = tempfile::tempdir().unwrap();
        let (manager, service) = connected(folder.path());
        let sent = (0..100_000)
            .take_while(|_| service.send("STATUS=old"))
            .count();
        assert!(sent > 0);
        for _ in 0..sent {
            manager.recv(&mut [0; 16]).unwrap();
        }
        assert!(service.send("STATUS=new"));
    }

    #[test]
    fn names_in_the_abstract_namespace_are_reached() {
        let name = format!("larder-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let socket = connect(&format!("@{name}").into()).unwrap();
        socket.send(b"READY=1").unwrap();
        let mut buffer = [0; 16];
        let length = manager.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1");
    }
}
