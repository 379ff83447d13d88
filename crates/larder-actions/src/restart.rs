//! Ends the main process of a pod's containers, so that their runtime restarts them (rules R2 and R3).

use std::time::Duration;

use rustix::process::Signal;
use smol_str::SmolStr;
use tokio::{
    io::unix::AsyncFd,
    time::{Instant, timeout_at},
};

use larder_containers::{
    processes::{FoundContainer, Processes, SignalProcessError},
    targets::TargetQuery,
};
use larder_on_change::{Restart, StopDefaults};

use crate::{StepOutcome, signal::stop_signal};

/// A container that started at least this long after its variables were put in place has read them. Before that, the
/// runtime may have read the old ones (rule R3).
const VARIABLES_READ: Duration = Duration::from_secs(5);

/// Ends the main process of each target container: sends the signal, and KILL after the grace period. Waits until the
/// process has ended, and adds the container to `ended`.
///
/// # Errors
///
/// Why a container was not found, or not ended.
///
/// # Cancel safety
///
/// A dropped run may have ended some containers, and does not kill those that it has already signaled.
pub async fn run(
    restart: &Restart,
    defaults: &StopDefaults,
    limit: Duration,
    query: &TargetQuery,
    processes: &Processes,
    ended: &mut Vec<SmolStr>,
) -> Result<StepOutcome, String> {
    let deadline = Instant::now() + limit;
    let containers = query
        .find(processes, false)
        .await
        .map_err(|error| error.to_string())?;
    if containers.is_empty() {
        // Its next start uses the new content, but a start may already have begun with the old one.
        let names = query.names().join(", ");
        return Err(format!("no process of container {names}"));
    }
    let grace = restart.grace_or(defaults.grace);
    let mut outcome = StepOutcome::Skipped("started after the change".to_owned());
    for container in containers.iter().filter(|found| !is_new(found, query)) {
        let name = container.candidate_names.first();
        let signal = defaults.signal(restart, name.map_or("", SmolStr::as_str));
        let signal = stop_signal(signal)?;
        match end(container, signal, grace, deadline, processes).await {
            Ok(true) | Err(SignalProcessError::Ended { .. }) => ended.extend(name.cloned()),
            Ok(false) => return Ok(StepOutcome::timed_out(limit)),
            Err(error) => return Err(error.to_string()),
        }
        outcome = StepOutcome::Succeeded;
    }
    Ok(outcome)
}

/// Whether the container started after the change, and has read the new content.
fn is_new(container: &FoundContainer, query: &TargetQuery) -> bool {
    let mut names = container.candidate_names.iter();
    let reads_variables = names.any(|name| query.variables.contains(name));
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
    let open = processes.open(&container.main)?;
    open.send(signal)?;
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
    ended.get_ref().send(Signal::KILL)?;
    Ok(timeout_at(deadline, ended.readable()).await.is_ok())
}
