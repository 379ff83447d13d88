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
    process::{ExitStatus, Stdio},
    rc::Rc,
};

use anyhow::Context as _;
use larder_containers::namespaces::{in_thread, unshare};
use rustix::{
    io::Errno,
    process::{WaitOptions, wait},
    thread::UnshareFlags,
};
use tokio::{
    net::unix::pipe,
    process::Child,
    runtime::Handle,
    signal::unix::{SignalKind, signal},
};

use super::{
    inside::{Inside, STAGE, this_program},
    report::{StageReport, listen},
};

/// The hidden subcommand that is process 1 of a command's PID namespace.
pub const ANCHOR: &str = "exec-anchor";

/// What happens to a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProcessesEvent {
    /// The stage has made all mounts.
    Mounted,
    /// The command has ended.
    Ended(ExitStatus),
}

/// A running command, and all processes that it has started.
pub(crate) struct Processes {
    command: Child,
    anchor: Child,
    /// What can be done to the command, and where it runs.
    pub(crate) inside: Rc<Inside>,
    stage: StageReport,
}

impl Processes {
    /// Starts the stage with the plan in the file `plan`, and the private tmpfs `staging`.
    ///
    /// # Errors
    ///
    /// The PID namespace or a process cannot be created.
    pub(crate) fn start(plan: &Path, staging: &Path) -> anyhow::Result<Self> {
        let stage = listen(staging).context("cannot listen to the stage")?;
        // A thread can choose the PID namespace of its children only once, and each start needs another.
        let runtime = Handle::current();
        let (anchor, command) = in_thread(|| {
            let _entered = runtime.enter();
            unshare(UnshareFlags::NEWPID).context("cannot create a PID namespace")?;
            // The first process of the namespace is its process 1.
            let anchor = this_program(ANCHOR)
                .stdin(Stdio::piped())
                // A reader of the command's output must not wait for this process.
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .context("cannot start a process")?;
            let command = this_program(STAGE).arg(plan).spawn();
            anyhow::Ok((anchor, command.context("cannot start the command")?))
        })?;
        let inside = Inside::of(&anchor, &command).context("cannot open the PID namespace")?;
        Ok(Self {
            command,
            anchor,
            inside: Rc::new(inside),
            stage,
        })
    }

    /// Waits until the stage has made all mounts (once), or for the end of the command, while processes that it has
    /// started may still run. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The command cannot be waited for.
    pub(crate) async fn next(&mut self) -> io::Result<ProcessesEvent> {
        // Both arms are cancel-safe. The mounts of a command that has ended matter to nothing.
        tokio::select! {
            biased;
            status = self.command.wait() => Ok(ProcessesEvent::Ended(status?)),
            mounts = &mut self.stage => {
                // The stage reports once.
                let _ = self.inside.mounts.set(mounts);
                Ok(ProcessesEvent::Mounted)
            }
        }
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
}

/// `larder exec-anchor`: reaps orphaned processes until standard input ends.
///
/// # Errors
///
/// Standard input is not a pipe, or children cannot be waited for.
pub async fn run_anchor() -> anyhow::Result<()> {
    let supervisor = io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .and_then(pipe::Receiver::from_owned_fd)
        .context("standard input is not a pipe")?;
    let mut children = signal(SignalKind::child()).context("cannot receive signals")?;
    // The kernel sent no signal for those that had ended before.
    reap()?;
    loop {
        // Both arms are cancel-safe.
        tokio::select! {
            // Nothing is ever written to it.
            ended = supervisor.readable() => return Ok(ended?),
            _ = children.recv() => reap()?,
        }
    }
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
