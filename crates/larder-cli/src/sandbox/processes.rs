//! The processes of one start of the command, in a PID namespace that ends as a whole.
//!
//! ```text
//! larder exec ──┬──► larder exec-anchor   process 1; reads a pipe that only the supervisor can write to, and ends with it
//!               └──► larder exec-stage    becomes CMD; all processes that it starts stay in the namespace
//! ```
//!
//! Invariants:
//! 1. When the anchor ends, the kernel kills every process in the namespace; the anchor is reaped after the last of
//!    them.
//! 2. The anchor ends when the supervisor ends for any reason, because the kernel closes the pipe.
//! 3. The command is not process 1, for which the kernel ignores signals without a handler.

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

/// A running command, and all processes that it has started.
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
    /// The PID namespace or a process cannot be created.
    pub(crate) fn start(plan: &Path) -> anyhow::Result<Self> {
        // A thread can choose the PID namespace of its children only once, and each start needs another.
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
        unshare(UnshareFlags::NEWPID).context("cannot create a PID namespace")?;
        // The first process of the namespace is its process 1.
        let anchor = this_program(ANCHOR)
            .stdin(Stdio::piped())
            // A reader of the command's output must not wait for this process.
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

    /// Waits for the end of the command, while processes that it has started may still run. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The command cannot be waited for.
    pub(crate) async fn command_ended(&mut self) -> io::Result<ExitStatus> {
        self.command.wait().await
    }

    /// Ends the remaining processes, and waits for the last of them. To be called after the end of the command.
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
            // If it has just ended, its exit is the next event.
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether the stage has not become the command yet.
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

/// `larder exec-anchor`: reaps orphaned processes until standard input ends.
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
                _ = children.recv() => reap()?,
            }
        }
    })
}

/// Reaps the children that have ended.
fn reap() -> io::Result<()> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) | Err(Errno::CHILD) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}
