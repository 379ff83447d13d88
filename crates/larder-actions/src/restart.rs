//! Ends the main process of a pod's containers, so that their runtime restarts them (rules R2 and R3).

use std::time::Duration;

use rustix::process::Signal;
use smol_str::SmolStr;
use tokio::{
    io::unix::AsyncFd,
    time::{Instant, timeout_at},
};

use crate::{
    StepInputs, StepOutcome,
    processes::{FoundContainer, Processes, SignalProcessError},
    signal::stop_signal,
    targets::TargetQuery,
};
use larder_on_change::{Restart, StopDefaults};

/// A container that started at least this long after its variables were put in place has read them. Before that, the
/// runtime may have read the old ones (rule R3).
const VARIABLES_READ: Duration = Duration::from_secs(5);

/// The result of a restart.
#[derive(Debug)]
pub struct RestartReport {
    /// Its outcome.
    pub outcome: StepOutcome,
    /// The containers whose main process has ended.
    pub ended: Vec<SmolStr>,
}

/// Ends the main process of each target container: sends the signal, and KILL after the grace period. Waits until the
/// process has ended.
///
/// # Cancel safety
///
/// A dropped run may have ended some containers, and does not kill those that it has already signaled.
pub async fn run(
    restart: &Restart,
    defaults: &StopDefaults,
    step: &StepInputs,
    query: &TargetQuery<'_>,
    processes: &Processes,
) -> RestartReport {
    let deadline = Instant::now() + step.timeout;
    let mut report = RestartReport {
        outcome: StepOutcome::Skipped("started after the change".to_owned()),
        ended: Vec::new(),
    };
    let containers = match query.find(processes, false).await {
        Ok(containers) => containers,
        Err(error) => {
            report.outcome = StepOutcome::Failed(error.to_string());
            return report;
        }
    };
    if containers.is_empty() {
        // Its next start uses the new content, but a start may already have begun with the old one.
        let names: Vec<_> = query.names().iter().map(ToString::to_string).collect();
        report.outcome =
            StepOutcome::Failed(format!("no process of container {}", names.join(", ")));
        return report;
    }
    let grace = restart.grace_or(defaults.grace);
    for container in &containers {
        if is_new(container, query) {
            continue;
        }
        let name = container.candidate_names.first();
        let signal = defaults.signal(restart, name.map_or("", SmolStr::as_str));
        let signal = match stop_signal(signal) {
            Ok(signal) => signal,
            Err(reason) => {
                report.outcome = StepOutcome::Failed(reason);
                return report;
            }
        };
        let ended = end(container, signal, grace, deadline, processes).await;
        report.outcome = match ended {
            Ok(true) => StepOutcome::Succeeded,
            Ok(false) => StepOutcome::timed_out(step.timeout),
            Err(error) => StepOutcome::Failed(error.to_string()),
        };
        if !report.outcome.is_success() {
            return report;
        }
        report
            .ended
            .extend(container.candidate_names.first().cloned());
    }
    report
}

/// Whether the container started after the change, and has read the new content.
fn is_new(container: &FoundContainer, query: &TargetQuery<'_>) -> bool {
    let reads_variables = container
        .candidate_names
        .iter()
        .any(|name| query.variables.contains(name));
    let margin = if reads_variables {
        VARIABLES_READ
    } else {
        Duration::ZERO
    };
    query
        .swapped
        .is_some_and(|swapped| container.main.started() >= swapped + margin)
}

/// Ends one container; returns whether it has ended by `deadline`.
async fn end(
    container: &FoundContainer,
    signal: Signal,
    grace: Duration,
    deadline: Instant,
    processes: &Processes,
) -> Result<bool, SignalProcessError> {
    let open = match processes.open(&container.main) {
        Ok(open) => open,
        Err(SignalProcessError::Ended { .. }) => return Ok(true),
        Err(error) => return Err(error),
    };
    match open.send(signal) {
        Ok(()) => {}
        Err(SignalProcessError::Ended { .. }) => return Ok(true),
        Err(error) => return Err(error),
    }
    let pid = container.main.pid;
    #[expect(
        deprecated,
        reason = "its successor is unsafe to call, and the process owns its descriptor"
    )]
    let ended = AsyncFd::with_interest(open, tokio::io::Interest::READABLE)
        .map_err(|source| SignalProcessError::System { pid, source })?;
    let kill_at = (Instant::now() + grace).min(deadline);
    if timeout_at(kill_at, ended.readable()).await.is_ok() {
        return Ok(true);
    }
    match ended.get_ref().send(Signal::KILL) {
        Ok(()) => Ok(timeout_at(deadline, ended.readable()).await.is_ok()),
        Err(SignalProcessError::Ended { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}
