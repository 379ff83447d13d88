//! Threads that enter other namespaces.

use std::{
    pin::pin,
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use rustix::thread::UnshareFlags;
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

type Work = Box<dyn FnOnce() + Send>;

/// Passes work to the thread that is kept apart.
static APART: OnceLock<mpsc::Sender<Work>> = OnceLock::new();
/// Turns of `run_apart`.
static TURNS: Semaphore = Semaphore::const_new(2);
/// Longest turn: work that takes longer goes on beside that of others.
const TURN: Duration = Duration::from_millis(500);
/// Threads of `run_apart`. One whose work never ends is there until the process ends.
static THREADS: Semaphore = Semaphore::const_new(128);

/// Keeps a thread free from what this process is denied afterwards: Landlock denies every mount. Called before any other
/// thread runs. The thread starts those of `run_apart`, and does nothing else.
pub fn keep_apart() {
    APART.get_or_init(|| {
        let (sender, work) = mpsc::channel::<Work>();
        // It ends with the process.
        thread::spawn(move || work.into_iter().for_each(start));
        sender
    });
}

/// A panic ends the thread of this work only, and is its caller's missing answer, as is a thread that cannot be started.
fn start(work: Work) {
    let _ = thread::Builder::new().spawn(work);
}

/// Runs `work` on a new thread, which the one kept apart starts if there is one. `None` if it panics, or has not ended
/// after `limit`: a process in a mount namespace can make the kernel wait there indefinitely. Shutdown does not wait for
/// these threads.
pub(crate) async fn run_apart<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let turn = TURNS.acquire().await.ok()?;
    let thread = THREADS.try_acquire().ok()?;
    let (done, result) = oneshot::channel();
    let work = Box::new(move || {
        let _thread = thread;
        // Fails only if the caller no longer waits.
        let _ = done.send(work());
    });
    match APART.get() {
        Some(apart) => apart.send(work).ok()?,
        None => start(work),
    }
    let mut result = pin!(result);
    if let Ok(result) = timeout(TURN.min(limit), &mut result).await {
        return result.ok();
    }
    drop(turn);
    timeout(limit.saturating_sub(TURN), result).await.ok()?.ok()
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    #[tokio::test]
    async fn work_that_never_ends_delays_no_other() {
        let end = Arc::new(Barrier::new(4));
        for _ in 0..3 {
            let end = Arc::clone(&end);
            let work = move || end.wait().is_leader();
            assert_eq!(run_apart(Duration::from_millis(10), work).await, None);
        }
        let minute = Duration::from_mins(1);
        assert_eq!(run_apart(minute, || 1).await, Some(1));
        end.wait();
        // Nor does what takes long.
        let end = Arc::new(Barrier::new(3));
        let slow = || {
            let end = Arc::clone(&end);
            run_apart(minute, move || end.wait().is_leader())
        };
        let other = async {
            assert_eq!(run_apart(minute, || 1).await, Some(1));
            end.wait();
        };
        tokio::join!(slow(), slow(), other);
    }
}
