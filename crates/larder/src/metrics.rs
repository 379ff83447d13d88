//! Counters of the managers' work. Metrics for Prometheus are a feature; without it, nothing is counted.

#[cfg(feature = "metrics")]
mod prometheus;

use std::{fmt, time::Duration};

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
