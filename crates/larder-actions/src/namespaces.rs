//! Threads that enter other namespaces.

use rustix::thread::UnshareFlags;

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
