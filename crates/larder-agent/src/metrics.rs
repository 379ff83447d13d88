//! Metrics of the agent. `docs/metrics.md` lists those of all crates.
//!
//! Invariant: every label set exists from the start, so that a counter's first increase is visible.

use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::{Registry, Unit},
};

use crate::status::Phase;

/// Metrics of the deliveries. Cloning shares them.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    deliveries: Family<Labels<2>, Counter>,
    events: Family<Labels<1>, Counter>,
    delay: Histogram,
    pods: Family<Labels<1>, Gauge>,
    healthy: Gauge,
    ready: Gauge,
}

/// Names and values of labels.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The outcome of posting an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventOutcome {
    /// The API server has it.
    Posted,
    /// The agent is not permitted to post it; it will retry.
    Forbidden,
    /// The API server will never accept it.
    Rejected,
}

/// The outcome of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryOutcome {
    /// New content is in place.
    Swapped,
    /// The content was up to date.
    Unchanged,
    /// It failed and will be retried.
    Failed,
}

impl Metrics {
    /// Registers the metrics of an agent that starts at `now` in `registry`.
    pub(crate) fn register(registry: &mut Registry, now: Timestamp) -> Self {
        // From a tenth of a millisecond to three seconds.
        let buckets = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];
        let metrics = Self {
            deliveries: Family::default(),
            events: Family::default(),
            delay: Histogram::new(buckets),
            pods: Family::default(),
            healthy: Gauge::default(),
            ready: Gauge::default(),
        };
        for part in ["volume", "environment"] {
            for outcome in ["swapped", "unchanged", "failed"] {
                let labels = [("part", part), ("outcome", outcome)];
                drop(metrics.deliveries.get_or_create(&labels));
            }
        }
        for outcome in ["posted", "forbidden", "refused"] {
            drop(metrics.events.get_or_create(&[("outcome", outcome)]));
        }
        registry.register(
            "deliveries",
            "Passes over a volume or an environment",
            metrics.deliveries.clone(),
        );
        registry.register(
            "events",
            "Events about pods, by the API server's answer",
            metrics.events.clone(),
        );
        registry.register_with_unit(
            "change_delivery",
            "Time from the arrival of a change to its delivery",
            Unit::Seconds,
            metrics.delay.clone(),
        );
        registry.register(
            "pods",
            "Pods by the phase of their delivery",
            metrics.pods.clone(),
        );
        registry.register(
            "healthy",
            "Whether every watch is known to be alive, as in /healthz",
            metrics.healthy.clone(),
        );
        registry.register(
            "ready",
            "Whether every pod source has reported and every pod was tried, as in /readyz",
            metrics.ready.clone(),
        );
        let started = Gauge::<i64>::default();
        started.set(now.as_second());
        registry.register_with_unit(
            "start_time",
            "Time of the agent's start, in seconds since 1970",
            Unit::Seconds,
            started,
        );
        registry.register(
            "build",
            "Version of larder",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        metrics
    }

    /// Sets what is read at each scrape.
    pub(crate) fn observe(&self, phases: impl Iterator<Item = Phase>, healthy: bool, ready: bool) {
        let mut counts = Phase::ALL.map(|phase| (phase, 0));
        for phase in phases {
            for (counted, count) in &mut counts {
                *count += i64::from(*counted == phase);
            }
        }
        for (phase, count) in counts {
            let phase = phase.as_str();
            self.pods.get_or_create(&[("phase", phase)]).set(count);
        }
        self.healthy.set(healthy.into());
        self.ready.set(ready.into());
    }

    /// Counts an event.
    pub(crate) fn event(&self, outcome: EventOutcome) {
        let outcome = match outcome {
            EventOutcome::Posted => "posted",
            EventOutcome::Forbidden => "forbidden",
            EventOutcome::Rejected => "refused",
        };
        self.events.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counts a pass over one `volume` or `environment`.
    pub(crate) fn delivered(&self, part: &'static str, outcome: DeliveryOutcome) {
        let outcome = match outcome {
            DeliveryOutcome::Swapped => "swapped",
            DeliveryOutcome::Unchanged => "unchanged",
            DeliveryOutcome::Failed => "failed",
        };
        self.deliveries
            .get_or_create(&[("part", part), ("outcome", outcome)])
            .inc();
    }

    /// Records the time from the arrival of a change to its content being in place.
    pub(crate) fn delayed(&self, delay: Duration) {
        self.delay.observe(delay.as_secs_f64());
    }
}
