//! Threads that enter other namespaces.

use std::{
    sync::{OnceLock, mpsc},
    thread,
};

use rustix::thread::UnshareFlags;
use tokio::{
    sync::{Semaphore, oneshot},
    task::spawn_blocking,
};

type Work = Box<dyn FnOnce() + Send>;

/// Passes work to the thread that is kept apart.
static APART: OnceLock<mpsc::Sender<Work>> = OnceLock::new();
/// Turns of `run_apart`: work that takes long delays no other, and leaves a thread for blocking work of other kinds.
static TURNS: Semaphore = Semaphore::const_new(2);

/// Keeps a thread free from what this process is denied afterwards: Landlock denies every mount. Called before any other
/// thread runs. The thread starts those of `run_apart`, and does nothing else.
pub fn keep_apart() {
    APART.get_or_init(|| {
        let (sender, work) = mpsc::channel::<Work>();
        // It ends with the process.
        thread::spawn(move || {
            for work in work {
                // A panic ends the thread of this work only, and is its caller's missing answer.
                thread::spawn(work);
            }
        });
        sender
    });
}

/// Runs `work` on a thread that the one kept apart starts, or, without that, where blocking work runs. `None` if it panics.
pub(crate) async fn run_apart<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    // It is kept until the work has ended, even if its caller no longer waits.
    let turn = TURNS.acquire().await.ok()?;
    let (done, result) = oneshot::channel();
    let work = move || {
        let _turn = turn;
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
