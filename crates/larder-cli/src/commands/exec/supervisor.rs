//! Runs the command until it ends: forwards signals, follows changes, runs hooks, and returns the command's status.
//!
//! Invariants:
//! 1. Volumes and subPath mounts are in place before a hook looks at them (rule F1).
//! 2. A hook never delays the delivery of a change: rounds run concurrently.

use std::{future::pending, pin::pin, process::ExitStatus, rc::Rc};

use anyhow::Context as _;
use futures::{
    StreamExt as _,
    future::{FutureExt as _, LocalBoxFuture},
    stream::FuturesUnordered,
};
use larder_actions::{StepOutcome, signal::stop_signal};
use larder_on_change::Restart;
use rustix::process::Signal;
use tokio::{
    sync::{mpsc::UnboundedReceiver, oneshot},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    rounds::Rounds,
    session::Session,
    steps::{self, CommandContext, RestartRequest},
};
use crate::{
    output,
    sandbox::{Follower, Processes, ProcessesEvent, forwarded},
};

/// An event that wakes the supervisor.
enum SupervisorEvent {
    Ended(ExitStatus),
    Signal(Signal),
    Changed,
    /// The command did not end in time.
    GraceIsOver,
    /// The stage has made all mounts.
    Mounted,
    /// A round may be due.
    RoundDue,
    RoundOver(usize, StepOutcome),
    Restart(RestartRequest),
}

/// The command is being ended, and will be started again.
struct Restarting {
    kill_at: Instant,
    waiting: Vec<oneshot::Sender<()>>,
}

/// Runs the command of `session`.
///
/// # Errors
///
/// The command cannot be started.
pub(super) async fn supervise(
    session: &Session<'_>,
    around: &CommandContext<'_>,
    mut restarts: UnboundedReceiver<RestartRequest>,
    mut rounds: Rounds,
    mut follower: Option<Follower>,
) -> anyhow::Result<ExitStatus> {
    let mut tasks = JoinSet::new();
    let mut signals = forwarded(&mut tasks)?;
    let mut processes = session.start()?;
    let mut restarting: Option<Restarting> = None;
    let mut running: FuturesUnordered<LocalBoxFuture<'_, (usize, StepOutcome)>> =
        FuturesUnordered::new();
    // A change came before the stage had made its mounts.
    let mut is_waiting_for_mounts = false;
    loop {
        for due in rounds.begin(Instant::now()) {
            running.push(steps::run(due, around, session).boxed_local());
        }
        // Each arm is cancel-safe: it loses nothing when another one completes first.
        let event = tokio::select! {
            event = processes.next() => match event.context("cannot wait for the command")? {
                ProcessesEvent::Ended(status) => SupervisorEvent::Ended(status),
                ProcessesEvent::Mounted => SupervisorEvent::Mounted,
            },
            Some(signal) = signals.recv() => SupervisorEvent::Signal(signal),
            () = changed(&mut follower) => SupervisorEvent::Changed,
            () = at(restarting.as_ref().map(|restarting| restarting.kill_at)) => SupervisorEvent::GraceIsOver,
            () = at(rounds.wakes_at()) => SupervisorEvent::RoundDue,
            Some((hook, outcome)) = running.next() => SupervisorEvent::RoundOver(hook, outcome),
            Some(request) = restarts.recv() => SupervisorEvent::Restart(request),
        };
        match event {
            SupervisorEvent::Ended(status) => {
                // Also before the next start, which may need a port or a lock that a process still holds.
                let over = end(processes, &mut running).await?;
                let Some(restarting) = restarting.take() else {
                    return Ok(status);
                };
                for (hook, outcome) in over {
                    rounds.finished(hook, &outcome, Instant::now());
                }
                processes = session.start()?;
                if std::mem::take(&mut is_waiting_for_mounts) {
                    // The new start has it.
                    session.observe(&mut rounds);
                }
                for waiting in restarting.waiting {
                    // The round may have timed out.
                    let _ = waiting.send(());
                }
            }
            SupervisorEvent::Signal(signal) => {
                if [Signal::TERM, Signal::INT].contains(&signal) {
                    // The user ends the command: no restart.
                    restarting = None;
                }
                send(&processes, signal);
            }
            SupervisorEvent::Changed => {
                let update = session.update(follower.as_mut());
                if update.start && !rounds.restart_for_environment() {
                    output::note(
                        "the next start would differ; the running command keeps its environment",
                    );
                }
                if !rounds.is_empty() {
                    session.note_stale_subpaths(&update.volumes);
                }
                if processes.inside().mounts().is_some() {
                    session.update_subpaths();
                    session.observe(&mut rounds);
                } else {
                    is_waiting_for_mounts = true;
                }
            }
            SupervisorEvent::Mounted => {
                if std::mem::take(&mut is_waiting_for_mounts) {
                    session.update_subpaths();
                    session.observe(&mut rounds);
                }
            }
            SupervisorEvent::GraceIsOver => {
                send(&processes, Signal::KILL);
                // The command ends now; the timer only has to stay out of the way.
                if let Some(restarting) = &mut restarting {
                    restarting.kill_at = Instant::now() + around.stop.grace;
                }
            }
            SupervisorEvent::RoundDue => {}
            SupervisorEvent::RoundOver(hook, outcome) => {
                if rounds.finished(hook, &outcome, Instant::now()) {
                    let (done, _) = oneshot::channel();
                    let signal = around
                        .stop
                        .signal(&Restart::default(), &session.container())
                        .to_owned();
                    let request = RestartRequest {
                        signal: stop_signal(&signal).unwrap_or(Signal::TERM),
                        grace: around.stop.grace,
                        done,
                    };
                    begin_restart(&mut restarting, &processes, request);
                }
            }
            SupervisorEvent::Restart(request) => {
                begin_restart(&mut restarting, &processes, request);
            }
        }
    }
}

/// Ends the remaining processes of a command that has ended. Returns the rounds that are over with it.
async fn end(
    processes: Processes,
    running: &mut FuturesUnordered<LocalBoxFuture<'_, (usize, StepOutcome)>>,
) -> anyhow::Result<Vec<(usize, StepOutcome)>> {
    let mut over = Vec::new();
    let mut end = pin!(processes.end());
    loop {
        // The namespace ends when its last process is reaped, and commands of hooks are reaped by their rounds.
        tokio::select! {
            biased;
            Some(round) = running.next() => over.push(round),
            ended = &mut end => {
                ended.context("cannot wait for the processes of the command")?;
                return Ok(over);
            }
        }
    }
}

/// Ends the command, unless it is being ended already.
fn begin_restart(
    restarting: &mut Option<Restarting>,
    processes: &Processes,
    request: RestartRequest,
) {
    let RestartRequest {
        signal,
        grace,
        done,
    } = request;
    if let Some(restarting) = restarting {
        restarting.waiting.push(done);
        return;
    }
    send(processes, signal);
    *restarting = Some(Restarting {
        kill_at: Instant::now() + grace,
        waiting: vec![done],
    });
}

fn send(processes: &Processes, signal: Signal) {
    // If the command has just ended, its exit is the next event.
    let _ = Rc::clone(processes.inside()).send(signal);
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
