//! An open process, to be signaled through its descriptor.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open, pidfd_send_signal},
};

use super::{FoundProcess, Processes};

/// Most processes that this one is taken to descend from.
const MAX_ANCESTORS: usize = 4096;

/// A process cannot be signaled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignalProcessError {
    /// It has ended.
    #[error("process {pid} has ended")]
    Ended {
        /// Its number.
        pid: i32,
    },
    /// It belongs to another user, or the like.
    #[error("not permitted to signal process {pid} of user {user}")]
    NotPermitted {
        /// Its number.
        pid: i32,
        /// Its user.
        user: u32,
    },
    /// Process 1 of the agent's PID namespace, the agent itself, or a process that it descends from.
    #[error(
        "process {pid} is never signaled: it is process 1, the agent, or one that the agent descends from"
    )]
    Protected {
        /// Its number.
        pid: i32,
    },
    /// The system refuses.
    #[error("cannot signal process {pid}: {source}")]
    System {
        /// Its number.
        pid: i32,
        /// Why.
        source: io::Error,
    },
}

impl SignalProcessError {
    fn of(errno: Errno, pid: i32) -> Self {
        match errno {
            Errno::SRCH => Self::Ended { pid },
            errno => Self::System {
                pid,
                source: errno.into(),
            },
        }
    }
}

/// An open process: it refers to the same process even if the PID is reused.
#[derive(Debug)]
pub struct OpenProcess {
    fd: OwnedFd,
    pid: i32,
    user: u32,
    handled: u64,
}

impl Processes {
    /// Opens the process, if it is still the one that was found.
    ///
    /// # Errors
    ///
    /// It has ended, is never signaled, or the system refuses.
    pub fn open(&self, process: &FoundProcess) -> Result<OpenProcess, SignalProcessError> {
        let pid = process.pid;
        if self.is_protected(pid) {
            return Err(SignalProcessError::Protected { pid });
        }
        let ended = SignalProcessError::Ended { pid };
        let Some(number) = Pid::from_raw(pid) else {
            return Err(ended);
        };
        let fd = pidfd_open(number, PidfdFlags::NONBLOCK)
            .or_else(|errno| match errno {
                // Linux before 5.10.
                Errno::INVAL => pidfd_open(number, PidfdFlags::empty()),
                errno => Err(errno),
            })
            .map_err(|errno| SignalProcessError::of(errno, pid))?;
        // The PID may have been reused before the process was opened.
        let Some(stat) = self.look_again(process) else {
            return Err(ended);
        };
        Ok(OpenProcess {
            fd,
            pid,
            user: process.user,
            handled: stat.handled,
        })
    }

    /// Whether the process is 1, this one, or one that this one descends from.
    fn is_protected(&self, pid: i32) -> bool {
        let mut ancestor = self.stat("self");
        // Parents may be replaced while they are read, but not for ever.
        for _ in 0..MAX_ANCESTORS {
            match ancestor {
                Some(stat) if stat.pid == pid => return true,
                Some(stat) if stat.parent > 1 => ancestor = self.stat(stat.parent),
                _ => break,
            }
        }
        pid <= 1
    }
}

impl OpenProcess {
    /// Whether it caught or blocked the signal when it was opened.
    pub fn handles(&self, signal: rustix::process::Signal) -> bool {
        1_u64
            .checked_shl(signal.as_raw().unsigned_abs().wrapping_sub(1))
            .is_some_and(|bit| self.handled & bit != 0)
    }

    /// Sends the signal.
    ///
    /// # Errors
    ///
    /// The process has ended, or the system refuses.
    pub fn send(&self, signal: rustix::process::Signal) -> Result<(), SignalProcessError> {
        let (pid, user) = (self.pid, self.user);
        pidfd_send_signal(&self.fd, signal).map_err(|errno| match errno {
            Errno::PERM => SignalProcessError::NotPermitted { pid, user },
            errno => SignalProcessError::of(errno, pid),
        })
    }
}

/// The descriptor is readable when the process has ended.
impl AsRawFd for OpenProcess {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
