//! Environment and payload, beside what the kubelet needs for the same.
//!
//! The kubelet's figure was measured on another machine: what counts is its order of magnitude.

use std::{hint::black_box, sync::Arc, time::Duration};

use criterion::{
    Criterion, criterion_group, criterion_main,
    measurement::{Measurement, WallTime},
};
use k8s_openapi::api::core::v1::Pod;
use larder_objects::{ConfigMap, Object, Secret, SecretBytes};
use larder_projection::{Inputs, containers, environment, project};
use serde_json::json;

/// Kubelet 1.36: 50 keys by `envFrom` and 50 variables with two references each.
const KUBELET_ENVIRONMENT: Duration = Duration::from_nanos(22_800);

/// A pod that takes all 50 keys of a ConfigMap and sets 50 variables, each with two references.
fn pod() -> Pod {
    let env: Vec<_> = (0..50)
        .map(|index| {
            let next = (index + 7) % 50;
            json!({"name": format!("VAR_{index}"), "value": format!("a-$(KEY_{index})-$(KEY_{next})-z")})
        })
        .collect();
    serde_json::from_value(json!({
        "metadata": {"namespace": "ns", "name": "web"},
        "spec": {
            "enableServiceLinks": true,
            "containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": "cm"}}], "env": env}],
            "volumes": [{"name": "v", "projected": {"defaultMode": 0o644, "sources": [
                {"configMap": {"name": "cm"}}, {"secret": {"name": "s"}}]}}],
        },
    }))
    .expect("a pod")
}

fn inputs() -> Inputs {
    let data: serde_json::Map<_, _> = (0..50)
        .map(|index| (format!("KEY_{index}"), json!(format!("value-{index}"))))
        .collect();
    let json = json!({"metadata": {"name": "cm"}, "data": data}).to_string();
    let config_map = ConfigMap::from_json(json.as_bytes()).expect("a ConfigMap");
    let file = |index| {
        (
            format!("file-{index}"),
            SecretBytes::new(vec![b'x'; 20 * 1024]),
        )
    };
    let secret = Secret {
        data: (0..50).map(file).collect(),
        ..Secret::default()
    };
    Inputs {
        config_maps: [("cm".to_owned(), Ok(Arc::new(config_map)))].into(),
        secrets: [("s".to_owned(), Ok(Arc::new(secret)))].into(),
        services: Some(Arc::new([])),
        ..Inputs::default()
    }
}

fn benches(criterion: &mut Criterion) {
    let (pod, inputs) = (pod(), inputs());
    let container = containers(&pod).next().expect("one container");
    let mut best = Duration::MAX;
    criterion.bench_function("environment, 50 keys and 50 variables", |bencher| {
        bencher.iter_custom(|iterations| {
            let start = WallTime.start();
            for _ in 0..iterations {
                let environment = environment(black_box(&pod), container, black_box(&inputs));
                assert_eq!(black_box(environment).expect("an environment").len(), 100);
            }
            let elapsed = WallTime.end(start);
            best = best.min(elapsed / u32::try_from(iterations).unwrap_or(u32::MAX));
            elapsed
        });
    });
    beside_the_kubelet(best, KUBELET_ENVIRONMENT);

    let volume = &pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let volume = &volume.expect("volumes")[0];
    criterion.bench_function("payload, 50 keys and 50 files of 20 KB", |bencher| {
        bencher.iter(|| project(black_box(&pod), volume, black_box(&inputs)));
    });
}

#[expect(clippy::print_stdout, reason = "benchmarks report on standard output")]
fn beside_the_kubelet(ours: Duration, kubelets: Duration) {
    let ratio = kubelets.as_secs_f64() / ours.as_secs_f64();
    println!("    best {ours:?}; kubelet 1.36 {kubelets:?}, {ratio:.1} times as long\n");
}

criterion_group!(group, benches);
criterion_main!(group);
