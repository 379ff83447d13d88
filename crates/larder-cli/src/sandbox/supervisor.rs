//! Runs the command until it ends: forwards signals, reacts to changes, and exits with the command's status.

use std::{
    future::pending, io::IsTerminal as _, os::unix::process::ExitStatusExt as _,
    process::ExitStatus, time::Duration,
};

use anyhow::Context as _;
use rustix::process::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{follow::Follower, processes::Processes};
use crate::{args::OnChange, output};

/// The effect of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Update {
    /// A volume of the command has other content.
    pub(crate) volumes: bool,
    /// The command would get another environment, other mounts or another identity.
    pub(crate) start: bool,
}

/// An event that wakes the supervisor.
enum SupervisorEvent {
    Ended(ExitStatus),
    Signal(Signal),
    Changed,
    /// The command did not end in time.
    GraceIsOver,
}

/// Runs the command that `start` starts.
///
/// `update` brings its volumes up to date after each change that `follower` reports, and may add paths to follow. For a
/// restart, the command has the time `grace` to end before it is killed.
///
/// # Errors
///
/// The command cannot be started.
pub(crate) async fn supervise(
    mut start: impl FnMut() -> anyhow::Result<Processes>,
    mut update: impl FnMut(Option<&mut Follower>) -> Update,
    mut follower: Option<Follower>,
    on_change: OnChange,
    grace: Duration,
) -> anyhow::Result<ExitStatus> {
    let mut tasks = JoinSet::new();
    let mut signals = signals(&mut tasks)?;
    let mut processes = start()?;
    // Set while the command is being ended for a restart.
    let mut kill_at: Option<Instant> = None;
    loop {
        // Each arm is cancel-safe: it loses nothing when another one completes first.
        let event = tokio::select! {
            status = processes.command_ended() => {
                SupervisorEvent::Ended(status.context("cannot wait for the command")?)
            }
            Some(signal) = signals.recv() => SupervisorEvent::Signal(signal),
            () = changed(&mut follower) => SupervisorEvent::Changed,
            () = at(kill_at) => SupervisorEvent::GraceIsOver,
        };
        match event {
            SupervisorEvent::Ended(status) => {
                // Also before the next start, which may need a port or a lock that a process still holds.
                processes
                    .end()
                    .await
                    .context("cannot wait for the processes of the command")?;
                if kill_at.take().is_none() {
                    return Ok(status);
                }
                processes = start()?;
            }
            SupervisorEvent::Signal(signal) => {
                // The user ends the command: no restart.
                kill_at = kill_at.filter(|_| ![Signal::TERM, Signal::INT].contains(&signal));
                processes.send(signal);
            }
            SupervisorEvent::Changed => {
                let update = update(follower.as_mut());
                match on_change {
                    OnChange::Restart if (update.volumes || update.start) && kill_at.is_none() => {
                        processes.send(Signal::TERM);
                        kill_at = Some(Instant::now() + grace);
                    }
                    // The signal would kill the stage, whose command reads the new content anyway.
                    OnChange::Signal(signal) if update.volumes && !processes.is_stage() => {
                        processes.send(signal);
                    }
                    OnChange::Signal(_) if update.volumes => {}
                    OnChange::Restart => {}
                    _ if update.start => {
                        output::note(
                            "the next start would differ; the running command keeps its environment",
                        );
                    }
                    _ => {}
                }
            }
            SupervisorEvent::GraceIsOver => {
                processes.send(Signal::KILL);
                // The command ends now; the timer only has to stay out of the way.
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

/// The signals to forward.
fn signals(tasks: &mut JoinSet<()>) -> anyhow::Result<UnboundedReceiver<Signal>> {
    let (sender, receiver) = unbounded_channel();
    // The terminal sends these to the command as well, which is in the same process group.
    let keyboard = std::io::stdin().is_terminal();
    for (kind, forwarded) in [
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
                if forwarded {
                    // The receiver is gone when the command has ended.
                    let _ = sender.send(number);
                }
            }
        });
    }
    Ok(receiver)
}

/// The exit code for a status: its own, or 128 plus the signal.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}
