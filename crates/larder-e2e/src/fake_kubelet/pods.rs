//! Stage 1: the pods of the node, from the API server.

use std::sync::Arc;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ListParams, WatchEvent, WatchParams},
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{KubeletContext, desired::annotation, worker};

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
        apply(&kubelet, &mut running, WatchEvent::Added(pod));
    }
    let (sender, mut events) = mpsc::unbounded_channel();
    let watching = watch_pods(&kubelet, version, sender);
    let dispatching = async {
        while let Some((at, event)) = events.recv().await {
            sleep_until(at).await;
            kubelet.runs().await;
            apply(&kubelet, &mut running, event);
            while let Some(ended) = running.try_join_next() {
                ended.expect("a worker does not panic");
            }
        }
    };
    tokio::join!(watching, dispatching);
}

/// Watches the pods; sends each event with the time at which the kubelet has it.
async fn watch_pods(
    kubelet: &KubeletContext,
    mut version: String,
    events: mpsc::UnboundedSender<(Instant, WatchEvent<Pod>)>,
) {
    let fields = format!("spec.nodeName={}", kubelet.options.node);
    let params = WatchParams::default().fields(&fields);
    let pods: Api<Pod> = Api::all(kubelet.client.clone());
    loop {
        if let Ok(stream) = pods.watch(&params, &version).await {
            let mut stream = std::pin::pin!(stream);
            while let Ok(Some(event)) = stream.try_next().await {
                match &event {
                    WatchEvent::Bookmark(bookmark) => {
                        version.clone_from(&bookmark.metadata.resource_version);
                        continue;
                    }
                    WatchEvent::Error(error) => panic!("the fake kubelet missed pods: {error:?}"),
                    WatchEvent::Added(pod)
                    | WatchEvent::Modified(pod)
                    | WatchEvent::Deleted(pod) => {
                        version = pod.metadata.resource_version.clone().unwrap_or_default();
                    }
                }
                let at = Instant::now() + kubelet.options.api_latency;
                // The receiver lives as long as this.
                let _ = events.send((at, event));
            }
        }
        tokio::task::yield_now().await;
    }
}

fn apply(kubelet: &Arc<KubeletContext>, running: &mut JoinSet<()>, event: WatchEvent<Pod>) {
    match event {
        WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
            if let Some((uid, desired)) = kubelet.workers.update(kubelet, served(pod)) {
                running.spawn(worker::run(Arc::clone(kubelet), uid, desired));
            }
        }
        WatchEvent::Deleted(pod) => {
            let uid = served(pod).metadata.uid;
            kubelet.workers.delete(&uid.unwrap_or_default());
        }
        WatchEvent::Bookmark(_) | WatchEvent::Error(_) => {}
    }
}
