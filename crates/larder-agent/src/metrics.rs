//! Counters of the agent.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};
use std::time::Duration;

/// Counters of the deliveries. Cloning shares them.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    deliveries: Family<DeliveryLabels, Counter>,
    events: Family<EventLabels, Counter>,
    delay: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeliveryLabels {
    part: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    outcome: &'static str,
}

/// How posting an event ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventOutcome {
    /// The API server has it.
    Posted,
    /// The agent is not permitted to; it will retry.
    Forbidden,
    /// The API server will never accept it.
    Rejected,
}

/// How a delivery ended.
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

    /// Counts an event.
    pub(crate) fn event(&self, outcome: EventOutcome) {
        let outcome = match outcome {
            EventOutcome::Posted => "posted",
            EventOutcome::Forbidden => "forbidden",
            EventOutcome::Rejected => "refused",
        };
        self.events.get_or_create(&EventLabels { outcome }).inc();
    }

    /// Counts a pass over one `volume` or `environment`.
    pub(crate) fn delivered(&self, part: &'static str, outcome: DeliveryOutcome) {
        let outcome = match outcome {
            DeliveryOutcome::Swapped => "swapped",
            DeliveryOutcome::Unchanged => "unchanged",
            DeliveryOutcome::Failed => "failed",
        };
        self.deliveries
            .get_or_create(&DeliveryLabels { part, outcome })
            .inc();
    }

    /// Records the time from the arrival of a change to its content being in place.
    pub(crate) fn delayed(&self, delay: Duration) {
        self.delay.observe(delay.as_secs_f64());
    }
}
