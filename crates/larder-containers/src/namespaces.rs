//! Threads that enter other namespaces.

use std::{
    io,
    panic::resume_unwind,
    sync::{OnceLock, mpsc},
    thread,
};

use rustix::thread::UnshareFlags;

pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Passes work to the thread that is kept apart.
static APART: OnceLock<mpsc::Sender<Work>> = OnceLock::new();

/// Keeps a thread free from what this process is denied afterwards: Landlock denies every mount. Called before any other
/// thread runs. The thread starts those of `start_apart`, and does nothing else.
///
/// # Errors
///
/// The system refuses a thread.
pub fn keep_apart() -> io::Result<()> {
    let (sender, work) = mpsc::channel::<Work>();
    // It ends with the process; or at once, if there is one already.
    thread::Builder::new().spawn(move || work.into_iter().for_each(start))?;
    let _ = APART.set(sender);
    Ok(())
}

/// A panic ends the thread of this work only, and is its caller's missing answer, as is a thread that cannot be started.
fn start(work: Work) {
    let _ = thread::Builder::new().spawn(work);
}

/// Runs `work` on a new thread, which the one kept apart starts if there is one. The end of the process does not wait for
/// these threads.
pub(crate) fn start_apart(work: Work) {
    match APART.get() {
        // It lives as long as the process. Otherwise the caller gets no answer.
        Some(apart) => drop(apart.send(work)),
        None => start(work),
    }
}

/// Runs `work` in a thread of its own, whose namespaces it may change.
///
/// # Errors
///
/// Those of `work`, or the system refuses a thread.
pub fn in_thread<T: Send, E: From<io::Error> + Send>(
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Moves this thread into namespaces of its own. `flags` do not contain `FILES`.
///
/// # Errors
///
/// The system's.
pub fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    #[expect(deprecated, reason = "unsafe for file tables only, and this is none")]
    rustix::thread::unshare(flags)
}
