//! A running command as the actions of hooks see it: its process, and its namespaces.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    process::Stdio,
};

use larder_containers::{
    namespaces::in_thread,
    processes::{FoundContainer, Processes},
};
use rustix::{
    process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::SetOnce,
};

use super::signals::{CommandSignal, send_real_time};

/// The hidden subcommand that becomes the command of `larder exec`.
pub const STAGE: &str = "exec-stage";

/// A command that was started, and may have ended.
#[derive(Debug)]
pub(crate) struct Inside {
    pid: Pid,
    /// Refers to this process, even when its PID is reused.
    process: OwnedFd,
    processes: File,
    /// The mount namespace, when all mounts are made.
    pub(crate) mounts: SetOnce<OwnedFd>,
}

impl Inside {
    pub(super) fn of(anchor: &Child, command: &Child) -> io::Result<Self> {
        let pid = |child: &Child| {
            child
                .id()
                .and_then(|id| Pid::from_raw(id.cast_signed()))
                .ok_or(io::ErrorKind::NotFound)
        };
        let number = pid(anchor)?.as_raw_nonzero();
        Ok(Self {
            pid: pid(command)?,
            // It has not been reaped yet.
            process: pidfd_open(pid(command)?, PidfdFlags::empty())?,
            processes: File::open(format!("/proc/{number}/ns/pid"))?,
            mounts: SetOnce::new(),
        })
    }

    /// Sends a signal to the command, if that has not ended.
    pub(crate) fn send(&self, signal: CommandSignal) {
        match signal {
            // If the command has just ended, its exit is the next event.
            CommandSignal::Named(signal) => drop(pidfd_send_signal(&self.process, signal)),
            CommandSignal::RealTime(number) => send_real_time(number, self.pid),
        }
    }

    /// Whether the stage has not become the command yet.
    pub(crate) fn is_stage(&self) -> bool {
        fs::read(format!("/proc/{}/cmdline", self.pid.as_raw_nonzero()))
            .is_ok_and(|words| words.split(|&byte| byte == 0).nth(1) == Some(STAGE.as_bytes()))
    }

    /// The container of the command: the processes in its PID namespace. `None` if it has ended. Without `all_processes` it
    /// has the process of the command only.
    ///
    /// # Errors
    ///
    /// Processes cannot be listed.
    pub(crate) fn container(
        &self,
        name: &str,
        all_processes: bool,
        processes: &Processes,
    ) -> io::Result<Option<FoundContainer>> {
        use std::os::unix::fs::MetadataExt as _;
        let namespace = self.processes.metadata()?.ino();
        let pid = self.pid.as_raw_nonzero().get();
        processes.in_pid_namespace(name.into(), pid, namespace, all_processes)
    }

    /// Starts a command of a hook, by its plan in the file `plan`, in a process group of its own.
    ///
    /// # Errors
    ///
    /// The command has ended, or the process cannot be created.
    pub(crate) fn launch(&self, plan: &Path, [stdout, stderr]: [OwnedFd; 2]) -> io::Result<Child> {
        let runtime = Handle::current();
        let mounts = self
            .mounts
            .get()
            .ok_or(io::ErrorKind::NotFound)?
            .try_clone()?;
        // A thread can choose the PID namespace of its children only once.
        in_thread(move || {
            let _entered = runtime.enter();
            let kind = Some(LinkNameSpaceType::ProcessID);
            move_into_link_name_space(self.processes.as_fd(), kind)?;
            this_program(STAGE)
                .arg(plan)
                .stdin(Stdio::from(mounts))
                .stdout(stdout)
                .stderr(stderr)
                .process_group(0)
                .spawn()
        })
    }
}

/// This program again.
pub(super) fn this_program(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(subcommand).env_clear();
    command
}
