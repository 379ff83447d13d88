//! The system calls of the checkpoint, relative to open directories; none follows a link.
//!
//! Each passes through `point`, where tests make it fail or kill the process.
//!
//! `disk::sys` of `larder-projection` makes similar calls for volumes. The two stay apart because a fault point exists
//! only in the tests of its own crate. One module for both would need a feature that compiles fault points into the
//! program, and types of `rustix` in a public API.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    thread,
    time::Duration,
};

use rustix::{
    fs::{self, AtFlags, Dir, FlockOperation, Mode, OFlags, Stat},
    io::{Errno, Result, retry_on_intr},
    path::Arg,
};
use zeroize::Zeroizing;

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Opens the directory `name` of `dir`.
pub(super) fn open_dir(dir: BorrowedFd<'_>, name: impl Arg) -> Result<OwnedFd> {
    point()?;
    fs::openat(dir, name, DIRECTORY, Mode::empty())
}

/// Opens a file for reading. A pipe or a device in its place does not block.
pub(super) fn open_file(dir: BorrowedFd<'_>, name: impl Arg) -> Result<OwnedFd> {
    point()?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::empty())
}

/// Creates a file that must not exist, for writing, with mode 0600.
pub(super) fn create_file(dir: BorrowedFd<'_>, name: impl Arg) -> Result<OwnedFd> {
    point()?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::from_raw_mode(0o600))
}

/// Creates a directory with mode 0700.
pub(super) fn make_dir(dir: BorrowedFd<'_>, name: impl Arg) -> Result<()> {
    point()?;
    fs::mkdirat(dir, name, Mode::from_raw_mode(0o700))
}

/// Sets the mode of an open directory.
pub(super) fn set_mode(dir: &OwnedFd, mode: u32) -> Result<()> {
    point()?;
    fs::fchmod(dir, Mode::from_raw_mode(mode))
}

/// Status of an open file.
pub(super) fn stat(file: &OwnedFd) -> Result<Stat> {
    point()?;
    fs::fstat(file)
}

/// Status of the entry `name` of `dir`; of a link itself, not of its target.
pub(super) fn stat_entry(dir: BorrowedFd<'_>, name: impl Arg) -> Result<Stat> {
    point()?;
    fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// The content of a file. `FBIG` if it is longer than `limit` bytes.
pub(super) fn read(file: &OwnedFd, limit: usize) -> Result<Zeroizing<Vec<u8>>> {
    let size = usize::try_from(stat(file)?.st_size).unwrap_or(usize::MAX);
    if size > limit {
        return Err(Errno::FBIG);
    }
    // One byte more, to notice a file that grows.
    let mut bytes = Zeroizing::new(vec![0; size + 1]);
    let mut filled = 0;
    while filled < bytes.len() {
        point()?;
        match retry_on_intr(|| rustix::io::read(file, &mut bytes[filled..]))? {
            0 => break,
            count => filled += count,
        }
    }
    if filled > size {
        return Err(Errno::FBIG);
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Writes all of `bytes`.
pub(super) fn write(file: &OwnedFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        point()?;
        let count = retry_on_intr(|| rustix::io::write(file, bytes))?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Returns when a file or directory is on the disk.
pub(super) fn sync(file: &OwnedFd) -> Result<()> {
    point()?;
    retry_on_intr(|| fs::fsync(file))
}

/// Returns when everything that was written to the file system of `directory` is on the disk.
///
/// Linux 5.8 or later also returns the errors of those writes.
pub(super) fn sync_file_system(directory: &OwnedFd) -> Result<()> {
    point()?;
    retry_on_intr(|| fs::syncfs(directory))
}

/// Renames `from` of one directory to `to` of another, in one step.
pub(super) fn rename(
    dir: BorrowedFd<'_>,
    from: impl Arg,
    to_dir: BorrowedFd<'_>,
    to: impl Arg,
) -> Result<()> {
    point()?;
    fs::renameat(dir, from, to_dir, to)
}

/// Removes a file, which may be missing.
pub(super) fn remove_file(dir: BorrowedFd<'_>, name: impl Arg) -> Result<()> {
    point()?;
    match fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Removes an empty directory, which may be missing.
pub(super) fn remove_dir(dir: BorrowedFd<'_>, name: impl Arg) -> Result<()> {
    point()?;
    match fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// The names in a directory, sorted; those that are not UTF-8 belong to other programs.
pub(super) fn list(dir: &OwnedFd) -> Result<Vec<String>> {
    point()?;
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().to_str()
            && ![".", ".."].contains(&name)
        {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Waits until no other handle has locked the directory, and locks it until the returned handle is closed.
pub(super) fn lock(dir: BorrowedFd<'_>) -> Result<OwnedFd> {
    let handle = open_dir(dir, c".")?;
    point()?;
    retry_on_intr(|| fs::flock(&handle, FlockOperation::LockExclusive))?;
    Ok(handle)
}

/// The same, but `WOULDBLOCK` if another handle keeps the directory locked for a second.
///
/// A handle that was closed here stays open for an instant in a forked child that has not called `exec` yet.
#[expect(
    clippy::disallowed_methods,
    reason = "flock has no form with a timeout; runs on a thread for blocking calls"
)]
pub(super) fn try_lock(dir: BorrowedFd<'_>) -> Result<OwnedFd> {
    let handle = open_dir(dir, c".")?;
    point()?;
    let mut tries = 0;
    loop {
        match fs::flock(&handle, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(handle),
            Err(Errno::WOULDBLOCK | Errno::INTR) if tries < 100 => {
                tries += 1;
                thread::sleep(Duration::from_millis(10));
            }
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(not(test))]
#[inline(always)]
#[expect(
    clippy::unnecessary_wraps,
    clippy::inline_always,
    reason = "stands for the fault point of tests and vanishes"
)]
fn point() -> Result<()> {
    Ok(())
}

#[cfg(test)]
use faults::point;

/// Failures and kills at a chosen system call, for tests.
#[cfg(test)]
pub(super) mod faults {
    use std::cell::Cell;

    use rustix::{
        io::{Errno, Result},
        process::{Signal, getpid, kill_process},
    };

    /// The effect of a fault point.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::checkpoint) enum Fault {
        /// The call fails; later ones do not.
        Once(Errno),
        /// The call and all after it fail.
        FromNowOn(Errno),
        /// The process is killed before the call.
        Kill,
    }

    thread_local! {
        /// System calls of this thread since the last [`during`] began.
        static CALLS: Cell<usize> = const { Cell::new(0) };
        static FAULT: Cell<Option<(usize, Fault)>> = const { Cell::new(None) };
    }

    pub(super) fn point() -> Result<()> {
        let call = CALLS.replace(CALLS.get() + 1);
        match FAULT.get() {
            Some((at, Fault::Once(errno))) if call == at => Err(errno),
            Some((from, Fault::FromNowOn(errno))) if call >= from => Err(errno),
            Some((at, Fault::Kill)) if call == at => {
                kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
                unreachable!("SIGKILL does not return")
            }
            _ => Ok(()),
        }
    }

    /// Runs `action` with a fault at its system call number `at`, from 0; returns whether it got that far.
    pub(in crate::checkpoint) fn during<T>(
        at: usize,
        fault: Fault,
        action: impl FnOnce() -> T,
    ) -> (T, bool) {
        CALLS.set(0);
        FAULT.set(Some((at, fault)));
        let result = action();
        FAULT.set(None);
        (result, CALLS.get() > at)
    }
}
