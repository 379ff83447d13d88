//! Runs the command until it ends: passes signals on, reacts to changes, and ends as it ended.

use std::{
    future::pending, io::IsTerminal as _, os::unix::process::ExitStatusExt as _,
    process::ExitStatus, time::Duration,
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::Child,
    signal::unix::{SignalKind, signal},
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{Follower, STAGE};
use crate::output;

/// What happens to the command when its volumes change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnChange {
    /// Nothing: it reads the files anew by itself.
    Nothing,
    /// It gets a signal.
    Signal(Signal),
    /// It is ended and started again; also when its environment would differ.
    Restart,
}

/// What came of manifests that were read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Update {
    /// A volume of the command has other content.
    pub(crate) volumes: bool,
    /// The command would get another environment, other mounts or another identity.
    pub(crate) start: bool,
}

/// What can happen.
enum Event {
    Ended(ExitStatus),
    Signal(Signal),
    ManifestsChanged,
    /// The command did not end in time.
    GraceIsOver,
}

/// Runs the command that `start` starts. `update` brings its volumes up to date; it is called after changes of the manifests.
/// `grace` is what the command has for ending before it is killed for a restart.
///
/// # Errors
///
/// The command cannot be started.
pub(crate) async fn supervise(
    mut start: impl FnMut() -> anyhow::Result<Child>,
    mut update: impl FnMut() -> Update,
    mut follower: Option<Follower>,
    on_change: OnChange,
    grace: Duration,
) -> anyhow::Result<ExitStatus> {
    let mut tasks = JoinSet::new();
    let mut signals = signals(&mut tasks)?;
    let mut child = start()?;
    // Some: the command is being ended, to be started again.
    let mut kill_at: Option<Instant> = None;
    loop {
        // Each arm is cancel safe: none loses what it has when another one comes first.
        let event = tokio::select! {
            status = child.wait() => Event::Ended(status.context("cannot wait for the command")?),
            Some(signal) = signals.recv() => Event::Signal(signal),
            () = changed(&mut follower) => Event::ManifestsChanged,
            () = at(kill_at) => Event::GraceIsOver,
        };
        match event {
            Event::Ended(_) if kill_at.is_some() => {
                kill_at = None;
                child = start()?;
            }
            Event::Ended(status) => return Ok(status),
            Event::Signal(signal) => {
                // The user wants it to end, not to start again.
                kill_at = kill_at.filter(|_| ![Signal::TERM, Signal::INT].contains(&signal));
                send(&child, signal);
            }
            Event::ManifestsChanged => {
                let update = update();
                match on_change {
                    OnChange::Restart if (update.volumes || update.start) && kill_at.is_none() => {
                        send(&child, Signal::TERM);
                        kill_at = Some(Instant::now() + grace);
                    }
                    // The stage would die of it; and what it becomes reads the new content anyway.
                    OnChange::Signal(signal) if update.volumes && !is_stage(&child) => {
                        send(&child, signal);
                    }
                    OnChange::Signal(_) if update.volumes => {}
                    OnChange::Restart => {}
                    _ if update.start => {
                        output::note(
                            "the command would now start otherwise; what runs keeps its environment",
                        );
                    }
                    _ => {}
                }
            }
            Event::GraceIsOver => {
                send(&child, Signal::KILL);
                // It ends now; until then there is nothing to wait for but that.
                kill_at = Some(Instant::now() + grace);
            }
        }
    }
}

async fn changed(follower: &mut Option<Follower>) {
    match follower {
        Some(follower) => follower.changed().await,
        None => pending().await,
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

/// The signals that are passed on.
fn signals(tasks: &mut JoinSet<()>) -> anyhow::Result<UnboundedReceiver<Signal>> {
    let (sender, receiver) = unbounded_channel();
    // From the keyboard, the command gets these itself: it is in the same process group.
    let keyboard = std::io::stdin().is_terminal();
    for (kind, passed_on) in [
        (SignalKind::hangup(), true),
        (SignalKind::interrupt(), !keyboard),
        (SignalKind::quit(), !keyboard),
        (SignalKind::terminate(), true),
        (SignalKind::user_defined1(), true),
        (SignalKind::user_defined2(), true),
    ] {
        let mut stream = signal(kind).context("cannot receive signals")?;
        let Some(number) = Signal::from_named_raw(kind.as_raw_value()) else {
            continue;
        };
        let sender = sender.clone();
        tasks.spawn(async move {
            while stream.recv().await.is_some() {
                if passed_on {
                    // Nobody listens any more when the command is over.
                    let _ = sender.send(number);
                }
            }
        });
    }
    Ok(receiver)
}

/// Whether the command is still to come.
fn is_stage(child: &Child) -> bool {
    let file = child.id().map(|id| format!("/proc/{id}/cmdline"));
    let words = file.and_then(|file| std::fs::read(file).ok());
    words.is_some_and(|words| words.split(|&byte| byte == 0).nth(1) == Some(STAGE.as_bytes()))
}

/// Sends a signal to a command that may be over.
fn send(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    if let Some(pid) = pid {
        // It ended in this moment: its exit is the next event.
        let _ = kill_process(pid, signal);
    }
}

/// The exit code that stands for a status: its own, or 128 and the signal.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}
