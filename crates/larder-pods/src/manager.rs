//! The pod manager: every pod of the node by UID and by full name, and which mirror pod belongs to which static pod.
//!
//! It holds the node's desired state, starts no work and sends no notices. One [`PodManager`] writes; any number of
//! [`Pods`] read. Contract: kubelet 1.36, `pkg/kubelet/pod/pod_manager.go`. Operations have their names from there,
//! without `Get`.
//!
//! Invariants:
//! 1. Every operation is atomic: a list shows the state between two writes.
//! 2. A full name leads to a pod as long as a pod of that name is present. If two share a name, it leads to the pod
//!    added or updated last, and to the other one again when that pod is removed. (In the kubelet the removal of either
//!    takes the name from both.)
//! 3. A mirror pod's UID translates to the pod that its full name leads to, whichever of the two came first. When that
//!    pod is removed the translation stays until the mirror pod is removed, because news of the ending pod still
//!    arrives under the mirror pod's UID.
//! 4. The cost of an operation does not grow with the number of pods, but for those that share a full name. Lists are
//!    the exception; those of static pods grow with the static and mirror pods only.

mod table;

use std::{collections::HashMap, ops::Deref, sync::Arc};

use foldhash::fast::RandomState;
use larder_objects::ObjectKeyRef;
use parking_lot::RwLock;
use smol_str::SmolStr;

use self::table::PodTable;
use super::{
    identity::{FullName, MirrorPodUid, PodUid, ResolvedPodUid, is_mirror_pod, is_static_pod},
    stored::StoredPod,
};

/// The writing half, of which there is one. Dereferences to [`Pods`].
///
/// ```
/// # use std::sync::Arc;
/// # use larder_pods::{PodManager, StoredPod};
/// # let mut pod = k8s_openapi::api::core::v1::Pod::default();
/// # pod.metadata.name = Some("web".to_owned());
/// # pod.metadata.namespace = Some("prod".to_owned());
/// # let pod = Arc::new(StoredPod::new(pod).unwrap());
/// let mut manager = PodManager::default();
/// let reader = manager.reader();
/// manager.add_pod(Arc::clone(&pod));
/// assert_eq!(reader.pod_by_name("prod", "web"), Some(pod));
/// ```
#[derive(Debug, Default)]
pub struct PodManager {
    pods: Pods,
}

/// The reading half. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Pods {
    /// Held for one operation at a time.
    index: Arc<RwLock<PodIndex>>,
}

/// The tables behind the lock.
#[derive(Debug, Default)]
struct PodIndex {
    regular: PodTable,
    mirrors: PodTable,
    /// The static pods among `regular`.
    static_pods: PodTable,
    /// The UIDs of mirror pods, and those that they translate to.
    translations: HashMap<SmolStr, ResolvedPodUid, RandomState>,
}

/// All pods of the node, read at once.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PodsAndMirrorPods {
    /// Regular pods, static ones included.
    pub pods: Vec<Arc<StoredPod>>,
    /// Mirror pods.
    pub mirror_pods: Vec<Arc<StoredPod>>,
    /// Those of `mirror_pods` whose full name no regular pod has.
    ///
    /// The kubelet returns only their full names, so it deletes them without UID and may hit a successor.
    pub orphaned_mirror_pods: Vec<Arc<StoredPod>>,
}

/// The pods that decide about mirror pods, read at once.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct MirrorOverview {
    /// Every static pod, with its mirror pod if there is one.
    pub static_pods: Vec<(Arc<StoredPod>, Option<Arc<StoredPod>>)>,
    /// Mirror pods whose full name no regular pod has.
    pub orphaned_mirror_pods: Vec<Arc<StoredPod>>,
}

/// A pod and its counterpart; see [`Pods::pod_and_mirror_pod`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PodAndMirrorPod {
    /// The regular pod.
    pub pod: Option<Arc<StoredPod>>,
    /// Its mirror pod.
    pub mirror_pod: Option<Arc<StoredPod>>,
    /// Whether the argument was the mirror pod.
    pub was_mirror: bool,
}

/// Translations of UIDs; see [`Pods::uid_translations`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UidTranslations {
    /// Every static pod; `None` while it has no mirror pod.
    pub pod_to_mirror: HashMap<ResolvedPodUid, Option<MirrorPodUid>>,
    /// Every mirror pod whose pod is or was known.
    pub mirror_to_pod: HashMap<MirrorPodUid, ResolvedPodUid>,
}

/// Number of pods of each sort, counted by each call so that it cannot drift.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PodCounts {
    /// Regular pods that are not static.
    pub ordinary: u64,
    /// Static pods.
    pub r#static: u64,
    /// Ordinary pods whose phase is not terminal.
    pub active_ordinary: u64,
    /// Static pods whose phase is not terminal.
    pub active_static: u64,
    /// Mirror pods.
    pub mirrors: u64,
    /// Ephemeral containers of all regular pods.
    pub ephemeral_containers: u64,
}

impl PodManager {
    /// A reading half. It sees every later write.
    pub fn reader(&self) -> Pods {
        self.pods.clone()
    }

    /// Adds `pod`, or replaces the pod with its UID. The annotation decides whether it is a mirror pod.
    pub fn add_pod(&mut self, pod: Arc<StoredPod>) {
        self.pods.index.write().upsert(pod);
    }

    /// Removes the pod with the UID of `pod`, if present.
    pub fn remove_pod(&mut self, pod: &StoredPod) {
        self.pods.index.write().remove(pod);
    }
}

impl Deref for PodManager {
    type Target = Pods;

    fn deref(&self) -> &Pods {
        &self.pods
    }
}

impl Pods {
    /// Regular pods, static ones included, mirror pods excluded; in no order.
    pub fn pods(&self) -> Vec<Arc<StoredPod>> {
        self.index.read().regular.pods()
    }

    /// All pods, and the mirror pods without a static pod.
    pub fn pods_and_mirror_pods(&self) -> PodsAndMirrorPods {
        let index = self.index.read();
        PodsAndMirrorPods {
            pods: index.regular.pods(),
            mirror_pods: index.mirrors.pods(),
            orphaned_mirror_pods: index.orphaned_mirror_pods(),
        }
    }

    /// Every static pod, with its mirror pod if there is one.
    pub fn static_pods_and_mirror_pods(&self) -> Vec<(Arc<StoredPod>, Option<Arc<StoredPod>>)> {
        self.index.read().static_pods_and_mirror_pods()
    }

    /// Static pods with their mirror pods, and the mirror pods that have none, in one read.
    pub fn mirror_overview(&self) -> MirrorOverview {
        let index = self.index.read();
        MirrorOverview {
            static_pods: index.static_pods_and_mirror_pods(),
            orphaned_mirror_pods: index.orphaned_mirror_pods(),
        }
    }

    /// The regular pod with `uid`.
    pub fn pod_by_uid(&self, uid: &ResolvedPodUid) -> Option<Arc<StoredPod>> {
        let index = self.index.read();
        index.regular.by_uid(uid.as_str()).cloned()
    }

    /// The regular pod `name` in `namespace`.
    pub fn pod_by_name(&self, namespace: &str, name: &str) -> Option<Arc<StoredPod>> {
        let index = self.index.read();
        let name = ObjectKeyRef { namespace, name };
        index.regular.by_name(name).cloned()
    }

    /// The regular pod with `full_name`.
    pub fn pod_by_full_name(&self, full_name: &FullName) -> Option<Arc<StoredPod>> {
        self.pod_by_name(&full_name.namespace, &full_name.name)
    }

    /// The mirror pod with the full name of `pod`.
    pub fn mirror_pod_by_pod(&self, pod: &StoredPod) -> Option<Arc<StoredPod>> {
        let index = self.index.read();
        index.mirrors.by_name(pod.key_ref()).cloned()
    }

    /// The regular pod with the full name of the mirror pod `mirror`.
    pub fn pod_by_mirror_pod(&self, mirror: &StoredPod) -> Option<Arc<StoredPod>> {
        let index = self.index.read();
        index.regular.by_name(mirror.key_ref()).cloned()
    }

    /// `pod` itself and its counterpart. `pod` need not be present here.
    pub fn pod_and_mirror_pod(&self, pod: &Arc<StoredPod>) -> PodAndMirrorPod {
        if is_mirror_pod(&pod.metadata) {
            PodAndMirrorPod {
                pod: self.pod_by_mirror_pod(pod),
                mirror_pod: Some(Arc::clone(pod)),
                was_mirror: true,
            }
        } else {
            PodAndMirrorPod {
                pod: Some(Arc::clone(pod)),
                mirror_pod: self.mirror_pod_by_pod(pod),
                was_mirror: false,
            }
        }
    }

    /// The UID under which the node knows the pod with `uid`: that of the static pod for a known mirror pod, else
    /// `uid`.
    pub fn translate_pod_uid(&self, uid: &PodUid) -> ResolvedPodUid {
        let index = self.index.read();
        index
            .translations
            .get(uid.as_str())
            .cloned()
            .unwrap_or_else(|| ResolvedPodUid::new(uid.as_str()))
    }

    /// Both directions of the translation between static pods and mirror pods.
    pub fn uid_translations(&self) -> UidTranslations {
        let index = self.index.read();
        let static_pods = index.static_pods.iter();
        let mut translations = UidTranslations {
            pod_to_mirror: static_pods
                .map(|pod| (ResolvedPodUid::of(&pod.metadata), None))
                .collect(),
            mirror_to_pod: HashMap::new(),
        };
        for mirror in index.mirrors.iter() {
            let Some(pod_uid) = index.translations.get(mirror.uid()) else {
                continue;
            };
            let uid = MirrorPodUid::of(&mirror.metadata);
            let known = translations
                .pod_to_mirror
                .entry(pod_uid.clone())
                .or_default();
            // Of two mirror pods of one pod, the one that its full name leads to.
            let named = index.mirrors.by_name(mirror.key_ref());
            if known.is_none() || named.is_some_and(|named| Arc::ptr_eq(named, mirror)) {
                *known = Some(uid.clone());
            }
            translations.mirror_to_pod.insert(uid, pod_uid.clone());
        }
        translations
    }

    /// Number of pods of each sort.
    pub fn counts(&self) -> PodCounts {
        let index = self.index.read();
        let mut counts = PodCounts {
            mirrors: index.mirrors.len() as u64,
            ..PodCounts::default()
        };
        for pod in index.regular.iter() {
            let (all, active) = if is_static_pod(&pod.metadata) {
                (&mut counts.r#static, &mut counts.active_static)
            } else {
                (&mut counts.ordinary, &mut counts.active_ordinary)
            };
            *all += 1;
            *active += u64::from(!pod.is_terminal());
            counts.ephemeral_containers += pod.ephemeral_containers() as u64;
        }
        counts
    }
}

impl PodIndex {
    fn orphaned_mirror_pods(&self) -> Vec<Arc<StoredPod>> {
        self.mirrors
            .iter()
            .filter(|mirror| self.regular.by_name(mirror.key_ref()).is_none())
            .cloned()
            .collect()
    }

    fn static_pods_and_mirror_pods(&self) -> Vec<(Arc<StoredPod>, Option<Arc<StoredPod>>)> {
        let with_mirror = |pod: &Arc<StoredPod>| {
            let mirror = self.mirrors.by_name(pod.key_ref());
            (Arc::clone(pod), mirror.cloned())
        };
        // In one allocation, however many there are.
        let mut pods = Vec::with_capacity(self.static_pods.len());
        pods.extend(self.static_pods.iter().map(with_mirror));
        pods
    }

    fn upsert(&mut self, pod: Arc<StoredPod>) {
        if is_mirror_pod(&pod.metadata) {
            self.upsert_mirror(pod);
        } else {
            self.upsert_regular(pod);
        }
    }

    fn upsert_regular(&mut self, pod: Arc<StoredPod>) {
        let is_static = is_static_pod(&pod.metadata);
        if is_static {
            self.static_pods.upsert(Arc::clone(&pod));
        }
        let known = (self.mirrors.len() > 0).then(|| Arc::clone(&pod));
        let replaced = self.regular.upsert(pod);
        if let Some(former) = replaced.as_ref().filter(|_| !is_static)
            && is_static_pod(&former.metadata)
        {
            self.static_pods.remove(former.uid());
        }
        // The name that the UID had before may lead to another pod now.
        for changed in replaced.iter().chain(&known) {
            self.translate_mirrors_of(changed);
        }
    }

    fn upsert_mirror(&mut self, pod: Arc<StoredPod>) {
        let uid = pod.uid();
        let name = pod.key_ref();
        let before = self.mirrors.by_uid(uid);
        if let Some(regular) = self.regular.by_name(name) {
            let translation = ResolvedPodUid::of(&regular.metadata);
            self.translations.insert(uid.into(), translation);
        } else if before.is_some_and(|before| before.key_ref() != name) {
            self.translations.remove(uid);
        }
        self.mirrors.upsert(pod);
    }

    fn remove(&mut self, pod: &StoredPod) {
        if is_mirror_pod(&pod.metadata) {
            self.mirrors.remove(pod.uid());
            self.translations.remove(pod.uid());
        } else if let Some(removed) = self.regular.remove(pod.uid()) {
            if is_static_pod(&removed.metadata) {
                self.static_pods.remove(removed.uid());
            }
            self.translate_mirrors_of(&removed);
        }
    }

    /// Restores invariant 3 after a change of the regular pods with the full name of `pod`.
    fn translate_mirrors_of(&mut self, pod: &StoredPod) {
        if self.mirrors.len() == 0 {
            return;
        }
        let name = pod.key_ref();
        if let Some(regular) = self.regular.by_name(name) {
            let uid = ResolvedPodUid::of(&regular.metadata);
            for mirror in self.mirrors.all_by_name(name) {
                self.translations.insert(mirror.uid().into(), uid.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
