//! Ends the process when an input takes too much, and keeps that input.

use std::{
    fs,
    path::PathBuf,
    process,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use peak_alloc::PeakAlloc;
use rustix::time::{ClockId, clock_gettime};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The most CPU time of one input.
const MAX_CPU: Duration = Duration::from_secs(10);
/// The most memory of one input, in bytes.
const MAX_BYTES: usize = 512 << 20;

/// Watches the input that is being read.
pub(crate) struct Watchdog {
    current: Arc<Mutex<Option<Current>>>,
    _end: Sender<()>,
}

struct Current {
    input: Vec<u8>,
    cpu_before: Duration,
    bytes_before: usize,
}

/// The cost of one input.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) cpu: Duration,
    pub(crate) bytes: usize,
}

impl Watchdog {
    /// Writes the input that takes too much to `artifact`.
    pub(crate) fn new(artifact: PathBuf) -> Self {
        let current = Arc::new(Mutex::new(None::<Current>));
        let watched = Arc::clone(&current);
        let (end, ended) = mpsc::channel::<()>();
        thread::spawn(move || {
            while ended.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
                if let Some(current) = &*watched.lock() {
                    let cpu = cpu_time().saturating_sub(current.cpu_before);
                    let bytes = MEMORY.current_usage().saturating_sub(current.bytes_before);
                    if cpu > MAX_CPU || bytes > MAX_BYTES {
                        let written = fs::write(&artifact, &current.input);
                        println!(
                            "{}: takes {cpu:?} and {bytes} bytes, {written:?}",
                            artifact.display()
                        );
                        process::abort();
                    }
                }
            }
        });
        Self { current, _end: end }
    }

    /// Runs `read` on `input`.
    pub(crate) fn watch<T>(&self, input: &[u8], read: impl FnOnce() -> T) -> (T, Used) {
        MEMORY.reset_peak_usage();
        let cpu_before = cpu_time();
        let bytes_before = MEMORY.current_usage();
        *self.current.lock() = Some(Current {
            input: input.to_vec(),
            cpu_before,
            bytes_before,
        });
        let result = read();
        *self.current.lock() = None;
        let used = Used {
            cpu: cpu_time().saturating_sub(cpu_before),
            bytes: MEMORY.peak_usage().saturating_sub(bytes_before),
        };
        (result, used)
    }
}

/// CPU time of the process so far.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.try_into().expect("the clock counts from 0")
}
