//! Locks between processes, on an open file or directory.
//!
//! Invariant: a lock is free when its value has been dropped. Closing the handle alone would not do: a child that was
//! forked a moment ago has a copy of every handle until it calls `exec`.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::{Errno, Result, fcntl_dupfd_cloexec, retry_on_intr},
};

use crate::{faults::point, sys::open_dir};

/// Longest wait of [`Lock::try_dir`], in steps.
const TRIES: usize = 100;
const STEP: Duration = Duration::from_millis(10);

/// An exclusive lock. The kernel also releases it when the process ends, even after `kill -9`.
#[derive(Debug)]
#[must_use = "dropping it releases the lock"]
pub struct Lock(OwnedFd);

impl Lock {
    /// Locks an open file, which may be closed before the lock is dropped.
    ///
    /// # Errors
    ///
    /// The kernel's; [`Errno::WOULDBLOCK`] if another handle has the lock.
    pub fn try_file(file: BorrowedFd<'_>) -> Result<Self> {
        let handle = fcntl_dupfd_cloexec(file, 0)?;
        flock(&handle, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self(handle))
    }

    /// Waits until no other handle has locked the directory, and locks it.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn dir(dir: BorrowedFd<'_>) -> Result<Self> {
        let handle = open_dir(dir, c".")?;
        point()?;
        retry_on_intr(|| flock(&handle, FlockOperation::LockExclusive))?;
        Ok(Self(handle))
    }

    /// As [`Self::dir`], but waits for a second at most: a command may be reading the directory.
    ///
    /// # Errors
    ///
    /// The kernel's; [`Errno::WOULDBLOCK`] if another handle keeps the lock.
    #[expect(
        clippy::disallowed_methods,
        reason = "flock has no form with a timeout; runs on a thread for blocking calls"
    )]
    pub fn try_dir(dir: BorrowedFd<'_>) -> Result<Self> {
        let handle = open_dir(dir, c".")?;
        point()?;
        let mut tries = 0;
        loop {
            match flock(&handle, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(handle)),
                Err(Errno::WOULDBLOCK | Errno::INTR) if tries < TRIES => {
                    tries += 1;
                    thread::sleep(STEP);
                }
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// The open file or directory.
impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Unlocking an open file does not fail.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_dropped_lock_is_free_while_a_forked_child_has_a_copy_of_its_handle() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("lock");
        let file = File::create_new(&path).unwrap();
        let other = File::open(&path).unwrap();
        let lock = Lock::try_file(file.as_fd()).unwrap();
        assert_eq!(
            Lock::try_file(other.as_fd()).unwrap_err(),
            Errno::WOULDBLOCK
        );
        drop(lock);
        drop(Lock::try_file(other.as_fd()).unwrap());

        let dir = File::open(temp.path()).unwrap();
        let lock = Lock::dir(dir.as_fd()).unwrap();
        let copy = lock.0.try_clone().unwrap();
        assert_eq!(Lock::try_dir(dir.as_fd()).unwrap_err(), Errno::WOULDBLOCK);
        drop(lock);
        drop(Lock::try_dir(dir.as_fd()).unwrap());
        drop((file, copy));
    }
}
