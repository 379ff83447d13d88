//! What a manager costs its callers. The names tell what the kubelet's own manager needs for the same (Kubernetes 1.36,
//! the same kind of machine) and our budget.
//!
//! `cargo bench -p larder --bench managers`

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark measures real time and may panic"
)]

use std::{convert::Infallible, hint::black_box, thread, time::Instant};

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use futures::{FutureExt, StreamExt, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;
use larder::{ConfigMapManager, NodeTtl};
use tokio::runtime::Runtime;

const OBJECTS: usize = 500;

/// An API server that has every ConfigMap of namespace `n`, and changes none.
fn client() -> kube::Client {
    let answer = |request: Request<Body>| async move {
        let target = request.uri().to_string();
        let name = match target.split_once("metadata.name%3D") {
            Some((_, rest)) => rest.split('&').next().unwrap().to_owned(),
            None => target.rsplit('/').next().unwrap().to_owned(),
        };
        let object = format!(
            r#"{{"metadata":{{"namespace":"n","name":"{name}","uid":"u","resourceVersion":"5"}},"data":{{"k":"v"}}}}"#
        );
        let watch = target.contains("watch=true");
        let text = if watch {
            format!(
                "{{\"type\":\"ADDED\",\"object\":{object}}}\n{{\"type\":\"BOOKMARK\",\"object\":{{\"metadata\":{{\
                 \"resourceVersion\":\"5\",\"annotations\":{{\"k8s.io/initial-events-end\":\"true\"}}}}}}}}\n"
            )
        } else {
            object
        };
        let whole = stream::once(async { Ok::<_, Infallible>(Frame::data(Bytes::from(text))) });
        let body = if watch {
            whole.chain(stream::pending()).boxed()
        } else {
            whole.boxed()
        };
        Ok::<_, Infallible>(Response::new(StreamBody::new(body)))
    };
    kube::Client::new(tower::service_fn(answer), "default")
}

/// Pod `n/<name>` that refers to these ConfigMaps.
fn pod(name: &str, config_maps: impl Iterator<Item = String>) -> Pod {
    let volumes: Vec<_> = config_maps
        .map(|name| serde_json::json!({"name": name, "configMap": {"name": name}}))
        .collect();
    // As long as a real one.
    let uid = format!("{name:-<36}");
    serde_json::from_value(serde_json::json!({
        "metadata": {"namespace": "n", "name": name, "uid": uid},
        "spec": {"containers": [], "volumes": volumes},
    }))
    .unwrap()
}

fn names() -> impl Iterator<Item = String> {
    (0..OBJECTS).map(|number| format!("config-{number}"))
}

/// A manager that knows all objects.
fn synced(manager: ConfigMapManager, runtime: &Runtime) -> ConfigMapManager {
    manager.register_pod(&pod("all", names()));
    runtime.block_on(async {
        for name in names() {
            manager.get("n", &name).await.unwrap();
        }
    });
    manager
}

fn read(manager: &ConfigMapManager, name: &str) {
    let read = black_box(manager).get("n", black_box(name)).now_or_never();
    drop(black_box(read.unwrap().unwrap()));
}

fn reads(c: &mut Criterion, label: &str, manager: &ConfigMapManager) {
    let names: Vec<_> = names().collect();
    let mut next = names.iter().cycle();
    c.bench_function(label, |b| b.iter(|| read(manager, next.next().unwrap())));
    c.bench_function(&format!("{label}, two threads"), |b| {
        b.iter_custom(|count| {
            let start = Instant::now();
            thread::scope(|scope| {
                for _ in 0..2 {
                    let names = names.iter().cycle().take(usize::try_from(count).unwrap());
                    scope.spawn(|| names.for_each(|name| read(manager, name)));
                }
            });
            start.elapsed()
        });
    });
}

fn managers(c: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let _entered = runtime.enter();
    let watching = synced(ConfigMapManager::watching(client()), &runtime);
    let caching = synced(
        ConfigMapManager::caching(client(), NodeTtl::default()),
        &runtime,
    );
    reads(c, "read, Watch (kubelet 258 ns, budget 30 ns)", &watching);
    reads(c, "read, Cache (kubelet 100 ns)", &caching);

    let one = pod("one", names().take(1));
    c.bench_function(
        "register + unregister (kubelet 1733 ns, budget 300 ns)",
        |b| {
            b.iter(|| {
                watching.register_pod(black_box(&one));
                watching.unregister_pod(black_box(&one));
            });
        },
    );
    let ten = pod("ten", names().take(10));
    watching.register_pod(&ten);
    c.bench_function(
        "register again, 10 references (kubelet 2894 ns, budget 500 ns)",
        |b| b.iter(|| watching.register_pod(black_box(&ten))),
    );
}

criterion_group!(benches, managers);
criterion_main!(benches);
