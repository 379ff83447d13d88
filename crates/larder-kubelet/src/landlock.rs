//! Denies this process writes outside its own directories, above all below the kubelet's (beside-kubelet R1).
//!
//! The read-only mount of a container covers only the kubelet's directory itself; volumes in memory below it stay
//! writable. Landlock covers all of them, including those that are mounted later.
//!
//! Invariants:
//! 1. Reading and executing are not restricted. Every way to change a file, directory or link is denied except in the
//!    named directories.
//! 2. It restricts the calling thread and all threads and processes started from it. So it must be called before any
//!    other thread runs, except those that are meant to stay unrestricted.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, AccessFs, PathBeneath, PathFd, PathFdError, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus,
};

/// The Landlock version that covers every kind of write (Linux 6.2). Older kernels enforce the kinds that they know.
const WANTED: ABI = ABI::V3;

/// Commands that larder starts, such as credential plugins, discard their output there.
const DISCARD: &str = "/dev/null";

/// How much the kernel enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteProtection {
    /// All of it.
    Full,
    /// Nearly all: the kernel is older than 6.2 and does not cover every kind of write.
    Partial,
    /// Nothing: the kernel is older than 5.13, or Landlock is off.
    Unavailable,
}

/// Writing could not be forbidden.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteProtectionError {
    /// Threads that run already would not be restricted.
    #[error("cannot restrict a process that has {0} threads")]
    Threads(usize),
    /// The system does not list the threads.
    #[error("cannot list the threads of this process")]
    ListThreads(#[source] io::Error),
    /// One of larder's directories cannot be opened.
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

/// Denies this process, for its whole life, writes anywhere but below the existing directories `writable`. `unrestricted`
/// other threads already run, and stay unrestricted.
///
/// Call it in `main`, before the runtime starts its threads.
///
/// # Errors
///
/// More threads run already, a directory cannot be opened, or the kernel has Landlock and rejects the rules. A kernel
/// without Landlock is no error.
pub fn forbid_writes(
    writable: &[&Path],
    unrestricted: usize,
) -> Result<WriteProtection, WriteProtectionError> {
    let threads = fs::read_dir("/proc/self/task").map_err(WriteProtectionError::ListThreads)?;
    match threads.count() {
        count if count == 1 + unrestricted => restrict_thread(writable),
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
