//! Cost per pod of the merge of the sources, the pod manager and the lifecycle. It is the same beside a hundred pods
//! and beside ten thousand.
//!
//! Every figure is the CPU time of the thread for one pod, so that other work on the machine disturbs little.
//!
//! `cargo bench -p larder-pods --bench pods`

#![expect(clippy::unwrap_used, reason = "a benchmark may panic as a test may")]

#[path = "../tests/common/node.rs"]
mod node;

use std::{hint::black_box, sync::Arc, time::Duration};

use criterion::{Bencher, Criterion, criterion_group, criterion_main};
use jiff::Timestamp;
use larder_pods::{FullName, PodManager, PodMerge, PodSource, PodUid, SourcePods, StoredPod};
use node::Node;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

const NODES: [usize; 3] = [100, 1_000, 10_000];

fn pod(index: usize, image: &str) -> StoredPod {
    serde_json::from_value(json!({
        "metadata": {"name": format!("pod-{index}"), "namespace": "default", "uid": format!("00000000-0000-4000-8000-{index:012}")},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "c", "image": image, "envFrom": [{"configMapRef": {"name": "app"}}]}],
            "volumes": [{"name": "v", "secret": {"secretName": "tls"}}],
        },
    }))
    .unwrap()
}

/// A node with this many pods of the API server.
fn node_with(pods: usize) -> Node {
    let mut node = Node::new(PodSource::Api);
    let pods = (0..pods).map(|index| pod(index, "i:1"));
    node.take(SourcePods::All(pods.collect()));
    node
}

/// CPU time of this thread so far.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.try_into().unwrap()
}

/// Measures the time of `run` per pod. Setup and cleanup are not counted.
fn per_pod<S, R>(
    bencher: &mut Bencher<'_>,
    pods: usize,
    mut setup: impl FnMut() -> S,
    mut run: impl FnMut(S) -> R,
) {
    bencher.iter_custom(|iterations| {
        let mut total = Duration::ZERO;
        for _ in 0..iterations {
            let start = black_box(setup());
            let began = thread_time();
            let left = black_box(run(start));
            total += thread_time().saturating_sub(began);
            drop(left);
        }
        total / u32::try_from(pods).unwrap()
    });
}

/// The pods of an empty node, one after the other: each is added, then each updated, then each removed.
fn all_changes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("add, update and remove a pod of");
    group.sample_size(10);
    for pods in NODES {
        let of = |image: &'static str| (0..pods).map(move |index| pod(index, image));
        let gone = |pod: StoredPod| {
            SourcePods::Gone(FullName::of(&pod.metadata), PodUid::of(&pod.metadata))
        };
        let one = |pod: StoredPod| SourcePods::One(Box::new(pod));
        let words = || {
            let changed = of("i:1").chain(of("i:2")).map(one);
            changed.chain(of("i:2").map(gone)).collect::<Vec<_>>()
        };
        group.bench_function(format!("{pods}, all layers"), |bencher| {
            per_pod(
                bencher,
                pods,
                || (node_with(0), words()),
                |(mut node, words)| {
                    for pods in words {
                        node.take(pods);
                    }
                    node
                },
            );
        });
        group.bench_function(format!("{pods}, merge"), |bencher| {
            per_pod(
                bencher,
                pods,
                || (PodMerge::new([PodSource::Api]), words()),
                |(mut merge, words)| {
                    for pods in words {
                        black_box(merge.merge(PodSource::Api, pods, Timestamp::UNIX_EPOCH));
                    }
                    merge
                },
            );
        });
    }
}

/// The pod manager alone, as the kubelet's benchmark of `pkg/kubelet/pod` runs it: the pods exist, only the calls
/// count.
fn manager_alone(criterion: &mut Criterion) {
    const ROUNDS: usize = 1000;
    let mut group = criterion.benchmark_group("pod manager alone");
    for pods in NODES {
        let of = |image| (0..pods).map(move |index| Arc::new(pod(index, image)));
        let mut manager = PodManager::default();
        for pod in of("i:1") {
            manager.add_pod(pod);
        }
        let added = Arc::new(pod(pods, "i:1"));
        let updated = Arc::new(pod(pods, "i:2"));
        group.bench_function(format!("add + update + remove beside {pods}"), |bencher| {
            let no_setup = || ();
            per_pod(bencher, ROUNDS, no_setup, |()| {
                for _ in 0..ROUNDS {
                    manager.add_pod(Arc::clone(black_box(&added)));
                    manager.add_pod(Arc::clone(black_box(&updated)));
                    manager.remove_pod(black_box(&updated));
                }
            });
        });
        let (added, updated): (Vec<_>, Vec<_>) = (of("i:1").collect(), of("i:2").collect());
        group.bench_function(format!("each of {pods} from empty"), |bencher| {
            per_pod(bencher, pods, PodManager::default, |mut manager| {
                for pod in &added {
                    manager.add_pod(Arc::clone(pod));
                }
                for pod in &updated {
                    manager.add_pod(Arc::clone(pod));
                }
                for pod in &updated {
                    manager.remove_pod(pod);
                }
                manager
            });
        });
    }
}

/// A pod is added, updated and removed on a node that has `pods` already.
fn one_change(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("add, update and remove a pod");
    for pods in NODES {
        let mut node = node_with(pods);
        let changes = || {
            let (added, updated) = (pod(pods, "i:1"), pod(pods, "i:2"));
            let gone = SourcePods::Gone(FullName::of(&added.metadata), PodUid::of(&added.metadata));
            [
                SourcePods::One(Box::new(added)),
                SourcePods::One(Box::new(updated)),
                gone,
            ]
        };
        group.bench_function(format!("beside {pods}"), |bencher| {
            per_pod(bencher, 1, changes, |changes| {
                for pods in changes {
                    node.take(pods);
                }
            });
        });
    }
}

/// All pods of a node arrive in one set.
fn first_set(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("first set, a pod");
    group.sample_size(10);
    for pods in NODES {
        let set: Vec<_> = (0..pods).map(|index| pod(index, "i:1")).collect();
        group.bench_function(format!("of {pods}"), |bencher| {
            per_pod(
                bencher,
                pods,
                || (node_with(0), SourcePods::All(set.clone())),
                |(mut node, pods)| {
                    node.take(pods);
                    node
                },
            );
        });
    }
}

/// Reads beside an idle writer, a hundred at a time.
fn lookups(criterion: &mut Criterion) {
    const READS: usize = 100;
    let mut group = criterion.benchmark_group("look up a pod");
    for pods in NODES {
        let node = node_with(pods);
        let reader = node.pods.pods();
        let full_name = FullName::of(&pod(pods / 2, "i:1").metadata);
        let uid = PodUid::of(&pod(pods / 2, "i:1").metadata);
        group.bench_function(format!("by full name of {pods}"), |bencher| {
            let read = || reader.pod_by_full_name(black_box(&full_name));
            per_pod(
                bencher,
                READS,
                || (),
                |()| {
                    for _ in 0..READS {
                        black_box(read());
                    }
                },
            );
        });
        group.bench_function(format!("by UID of {pods}"), |bencher| {
            let read = || {
                let uid = reader.translate_pod_uid(black_box(&uid));
                reader.pod_by_uid(&uid)
            };
            per_pod(
                bencher,
                READS,
                || (),
                |()| {
                    for _ in 0..READS {
                        black_box(read());
                    }
                },
            );
        });
    }
}

criterion_group!(
    benches,
    manager_alone,
    all_changes,
    one_change,
    first_set,
    lookups
);
criterion_main!(benches);
