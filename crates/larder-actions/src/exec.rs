//! Runs a command (rules X1 to X7).
//!
//! ```text
//! Launch ──launcher──► Child, a process group of its own ──► status
//!   words, variables,    │ pipe: standard output and error
//!   changes              └──► tail: the last 8 KiB, shown if the hook has `logOutput` and no Secret is near
//! ```
//!
//! Invariants:
//! 1. Arguments are passed unchanged. Names reach the command in variables and in a file only (rule S3).
//! 2. While the group is signaled its first process is not reaped, so the group's ID is not reused.
//! 3. Dropping a run kills the group.

mod machine;
mod tail;
mod users;

use std::{
    future::pending,
    io,
    os::{fd::OwnedFd, unix::process::ExitStatusExt as _},
    process::ExitStatus,
    time::Duration,
};

use larder_on_change::{Command, PodChange};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tempfile::TempPath;
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::unix::pipe,
    process::Child,
    time::{Instant, timeout, timeout_at},
};

pub use self::machine::Machine;
use self::tail::Tail;
use crate::{StepEnvironment, StepOutcome, signal};

/// Time from TERM to KILL (rule X7).
const GRACE: Duration = Duration::from_secs(5);
/// Longest wait for the rest of the output when the command has ended (rule X7).
const REST: Duration = Duration::from_secs(1);
/// The path of commands that name none (rule X1).
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The variable with the path of the file of changes.
pub const CHANGES: &str = "LARDER_CHANGES";

/// The input of a launcher.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The command of the hook: words, user and directory.
    pub command: &'a Command,
    /// The hook's own variables and those that name its cause. The launcher adds `PATH`, `HOME`, `LANG`, `TZ` and
    /// [`CHANGES`] (rule X2).
    pub variables: Vec<(String, String)>,
    /// The content of the file of changes.
    pub changes: Vec<u8>,
    /// Standard output and error.
    pub output: [OwnedFd; 2],
}

/// The result of a launcher.
#[derive(Debug)]
pub struct Launched {
    /// The command, in a process group of its own, with an empty standard input.
    pub child: Child,
    /// The file of changes, removed when the command has ended; `None` if it disappears by itself.
    pub changes: Option<TempPath>,
}

/// Why a command cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No program of this name.
    #[error("no such command")]
    NotFound,
    /// The user is unknown to this machine.
    #[error("no user {user:?} on this machine")]
    UnknownUser {
        /// The name.
        user: String,
    },
    /// Only root may choose the user (rule X4).
    #[error("not permitted to become user {user:?}")]
    NotPermitted {
        /// The name.
        user: String,
    },
    /// A step before the start.
    #[error("cannot {operation}: {source}")]
    Prepare {
        /// The step.
        operation: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl LaunchError {
    /// A step before the start has failed.
    pub fn prepare(operation: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Prepare { operation, source }
    }
}

/// How a command has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecReport {
    /// Its outcome.
    pub outcome: StepOutcome,
    /// The number of bytes that it has printed.
    pub bytes: u64,
    /// Its output, as far as it may be shown.
    pub output: CommandOutput,
}

/// The output of a command, as far as it may be shown (rule X5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandOutput {
    /// There is none.
    Empty,
    /// The hook does not have it logged.
    Unlogged,
    /// The end of it. It may hold control characters.
    Shown(String),
    /// It may hold bytes of a Secret.
    Withheld {
        /// Why, as a clause: `the pod reads Secrets`.
        why: &'static str,
        /// The program that shows it by hand. Arguments are left out, since they may be credentials.
        program: String,
    },
}

impl ExecReport {
    /// In place of output that is not shown: its size, and what would show it. `None` if there is none, or it is shown.
    pub fn unshown(&self) -> Option<String> {
        let bytes = self.bytes;
        match &self.output {
            CommandOutput::Empty | CommandOutput::Shown(_) => None,
            CommandOutput::Unlogged => Some(format!(
                "{bytes} bytes of output, which logOutput would show"
            )),
            CommandOutput::Withheld { why, program } => Some(format!(
                "{bytes} bytes of output, withheld because {why}: \
                 to see them, run {program} by hand, with the arguments of the hook"
            )),
        }
    }
}

/// Runs a command, until it ends or its time is over.
///
/// # Cancel safety
///
/// Dropping it kills the processes of the command, and records nothing.
pub(crate) async fn run(
    command: &Command,
    limit: Duration,
    change: &PodChange,
    environment: &impl StepEnvironment,
) -> StepOutcome {
    let deadline = Instant::now() + limit;
    let ready = environment.ready_for_commands();
    if timeout_at(deadline, ready).await.is_err() {
        return StepOutcome::timed_out(limit);
    }
    let before = environment.withholds();
    let (running, output) = match launched(command, change, environment) {
        Ok(launched) => launched,
        Err(error) => return StepOutcome::Failed(error.to_string()),
    };
    let (outcome, tail) = running.ended(limit, deadline, output).await;
    let bytes = tail.bytes();
    let output = match before.or_else(|| environment.withholds()) {
        _ if bytes == 0 => CommandOutput::Empty,
        Some(why) => CommandOutput::Withheld {
            why,
            program: command.words.first().cloned().unwrap_or_default(),
        },
        None if command.log_output => CommandOutput::Shown(tail.text()),
        None => CommandOutput::Unlogged,
    };
    let report = ExecReport {
        outcome,
        bytes,
        output,
    };
    environment.command_ended(report, change)
}

fn launched(
    command: &Command,
    change: &PodChange,
    environment: &impl StepEnvironment,
) -> Result<(Running, pipe::Receiver), LaunchError> {
    let failed = LaunchError::prepare("make a pipe");
    let (reader, writer) = io::pipe().map_err(&failed)?;
    let both = writer.try_clone().map_err(&failed)?;
    let output = pipe::Receiver::from_owned_fd(reader.into()).map_err(failed)?;
    let launch = Launch {
        command,
        variables: variables(command, change),
        changes: change.changes.to_json(),
        output: [writer.into(), both.into()],
    };
    let launched = environment.launch(launch, change)?;
    let id = launched.child.id().map(u32::cast_signed);
    let group = id.and_then(Pid::from_raw).expect("nothing has reaped it");
    let group = Group {
        leader: group,
        is_over: false,
    };
    let running = Running {
        group,
        child: launched.child,
        _changes: launched.changes,
    };
    Ok((running, output))
}

/// The variables of the hook, and those that describe the change (rule X2).
fn variables(command: &Command, change: &PodChange) -> Vec<(String, String)> {
    let (pod, changes) = (&change.pod, &change.changes);
    let cause = [
        ("LARDER_HOOK", change.hook.clone()),
        ("LARDER_NAMESPACE", pod.namespace.to_string()),
        ("LARDER_POD", pod.name.to_string()),
        ("LARDER_POD_UID", pod.uid.to_string()),
        ("LARDER_VOLUMES", changes.volume_names()),
        ("LARDER_REASON", changes.reason().to_owned()),
        ("LARDER_ATTEMPT", change.attempt.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value));
    command.env.iter().cloned().chain(cause).collect()
}

/// The processes of a command. Dropped while they run, it kills them.
struct Group {
    leader: Pid,
    is_over: bool,
}

impl Group {
    fn signal(&self, signal: Signal) {
        // Nothing is left of a group that cannot be signaled.
        let _ = kill_process_group(self.leader, signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_over {
            self.signal(Signal::KILL);
        }
    }
}

/// A command that runs. The fields are dropped in this order: the group is killed before its first process is reaped.
struct Running {
    group: Group,
    child: Child,
    _changes: Option<TempPath>,
}

impl Running {
    /// Waits for the end, which comes soon after `deadline`, and returns the end of the output.
    async fn ended(
        mut self,
        limit: Duration,
        deadline: Instant,
        output: pipe::Receiver,
    ) -> (StepOutcome, Tail) {
        let mut tail = Tail::new(output);
        // Both arms are cancel-safe; the first never completes before the command has ended.
        let status = tokio::select! {
            status = timeout_at(deadline, self.child.wait()) => status,
            never = tail.read_on() => match never {},
        };
        let outcome = if let Ok(status) = status {
            // Processes that the command has left running keep running.
            self.group.is_over = true;
            let _ = timeout(REST, tail.read_to_end()).await;
            outcome(status)
        } else {
            self.end(&mut tail).await;
            StepOutcome::timed_out(limit)
        };
        (outcome, tail)
    }

    /// Ends the group: TERM, and KILL when its time is up or no process of it seems to be left.
    async fn end(&mut self, tail: &mut Tail) {
        self.group.signal(Signal::TERM);
        let gone = async {
            tail.read_to_end().await;
            leader_ended(self.group.leader).await;
        };
        let _ = timeout(GRACE, gone).await;
        self.group.signal(Signal::KILL);
        // Only now is the first process reaped.
        let _ = self.child.wait().await;
        self.group.is_over = true;
        let _ = timeout(REST, tail.read_to_end()).await;
    }
}

/// Waits for the end of a child without reaping it. Takes no thread, of which there are few.
async fn leader_ended(leader: Pid) {
    let pidfd = pidfd_open(leader, PidfdFlags::empty()).map_err(io::Error::from);
    #[expect(
        deprecated,
        reason = "its successor is unsafe to call, and an `OwnedFd` is what both ask for"
    )]
    let ended = pidfd.and_then(|pidfd| AsyncFd::with_interest(pidfd, Interest::READABLE));
    match ended {
        Ok(ended) => drop(ended.readable().await),
        // Without descriptors, it gets all of its time.
        Err(_) => pending().await,
    }
}

fn outcome(status: io::Result<ExitStatus>) -> StepOutcome {
    match status {
        Ok(status) if status.success() => StepOutcome::Succeeded,
        Ok(status) => StepOutcome::Failed(match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, number) => format!("killed by {}", signal::text(number.unwrap_or_default())),
        }),
        Err(error) => StepOutcome::Failed(format!("cannot wait for the command: {error}")),
    }
}

#[cfg(test)]
mod tests;
