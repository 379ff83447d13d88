//! One attempt to notify an application of a change: runs the steps of a hook in order, until one fails (rule T6).

mod environment;
mod targets;

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use larder_actions::{StepOutcome, run_steps};
use larder_objects::PodIdentity;
use larder_on_change::{
    Action, Attempt, AttemptEnd, HookId, Place, PodChange, PodHook, Restart, parse::ConfiguredHook,
};
use larder_transport::blocking::blocking;
use smol_str::SmolStr;
use tokio::time::Instant;
use tracing::warn;

use self::environment::PodEnvironment;
use super::{OnChange, hooked_pod::HookedPod};

/// A callback of the program that embeds the agent.
pub type Handler = Arc<dyn Fn(PodChange) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// A hook of the program that embeds the agent.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a handler is a function")]
pub struct ProgramHook {
    /// What it selects, and how it is run.
    pub selected: ConfiguredHook,
    /// What it calls.
    pub handler: Handler,
}

/// Runs one attempt of a round.
pub(super) struct AttemptRun {
    attempt: Attempt<HookedPod>,
    on_change: OnChange,
}

/// The result of an attempt.
#[derive(Debug)]
pub(super) struct AttemptReport {
    pub(super) id: HookId,
    pub(super) uid: SmolStr,
    pub(super) end: AttemptEnd,
    /// The containers whose main process was ended.
    pub(super) restarted: Vec<SmolStr>,
    /// The change, as text.
    pub(super) summary: String,
    pub(super) took: Duration,
}

impl AttemptRun {
    pub(super) fn new(attempt: Attempt<HookedPod>, on_change: OnChange) -> Self {
        Self { attempt, on_change }
    }

    /// Runs the steps.
    pub(super) async fn run(self) -> AttemptReport {
        let began = Instant::now();
        let mut restarted = Vec::new();
        let mut summary = String::new();
        let end = tokio::select! {
            biased;
            () = self.attempt.control.cancelled() => AttemptEnd::Interrupted,
            end = self.steps(&mut restarted, &mut summary) => end,
        };
        AttemptReport {
            id: self.attempt.id,
            uid: self.attempt.uid,
            end,
            restarted,
            summary,
            took: began.elapsed(),
        }
    }

    /// Stores that the outcome of the attempt is uncertain: a crash during it must not be taken for a success of the
    /// previous content (rule P4).
    pub(super) async fn record(&self) {
        let (on_change, uid) = (self.on_change.clone(), self.attempt.uid.clone());
        blocking(move || on_change.write_record(&uid)).await;
    }

    fn hook(&self) -> &PodHook {
        self.attempt.hook()
    }

    async fn steps(&self, restarted: &mut Vec<SmolStr>, summary: &mut String) -> AttemptEnd {
        self.record().await;
        let (id, hook, on_change) = (self.attempt.id, &self.hook().hook, &self.on_change);
        let (environment, changes) = PodEnvironment::of(&self.attempt, on_change);
        *summary = changes.summary();
        if hook.restarts() || on_change.restarts_after_failure(id) {
            let names = environment.query().names();
            if let Some((until, reason)) = on_change.restart_limit(&self.attempt.uid, &names) {
                return AttemptEnd::Deferred(until, reason);
            }
        }
        if self.attempt.number == 1
            && let Some(changed_at) = self.attempt.changed_at
        {
            on_change.metrics().delayed(changed_at.elapsed());
        }
        let change = PodChange {
            hook: hook.name.clone(),
            round: self.attempt.round,
            attempt: self.attempt.number,
            pod: PodIdentity::from(&self.attempt.pod.pod.metadata),
            changes,
        };
        if let Place::Program(index) = self.hook().place {
            return self.call(on_change.handler(index), change).await;
        }
        let grace = environment.targets.stop.grace;
        let mut outcome = run_steps(&hook.steps, hook, grace, &change, &environment).await;
        if !outcome.is_success() && on_change.restarts_after_failure(id) {
            let pod = &change.pod;
            warn!(
                pod = %format_args!("{}/{}", pod.namespace, pod.name),
                hook = hook.name,
                error = outcome.reason(),
                "all attempts failed, restarting the container"
            );
            let restart = [Action::Restart(Restart::default())];
            let restarted = run_steps(&restart, hook, grace, &change, &environment).await;
            if restarted.is_success() {
                outcome = restarted;
            }
        }
        let (ended, output) = environment.into_results();
        restarted.extend(ended);
        end(&outcome, output)
    }

    async fn call(&self, handler: &Handler, change: PodChange) -> AttemptEnd {
        let timeout = self.hook().hook.timing.timeout;
        let began = Instant::now();
        let called = handler(change);
        let outcome = match timeout {
            None => Some(called.await),
            Some(timeout) => tokio::time::timeout(timeout, called).await.ok(),
        };
        let outcome = match outcome {
            Some(Ok(())) => StepOutcome::Succeeded,
            Some(Err(reason)) => StepOutcome::Failed(reason),
            None => StepOutcome::timed_out(timeout.unwrap_or_default()),
        };
        let metrics = self.on_change.metrics();
        metrics.ran("program", outcome.name(), began.elapsed());
        end(&outcome, String::new())
    }
}

fn end(outcome: &StepOutcome, output: String) -> AttemptEnd {
    outcome.failure().map_or(AttemptEnd::Succeeded, |reason| {
        let reason = reason.to_owned();
        AttemptEnd::Failed { reason, output }
    })
}
