//! Stage 1: the pods of the node, and which of their changes concern the workers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ListParams, WatchEvent, WatchParams},
};
use larder_objects::ObjectKey;
use larder_projection::Needs;
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{KubeletContext, Stage, worker};

/// Annotations that the kubelet itself gives to its copy of a pod.
const SOURCE: &str = "kubernetes.io/config.source";
const SEEN: &str = "kubernetes.io/config.seen";
const HASH: &str = "kubernetes.io/config.hash";
const MIRROR: &str = "kubernetes.io/config.mirror";
/// larder's annotation, which a static pod does not have.
const REFRESH: &str = "larder.dev/refresh";

/// The desired state of a pod, for its worker.
#[derive(Clone, Debug)]
pub(super) struct Desired {
    pub(super) pod: Arc<Pod>,
    /// Whether it was removed from the API server.
    pub(super) gone: bool,
    /// Whether its containers have exited for good.
    pub(super) finished: bool,
    /// How often its containers were restarted.
    pub(super) restarts: u32,
}

impl Desired {
    /// Whether its containers must end.
    pub(super) fn ends(&self) -> bool {
        self.gone || self.finished || self.pod.metadata.deletion_timestamp.is_some()
    }
}

/// The pods by UID, each with the one slot of its worker.
#[derive(Debug, Default)]
pub(super) struct Workers(Mutex<BTreeMap<String, watch::Sender<Desired>>>);

impl Workers {
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }

    /// The containers of the pod of this name have exited for good.
    pub(super) fn finish(&self, name: &str) {
        for slot in self.0.lock().values() {
            slot.send_if_modified(|desired| {
                let fits = desired.pod.metadata.name.as_deref() == Some(name);
                desired.finished |= fits;
                fits
            });
        }
    }

    /// The containers of the pod of this name exit and are started again.
    pub(super) fn restart(&self, name: &str) {
        for slot in self.0.lock().values() {
            slot.send_if_modified(|desired| {
                let fits = desired.pod.metadata.name.as_deref() == Some(name);
                desired.restarts += u32::from(fits);
                fits
            });
        }
    }

    /// Forgets a pod, and the objects that no other pod references.
    pub(super) fn remove(&self, kubelet: &KubeletContext, uid: &str) {
        let mut workers = self.0.lock();
        workers.remove(uid);
        let (mut config_maps, mut secrets) = (BTreeSet::new(), BTreeSet::new());
        for slot in workers.values() {
            let desired = slot.borrow();
            let namespace = desired.pod.metadata.namespace.as_deref();
            let key = |name: &&str| ObjectKey::new(namespace.unwrap_or_default(), *name);
            let needs = Needs::of_pod(&desired.pod);
            config_maps.extend(needs.config_maps.iter().map(key));
            secrets.extend(needs.secrets.iter().map(key));
        }
        kubelet.objects.retain(&config_maps, &secrets);
    }

    /// Takes in a new state of a pod. Returns the slot for a new worker if the pod is new to the kubelet.
    fn update(
        &self,
        kubelet: &KubeletContext,
        pod: Pod,
    ) -> Option<(String, watch::Receiver<Desired>)> {
        let mut workers = self.0.lock();
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let Some(slot) = workers.get(&uid) else {
            kubelet.note(&pod, Stage::Update);
            let desired = Desired {
                pod: first_seen_at(pod, kubelet.now().to_string()),
                gone: false,
                finished: false,
                restarts: 0,
            };
            let (slot, follower) = watch::channel(desired);
            workers.insert(uid.clone(), slot);
            return Some((uid, follower));
        };
        slot.send_if_modified(|desired| {
            let seen = annotation(&desired.pod, SEEN).unwrap_or_default();
            let pod = first_seen_at(pod, seen.to_owned());
            let is_update = differ(&desired.pod, &pod);
            desired.pod = pod;
            if is_update {
                kubelet.note(&desired.pod, Stage::Update);
            }
            is_update
        });
        None
    }

    fn delete(&self, uid: &str) {
        if let Some(slot) = self.0.lock().get(uid) {
            slot.send_modify(|desired| desired.gone = true);
        }
    }
}

/// Whether a change from `old` to `new` is an UPDATE (kubelet 1.36, `podsDifferSemantically` in
/// `pkg/kubelet/config/config.go`): a status alone is none.
fn differ(old: &Pod, new: &Pod) -> bool {
    let (one, other) = (&old.metadata, &new.metadata);
    old.spec != new.spec
        || one.labels != other.labels
        || one.annotations != other.annotations
        || one.deletion_timestamp != other.deletion_timestamp
        || one.deletion_grace_period_seconds != other.deletion_grace_period_seconds
}

fn annotation<'p>(pod: &'p Pod, key: &str) -> Option<&'p str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

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

fn first_seen_at(mut pod: Pod, time: String) -> Arc<Pod> {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(SEEN.to_owned(), time);
    Arc::new(pod)
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
