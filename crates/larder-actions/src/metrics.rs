//! Metrics of rounds. No name of a pod is a label.

use std::{sync::atomic::AtomicU64, time::Duration};

use jiff::Timestamp;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use larder_transport::registrar::{Labels, Registrar, label};

/// Metrics of rounds. Cloning shares them.
#[derive(Clone, Debug)]
pub struct RoundMetrics {
    runs: Family<Labels<2>, Counter>,
    run: Family<Labels<1>, Histogram>,
    delay: Histogram,
    last_success: Gauge<f64, AtomicU64>,
    last_failed: Gauge,
    pending: Gauge,
}

/// Buckets from 0.1 ms to 5 min.
fn seconds() -> Histogram {
    Histogram::new([
        0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0,
    ])
}

impl RoundMetrics {
    /// Registers the metrics in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let actions = ["signal", "http", "restart", "exec", "program"];
        let outcomes = ["succeeded", "skipped", "failed", "timed_out"];
        let runs = actions
            .into_iter()
            .flat_map(|action| outcomes.map(|outcome| [("action", action), ("outcome", outcome)]));
        let run = Family::new_with_constructor(seconds as fn() -> Histogram);
        for labels in label("action", actions) {
            drop(run.get_or_create(&labels));
        }
        let mut registrar = Registrar(registry);
        Self {
            runs: registrar.family("on_change_runs", "Actions of hooks, by outcome", runs),
            run: registrar.seconds("on_change_run", "Duration of an action of a hook", run),
            delay: registrar.seconds(
                "on_change_delay",
                "Time from the delivery of a change to the first action of its round",
                seconds(),
            ),
            last_success: registrar.seconds(
                "on_change_last_success_timestamp",
                "Time of the last successful round, in seconds since 1970",
                Gauge::default(),
            ),
            last_failed: registrar.add(
                "on_change_last_failed",
                "1 while the last round of at least one hook has failed",
            ),
            pending: registrar.add(
                "on_change_pending",
                "Hooks that have yet to notify their application of the current content",
            ),
        }
    }

    /// Counts one action.
    pub fn ran(&self, action: &'static str, outcome: &'static str, took: Duration) {
        self.runs
            .get_or_create(&[("action", action), ("outcome", outcome)])
            .inc();
        self.run
            .get_or_create(&[("action", action)])
            .observe(took.as_secs_f64());
    }

    /// Records the time from the delivery of a change to the first action.
    pub fn delayed(&self, delay: Duration) {
        self.delay.observe(delay.as_secs_f64());
    }

    /// Records the time of a successful round.
    pub fn succeeded(&self, now: Timestamp) {
        #[expect(clippy::cast_precision_loss, reason = "microseconds fit for 280 years")]
        self.last_success.set(now.as_microsecond() as f64 / 1e6);
    }

    /// Sets the numbers of hooks that fail, and of hooks that have yet to notify their application.
    pub fn set_hooks(&self, failing: usize, pending: usize) {
        self.last_failed.set(i64::from(failing > 0));
        self.pending.set(i64::try_from(pending).unwrap_or(i64::MAX));
    }
}
