//! Metrics for Prometheus: counters that the managers feed, and a census of their objects taken at each scrape.
//!
//! Labels have values from small fixed sets (`kind`, `verb`, `outcome`, `reason`, `state`), never names of objects.

use std::{
    fmt,
    sync::{Arc, Weak, atomic::AtomicU64},
    time::Duration,
};

use larder_transport::registrar::{Labels, Registrar};
use larder_watch::Restart;
use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use super::Metrics;
use crate::status::{ObjectState, ObjectStatus};

/// Metrics of any number of managers, distinguished by the label `kind`. Cheap to clone; all clones count together.
///
/// ```
/// use larder::ManagerMetrics;
///
/// let mut registry = prometheus_client::registry::Registry::default();
/// let metrics = ManagerMetrics::default();
/// metrics.register(registry.sub_registry_with_prefix("larder"));
/// ```
#[derive(Clone, Debug)]
pub struct ManagerMetrics {
    requests: Family<Labels<3>, Counter>,
    restarts: Family<Labels<2>, Counter>,
    waits: Family<Labels<1>, Histogram, fn() -> Histogram>,
    managers: Managers,
}

const fn of_kind(kind: &'static str) -> Labels<1> {
    [("kind", kind)]
}

const fn of_request(kind: &'static str, verb: &'static str, outcome: &'static str) -> Labels<3> {
    [("kind", kind), ("verb", verb), ("outcome", outcome)]
}

impl Default for ManagerMetrics {
    fn default() -> Self {
        let waits = || Histogram::new([0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 5.0]);
        Self {
            requests: Family::default(),
            restarts: Family::default(),
            waits: Family::new_with_constructor(waits),
            managers: Managers::default(),
        }
    }
}

impl ManagerMetrics {
    /// Registers everything in `registry`; the caller picks the prefix.
    pub fn register(&self, registry: &mut Registry) {
        let mut registrar = Registrar(registry);
        let requests = "Requests to the API server by verb and outcome";
        registrar.keep("requests", requests, self.requests.clone());
        let restarts = "Watches that were interrupted, by reason";
        registrar.keep("watch_restarts", restarts, self.restarts.clone());
        let waits = "Wait time of reads not served from cache";
        registrar.seconds("read_wait", waits, self.waits.clone());
        registry.register_collector(Box::new(self.managers.clone()));
    }

    /// Counts the objects of `manager` from now on, for as long as it lives.
    pub(crate) fn add(&self, manager: Weak<dyn CountObjects>) {
        let mut managers = self.managers.0.lock();
        managers.retain(|manager| manager.strong_count() > 0);
        managers.push(manager);
    }
}

/// The metrics of one manager.
#[derive(Debug)]
pub(crate) struct KindMetrics {
    kind: &'static str,
    all: ManagerMetrics,
}

impl KindMetrics {
    /// Metrics that are counted in `all`.
    pub(crate) fn new(kind: &'static str, all: ManagerMetrics) -> Self {
        // They exist from the start, so that the first increase is seen as one.
        for reason in Restart::ALL.map(Restart::label) {
            drop(
                all.restarts
                    .get_or_create(&[("kind", kind), ("reason", reason)]),
            );
        }
        for verb in ["get", "list", "watch"] {
            // The alert LarderWithoutPermission counts the second.
            for outcome in ["ok", "forbidden"] {
                drop(all.requests.get_or_create(&of_request(kind, verb, outcome)));
            }
        }
        drop(all.waits.get_or_create(&of_kind(kind)));
        Self { kind, all }
    }
}

impl Metrics for KindMetrics {
    fn requested(&self, verb: &'static str, outcome: &'static str) {
        let labels = of_request(self.kind, verb, outcome);
        self.all.requests.get_or_create(&labels).inc();
    }

    fn restarted(&self, reason: &'static str) {
        let labels = [("kind", self.kind), ("reason", reason)];
        self.all.restarts.get_or_create(&labels).inc();
    }

    fn waited(&self, time: Duration) {
        self.all
            .waits
            .get_or_create(&of_kind(self.kind))
            .observe(time.as_secs_f64());
    }
}

/// The counts of each scrape.
#[derive(Debug)]
pub(crate) struct Count {
    pub(crate) kind: &'static str,
    pub(crate) objects: Vec<ObjectStatus>,
    /// Reads that were answered at once, ever.
    pub(crate) hits: u64,
}

/// Something whose objects can be counted.
pub(crate) trait CountObjects: Send + Sync {
    fn count(&self) -> Count;
}

#[derive(Clone, Default)]
struct Managers(Arc<Mutex<Vec<Weak<dyn CountObjects>>>>);

impl fmt::Debug for Managers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Managers({})", self.0.lock().len())
    }
}

impl Collector for Managers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let managers: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        let objects = Family::<Labels<2>, Gauge>::default();
        let references = Family::<Labels<1>, Gauge>::default();
        let oldest = Family::<Labels<1>, Gauge<f64, AtomicU64>>::default();
        let hits = Family::<Labels<1>, Counter>::default();
        for count in managers.iter().map(|manager| manager.count()) {
            let of_state = |state| [("kind", count.kind), ("state", state)];
            for state in ObjectState::NAMES {
                drop(objects.get_or_create(&of_state(state)));
            }
            let of_kind = of_kind(count.kind);
            let (references, oldest) = (
                references.get_or_create(&of_kind),
                oldest.get_or_create(&of_kind),
            );
            for object in &count.objects {
                objects
                    .get_or_create(&of_state(object.state.as_str()))
                    .inc();
                references.inc_by(i64::try_from(object.references).unwrap_or(i64::MAX));
                oldest.set(oldest.get().max(object.age.as_secs_f64()));
            }
            hits.get_or_create(&of_kind).inc_by(count.hits);
        }
        let mut encode = |name, help, unit: Option<Unit>, metric: &dyn EncodeMetric| {
            let kind = metric.metric_type();
            metric.encode(encoder.encode_descriptor(name, help, unit.as_ref(), kind)?)
        };
        encode("objects", "Referenced objects by state", None, &objects)?;
        let help = "References of registered pods to objects";
        encode("references", help, None, &references)?;
        let help = "Longest time for which an object may have changed unnoticed";
        encode("oldest_data", help, Some(Unit::Seconds), &oldest)?;
        let help = "Reads that were answered at once from memory";
        encode("cache_hits", help, None, &hits)
    }
}
