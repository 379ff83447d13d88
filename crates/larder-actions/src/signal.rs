//! Sends a signal to processes of a pod's containers (rules G1 to G8).

use std::time::Duration;

use larder_on_change::{Signal, SignalTarget};
use smol_str::SmolStr;
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    StepEnvironment, StepInputs, StepOutcome,
    processes::{FoundContainer, FoundProcess, Processes},
};

/// The first and the longest pause between two checks whether a process catches the signal.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// The number that the system gives the signal.
pub const fn number(signal: Signal) -> rustix::process::Signal {
    match signal {
        Signal::Hup => rustix::process::Signal::HUP,
        Signal::Int => rustix::process::Signal::INT,
        Signal::Quit => rustix::process::Signal::QUIT,
        Signal::Term => rustix::process::Signal::TERM,
        Signal::Usr1 => rustix::process::Signal::USR1,
        Signal::Usr2 => rustix::process::Signal::USR2,
        Signal::Winch => rustix::process::Signal::WINCH,
        Signal::Cont => rustix::process::Signal::CONT,
    }
}

/// Sends the signal to the main process of each target container, or to the processes with the executable that the
/// target names. Waits only if it has to search for them, or if one does not handle the signal yet. Otherwise the
/// first poll sends it.
///
/// # Cancel safety
///
/// A dropped run may have sent the signal to some processes.
pub(crate) async fn run(
    target: &SignalTarget,
    inputs: &StepInputs,
    environment: &impl StepEnvironment,
) -> StepOutcome {
    let deadline = Instant::now() + inputs.timeout;
    let processes = environment.processes();
    let containers = match environment.signal_targets(target.process.is_some()).await {
        Ok(containers) => containers,
        Err(outcome) => return outcome,
    };
    let mut sent = 0;
    let mut skipped = 0;
    for container in &containers {
        for process in chosen(target, container, processes) {
            // It has read the new content already (rule G6).
            if environment
                .swapped()
                .is_some_and(|swapped| process.started() >= swapped)
            {
                skipped += 1;
                continue;
            }
            match send(target.signal, process, processes, deadline).await {
                Ok(()) => sent += 1,
                Err(reason) => return StepOutcome::Failed(reason),
            }
        }
    }
    match (sent, skipped) {
        (0, 0) => StepOutcome::Failed(nothing(target, &environment.target_names())),
        (0, _) => StepOutcome::Skipped("started after the change".to_owned()),
        _ => StepOutcome::Succeeded,
    }
}

/// The target processes of a container.
fn chosen<'a>(
    target: &SignalTarget,
    container: &'a FoundContainer,
    processes: &Processes,
) -> Vec<&'a FoundProcess> {
    match &target.process {
        None => vec![&container.main],
        Some(name) => {
            let all = container.processes.iter();
            let named =
                |process: &&FoundProcess| processes.executable(process).as_deref() == Some(name);
            all.filter(named).collect()
        }
    }
}

fn nothing(target: &SignalTarget, names: &[SmolStr]) -> String {
    let containers = match names {
        [] => "a container".to_owned(),
        [name] => format!("container {name}"),
        names => format!("containers {}", names.join(", ")),
    };
    match &target.process {
        None => format!("no process of {containers}"),
        Some(name) => format!("no process {name:?} in {containers}"),
    }
}

/// Sends the signal to one process, when it catches or blocks it, if the signal would otherwise kill it (rule G5).
async fn send(
    signal: Signal,
    process: &FoundProcess,
    processes: &Processes,
    deadline: Instant,
) -> Result<(), String> {
    let number = self::number(signal);
    let mut pause = POLL_INTERVALS.0;
    loop {
        let open = processes.open(process).map_err(|error| error.to_string())?;
        if !signal.kills_by_default() || open.handles(number) {
            return open.send(number).map_err(|error| error.to_string());
        }
        drop(open);
        if timeout_at(deadline, sleep(pause)).await.is_err() {
            return Err(format!("process {} does not handle {signal}", process.pid));
        }
        pause = (pause * 2).min(POLL_INTERVALS.1);
    }
}
