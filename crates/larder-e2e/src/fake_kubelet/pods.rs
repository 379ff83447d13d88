//! Stage 1: the pods of the node, from the API server.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ListParams, WatchParams},
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{KubeletContext, desired::annotation, objects::watch, worker};

/// Annotations that the kubelet itself gives to its copy of a pod.
const SOURCE: &str = "kubernetes.io/config.source";
const HASH: &str = "kubernetes.io/config.hash";
const MIRROR: &str = "kubernetes.io/config.mirror";
/// larder's annotation, which a static pod does not have.
const REFRESH: &str = "larder.dev/refresh";

/// The pod that the kubelet serves for one of the API server. A mirror pod stands for its static pod, which has its own
/// UID and none of the annotations that the mirror was given later.
fn served(mut pod: Pod) -> Pod {
    let static_uid = annotation(&pod, MIRROR)
        .and(annotation(&pod, HASH))
        .map(str::to_owned);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    let source = if static_uid.is_some() { "file" } else { "api" };
    annotations.insert(SOURCE.to_owned(), source.to_owned());
    if static_uid.is_some() {
        annotations.remove(MIRROR);
        annotations.remove(REFRESH);
        pod.metadata.uid = static_uid;
    }
    pod
}

/// The pods of the node, and the version from which a watch continues.
pub(super) async fn list(kubelet: &KubeletContext) -> anyhow::Result<(Vec<Pod>, String)> {
    let fields = format!("spec.nodeName={}", kubelet.options.node);
    let pods: Api<Pod> = Api::all(kubelet.client.clone());
    let list = pods.list(&ListParams::default().fields(&fields)).await?;
    let version = list.metadata.resource_version.unwrap_or_default();
    Ok((list.items, version))
}

/// Follows the pods of the node, and runs their workers.
pub(super) async fn follow(kubelet: Arc<KubeletContext>, (pods, version): (Vec<Pod>, String)) {
    let mut running = JoinSet::new();
    for pod in pods {
        apply(&kubelet, &mut running, pod, true);
    }
    let (sender, mut events) = mpsc::unbounded_channel();
    let fields = format!("spec.nodeName={}", kubelet.options.node);
    let params = WatchParams::default().fields(&fields);
    let api = Api::all(kubelet.client.clone());
    let watching = watch(&api, &params, version, |pod, exists| {
        let at = Instant::now() + super::API_LATENCY;
        // The receiver lives as long as this.
        let _ = sender.send((at, pod, exists));
    });
    let dispatching = async {
        while let Some((at, pod, exists)) = events.recv().await {
            sleep_until(at).await;
            kubelet.runs().await;
            apply(&kubelet, &mut running, pod, exists);
            while let Some(ended) = running.try_join_next() {
                ended.expect("a worker does not panic");
            }
        }
    };
    tokio::join!(watching, dispatching);
}

fn apply(kubelet: &Arc<KubeletContext>, running: &mut JoinSet<()>, pod: Pod, exists: bool) {
    let pod = served(pod);
    if !exists {
        kubelet
            .workers
            .delete(&pod.metadata.uid.unwrap_or_default());
    } else if let Some((uid, desired)) = kubelet.workers.update(kubelet, pod) {
        running.spawn(worker::run(Arc::clone(kubelet), uid, desired));
    }
}
