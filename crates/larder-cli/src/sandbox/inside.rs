//! A running command as the actions of hooks see it: its process, and its namespaces.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    process::Stdio,
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use tokio::{process::Child, runtime::Handle, sync::SetOnce};

use super::spawn::{in_thread, this_program};
use crate::args::STAGE;

/// A command that was started, and may have ended.
#[derive(Debug)]
pub(crate) struct Inside {
    pid: Pid,
    /// Refers to this process, even when its PID is reused.
    process: OwnedFd,
    processes: File,
    mounts: SetOnce<OwnedFd>,
}

impl Inside {
    pub(super) fn of(anchor: &Child, command: &Child) -> io::Result<Self> {
        let pid = |child: &Child| {
            let id = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
            id.ok_or(io::ErrorKind::NotFound)
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

    pub(super) fn set_mounts(&self, mounts: OwnedFd) {
        // The stage reports once.
        let _ = self.mounts.set(mounts);
    }

    /// The mount namespace, when all mounts are made.
    pub(crate) fn mounts(&self) -> Option<&OwnedFd> {
        self.mounts.get()
    }

    /// Waits for the mount namespace. Cancel-safe.
    pub(crate) async fn wait_for_mounts(&self) -> &OwnedFd {
        self.mounts.wait().await
    }

    /// Number of the process, for messages.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to the command. `false` if it has ended.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(crate) fn send(&self, signal: Signal) -> io::Result<bool> {
        match pidfd_send_signal(&self.process, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the stage has not become the command yet.
    pub(crate) fn is_stage(&self) -> bool {
        let words = fs::read(format!("/proc/{}/cmdline", self.pid.as_raw_nonzero()));
        words.is_ok_and(|words| words.split(|&byte| byte == 0).nth(1) == Some(STAGE.as_bytes()))
    }

    /// Whether the command catches or blocks a signal; `None` if it has ended.
    pub(crate) fn handles(&self, signal: Signal) -> Option<bool> {
        handles(self.pid, signal)
    }

    /// The processes of the command, itself included, whose executable has this name.
    pub(crate) fn named(&self, executable: &str) -> io::Result<Vec<Member>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.parse().ok());
            let Some(pid) = number.and_then(Pid::from_raw) else {
                continue;
            };
            let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
                continue;
            };
            let member = Member { pid, process };
            // After it was opened, so that the number is still its own or the process has ended.
            if member.executable().as_deref() == Some(executable) && self.has(pid) {
                found.push(member);
            }
        }
        Ok(found)
    }

    /// Whether a process is in the PID namespace of the command.
    fn has(&self, pid: Pid) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let theirs = fs::metadata(format!("/proc/{}/ns/pid", pid.as_raw_nonzero()));
        let ours = self.processes.metadata();
        theirs.is_ok_and(|theirs| ours.is_ok_and(|ours| theirs.ino() == ours.ino()))
    }

    /// Starts a command of a hook, by its plan in the file `plan`, in a process group of its own.
    ///
    /// # Errors
    ///
    /// The command has ended, or the process cannot be created.
    pub(crate) fn launch(
        &self,
        plan: &Path,
        mounts: &OwnedFd,
        [stdout, stderr]: [OwnedFd; 2],
    ) -> io::Result<Child> {
        let runtime = Handle::current();
        let mounts = mounts.try_clone()?;
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

/// A process of a command.
#[derive(Debug)]
pub(crate) struct Member {
    pid: Pid,
    process: OwnedFd,
}

impl Member {
    fn executable(&self) -> Option<String> {
        let path = fs::read_link(format!("/proc/{}/exe", self.pid.as_raw_nonzero())).ok()?;
        let name = path.file_name()?.to_str()?;
        Some(name.trim_end_matches(" (deleted)").to_owned())
    }

    /// Number of the process, for messages.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it catches or blocks a signal; `None` if it has ended.
    pub(crate) fn handles(&self, signal: Signal) -> Option<bool> {
        handles(self.pid, signal)
    }

    /// Sends a signal. `false` if it has ended.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(crate) fn send(&self, signal: Signal) -> io::Result<bool> {
        match pidfd_send_signal(&self.process, signal) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Whether a process catches or blocks a signal: proc(5), `SigCgt` and `SigBlk`.
fn handles(pid: Pid, signal: Signal) -> Option<bool> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let bit = 1_u64 << (signal.as_raw() - 1);
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    let has = |name| mask(name).is_some_and(|mask| mask & bit != 0);
    Some(has("SigCgt:") || has("SigBlk:"))
}
