//! Fault points: tests make a chosen system call fail, or kill the process before it.
//!
//! Each call of this crate passes a point. Without the feature `faults`, points compile to nothing, and `during` is
//! missing.

#[cfg(not(any(test, feature = "faults")))]
#[inline(always)]
#[expect(
    clippy::unnecessary_wraps,
    clippy::inline_always,
    reason = "stands for the fault point of tests and vanishes"
)]
pub(crate) fn point() -> rustix::io::Result<()> {
    Ok(())
}

#[cfg(any(test, feature = "faults"))]
pub(crate) use self::injection::point;
#[cfg(any(test, feature = "faults"))]
pub use self::injection::{Fault, during};

#[cfg(any(test, feature = "faults"))]
mod injection {
    use std::cell::Cell;

    use rustix::{
        io::{Errno, Result},
        process::{Signal, getpid, kill_process},
    };

    /// The effect of a fault point.
    #[derive(Clone, Copy, Debug)]
    pub enum Fault {
        /// The call fails; later ones do not.
        Once(Errno),
        /// The call and all after it fail.
        FromNowOn(Errno),
        /// The process is killed before the call.
        Kill,
        /// Another process does this before the call.
        Meanwhile(fn()),
    }

    thread_local! {
        /// System calls of this thread since the last [`during`] began.
        static CALLS: Cell<usize> = const { Cell::new(0) };
        static FAULT: Cell<Option<(usize, Fault)>> = const { Cell::new(None) };
    }

    pub(crate) fn point() -> Result<()> {
        let call = CALLS.replace(CALLS.get() + 1);
        match FAULT.get() {
            Some((at, Fault::Once(errno))) if call == at => Err(errno),
            Some((from, Fault::FromNowOn(errno))) if call >= from => Err(errno),
            Some((at, Fault::Kill)) if call == at => {
                kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
                unreachable!("SIGKILL does not return")
            }
            Some((at, Fault::Meanwhile(act))) if call == at => {
                act();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Runs `action` with a fault at its system call number `at`, from 0; returns whether it got that far. Counts the
    /// calls of this thread only.
    pub fn during<T>(at: usize, fault: Fault, action: impl FnOnce() -> T) -> (T, bool) {
        CALLS.set(0);
        FAULT.set(Some((at, fault)));
        let result = action();
        FAULT.set(None);
        (result, CALLS.get() > at)
    }
}
