//! The processes of one start of the command: a PID namespace, which ends as a whole.
//!
//! ```text
//! larder exec ──┬──► larder exec-anchor   process 1; reads a pipe that only the supervisor can write to, and ends with it
//!               └──► larder exec-stage    becomes CMD; whatever it starts, and however that detaches, stays in the namespace
//! ```
//!
//! Invariants:
//! 1. When the anchor ends, the kernel kills everything in the namespace, and the anchor is gone only after the last of it.
//! 2. The anchor ends when the supervisor does, however that ends: the kernel closes the pipe.
//! 3. The command is not process 1, which would have signals ignored that it does not handle.

use std::{
    io,
    os::fd::AsFd as _,
    path::Path,
    process::{ExitCode, ExitStatus, Stdio},
};

use anyhow::Context as _;
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, kill_process, wait},
    thread::UnshareFlags,
};
use tokio::{
    net::unix::pipe,
    process::{Child, Command},
    runtime::Handle,
    signal::unix::{SignalKind, signal},
};

use super::namespace::unshare;
use crate::{
    args::{ANCHOR, STAGE},
    outcome::Failure,
};

/// A command that runs, with everything that it has started.
#[derive(Debug)]
pub(crate) struct Processes {
    command: Child,
    anchor: Child,
}

impl Processes {
    /// Starts the stage with the plan in the file `plan`.
    ///
    /// # Errors
    ///
    /// There can be no PID namespace, or no process.
    pub(crate) fn start(plan: &Path) -> anyhow::Result<Self> {
        // A thread says once only where its children are born, and this process starts the command any number of times.
        let runtime = Handle::current();
        let started = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _entered = runtime.enter();
                Self::start_here(plan)
            });
            thread.join()
        });
        started.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// The same, once for each thread.
    fn start_here(plan: &Path) -> anyhow::Result<Self> {
        unshare(UnshareFlags::NEWPID).context("cannot make a PID namespace")?;
        // The first process of the namespace is its process 1.
        let anchor = this_program(ANCHOR)
            .stdin(Stdio::piped())
            // What the command prints has to end with the command.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start a process")?;
        let command = this_program(STAGE)
            .arg(plan)
            .spawn()
            .context("cannot start the command")?;
        Ok(Self { command, anchor })
    }

    /// Waits for the end of the command, which is not the end of what it has started. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The command cannot be waited for.
    pub(crate) async fn command_ended(&mut self) -> io::Result<ExitStatus> {
        self.command.wait().await
    }

    /// Ends what the command has left running, and returns when nothing is left. To be called after the end of the command.
    ///
    /// # Errors
    ///
    /// The processes cannot be waited for.
    pub(crate) async fn end(mut self) -> io::Result<()> {
        drop(self.anchor.stdin.take());
        self.anchor.wait().await.map(drop)
    }

    /// Sends a signal to the command, which may have ended.
    pub(crate) fn send(&self, signal: Signal) {
        let pid = self.command.id();
        if let Some(pid) = pid.and_then(|id| Pid::from_raw(id.cast_signed())) {
            // It ended in this moment: its exit is the next event.
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether the command is still to come.
    pub(crate) fn is_stage(&self) -> bool {
        let file = self.command.id().map(|id| format!("/proc/{id}/cmdline"));
        let words = file.and_then(|file| std::fs::read(file).ok());
        words.is_some_and(|words| words.split(|&byte| byte == 0).nth(1) == Some(STAGE.as_bytes()))
    }
}

fn this_program(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(subcommand).env_clear();
    command
}

/// `larder exec-anchor`: collects the processes that nobody waits for, until standard input ends.
pub(crate) fn run_anchor() -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let stdin = io::stdin().as_fd().try_clone_to_owned();
        let supervisor = stdin
            .and_then(pipe::Receiver::from_owned_fd)
            .context("standard input is not a pipe")?;
        let mut children = signal(SignalKind::child()).context("cannot receive signals")?;
        loop {
            // Both arms are cancel-safe.
            tokio::select! {
                // Nothing is ever written to it.
                ended = supervisor.readable() => return Ok(ended.map(|()| ExitCode::SUCCESS)?),
                _ = children.recv() => collect()?,
            }
        }
    })
}

/// Collects the children that have ended.
fn collect() -> io::Result<()> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) | Err(Errno::CHILD) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}
