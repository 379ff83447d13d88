//! What is counted of the managers' work. The metrics for Prometheus are a feature; without them nothing is counted.

#[cfg(feature = "metrics")]
mod prometheus;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;

#[cfg(feature = "metrics")]
pub use self::prometheus::ManagerMetrics;
#[cfg(feature = "metrics")]
pub(crate) use self::prometheus::{Count, CountObjects, KindMetrics};

/// Takes in what a manager does.
pub(crate) trait Metrics: fmt::Debug + Send + Sync {
    fn requested(&self, _verb: &'static str, _outcome: &'static str) {}

    fn restarted(&self, _reason: &'static str) {}

    fn waited(&self, _time: Duration) {}
}

/// In place of the metrics where they are not wanted: counts nothing.
impl Metrics for () {}

/// A counter for a path where one atomic addition would be a quarter of the cost: each thread adds to a cell that no
/// other thread writes. A cell outlives its thread, so that the sum never goes back.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Vec<Arc<TallyCell>>>);

/// What one thread counts, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct TallyCell(AtomicU64);

impl Tally {
    /// A new cell, for one thread at a time.
    pub(crate) fn cell(&self) -> Arc<TallyCell> {
        let cell = Arc::default();
        self.0.lock().push(Arc::clone(&cell));
        cell
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn sum(&self) -> u64 {
        let cells = self.0.lock();
        cells
            .iter()
            .map(|cell| cell.0.load(Ordering::Relaxed))
            .sum()
    }
}

impl TallyCell {
    #[inline]
    pub(crate) fn count(&self) {
        if cfg!(feature = "metrics") {
            self.0
                .store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}
