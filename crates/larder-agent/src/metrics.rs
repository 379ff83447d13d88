//! Metrics of the agent. `docs/metrics.md` lists those of all crates.
//!
//! Invariant: every label set exists from the start, so that a counter's first increase is visible.

use std::time::Duration;

use jiff::Timestamp;
use larder_pods::events::PostOutcome;
use larder_transport::registrar::{Labels, Registrar, label};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info},
    registry::Registry,
};

use crate::status::Phase;

/// Metrics of the deliveries. Cloning shares them.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    deliveries: Family<Labels<2>, Counter>,
    events: Family<Labels<1>, Counter>,
    delay: Histogram,
    pods: Family<Labels<1>, Gauge>,
    problems: Gauge,
    healthy: Gauge,
    ready: Gauge,
}

/// What `/healthz` and `/readyz` answer.
pub(crate) struct ProbeAnswers {
    pub(crate) healthy: bool,
    pub(crate) ready: bool,
}

impl Metrics {
    /// Registers the metrics of an agent that starts at `now` in `registry`.
    pub(crate) fn register(registry: &mut Registry, now: Timestamp) -> Self {
        // From a tenth of a millisecond to three seconds.
        let buckets = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];
        let outcomes = ["swapped", "unchanged", "failed"];
        let deliveries = ["volume", "environment"]
            .into_iter()
            .flat_map(|part| outcomes.map(|outcome| [("part", part), ("outcome", outcome)]));
        let mut registrar = Registrar(registry);
        let metrics = Self {
            deliveries: registrar.family(
                "deliveries",
                "Passes over a volume or an environment",
                deliveries,
            ),
            events: registrar.family(
                "events",
                "Events about pods, by the API server's answer",
                label("outcome", PostOutcome::ALL.map(PostOutcome::as_str)),
            ),
            delay: registrar.seconds(
                "change_delivery",
                "Time from the arrival of a change to its delivery",
                Histogram::new(buckets),
            ),
            pods: registrar.add("pods", "Pods by the phase of their delivery"),
            problems: registrar.add(
                "problems",
                "Problems of manifests, pod sources, objects and hooks, as in larder status",
            ),
            healthy: registrar.add(
                "healthy",
                "Whether every watch is known to be alive and the root directory is at its path and answers, as in /healthz",
            ),
            ready: registrar.add(
                "ready",
                "Whether every pod source has reported and every pod was tried, as in /readyz",
            ),
        };
        let help = "Time of the agent's start, in seconds since 1970";
        let started: Gauge = registrar.seconds("start_time", help, Gauge::default());
        started.set(now.as_second());
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Version of larder", version);
        metrics
    }

    /// Sets what is read at each scrape.
    pub(crate) fn observe(
        &self,
        phases: impl Iterator<Item = Phase>,
        problems: usize,
        answers: ProbeAnswers,
    ) {
        let mut counts = [0; Phase::ALL.len()];
        for phase in phases {
            counts[phase as usize] += 1;
        }
        for (phase, count) in Phase::ALL.into_iter().zip(counts) {
            let phase = phase.as_str();
            self.pods.get_or_create(&[("phase", phase)]).set(count);
        }
        self.problems
            .set(i64::try_from(problems).unwrap_or(i64::MAX));
        self.healthy.set(answers.healthy.into());
        self.ready.set(answers.ready.into());
    }

    /// Counts events by their outcome.
    pub(crate) fn count_events(&self) -> impl Fn(PostOutcome) + use<> {
        let events = self.events.clone();
        move |outcome| {
            let outcome = outcome.as_str();
            events.get_or_create(&[("outcome", outcome)]).inc();
        }
    }

    /// Counts a pass over one `volume` or `environment`: `swapped`, `unchanged` or `failed`.
    pub(crate) fn delivered(&self, part: &'static str, outcome: &'static str) {
        let labels = [("part", part), ("outcome", outcome)];
        self.deliveries.get_or_create(&labels).inc();
    }

    /// Records the time from the arrival of a change to its content being in place.
    pub(crate) fn delayed(&self, delay: Duration) {
        self.delay.observe(delay.as_secs_f64());
    }
}
