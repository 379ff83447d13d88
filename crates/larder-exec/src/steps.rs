//! Runs the steps of a round on a command: signals, HTTP requests, restarts, and commands in its view.

use std::{collections::BTreeMap, fs, path::PathBuf, rc::Rc, time::Duration};

use larder_actions::{
    StepEnvironment, StepOutcome,
    exec::{CommandOutput, ExecReport, Launch, LaunchError, Launched, PATH},
    http::{Files, Hosts, RequestContext},
    run_attempt,
    signal::stop_signal,
};
use larder_console as console;
use larder_containers::processes::{FoundContainer, Processes};
use larder_objects::PodIdentity;
use larder_on_change::{Attempt, HookId, PodChange, PodOutline, Restart, StopDefaults};
use rustix::process::Signal;
use smol_str::SmolStr;
use tokio::{
    sync::{mpsc::UnboundedSender, oneshot, watch},
    time::timeout,
};

use crate::{
    sandbox::{CommandSettings, HookPlan, NOT_FOUND, StagePlan},
    session::{CommandState, Session, Started, write_plan},
};

/// A restart that a hook asks the supervisor for.
pub(crate) struct RestartRequest {
    /// The first signal.
    pub(crate) signal: Signal,
    /// Time until KILL.
    pub(crate) grace: Duration,
    /// Why, for people.
    pub(crate) reason: String,
    /// Sent when the command has been started again.
    pub(crate) done: oneshot::Sender<()>,
}

/// The input that the steps of all rounds share.
pub(crate) struct CommandContext {
    pub(crate) pod: PodIdentity,
    pub(crate) outline: PodOutline,
    /// How a restart ends the command, unless the hook says otherwise.
    pub(crate) stop: StopDefaults,
    pub(crate) restarts: UnboundedSender<RestartRequest>,
    pub(crate) processes: Processes,
    /// Where the plans of commands are.
    pub(crate) staging: PathBuf,
}

/// Where the steps of a round act: the command that runs.
struct CommandEnvironment<'a> {
    context: &'a CommandContext,
    state: watch::Receiver<CommandState>,
    started: Rc<Started>,
    container: SmolStr,
    /// The directories of volumes.
    volumes: BTreeMap<SmolStr, PathBuf>,
}

/// Runs the steps of an attempt until one fails.
pub(crate) fn run<'a>(
    attempt: Attempt<()>,
    context: &'a CommandContext,
    session: &Session<'_>,
) -> impl Future<Output = (HookId, StepOutcome)> + use<'a> {
    let state = session.state.subscribe();
    let started = state.borrow().started();
    let mut change = attempt.change(context.pod.clone());
    // Where each volume is mounted as a whole.
    let whole = started
        .start
        .mounts
        .iter()
        .filter(|mount| mount.sub_path.is_none());
    let paths = whole.map(|mount| (mount.volume.as_str().into(), (&mount.target).into()));
    change.changes.locate(&paths.collect());
    let environment = CommandEnvironment {
        context,
        state,
        started,
        container: session.target.container.as_str().into(),
        volumes: session.directories(),
    };
    async move {
        let outcome = run_attempt(&attempt, context.stop.grace, &change, &environment).await;
        (attempt.id, outcome)
    }
}

impl CommandEnvironment<'_> {
    /// Where the stage of a hook's command writes why it could not become the command.
    fn failure_of(&self, change: &PodChange) -> PathBuf {
        let name = format!("hook-{}.failure", change.round);
        self.context.staging.join(name)
    }

    /// The reason of a step that needs no action: the command has read the new content.
    fn started_since(&self) -> Result<(), StepOutcome> {
        // A step before this one may have restarted it.
        let state = self.state.borrow();
        let started = state.started();
        if started.content == state.content || started.inside.is_stage() {
            let reason = "the command started with the new content".to_owned();
            return Err(StepOutcome::Skipped(reason));
        }
        Ok(())
    }
}

impl StepEnvironment for CommandEnvironment<'_> {
    fn processes(&self) -> &Processes {
        &self.context.processes
    }

    fn target_names(&self) -> Vec<SmolStr> {
        vec![self.container.clone()]
    }

    async fn signal_targets(
        &self,
        all_processes: bool,
    ) -> Result<Vec<FoundContainer>, StepOutcome> {
        self.started_since()?;
        let inside = &self.state.borrow().started().inside;
        let found = inside
            .container(&self.container, all_processes, &self.context.processes)
            .map_err(|error| StepOutcome::Failed(format!("cannot find processes: {error}")))?;
        // Its next start has the new content.
        let ended = || StepOutcome::Skipped("the command has ended".to_owned());
        Ok(vec![found.ok_or_else(ended)?])
    }

    async fn restart(
        &self,
        restart: &Restart,
        failure: Option<&StepOutcome>,
        change: &PodChange,
        limit: Duration,
    ) -> StepOutcome {
        if let Some(failure) = failure {
            let hook = &change.hook;
            let reason = failure.reason();
            console::note(format_args!("on change, {hook}: {reason}"));
        }
        if let Err(skipped) = self.started_since() {
            return skipped;
        }
        let (done, is_done) = oneshot::channel();
        let defaults = &self.context.stop;
        let signal = match stop_signal(defaults.signal(restart, &self.container)) {
            Ok(signal) => signal,
            Err(reason) => return StepOutcome::Failed(reason),
        };
        let mut reason = change.changes.summary();
        if failure.is_some() {
            reason = format!("hook {} has failed", change.hook);
        } else if reason.is_empty() {
            reason.push_str("its mounts, command or user changed");
        }
        let request = RestartRequest {
            reason,
            signal,
            grace: restart.grace_or(defaults.grace),
            done,
        };
        let ending = || StepOutcome::Skipped("the command is being ended".to_owned());
        if self.context.restarts.send(request).is_err() {
            return ending();
        }
        match timeout(limit, is_done).await {
            Ok(Ok(())) => StepOutcome::Succeeded,
            // The user ends the command.
            Ok(Err(_)) => ending(),
            Err(_) => StepOutcome::timed_out(limit),
        }
    }

    fn request(&self) -> RequestContext<'_> {
        RequestContext {
            hosts: Hosts::ThisMachine,
            outline: &self.context.outline,
            files: Files {
                volumes: &self.volumes,
                any_authorities: true,
            },
        }
    }

    async fn ready_for_commands(&self) {
        self.started.inside.mounts.wait().await;
    }

    fn launch(&self, launch: Launch<'_>, change: &PodChange) -> Result<Launched, LaunchError> {
        let started = &self.started;
        let command = launch.command;
        let words = command.words.iter().map(|word| word.clone().into());
        let plan = StagePlan::Hook(HookPlan {
            settings: CommandSettings {
                working_dir: Some(command.working_directory.clone()),
                command: words.collect(),
                ..started.start.settings.clone()
            },
            environment: environment(started, launch.variables),
            changes: launch.changes,
            failure: self.failure_of(change),
        });
        let path = self.context.staging.join(format!("hook-{}", change.round));
        write_plan(&path, &plan).map_err(LaunchError::prepare("write the plan"))?;
        let child = started.inside.launch(&path, launch.output);
        Ok(Launched {
            child: child.map_err(LaunchError::prepare("start the command"))?,
            changes: None,
        })
    }

    fn withholds(&self) -> Option<&'static str> {
        self.state
            .borrow()
            .has_read_secrets
            .then_some("the container reads Secrets, tokens or private keys")
    }

    fn command_ended(&self, report: ExecReport, change: &PodChange) -> StepOutcome {
        let failure = self.failure_of(change);
        let code = fs::read(&failure).unwrap_or_default();
        // Without a stage, there is none.
        let _ = fs::remove_file(failure);
        if code == [NOT_FOUND] {
            return StepOutcome::Failed(LaunchError::NotFound.to_string());
        }
        let hook = &change.hook;
        match &report.output {
            CommandOutput::Shown(output) => {
                for line in output.lines() {
                    console::note(format_args!("on change, {hook}: {line}"));
                }
            }
            _ if report.outcome.is_success() => {}
            _ => {
                if let Some(output) = report.unshown() {
                    console::note(format_args!("on change, {hook}: {output}"));
                }
            }
        }
        report.outcome
    }
}

/// The variables of a command of a hook: the usual ones, those of the command, and those of the hook (rule X2).
fn environment(started: &Started, own: Vec<(String, String)>) -> Vec<(String, Vec<u8>)> {
    let usual =
        [("PATH", PATH), ("HOME", "/")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let caller = ["LANG", "TZ"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)));
    let bytes = |(name, value): (String, String)| (name, value.into_bytes());
    let mut all: BTreeMap<_, _> = usual.into_iter().chain(caller).map(bytes).collect();
    all.extend(started.start.environment.iter().cloned());
    all.extend(own.into_iter().map(bytes));
    all.into_iter().collect()
}
