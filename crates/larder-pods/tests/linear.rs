//! The cost of five thousand pods is ten times that of five hundred, counted in allocations and in allocated bytes.
//! Counts repeat on every machine, where times do not.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "common/node.rs"]
mod node;

use std::{fmt::Write as _, sync::LazyLock};

use allocation_counter::{AllocationInfo, measure};
use larder_pods::{
    PodSource, SourcePods, StoredPod,
    static_pod::{ApiReferences, StaticPods},
};
use node::Node;

/// The body of a URL with `count` pods.
fn list(count: usize) -> String {
    let mut text = "apiVersion: v1\nkind: PodList\nitems:\n".to_owned();
    for index in 0..count {
        writeln!(text, "- metadata: {{name: p{index:05}}}").unwrap();
        writeln!(text, "  spec: {{containers: [{{name: c, image: i}}]}}").unwrap();
    }
    text
}

/// Five thousand pods, decoded once for all that do not measure that.
static PODS: LazyLock<Vec<StoredPod>> = LazyLock::new(|| decoded(5000));

fn decoded(count: usize) -> Vec<StoredPod> {
    let static_pods = StaticPods::new("n1", ApiReferences::Refuse);
    let pods = static_pods.from_url("http://h/m", &list(count)).unwrap();
    assert_eq!(pods.len(), count);
    pods.into_iter().map(|one| one.pod).collect()
}

/// Fails unless `large`, of ten times as many pods as `small`, costs about ten times as much.
#[track_caller]
fn check(what: &str, small: &AllocationInfo, large: &AllocationInfo) {
    for (unit, small, large) in [
        ("allocations", small.count_total, large.count_total),
        ("bytes", small.bytes_total, large.bytes_total),
    ] {
        assert!(large > small, "{what}: nothing was measured");
        // Tables grow by doubling, so that a step of ten may cost up to sixteen times as much.
        assert!(large <= 16 * small, "{what}: {small} and {large} {unit}");
    }
}

#[test]
fn decoding_a_list_costs_the_same_for_each_pod() {
    let cost = |count| measure(|| drop(decoded(count)));
    check("decode", &cost(500), &cost(5000));
}

#[test]
fn sets_cost_the_same_for_each_pod() {
    let costs = |pods: Vec<StoredPod>| {
        let count = pods.len();
        let changed: Vec<_> = pods.iter().cloned().map(relabeled).collect();
        let mut node = Node::new(PodSource::Http);
        let mut steps = Vec::new();
        for (pods, left) in [
            (pods.clone(), count),
            (pods, count),
            (changed, count),
            (vec![], 0),
        ] {
            steps.push(measure(|| node.take(SourcePods::All(pods))));
            assert_eq!(node.pods.pods().pods().len(), left);
        }
        steps
    };
    let (small, large) = (costs(PODS[..500].to_vec()), costs(PODS.clone()));
    for (step, what) in ["fill", "unchanged", "changed", "empty"].iter().enumerate() {
        check(what, &small[step], &large[step]);
    }
}

#[test]
fn one_change_costs_the_same_beside_any_number_of_pods() {
    let cost = |count: usize| {
        let mut node = Node::new(PodSource::Http);
        node.take(SourcePods::All(PODS[..count].to_vec()));
        let changed = relabeled(PODS[0].clone());
        // Keeps the tables from growing while they are measured.
        node.take(SourcePods::One(Box::new(changed)));
        let back = PODS[0].clone();
        measure(|| node.take(SourcePods::One(Box::new(back)))).count_total
    };
    assert_eq!(cost(100), cost(5000));
}

fn relabeled(mut pod: StoredPod) -> StoredPod {
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert("l".to_owned(), "1".to_owned());
    pod
}
