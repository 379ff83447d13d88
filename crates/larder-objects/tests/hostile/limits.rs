//! Limits on the CPU time and the memory of one input.
//!
//! The limits are far above what an input needs, so that a slow machine does not decide. An input that takes forever
//! ends the process, since nothing else can end it.

use std::{
    process,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use peak_alloc::PeakAlloc;
use rustix::time::{ClockId, clock_gettime};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Both are counted for the process, so one test at a time uses them.
static ALONE: Mutex<()> = Mutex::new(());

/// The limits of one input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) cpu: Duration,
    pub(crate) bytes: usize,
}

/// The cost of one input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) cpu: Duration,
    pub(crate) bytes: usize,
}

/// Measures one input after the other, and ends the process when one exceeds its limits while it runs.
pub(crate) struct Meter {
    current: Arc<Mutex<Option<Current>>>,
    _end: Sender<()>,
    _watchdog: JoinHandle<()>,
    _alone: MutexGuard<'static, ()>,
}

struct Current {
    name: String,
    limits: Limits,
    cpu_before: Duration,
    bytes_before: usize,
}

impl Current {
    fn used(&self, bytes: usize) -> Used {
        Used {
            cpu: cpu_time().saturating_sub(self.cpu_before),
            bytes: bytes.saturating_sub(self.bytes_before),
        }
    }

    fn exceeds(&self, used: Used) -> bool {
        used.cpu > self.limits.cpu || used.bytes > self.limits.bytes
    }
}

impl Meter {
    pub(crate) fn new() -> Self {
        let alone = ALONE.lock();
        let current = Arc::new(Mutex::new(None::<Current>));
        let (end, ended) = mpsc::channel::<()>();
        let watched = Arc::clone(&current);
        let watchdog = thread::spawn(move || {
            while ended.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
                if let Some(current) = &*watched.lock() {
                    let used = current.used(MEMORY.current_usage());
                    if current.exceeds(used) {
                        eprintln!("{} takes too much, and goes on: {used:?}", current.name);
                        process::abort();
                    }
                }
            }
        });
        Self {
            current,
            _end: end,
            _watchdog: watchdog,
            _alone: alone,
        }
    }

    /// Runs `read`; panics if it took more than `limits`.
    pub(crate) fn check<T>(
        &self,
        name: &str,
        limits: Limits,
        read: impl FnOnce() -> T,
    ) -> (T, Used) {
        MEMORY.reset_peak_usage();
        *self.current.lock() = Some(Current {
            name: name.to_owned(),
            limits,
            cpu_before: cpu_time(),
            bytes_before: MEMORY.current_usage(),
        });
        let result = read();
        let current = self.current.lock().take().expect("it was set above");
        let used = current.used(MEMORY.peak_usage());
        assert!(!current.exceeds(used), "{name} took too much: {used:?}");
        (result, used)
    }
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime)
        .try_into()
        .expect("the clock counts from 0")
}
