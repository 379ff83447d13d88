//! Internal to larder, no stability. Actions: the steps of a hook, and their results.
//!
//! `larder-on-change` decides when a round begins. Its owner then calls [`run_attempt`] with the attempt, the
//! [`PodChange`] that its steps share, and a [`StepEnvironment`] on which they act: a pod of a node, the command of
//! `larder exec`, or the pod of a sidecar.
//!
//! | action | where |
//! | --- | --- |
//! | `exec` | [`exec`], with a launcher: on this machine ([`exec::Machine`]), or anywhere else that can start a process |
//! | `http` | [`http`] |
//! | `signal` | [`signal`], for the processes that the environment names |
//! | `restart` | the environment; [`restart`] for containers that another program runs |
//! | the metrics of rounds | [`metrics`] |
//! | the search for processes | the crate `larder-containers` |
//!
//! Invariants:
//! 1. A step ends at its timeout, with everything that it has started (rule T7).
//! 2. No reason contains a value of an object, a credential, or the user or query of a URL (rules S6, S7). Output of a
//!    command leaves this crate only if the hook sets `logOutput`, and the command can read no Secret.

pub mod exec;
pub mod http;
pub mod metrics;
pub mod restart;
pub mod signal;

use std::time::Duration;

use larder_containers::processes::{FoundContainer, Processes};
use larder_on_change::{Action, Attempt, PodChange, Restart};
use smol_str::SmolStr;
use tokio::time::Instant;

use self::{
    exec::{ExecReport, Launch, LaunchError, Launched},
    http::RequestContext,
};

/// Where steps act.
#[expect(
    async_fn_in_trait,
    reason = "the steps of a command stay on its thread; those of a pod may move, since its environment may"
)]
pub trait StepEnvironment {
    /// The processes of this machine.
    fn processes(&self) -> &Processes;

    /// The names of the containers that signals go to.
    fn target_names(&self) -> Vec<SmolStr>;

    /// The running containers that signals go to. With `all_processes`, each has all of its processes, not only the main
    /// one.
    ///
    /// # Errors
    ///
    /// How the step ends without a signal.
    async fn signal_targets(&self, all_processes: bool)
    -> Result<Vec<FoundContainer>, StepOutcome>;

    /// When the changes were put in place, as time since boot: a process that has started since has read them. `None` if
    /// that is unknown.
    fn swapped(&self) -> Option<Duration> {
        None
    }

    /// A step is about to begin.
    async fn step_begins(&self, _action: &Action) {}

    /// Restarts the target containers within this time. `failure` is that of the last attempt, which it follows.
    async fn restart(
        &self,
        _: &Restart,
        _failure: Option<&StepOutcome>,
        _: &PodChange,
        _timeout: Duration,
    ) -> StepOutcome {
        StepOutcome::Failed("containers cannot be restarted from here".to_owned())
    }

    /// Where requests go, and the files that they may need.
    fn request(&self) -> RequestContext<'_>;

    /// Waits until commands can be started. Cancel-safe.
    async fn ready_for_commands(&self) {}

    /// Starts a command.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    fn launch(&self, launch: Launch<'_>, change: &PodChange) -> Result<Launched, LaunchError>;

    /// Why the output of commands is withheld, as a clause; `None` if they can read no Secret. Asked before and after a
    /// command.
    fn withholds(&self) -> Option<&'static str>;

    /// A command has ended; returns the outcome of its step.
    fn command_ended(&self, report: ExecReport, change: &PodChange) -> StepOutcome;

    /// A step has ended.
    fn step_ended(&self, _action: &Action, _outcome: &StepOutcome, _took: Duration) {}
}

/// Runs the steps of an attempt in order, until one fails (rule T6). After the last failure, the restart follows that
/// `onFailure: Restart` asks for. `grace` is the grace period of the pod.
pub async fn run_attempt<P>(
    attempt: &Attempt<P>,
    grace: Duration,
    change: &PodChange,
    environment: &impl StepEnvironment,
) -> StepOutcome {
    let hook = &attempt.hook().hook;
    let run = async |action: &Action, failure: Option<&StepOutcome>| {
        let timeout = hook.timing.timeout_of(action, grace);
        run_step(action, failure, timeout, change, environment).await
    };
    let mut outcome = StepOutcome::Succeeded;
    for action in &hook.steps {
        outcome = run(action, None).await;
        if !outcome.is_success() {
            break;
        }
    }
    if outcome.is_success() {
        return StepOutcome::Succeeded;
    }
    if attempt.control.restarts_after_failure() {
        let restart = Action::Restart(Restart::default());
        let restarted = run(&restart, Some(&outcome)).await;
        if restarted.is_success() {
            return StepOutcome::Succeeded;
        }
    }
    outcome
}

/// Runs one step, which takes this time at most. `failure` is that of the last attempt, if a restart follows it.
pub async fn run_step(
    action: &Action,
    failure: Option<&StepOutcome>,
    timeout: Duration,
    change: &PodChange,
    environment: &impl StepEnvironment,
) -> StepOutcome {
    environment.step_begins(action).await;
    let began = Instant::now();
    let outcome = match action {
        Action::Signal(target) => {
            let sent = signal::run(target, timeout, environment).await;
            sent.err().unwrap_or(StepOutcome::Succeeded)
        }
        Action::Restart(restart) => environment.restart(restart, failure, change, timeout).await,
        Action::Http(call) => {
            let sent = http::send(call, timeout, change, environment.request());
            sent.await.0
        }
        Action::Exec(command) => exec::run(command, timeout, change, environment).await,
    };
    environment.step_ended(action, &outcome, began.elapsed());
    outcome
}

/// The outcome of a step, with the reason as text unless it succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// It succeeded.
    Succeeded,
    /// The application has the new content already.
    Skipped(String),
    /// It failed; a retry may succeed.
    Failed(String),
    /// It did not end in time.
    TimedOut(String),
}

impl StepOutcome {
    /// The name in metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Skipped(_) => "skipped",
            Self::Failed(_) => "failed",
            Self::TimedOut(_) => "timed_out",
        }
    }

    /// Whether the next step may begin.
    pub const fn is_success(&self) -> bool {
        matches!(self, Self::Succeeded | Self::Skipped(_))
    }

    /// The reason of a failure.
    pub fn failure(&self) -> Option<&str> {
        (!self.is_success()).then(|| self.reason())
    }

    /// The reason, empty after a success.
    pub fn reason(&self) -> &str {
        match self {
            Self::Succeeded => "",
            Self::Skipped(reason) | Self::Failed(reason) | Self::TimedOut(reason) => reason,
        }
    }

    /// The outcome of a step that did not end within `timeout`.
    pub fn timed_out(timeout: Duration) -> Self {
        Self::TimedOut(format!("timed out after {timeout:?}"))
    }
}
