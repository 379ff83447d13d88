//! Starts this program again, from threads whose namespaces may be changed.

use tokio::process::Command;

/// Runs `work` in a thread of its own, whose namespaces it may change.
pub(super) fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

pub(super) fn this_program(subcommand: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(subcommand).env_clear();
    command
}
