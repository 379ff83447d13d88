//! The desired states of pods, each in the one slot of its worker, and the changes of a pod that the worker must
//! handle.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use larder_objects::ObjectKey;
use larder_projection::Need;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{KubeletContext, Stage};

/// The annotation with the time at which the kubelet first saw the pod.
const SEEN: &str = "kubernetes.io/config.seen";

/// The desired state of a pod, for its worker.
#[derive(Clone)]
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
#[derive(Default)]
pub(super) struct Workers(Mutex<BTreeMap<String, watch::Sender<Desired>>>);

impl Workers {
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }

    /// The containers of the pod of this name have exited for good.
    pub(super) fn finish(&self, name: &str) {
        self.change(name, |desired| desired.finished = true);
    }

    /// The containers of the pod of this name exit and are started again.
    pub(super) fn restart(&self, name: &str) {
        self.change(name, |desired| desired.restarts += 1);
    }

    fn change(&self, name: &str, change: impl Fn(&mut Desired)) {
        for slot in self.0.lock().values() {
            let fits = slot.borrow().pod.metadata.name.as_deref() == Some(name);
            if fits {
                slot.send_modify(&change);
            }
        }
    }

    /// Forgets a pod, and the objects that no other pod references.
    pub(super) fn remove(&self, kubelet: &KubeletContext, uid: &str) {
        let mut workers = self.0.lock();
        workers.remove(uid);
        let mut referenced = BTreeSet::new();
        for slot in workers.values() {
            let desired = slot.borrow();
            let namespace = desired.pod.metadata.namespace.as_deref();
            let namespace = namespace.unwrap_or_default();
            let needs = Need::of_pod(&desired.pod);
            let objects = needs.iter().filter_map(Need::object);
            referenced.extend(
                objects.map(|(kind, name)| (kind, ObjectKey::new(namespace, name.clone()))),
            );
        }
        kubelet.objects.retain(&referenced);
    }

    /// Takes in a new state of a pod. Returns the slot for a new worker if the pod is new to the kubelet.
    pub(super) fn update(
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

    pub(super) fn delete(&self, uid: &str) {
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

pub(super) fn annotation<'p>(pod: &'p Pod, key: &str) -> Option<&'p str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

fn first_seen_at(mut pod: Pod, time: String) -> Arc<Pod> {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(SEEN.to_owned(), time);
    Arc::new(pod)
}
