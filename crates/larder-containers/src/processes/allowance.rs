//! How many mounts a search reads.
//!
//! Where users can create user namespaces, any of them can stack mounts without limit, in any number of mount namespaces.
//! The deeper the stack, the longer the kernel takes to write one line of it.
//!
//! Invariants:
//! 1. Of one namespace, at most [`Limit`] is read: less where any user may have made the mounts, in another user
//!    namespace than this process's, than where mounting needs privileges.
//! 2. Of all namespaces of one such user, at most [`MAX_USER_LINES`] mounts in [`MAX_USER_TIME`]; of those of one container
//!    without a user namespace, as many as can be read in [`MAX_CONTAINER_TIME`]. So a user takes nothing from other users,
//!    nor a container from others. Time is that of the processor, so a busy machine hides no container.

use std::{collections::HashMap, time::Duration};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use super::{ContainerId, Processes, proc_directory::number};

/// How much is read of one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) lines: usize,
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

/// Four times as many mounts as a container has of its pod's files at most.
pub(super) const OF_ANYONE: Limit = Limit {
    lines: 4096,
    bytes: 1 << 20,
    time: MAX_USER_TIME,
};
/// Containers may be copies of the machine, whose namespace has the mounts of all others.
pub(super) const OF_PRIVILEGED: Limit = Limit {
    lines: 64 << 10,
    bytes: 16 << 20,
    time: Duration::MAX,
};
/// Four namespaces that are as large as possible.
pub(super) const MAX_USER_LINES: usize = 4 * OF_ANYONE.lines;
/// Ten times as long as so many mounts take that are not deep. Of mounts that were moved onto a stack of 50,000, a line
/// takes 2 ms.
const MAX_USER_TIME: Duration = Duration::from_millis(200);
/// Ten times as long as 100 copies of a machine's own namespace take, with 500 mounts each.
const MAX_CONTAINER_TIME: Duration = Duration::from_secs(1);
/// Lines between two looks at the clock.
pub(super) const TIMED_LINES: usize = 16;
/// Opening a table takes as long as some lines.
const LINES_OF_OPENING: usize = 16;
/// Least time between two lines in the log about namespaces over the bounds.
const LOG_INTERVAL: Duration = Duration::from_mins(10);

/// What is left of the allowance of one search.
#[derive(Debug)]
pub(super) struct Allowance {
    /// Lines that were read of each user's namespaces, and the time that it took.
    read: HashMap<MountingUser, (usize, Duration)>,
    /// The time that this thread has run.
    pub(super) clock: fn() -> Duration,
    /// Namespaces that were not read to their end, and may be containers by what was read.
    pub(super) refused: usize,
    #[cfg(test)]
    pub(super) lines: usize,
}

/// The user behind the mounts of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum MountingUser {
    /// A user with privileges in the user namespace of this process.
    Privileged,
    /// A user with such privileges, in a container that its control groups name.
    Container(ContainerId),
    /// An ordinary user.
    Ordinary(u32),
    /// The users of a range as it is given to users, and to pods with `hostUsers: false`.
    Range(u32),
    /// That of a user namespace without any users yet.
    Unknown,
}

impl Default for Allowance {
    fn default() -> Self {
        Self {
            read: HashMap::new(),
            clock: || {
                let run = clock_gettime(ClockId::ThreadCPUTime);
                Duration::try_from(run).unwrap_or_default()
            },
            refused: 0,
            #[cfg(test)]
            lines: 0,
        }
    }
}

impl Allowance {
    /// How much may be read of the next namespace of the user.
    pub(super) fn limit(&self, user: &MountingUser) -> Limit {
        let (lines, time) = self.read.get(user).copied().unwrap_or_default();
        let mut limit = match user {
            MountingUser::Privileged => return OF_PRIVILEGED,
            MountingUser::Container(_) => Limit {
                time: MAX_CONTAINER_TIME.saturating_sub(time),
                ..OF_PRIVILEGED
            },
            _ => Limit {
                lines: OF_ANYONE
                    .lines
                    .min(MAX_USER_LINES.saturating_sub(lines + LINES_OF_OPENING)),
                time: MAX_USER_TIME.saturating_sub(time),
                ..OF_ANYONE
            },
        };
        if limit.time.is_zero() {
            limit.lines = 0;
        }
        limit
    }

    pub(super) fn charge(&mut self, user: MountingUser, lines: usize, time: Duration) {
        let read = self.read.entry(user).or_default();
        *read = (read.0 + lines + LINES_OF_OPENING, read.1 + time);
        #[cfg(test)]
        {
            self.lines += lines;
        }
    }
}

/// When the log has said last that namespaces are over the bounds.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Option<Instant>>);

impl Refusals {
    /// Whether the log may say it now.
    pub(super) fn may_be_logged(&self, now: Instant) -> bool {
        let mut last = self.0.lock();
        let may = last.is_none_or(|last| now >= last + LOG_INTERVAL);
        if may {
            *last = Some(now);
        }
        may
    }
}

impl Processes {
    /// By the users of the process's namespace (user_namespaces(7)), which anyone may read. A user without privileges can
    /// map none but himself and those of ranges that he was given.
    pub(super) fn mounting_user(&self, pid: i32) -> MountingUser {
        let map = self.proc().read(pid, "uid_map").ok();
        // A kernel without user namespaces has no such file. With CAP_SETUID, anyone can map all users in a new namespace.
        if map == self.proc().read("self", "uid_map").ok() && self.shares_users(pid) {
            return self
                .container_of(pid)
                .map_or(MountingUser::Privileged, MountingUser::Container);
        }
        let map = map.unwrap_or_default();
        let fields = map.split(u8::is_ascii_whitespace);
        match fields
            .filter(|field| !field.is_empty())
            .nth(1)
            .and_then(number::<u32>)
        {
            None => MountingUser::Unknown,
            Some(user) if user <= 0xffff => MountingUser::Ordinary(user),
            Some(user) => MountingUser::Range(user >> 16),
        }
    }
}
