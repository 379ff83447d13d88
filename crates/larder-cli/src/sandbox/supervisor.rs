//! Runs the command until it ends: passes signals on, reacts to changes, and ends as it ended.

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

/// What came of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Update {
    /// A volume of the command has other content.
    pub(crate) volumes: bool,
    /// The command would get another environment, other mounts or another identity.
    pub(crate) start: bool,
}

/// What can happen.
enum SupervisorEvent {
    Ended(ExitStatus),
    Signal(Signal),
    Changed,
    /// The command did not end in time.
    GraceIsOver,
}

/// Runs the command that `start` starts. `update` brings its volumes up to date; it is called after changes that `follower` tells of,
/// and may have it follow more.
/// `grace` is what the command has for ending before it is killed for a restart.
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
    // Some: the command is being ended, to be started again.
    let mut kill_at: Option<Instant> = None;
    loop {
        // Each arm is cancel safe: none loses what it has when another one comes first.
        let event = tokio::select! {
            status = processes.command_ended() => SupervisorEvent::Ended(status.context("cannot wait for the command")?),
            Some(signal) = signals.recv() => SupervisorEvent::Signal(signal),
            () = changed(&mut follower) => SupervisorEvent::Changed,
            () = at(kill_at) => SupervisorEvent::GraceIsOver,
        };
        match event {
            SupervisorEvent::Ended(status) => {
                // Also before the next start: it may want a port or a lock that something still has.
                processes
                    .end()
                    .await
                    .context("cannot wait for what the command has started")?;
                if kill_at.take().is_none() {
                    return Ok(status);
                }
                processes = start()?;
            }
            SupervisorEvent::Signal(signal) => {
                // The user wants it to end, not to start again.
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
                    // The stage would die of it; and what it becomes reads the new content anyway.
                    OnChange::Signal(signal) if update.volumes && !processes.is_stage() => {
                        processes.send(signal);
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
            SupervisorEvent::GraceIsOver => {
                processes.send(Signal::KILL);
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

/// The exit code that stands for a status: its own, or 128 and the signal.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}
