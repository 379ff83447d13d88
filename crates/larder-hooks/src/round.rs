//! One attempt to notify an application of a change: runs the steps of a hook in order, until one fails (rule T6).

mod environment;
mod targets;

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use larder_actions::{StepOutcome, run_attempt};
use larder_on_change::{Attempt, AttemptEnd, HookId, Place, PodChange, parse::ConfiguredHook};
use larder_transport::blocking::blocking;
use smol_str::SmolStr;
use tokio::time::{Instant, timeout};

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

/// Runs the steps of an attempt.
pub(super) async fn run(attempt: Attempt<HookedPod>, on_change: OnChange) -> AttemptReport {
    let began = Instant::now();
    let mut restarted = Vec::new();
    let mut summary = String::new();
    let end = tokio::select! {
        biased;
        () = attempt.control.cancelled() => AttemptEnd::Interrupted,
        end = steps(&attempt, &on_change, &mut restarted, &mut summary) => end,
    };
    AttemptReport {
        id: attempt.id,
        uid: attempt.uid,
        end,
        restarted,
        summary,
        took: began.elapsed(),
    }
}

/// Stores that the outcome of an attempt of the pod is uncertain: a crash during it must not be taken for a success of
/// the previous content (rule P4).
pub(super) async fn record(on_change: &OnChange, uid: &SmolStr) {
    let (on_change, uid) = (on_change.clone(), uid.clone());
    blocking(move || on_change.write_record(&uid)).await;
}

async fn steps(
    attempt: &Attempt<HookedPod>,
    on_change: &OnChange,
    restarted: &mut Vec<SmolStr>,
    summary: &mut String,
) -> AttemptEnd {
    record(on_change, &attempt.uid).await;
    let hook = &attempt.hook().hook;
    let (environment, change) = PodEnvironment::of(attempt, on_change);
    *summary = change.changes.summary();
    if hook.restarts() || attempt.control.restarts_after_failure() {
        let names = environment.targets.query.names();
        let now = on_change.now();
        let limit = on_change
            .schedule()
            .restart_limit(&attempt.uid, &names, now);
        if let Some((until, reason)) = limit {
            return AttemptEnd::Deferred(until, reason);
        }
    }
    if attempt.number == 1
        && let Some(changed_at) = attempt.changed_at
    {
        on_change.metrics().delayed(changed_at.elapsed());
    }
    if let Place::Program(index) = attempt.hook().place {
        let called = on_change.handler(index)(change);
        return call(called, hook.timing.timeout, on_change).await;
    }
    let grace = environment.targets.stop.grace;
    let outcome = run_attempt(attempt, grace, &change, &environment).await;
    let (ended, output) = environment.into_results();
    restarted.extend(ended);
    AttemptEnd::of(outcome.failure(), output)
}

/// Waits for a callback of the program that embeds the agent.
async fn call(
    called: impl Future<Output = Result<(), String>>,
    limit: Option<Duration>,
    on_change: &OnChange,
) -> AttemptEnd {
    let began = Instant::now();
    let outcome = match limit {
        None => Ok(called.await),
        Some(limit) => timeout(limit, called).await.map_err(|_| limit),
    };
    let outcome = match outcome {
        Ok(Ok(())) => StepOutcome::Succeeded,
        Ok(Err(reason)) => StepOutcome::Failed(reason),
        Err(limit) => StepOutcome::timed_out(limit),
    };
    on_change
        .metrics()
        .ran("program", outcome.name(), began.elapsed());
    AttemptEnd::of(outcome.failure(), String::new())
}
