//! Forbids this process to write outside of its own directories, below the kubelet's above all (beside-kubelet R1).
//!
//! A container's read-only mount covers the top of the kubelet's directory only: volumes in memory below it stay
//! writable. Landlock covers them all, also those that are mounted later.
//!
//! Invariants:
//! 1. Reading and executing are left as they are. Every way to change a file, a directory or a link is forbidden but in
//!    the directories that were named.
//! 2. It binds the calling thread and all threads and processes that it starts. So it comes before any other thread.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, AccessFs, PathBeneath, PathFd, PathFdError, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus,
};

/// The version of Landlock that has every right to write (Linux 6.2). Older kernels enforce what they know.
const WANTED: ABI = ABI::V3;

/// Commands that larder starts, such as credential plugins, get their output discarded there.
const DISCARD: &str = "/dev/null";

/// What the kernel enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteProtection {
    /// All of it.
    Full,
    /// Nearly all: the kernel is older than 6.2 and does not guard every way to write.
    Partial,
    /// Nothing: the kernel is older than 5.13, or Landlock is off.
    Unavailable,
}

/// Writing could not be forbidden.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteProtectionError {
    /// Threads that run already would not be bound.
    #[error("cannot restrict a process that has {0} threads")]
    Threads(usize),
    /// The system does not list the threads.
    #[error("cannot list the threads of this process")]
    ListThreads(#[source] io::Error),
    /// A directory of larder cannot be opened.
    #[error("cannot open {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        source: PathFdError,
    },
    /// The kernel rejects the rules.
    #[error("cannot set up Landlock")]
    Rules(#[source] RulesetError),
}

/// Forbids this process, for its whole life, to write anywhere but below `writable`, directories that exist.
///
/// Call it in `main`, before the runtime starts its threads.
///
/// # Errors
///
/// Other threads run already, a directory cannot be opened, or the kernel has Landlock and rejects the rules. A kernel
/// without Landlock is no error.
pub fn forbid_writes(writable: &[&Path]) -> Result<WriteProtection, WriteProtectionError> {
    let threads = fs::read_dir("/proc/self/task").map_err(WriteProtectionError::ListThreads)?;
    match threads.count() {
        1 => restrict_thread(writable),
        count => Err(WriteProtectionError::Threads(count)),
    }
}

fn restrict_thread(writable: &[&Path]) -> Result<WriteProtection, WriteProtectionError> {
    let writes = AccessFs::from_write(WANTED);
    let mut rules = Ruleset::default()
        .handle_access(writes)
        .and_then(Ruleset::create)
        .map_err(WriteProtectionError::Rules)?;
    for path in writable {
        let directory = PathFd::new(path).map_err(|source| WriteProtectionError::Directory {
            path: (*path).to_owned(),
            source,
        })?;
        rules = rules
            .add_rule(PathBeneath::new(directory, writes))
            .map_err(WriteProtectionError::Rules)?;
    }
    // A system without it has no use for it.
    if let Ok(discard) = PathFd::new(DISCARD) {
        let rule = PathBeneath::new(discard, writes & AccessFs::from_file(WANTED));
        rules = rules.add_rule(rule).map_err(WriteProtectionError::Rules)?;
    }
    let status = rules.restrict_self().map_err(WriteProtectionError::Rules)?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => WriteProtection::Full,
        RulesetStatus::PartiallyEnforced => WriteProtection::Partial,
        RulesetStatus::NotEnforced => WriteProtection::Unavailable,
    })
}

#[cfg(test)]
mod tests;
