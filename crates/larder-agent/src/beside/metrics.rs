//! Metrics of the mode, `larder_beside_…`.

use std::time::Duration;

use larder_kubelet::{
    outdated::OutdatedKind,
    rules::{Arrival, PartState},
};
use larder_transport::registrar::{Labels, Registrar, label};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Results of touches.
const TOUCHES: [&str; 6] = ["ok", "noop", "forbidden", "refused", "throttled", "error"];
/// Results of verifications.
const VERIFICATIONS: [&str; 5] = [
    Arrival::Same.as_str(),
    Arrival::Swapped.as_str(),
    Arrival::Late.as_str(),
    "detached",
    "unverified",
];

/// Metrics of the mode. Cloning shares them.
#[derive(Clone, Debug)]
pub(super) struct BesideMetrics {
    touches: Family<Labels<1>, Counter>,
    verifications: Family<Labels<1>, Counter>,
    delivery: Histogram,
    touches_per_delivery: Histogram,
    volumes: Family<Labels<1>, Gauge>,
    rate_limit: Gauge,
    outdated: Family<Labels<1>, Gauge>,
}

impl BesideMetrics {
    /// Registers the metrics in `registry`.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut registrar = Registrar(registry.sub_registry_with_prefix("beside"));
        Self {
            touches: registrar.family(
                "touches",
                "Touches of pods, by the API server's answer",
                label("result", TOUCHES),
            ),
            verifications: registrar.family(
                "verifications",
                "Changes of volumes, by the result of their verification",
                label("result", VERIFICATIONS),
            ),
            delivery: registrar.seconds(
                "delivery",
                "Time from the arrival of a change to its verified content in the volume",
                // From a kubelet that is fast to one whose own sync brings the change.
                Histogram::new([0.03, 0.1, 0.15, 0.2, 0.3, 0.7, 1.3, 3.0, 10.0, 30.0, 90.0]),
            ),
            touches_per_delivery: registrar.keep(
                "touches_per_delivery",
                "Touches sent for a change until it was verified",
                Histogram::new([0.0, 1.0, 2.0, 3.0, 4.0]),
            ),
            volumes: registrar.family(
                "volumes",
                "Volumes by the state of their content",
                label("state", PartState::ALL.map(PartState::as_str)),
            ),
            rate_limit: registrar.add(
                "rate_limit",
                "Touches per second that the rate limit allows",
            ),
            outdated: registrar.family(
                "outdated_mounts",
                "Variables and subPath mounts of containers that only a restart brings up to date",
                label("kind", OutdatedKind::ALL.map(OutdatedKind::as_str)),
            ),
        }
    }

    /// Counts the answer to a touch.
    pub(super) fn touched(&self, result: &'static str) {
        self.touches.get_or_create(&[("result", result)]).inc();
    }

    /// Counts a verification.
    pub(super) fn verified(&self, result: &'static str) {
        self.verifications
            .get_or_create(&[("result", result)])
            .inc();
    }

    /// Records a change that was verified.
    pub(super) fn delivered(&self, delay: Duration, touches: u32) {
        self.delivery.observe(delay.as_secs_f64());
        self.touches_per_delivery.observe(touches.into());
    }

    /// Sets the rate limit, which is read at each scrape.
    pub(super) fn observe(&self, rate: u32) {
        self.rate_limit.set(rate.into());
    }

    /// A pod without volumes.
    pub(super) fn of_pod(&self) -> PodGauges {
        PodGauges {
            metrics: self.clone(),
            counts: PodCounts::default(),
        }
    }
}

/// What the gauges count of one pod.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PodCounts {
    /// Volumes by their state, in the order of [`PartState::ALL`].
    pub(super) volumes: [i64; PartState::ALL.len()],
    /// Variables and mounts that are out of date, in the order of [`OutdatedKind::ALL`].
    pub(super) outdated: [i64; OutdatedKind::ALL.len()],
}

/// The share of one pod in the gauges, until it is dropped.
#[derive(Debug)]
pub(super) struct PodGauges {
    metrics: BesideMetrics,
    counts: PodCounts,
}

impl PodGauges {
    pub(super) fn set(&mut self, counts: PodCounts) {
        let before = std::mem::replace(&mut self.counts, counts);
        for state in PartState::ALL {
            self.metrics
                .volumes
                .get_or_create(&[("state", state.as_str())])
                .inc_by(counts.volumes[state as usize] - before.volumes[state as usize]);
        }
        for kind in OutdatedKind::ALL {
            self.metrics
                .outdated
                .get_or_create(&[("kind", kind.as_str())])
                .inc_by(counts.outdated[kind as usize] - before.outdated[kind as usize]);
        }
    }
}

impl Drop for PodGauges {
    fn drop(&mut self) {
        self.set(PodCounts::default());
    }
}
