//! Metrics of the pods, under the kubelet's names: register them in a sub-registry with the prefix `kubelet`.
//!
//! All but one counter are computed from the pods at each scrape, so they cannot drift. (The kubelet updates its gauge
//! of ephemeral containers by differences, which drifts.) Names and labels: kubelet 1.36,
//! `pkg/kubelet/metrics/metrics.go`. Its `orphaned_runtime_pods_total` is missing, because larder has no container
//! runtime.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use super::{
    lifecycle::{RestartedPods, WorkingPods},
    manager::Pods,
};

/// Metrics of one node's pods. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct PodMetrics {
    pods: Pods,
    /// The last [observation](Self::observe).
    lives: Arc<Mutex<(WorkingPods, RestartedPods)>>,
}

impl PodMetrics {
    /// Metrics of the pods that `pods` reads.
    pub fn new(pods: Pods) -> Self {
        Self {
            pods,
            lives: Arc::default(),
        }
    }

    /// Stores the lifecycle's counts. Call it after each change.
    pub fn observe(&self, working: WorkingPods, restarted: RestartedPods) {
        *self.lives.lock() = (working, restarted);
    }

    /// Registers everything in `registry`; the caller picks the prefix.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }
}

/// A metric's values by labels.
type Values = Vec<(Vec<(&'static str, &'static str)>, u64)>;

/// The label `static`, in the kubelet's form.
const fn is_static(is_static: bool) -> (&'static str, &'static str) {
    ("static", if is_static { "true" } else { "" })
}

fn by_static(ordinary: u64, r#static: u64) -> Values {
    vec![
        (vec![is_static(false)], ordinary),
        (vec![is_static(true)], r#static),
    ]
}

impl Collector for PodMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counts = self.pods.counts();
        let (working, restarted) = self.lives.lock().clone();
        let working = working.into_iter().map(|(kind, count)| {
            let config = if kind.gone { "orphan" } else { "desired" };
            let labels = vec![
                ("lifecycle", kind.stage.as_str()),
                ("config", config),
                is_static(kind.is_static),
            ];
            (labels, count)
        });
        let gauges = [
            (
                "desired_pods",
                "Pods that the node should run",
                by_static(counts.ordinary, counts.r#static),
            ),
            (
                "active_pods",
                "Pods that the node should run and that are not terminal",
                by_static(counts.active_ordinary, counts.active_static),
            ),
            (
                "mirror_pods",
                "Mirror pods of this node",
                vec![(Vec::new(), counts.mirrors)],
            ),
            (
                "managed_ephemeral_containers",
                "Ephemeral containers of the pods that the node should run",
                vec![(Vec::new(), counts.ephemeral_containers)],
            ),
            (
                "working_pods",
                "Pods by lifecycle: served, terminating or terminated",
                working.collect(),
            ),
        ];
        for (name, help, values) in gauges {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, value) in values {
                ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
            }
        }
        let help = "Pods that reappeared under the UID of a terminating pod";
        let mut metric =
            encoder.encode_descriptor("restarted_pods", help, None, MetricType::Counter)?;
        for (labels, value) in by_static(restarted.ordinary, restarted.r#static) {
            ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use prometheus_client::encoding::text;

    use super::*;
    use crate::{
        Operation, PodManager,
        identity::{CONFIG_MIRROR, CONFIG_SOURCE},
        lifecycle::PodLifecycle,
        testing::pod,
    };

    #[test]
    fn metrics_have_the_kubelets_names_and_labels() {
        // managers 61, without its container runtime: a terminating static pod is an orphan, and not desired.
        let mut manager = PodManager::default();
        let metrics = PodMetrics::new(manager.reader());
        let mut registry = Registry::with_prefix("kubelet");
        metrics.register(&mut registry);
        let mut lifecycle = PodLifecycle::new(true);
        lifecycle.all_sources_seen();
        let web = pod("web").annotation(CONFIG_SOURCE, "file").shared();
        for pod in [
            Arc::clone(&web),
            pod("web").uid("m").annotation(CONFIG_MIRROR, "").shared(),
            pod("app").shared(),
            pod("over").phase("Succeeded").shared(),
        ] {
            lifecycle.handle(Operation::Add, &pod);
            manager.add_pod(pod);
        }
        lifecycle.handle(Operation::Remove, &web);
        manager.remove_pod(&web);
        metrics.observe(lifecycle.working(), lifecycle.restarted());

        let mut text = String::new();
        text::encode(&mut text, &registry).unwrap();
        let values: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        expect![[r#"
            kubelet_desired_pods{static=""} 2
            kubelet_desired_pods{static="true"} 0
            kubelet_active_pods{static=""} 1
            kubelet_active_pods{static="true"} 0
            kubelet_mirror_pods{} 1
            kubelet_managed_ephemeral_containers{} 0
            kubelet_working_pods{lifecycle="sync",config="desired",static=""} 1
            kubelet_working_pods{lifecycle="terminating",config="desired",static=""} 1
            kubelet_working_pods{lifecycle="terminating",config="orphan",static="true"} 1
            kubelet_restarted_pods_total{static=""} 0
            kubelet_restarted_pods_total{static="true"} 0"#]]
        .assert_eq(&values.join("\n"));
    }
}
