//! Registers metrics. For the crates of this workspace.
//!
//! Invariant: every label set exists from the start, so that a counter's first increase is visible.

use std::hash::Hash;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::family::Family,
    registry::{Metric, Registry, Unit},
};

/// Makes metrics and registers them.
#[derive(Debug)]
pub struct Registrar<'a>(pub &'a mut Registry);

impl Registrar<'_> {
    /// A metric with its default value.
    pub fn add<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        self.keep(name, help, M::default())
    }

    /// This metric.
    pub fn keep<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    /// A metric in seconds.
    pub fn seconds<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        let unit = Unit::Seconds;
        self.0.register_with_unit(name, help, unit, metric.clone());
        metric
    }

    /// A metric for each of these values of labels.
    pub fn family<M, L>(
        &mut self,
        name: &str,
        help: &str,
        labels: impl IntoIterator<Item = L>,
    ) -> Family<L, M>
    where
        Family<L, M>: Metric,
        L: Clone + Eq + Hash + EncodeLabelSet,
        M: Clone + Default,
    {
        let family = Family::<L, M>::default();
        for labels in labels {
            drop(family.get_or_create(&labels));
        }
        self.keep(name, help, family)
    }
}

/// Names and values of labels.
pub type Labels<const N: usize> = [(&'static str, &'static str); N];

/// One label with each of these values.
pub fn label<const N: usize>(name: &'static str, values: [&'static str; N]) -> [Labels<1>; N] {
    values.map(|value| [(name, value)])
}
