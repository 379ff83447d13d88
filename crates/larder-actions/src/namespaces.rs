//! Threads that enter other namespaces.

use std::{
    sync::{OnceLock, mpsc},
    thread,
};

use rustix::thread::UnshareFlags;
use tokio::{sync::oneshot, task::spawn_blocking};

type Work = Box<dyn FnOnce() + Send>;

/// Passes work to the thread that is kept apart.
static APART: OnceLock<mpsc::Sender<Work>> = OnceLock::new();

/// Keeps a thread free from what this process is denied afterwards: Landlock denies every mount. Called before any other
/// thread runs. The thread runs what `run_apart` is given, one at a time, and nothing else.
pub fn keep_apart() {
    APART.get_or_init(|| {
        let (sender, work) = mpsc::channel::<Work>();
        // It ends with the process.
        thread::spawn(move || {
            for work in work {
                // A panic ends the thread of this work only, and is its caller's missing answer.
                let _ = thread::spawn(work).join();
            }
        });
        sender
    });
}

/// Runs `work` on the thread that is kept apart, or, without one, where blocking work runs. `None` if it panics.
pub(crate) async fn run_apart<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = oneshot::channel();
    let work = move || {
        // Fails only if the caller no longer waits.
        let _ = done.send(work());
    };
    match APART.get() {
        Some(apart) => apart.send(Box::new(work)).ok()?,
        None => drop(spawn_blocking(work)),
    }
    result.await.ok()
}

/// Runs `work` in a thread of its own, whose namespaces it may change.
pub fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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
