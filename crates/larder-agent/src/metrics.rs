//! What the agent counts.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};
use std::time::Duration;

/// Counters of the deliveries. Cloning shares them.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    deliveries: Family<Delivery, Counter>,
    events: Family<Event, Counter>,
    delay: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Delivery {
    part: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Event {
    outcome: &'static str,
}

/// What the API server made of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventOutcome {
    /// It has it.
    Posted,
    /// This agent may not; it will be tried again.
    Forbidden,
    /// It never takes it.
    Refused,
}

/// How a delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// New content is in place.
    Swapped,
    /// What was there was right.
    Unchanged,
    /// It failed, and will be tried again.
    Failed,
}

impl Metrics {
    /// Registers the metrics in `registry`.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        // From a tenth of a millisecond to three seconds.
        let buckets = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];
        let metrics = Self {
            deliveries: Family::default(),
            events: Family::default(),
            delay: Histogram::new(buckets),
        };
        registry.register(
            "deliveries",
            "Passes over a volume or an environment",
            metrics.deliveries.clone(),
        );
        registry.register(
            "events",
            "Events about pods, and what the API server made of them",
            metrics.events.clone(),
        );
        registry.register_with_unit(
            "change_delivery",
            "Time from a change that arrived to its content in place",
            Unit::Seconds,
            metrics.delay.clone(),
        );
        metrics
    }

    /// The API server has answered to an event.
    pub(crate) fn event(&self, outcome: EventOutcome) {
        let outcome = match outcome {
            EventOutcome::Posted => "posted",
            EventOutcome::Forbidden => "forbidden",
            EventOutcome::Refused => "refused",
        };
        self.events.get_or_create(&Event { outcome }).inc();
    }

    /// A pass over one `volume` or `environment` ended.
    pub(crate) fn delivered(&self, part: &'static str, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Swapped => "swapped",
            Outcome::Unchanged => "unchanged",
            Outcome::Failed => "failed",
        };
        self.deliveries
            .get_or_create(&Delivery { part, outcome })
            .inc();
    }

    /// New content is in place, so long after the change arrived.
    pub(crate) fn delayed(&self, delay: Duration) {
        self.delay.observe(delay.as_secs_f64());
    }
}
