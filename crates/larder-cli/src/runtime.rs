//! The runtimes of commands, and the signals that end them.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use parking_lot::Mutex;
use rustix::{fs::Mode, process::umask};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    flag,
};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
};

/// Most threads for work that waits for a disk, `/proc` or a credential plugin; names are looked up on threads of their
/// own. They start when they are needed: work on disks takes turns, so there are few. Whatever hangs takes no thread from
/// anything else.
const BLOCKING_THREADS: usize = 512;
/// Those that are there from the start. Where the system refuses more, work waits for one of them.
const SPARE_THREADS: usize = 3;
/// Threads stay, however long they have nothing to do: when one is needed again, the system may refuse it.
const KEEP_ALIVE: Duration = Duration::from_hours(24 * 365);
/// Time for work on blocking threads that nothing waits for any more: a write to a disk is finished, a disk that does not
/// answer is not waited for.
const LEFTOVERS_TIMEOUT: Duration = Duration::from_millis(300);

/// Runs `work` on this thread: it is enough for work that waits for the network, and reuses the memory that it frees.
///
/// # Errors
///
/// Those of `work`, or the runtime cannot be started.
pub(crate) fn block_on<T, E: From<anyhow::Error>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    run_on(&mut Builder::new_current_thread(), work)
}

/// Runs `work` on all cores.
///
/// # Errors
///
/// As [`block_on`].
#[cfg(feature = "manifests")]
pub(crate) fn block_on_all_cores<T, E: From<anyhow::Error>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    run_on(&mut Builder::new_multi_thread(), work)
}

fn run_on<T, E: From<anyhow::Error>>(
    builder: &mut Builder,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    // Where the system refuses threads, the runtime would panic.
    let probe = thread::Builder::new().spawn(|| {});
    let _ = probe.context("cannot start a thread")?.join();
    builder
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(KEEP_ALIVE);
    let runtime = builder
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    start_threads(&runtime);
    // This process may have threads from here on.
    larder_console::begin();
    let result = runtime.block_on(work);
    // Dropped, it would wait for its blocking threads however long they take. The process ends them.
    runtime.shutdown_timeout(LEFTOVERS_TIMEOUT);
    result
}

/// Starts the spare threads: each has something to do until all have begun, or the system refuses more.
fn start_threads(runtime: &Runtime) {
    let all_begun = Arc::new(Mutex::new(()));
    let waiting = all_begun.lock();
    for _ in 0..SPARE_THREADS {
        let all_begun = Arc::clone(&all_begun);
        drop(runtime.spawn_blocking(move || drop(all_begun.lock())));
    }
    drop(waiting);
}

/// Waits until the other threads of this process have ended, which nothing waits for any more, or a second is over.
pub(crate) fn wait_for_threads() {
    const STEP: Duration = Duration::from_millis(2);
    for _ in 0..500 {
        let threads = std::fs::read_dir("/proc/self/task");
        if threads.is_ok_and(|threads| threads.count() <= 1) {
            return;
        }
        thread::park_timeout(STEP);
    }
}

/// What a command does first that keeps running. SIGHUP asks it to read its settings, which it has not read yet. A file
/// that grows over its limit fails, and does not end the process. What this user creates, this user can use.
///
/// # Errors
///
/// Signals cannot be handled.
pub(crate) fn keep_running() -> anyhow::Result<()> {
    for signal in [SIGHUP, SIGXFSZ] {
        // Unlike an ignored signal, one that is handled has its default action in processes that this one starts.
        flag::register(signal, Arc::default()).context("cannot handle signals")?;
    }
    let given = umask(Mode::RWXU);
    umask(given - Mode::RWXU);
    Ok(())
}

/// A listener on `address`, and the address with its port.
///
/// # Errors
///
/// The address is in use, or not an address of this machine.
pub(crate) async fn listen(address: SocketAddr) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    let address = listener
        .local_addr()
        .context("cannot read the address of the listener")?;
    Ok((listener, address))
}

/// Waits for SIGINT or SIGTERM. From this call on, the first of them does not end the process; the second one does at
/// once, even if this thread hangs.
pub(crate) fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let take = |kind| signal(kind).context("cannot handle signals");
    let mut interrupt = take(SignalKind::interrupt())?;
    let mut terminate = take(SignalKind::terminate())?;
    end_at_second_signal().context("cannot handle signals")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Exits with the shell's code for a signal, as the default action is not taken by the first process of a container.
fn end_at_second_signal() -> io::Result<()> {
    let is_second = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset, and sets it.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&is_second))?;
        flag::register(signal, Arc::clone(&is_second))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use tokio::task::spawn_blocking;

    use super::*;

    #[test]
    fn thread_that_never_returns_does_not_keep_a_command() {
        let (_never, received) = channel::<()>();
        let (started, begin) = channel();
        let result: anyhow::Result<u8> = block_on(async {
            drop(spawn_blocking(move || {
                started.send(()).expect("the test waits for it");
                received.recv()
            }));
            begin.recv().context("the thread runs")?;
            Ok(1)
        });
        assert_eq!(result.ok(), Some(1));
    }
}
