//! What the pods of a node share: the search for processes, the place where mounts are prepared, the looks under way, and
//! the metrics.

use std::time::Duration;

use larder_transport::registrar::{Labels, Registrar, label};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

use super::{
    looks::Looks,
    reason::RESULTS,
    replace::{Stage, enforces_labels},
};
use crate::processes::Processes;

/// What the pods of a node share.
#[derive(Debug)]
pub struct SubPathNode {
    pub(super) processes: Processes,
    pub(super) stage: Stage,
    pub(super) looks: Looks,
    /// Whether the machine enforces SELinux's rules.
    pub(super) enforces_labels: fn() -> bool,
    results: Family<Labels<1>, Counter>,
    delay: Histogram,
}

impl SubPathNode {
    /// With the processes of the node's containers.
    pub fn new(processes: Processes, registry: &mut Registry) -> Self {
        let mut registrar = Registrar(registry);
        Self {
            processes,
            stage: Stage::default(),
            looks: Looks::default(),
            enforces_labels,
            results: registrar.family(
                "subpath_replacements",
                "Attempts to show a running container the present content of a mount with subPath, by result",
                label("result", RESULTS),
            ),
            delay: registrar.seconds(
                "subpath_delay",
                "Time from the arrival of a change to the replacement of a mount with subPath",
                Histogram::new([0.003, 0.01, 0.03, 0.1, 0.2, 0.4, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0]),
            ),
        }
    }

    /// Says so when looks go on although their pods are gone.
    pub fn problem(&self) -> Option<String> {
        self.looks.abandoned()
    }

    pub(super) fn count(&self, result: &'static str) {
        self.results.get_or_create(&[("result", result)]).inc();
    }

    /// A mount was replaced, so long after the change.
    pub(super) fn took(&self, delay: Duration) {
        self.delay.observe(delay.as_secs_f64());
    }
}
