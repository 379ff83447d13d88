//! The runtime of commands, and the signals that end them.

use anyhow::Context as _;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
};

/// Threads for work that waits for a disk, a name server or a credential plugin. Name servers that do not answer take two:
/// one of the API server's connections, one of the hooks' requests. More would not make a disk faster, and each keeps an
/// arena of the allocator. Without this limit, as many would start as there are pods.
const BLOCKING_THREADS: usize = 3;

/// A runtime on this thread: it is enough for work that waits for the network, and reuses the memory that it frees.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

/// Waits for SIGINT or SIGTERM. From this call on, neither ends the process.
pub(crate) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let take = |kind| signal(kind).context("cannot handle signals");
    let (mut interrupt, mut terminate) = (
        take(SignalKind::interrupt())?,
        take(SignalKind::terminate())?,
    );
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
