//! Runs the steps of a round on a command: signals, HTTP requests, restarts, and commands in its view.

use std::{collections::BTreeMap, path::Path, time::Duration};

use larder_actions::{
    StepContext, StepOutcome,
    exec::{self, CHANGES, Launch, LaunchError, Launched, PATH},
    http::{self, Files, Hosts, RequestContext},
    signal::number,
};
use larder_on_change::{Action, Command, PodFacts, PodIdentity, Restart, Signal, SignalTarget};
use rustix::process::Pid;
use tokio::{
    sync::{mpsc::UnboundedSender, oneshot},
    time::{sleep, timeout},
};

use super::{
    rounds::DueRound,
    session::{Session, Started, write_plan},
};
use crate::{
    output,
    sandbox::{HookPlan, StagePlan},
};

/// Beginning of the stage's message that a command does not exist.
const NOT_FOUND: &str = "larder: cannot run ";
/// The first and the longest pause before a process is looked at again for a handler of a signal.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// A restart that a hook asks the supervisor for.
pub(super) struct RestartRequest {
    pub(super) restart: Restart,
    /// Sent when the command has been started again.
    pub(super) done: oneshot::Sender<()>,
}

/// The input that the steps of all rounds share.
pub(super) struct Surrounding<'a> {
    pub(super) pod: PodIdentity,
    pub(super) facts: PodFacts,
    /// The private tmpfs.
    pub(super) staging: &'a Path,
    /// Time from the signal of a restart to KILL, unless the hook gives another.
    pub(super) grace: Duration,
    pub(super) restarts: UnboundedSender<RestartRequest>,
}

/// Runs the steps of a round until one fails.
pub(super) async fn run(
    due: DueRound,
    around: &Surrounding<'_>,
    session: &Session<'_>,
) -> (usize, StepOutcome) {
    let mut outcome = StepOutcome::Succeeded;
    let mut changes = due.changes;
    let started = session.started();
    for volume in &mut changes.volumes {
        if let Some(path) = started.mount_paths.get(&*volume.name) {
            volume.directory = path.into();
        }
    }
    let mut context = StepContext {
        hook: due.hook.name.clone(),
        round: due.round,
        attempt: due.attempt,
        pod: around.pod.clone(),
        changes,
        redactor: due.redactor,
        timeout: Duration::ZERO,
    };
    for step in &due.hook.steps {
        context.timeout = due.hook.timing.timeout_of(step, around.grace);
        outcome = match step {
            Action::Signal(target) => signal(target, &context, session).await,
            Action::Http(call) => {
                let volumes = session.directories();
                let request = RequestContext {
                    hosts: Hosts::ThisMachine,
                    facts: &around.facts,
                    files: Files {
                        volumes: &volumes,
                        any_authorities: true,
                    },
                };
                http::run(call, &context, request).await
            }
            Action::Restart(restart) => self::restart(*restart, &context, around, session).await,
            Action::Exec(command) => execute(command, &context, around, session).await,
        };
        if !outcome.is_success() {
            break;
        }
    }
    (due.index, outcome)
}

/// The reason of a step that needs no action: the command has read the new content.
fn started_since(started: &Started, session: &Session<'_>) -> Option<StepOutcome> {
    let is_new = started.content == session.content() || started.inside.is_stage();
    is_new.then(|| StepOutcome::Skipped("the command started with the new content".to_owned()))
}

async fn signal(
    target: &SignalTarget,
    context: &StepContext,
    session: &Session<'_>,
) -> StepOutcome {
    let started = session.started();
    if let Some(skipped) = started_since(&started, session) {
        return skipped;
    }
    let number = number(target.signal);
    let inside = &started.inside;
    let Some(name) = &target.process else {
        let handles = || inside.handles(number);
        return send(target.signal, inside.pid(), context, handles, || {
            inside.send(number)
        })
        .await;
    };
    let members = match inside.named(name) {
        Ok(members) if members.is_empty() => {
            return StepOutcome::Failed(format!("no process {name:?}"));
        }
        Ok(members) => members,
        Err(error) => return StepOutcome::Failed(format!("cannot find processes: {error}")),
    };
    for member in members {
        let handles = || member.handles(number);
        let sent = send(target.signal, member.pid(), context, handles, || {
            member.send(number)
        });
        let outcome = sent.await;
        if !outcome.is_success() {
            return outcome;
        }
    }
    StepOutcome::Succeeded
}

/// Sends a signal, and waits before until the process handles one that would end it otherwise (rule G5).
async fn send(
    signal: Signal,
    pid: Pid,
    context: &StepContext,
    handles: impl Fn() -> Option<bool>,
    send: impl FnOnce() -> std::io::Result<bool>,
) -> StepOutcome {
    let ready = async {
        let mut pause = POLL_INTERVALS.0;
        while signal.kills_by_default() && handles() == Some(false) {
            sleep(pause).await;
            pause = (pause * 2).min(POLL_INTERVALS.1);
        }
    };
    let pid = pid.as_raw_nonzero();
    if timeout(context.timeout, ready).await.is_err() {
        return StepOutcome::Failed(format!("process {pid} does not handle {signal}"));
    }
    match send() {
        Ok(true) => StepOutcome::Succeeded,
        // Its next start has the new content.
        Ok(false) => StepOutcome::Skipped(format!("process {pid} has ended")),
        Err(error) => StepOutcome::Failed(format!("cannot signal process {pid}: {error}")),
    }
}

async fn restart(
    restart: Restart,
    context: &StepContext,
    around: &Surrounding<'_>,
    session: &Session<'_>,
) -> StepOutcome {
    let started = session.started();
    if started.content == session.content() {
        return StepOutcome::Skipped("the command started with the new content".to_owned());
    }
    let (done, is_done) = oneshot::channel();
    let request = RestartRequest { restart, done };
    if around.restarts.send(request).is_err() {
        return StepOutcome::Skipped("the command is being ended".to_owned());
    }
    match timeout(context.timeout, is_done).await {
        Ok(Ok(())) => StepOutcome::Succeeded,
        // The user ends the command.
        Ok(Err(_)) => StepOutcome::Skipped("the command is being ended".to_owned()),
        Err(_) => StepOutcome::timed_out(context.timeout),
    }
}

async fn execute(
    command: &Command,
    context: &StepContext,
    around: &Surrounding<'_>,
    session: &Session<'_>,
) -> StepOutcome {
    let started = session.started();
    let inside = &started.inside;
    let Ok(mounts) = timeout(context.timeout, inside.wait_for_mounts()).await else {
        return StepOutcome::timed_out(context.timeout);
    };
    let launch = |launch: Launch<'_>| {
        let prepare = |operation| move |source| LaunchError::Prepare { operation, source };
        let plan = StagePlan::Hook(HookPlan {
            working_dir: command.working_directory.clone(),
            identity: started.identity.clone(),
            privileges: started.privileges.clone(),
            command: command
                .words
                .iter()
                .map(|word| word.clone().into())
                .collect(),
            environment: environment(&started, launch.variables),
            changes_variable: CHANGES.to_owned(),
            changes: launch.changes,
        });
        let path = around.staging.join(format!("hook-{}", context.round));
        write_plan(&path, &plan).map_err(prepare("write the plan"))?;
        let child = inside.launch(&path, mounts, launch.output);
        Ok(Launched {
            child: child.map_err(prepare("start the command"))?,
            changes: None,
        })
    };
    let report = exec::run(command, context, launch).await;
    let output = report.output.as_deref().unwrap_or_default();
    if output.starts_with(NOT_FOUND) && report.outcome.reason() == "exit status 127" {
        return StepOutcome::Failed(LaunchError::NotFound.to_string());
    }
    for line in output.lines() {
        output::note(format_args!("on change, {}: {line}", context.hook));
    }
    report.outcome
}

/// The variables of a command of a hook: the usual ones, those of the command, and those of the hook (rule X2).
fn environment(started: &Started, own: Vec<(String, String)>) -> Vec<(String, Vec<u8>)> {
    let mut all = BTreeMap::from([
        ("PATH".to_owned(), PATH.into()),
        ("HOME".to_owned(), b"/".to_vec()),
    ]);
    for name in ["LANG", "TZ"] {
        if let Ok(value) = std::env::var(name) {
            all.insert(name.to_owned(), value.into_bytes());
        }
    }
    all.extend(started.environment.iter().cloned());
    all.extend(
        own.into_iter()
            .map(|(name, value)| (name, value.into_bytes())),
    );
    all.into_iter().collect()
}
