//! Sends a signal to processes of a pod's containers (rules G1 to G8).

use std::time::Duration;

use larder_containers::processes::{FoundContainer, FoundProcess, Processes};
use larder_on_change::{Signal, SignalTarget};
use smol_str::SmolStr;
use tokio::time::{Instant, sleep, timeout_at};

use crate::{StepEnvironment, StepOutcome};

/// The first and the longest pause between two checks whether a process catches the signal.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// The signals that have names, as `lifecycle.stopSignal` spells them; of two names, the usual one first.
const NAMES: [(&str, rustix::process::Signal); 34] = {
    use rustix::process::Signal;
    [
        ("SIGHUP", Signal::HUP),
        ("SIGINT", Signal::INT),
        ("SIGQUIT", Signal::QUIT),
        ("SIGILL", Signal::ILL),
        ("SIGTRAP", Signal::TRAP),
        ("SIGABRT", Signal::ABORT),
        ("SIGIOT", Signal::ABORT),
        ("SIGBUS", Signal::BUS),
        ("SIGFPE", Signal::FPE),
        ("SIGKILL", Signal::KILL),
        ("SIGUSR1", Signal::USR1),
        ("SIGSEGV", Signal::SEGV),
        ("SIGUSR2", Signal::USR2),
        ("SIGPIPE", Signal::PIPE),
        ("SIGALRM", Signal::ALARM),
        ("SIGTERM", Signal::TERM),
        ("SIGSTKFLT", Signal::STKFLT),
        ("SIGCHLD", Signal::CHILD),
        ("SIGCLD", Signal::CHILD),
        ("SIGCONT", Signal::CONT),
        ("SIGSTOP", Signal::STOP),
        ("SIGTSTP", Signal::TSTP),
        ("SIGTTIN", Signal::TTIN),
        ("SIGTTOU", Signal::TTOU),
        ("SIGURG", Signal::URG),
        ("SIGXCPU", Signal::XCPU),
        ("SIGXFSZ", Signal::XFSZ),
        ("SIGVTALRM", Signal::VTALARM),
        ("SIGPROF", Signal::PROF),
        ("SIGWINCH", Signal::WINCH),
        ("SIGIO", Signal::IO),
        ("SIGPOLL", Signal::IO),
        ("SIGPWR", Signal::POWER),
        ("SIGSYS", Signal::SYS),
    ]
};

/// The signal of this name.
fn named(name: &str) -> Option<rustix::process::Signal> {
    let mut names = NAMES.iter();
    names
        .find(|(known, _)| *known == name)
        .map(|(_, signal)| *signal)
}

/// The name of a signal, or its number if it has none.
pub(crate) fn text(number: i32) -> String {
    let mut names = NAMES.iter();
    let name = names.find(|(_, signal)| signal.as_raw() == number);
    name.map_or_else(
        || format!("signal {number}"),
        |(name, _)| (*name).to_owned(),
    )
}

/// The signal with which a container is stopped, by its name.
///
/// # Errors
///
/// It is a real-time signal (`SIGRTMIN+3`), which larder cannot send, or none. The text says what to do.
pub fn stop_signal(name: &str) -> Result<rustix::process::Signal, String> {
    named(name).ok_or_else(|| {
        format!("cannot send {name:?}, the container's stopSignal: name a signal in the hook, as in restart: {{signal: SIGTERM}}")
    })
}

/// Sends the signal to the main process of each target container, or to the processes with the executable that the
/// target names. Waits only if it has to search for them, or if one does not handle the signal yet. Otherwise the
/// first poll sends it.
///
/// # Errors
///
/// How the step ends otherwise than with success.
///
/// # Cancel safety
///
/// A dropped run may have sent the signal to some processes.
pub(crate) async fn run(
    target: &SignalTarget,
    timeout: Duration,
    environment: &impl StepEnvironment,
) -> Result<(), StepOutcome> {
    let deadline = Instant::now() + timeout;
    let processes = environment.processes();
    let containers = environment.signal_targets(target.process.is_some()).await?;
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
            send(target.signal, process, processes, deadline)
                .await
                .map_err(StepOutcome::Failed)?;
            sent += 1;
        }
    }
    match (sent, skipped) {
        (0, 0) => Err(StepOutcome::Failed(nothing(
            target,
            &environment.target_names(),
        ))),
        (0, _) => Err(StepOutcome::Skipped("started after the change".to_owned())),
        _ => Ok(()),
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
    let number = named(signal.name()).expect("every signal of a hook has a name here");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_of_a_hook_has_a_number() {
        for signal in Signal::ALL {
            assert!(named(signal.name()).is_some(), "{signal}");
        }
    }

    #[test]
    fn stop_signals_have_their_names() {
        // on-change 66
        for (name, signal) in NAMES {
            assert_eq!(stop_signal(name), Ok(signal));
        }
        assert_eq!(text(rustix::process::Signal::ABORT.as_raw()), "SIGABRT");
        assert_eq!(text(34), "signal 34");
        let error = stop_signal("SIGRTMIN+3").unwrap_err();
        assert!(error.starts_with("cannot send \"SIGRTMIN+3\""), "{error}");
    }
}
