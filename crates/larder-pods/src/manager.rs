//! The pod manager: every pod of the node by UID and by full name, and which mirror pod belongs to which static pod.
//!
//! It is the node's desired state, nothing more: it starts no work and sends no notices. One [`PodManager`] writes; any number of
//! [`Pods`] read. Contract: kubelet 1.36, `pkg/kubelet/pod/pod_manager.go`, whose operations are found here under their names
//! without the `Get`.
//!
//! Invariants:
//! 1. Every operation is atomic, and a list is one moment's state.
//! 2. A full name leads to a pod exactly as long as a pod of that name is there. Where two share a name, it leads to the one
//!    touched last, and back to the other when that one goes. (In the kubelet the removal of either takes the name from both.)
//! 3. A mirror pod's UID translates to the pod that its full name leads to, in whichever order the two came. When the pod goes
//!    the translation stays until the mirror goes, because word about the ending pod still arrives under the mirror's UID.
//! 4. Every operation but the lists costs the same however many pods there are; of the lists, those of static pods grow with these only.

use std::{
    collections::{HashMap, HashSet},
    ops::Deref,
    sync::Arc,
};

use parking_lot::RwLock;
use smallvec::SmallVec;

use super::{
    identity::{FullName, MirrorPodUid, PodUid, ResolvedPodUid, is_mirror_pod, is_static_pod},
    stored::StoredPod,
};

/// The writing half, of which there is one. Reads as [`Pods`] does.
///
/// ```
/// # use std::sync::Arc;
/// # use larder_pods::{PodManager, StoredPod};
/// # let mut pod = k8s_openapi::api::core::v1::Pod::default();
/// # pod.metadata.name = Some("web".to_owned());
/// # pod.metadata.namespace = Some("prod".to_owned());
/// # let pod = Arc::new(StoredPod::from(pod));
/// let mut manager = PodManager::default();
/// let reader = manager.reader();
/// manager.add_pod(Arc::clone(&pod));
/// assert_eq!(reader.pod_by_name("prod", "web"), Some(pod));
/// ```
#[derive(Debug, Default)]
pub struct PodManager {
    pods: Pods,
}

/// The reading half; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Pods {
    /// Held for one operation at a time.
    state: Arc<RwLock<State>>,
}

#[derive(Debug, Default)]
struct State {
    regular: Index<ResolvedPodUid>,
    mirrors: Index<MirrorPodUid>,
    /// The static ones among the regular pods.
    static_pods: HashSet<ResolvedPodUid>,
    translations: HashMap<MirrorPodUid, ResolvedPodUid>,
}

/// All pods of the node at one moment.
#[derive(Clone, Debug, Default)]
pub struct PodsAndMirrorPods {
    /// Regular pods, static ones included.
    pub pods: Vec<Arc<StoredPod>>,
    /// Mirror pods.
    pub mirror_pods: Vec<Arc<StoredPod>>,
    /// Those of `mirror_pods` whose full name no regular pod has.
    ///
    /// The kubelet gives only their full names and so deletes them without UID, at the risk of hitting a successor.
    pub orphaned_mirror_pods: Vec<Arc<StoredPod>>,
}

/// What the mirror pods of the node hang on, at one moment.
#[derive(Clone, Debug, Default)]
pub struct MirrorOverview {
    /// Every static pod, with its mirror pod if there is one.
    pub static_pods: Vec<(Arc<StoredPod>, Option<Arc<StoredPod>>)>,
    /// Mirror pods whose full name no regular pod has.
    pub orphaned_mirror_pods: Vec<Arc<StoredPod>>,
}

/// A pod and its counterpart, as [`Pods::pod_and_mirror_pod`] found them.
#[derive(Clone, Debug, PartialEq)]
pub struct PodAndMirrorPod {
    /// The regular pod.
    pub pod: Option<Arc<StoredPod>>,
    /// Its mirror pod.
    pub mirror_pod: Option<Arc<StoredPod>>,
    /// Whether the question was about the mirror pod.
    pub was_mirror: bool,
}

/// Which UID is which, see [`Pods::uid_translations`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UidTranslations {
    /// Every static pod; `None` as long as it has no mirror pod.
    pub pod_to_mirror: HashMap<ResolvedPodUid, Option<MirrorPodUid>>,
    /// Every mirror pod for which a pod was known.
    pub mirror_to_pod: HashMap<MirrorPodUid, ResolvedPodUid>,
}

/// How many pods of which sort there are; derived from the pods each time, so that it cannot drift from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCounts {
    /// Regular pods that are not static.
    pub ordinary: u64,
    /// Static pods.
    pub r#static: u64,
    /// Of the ordinary pods, those that have not ended.
    pub active_ordinary: u64,
    /// Of the static pods, those that have not ended.
    pub active_static: u64,
    /// Mirror pods.
    pub mirrors: u64,
    /// Ephemeral containers of all regular pods.
    pub ephemeral_containers: u64,
}

impl PodManager {
    /// A reading half, which sees all that is written from now on.
    pub fn reader(&self) -> Pods {
        self.pods.clone()
    }

    /// Adds `pod`, or replaces the pod with its UID. Mirror pods are told by their annotation.
    pub fn add_pod(&mut self, pod: Arc<StoredPod>) {
        self.pods.state.write().upsert(pod);
    }

    /// The same as [`add_pod`](Self::add_pod), for the reader's sake.
    pub fn update_pod(&mut self, pod: Arc<StoredPod>) {
        self.add_pod(pod);
    }

    /// Removes the pod with the UID of `pod`. An unknown pod changes nothing.
    pub fn remove_pod(&mut self, pod: &StoredPod) {
        self.pods.state.write().remove(pod);
    }

    /// Replaces everything with `pods`, in one step.
    pub fn set_pods(&mut self, pods: impl IntoIterator<Item = Arc<StoredPod>>) {
        let mut state = State::default();
        for pod in pods {
            state.upsert(pod);
        }
        *self.pods.state.write() = state;
    }
}

impl Deref for PodManager {
    type Target = Pods;

    fn deref(&self) -> &Pods {
        &self.pods
    }
}

impl Pods {
    /// Regular pods, static ones included, mirror pods not; in no order.
    pub fn pods(&self) -> Vec<Arc<StoredPod>> {
        self.state.read().regular.pods().cloned().collect()
    }

    /// All pods, and the mirror pods that have lost their static pod.
    pub fn pods_and_mirror_pods(&self) -> PodsAndMirrorPods {
        let state = self.state.read();
        PodsAndMirrorPods {
            pods: state.regular.pods().cloned().collect(),
            mirror_pods: state.mirrors.pods().cloned().collect(),
            orphaned_mirror_pods: state.orphaned_mirror_pods(),
        }
    }

    /// Every static pod, with its mirror pod if there is one.
    pub fn static_pods_and_mirror_pods(&self) -> Vec<(Arc<StoredPod>, Option<Arc<StoredPod>>)> {
        self.state.read().static_pods_and_mirror_pods()
    }

    /// Static pods with their mirror pods, and the mirror pods that have none, in one look.
    pub fn mirror_overview(&self) -> MirrorOverview {
        let state = self.state.read();
        MirrorOverview {
            static_pods: state.static_pods_and_mirror_pods(),
            orphaned_mirror_pods: state.orphaned_mirror_pods(),
        }
    }

    /// The regular pod with `uid`.
    pub fn pod_by_uid(&self, uid: &ResolvedPodUid) -> Option<Arc<StoredPod>> {
        self.state.read().regular.by_uid.get(uid).cloned()
    }

    /// The regular pod `name` in `namespace`.
    pub fn pod_by_name(&self, namespace: &str, name: &str) -> Option<Arc<StoredPod>> {
        self.pod_by_full_name(&FullName {
            name: name.into(),
            namespace: namespace.into(),
        })
    }

    /// The regular pod with `full_name`.
    pub fn pod_by_full_name(&self, full_name: &FullName) -> Option<Arc<StoredPod>> {
        self.state.read().regular.by_name(full_name).cloned()
    }

    /// The mirror pod with the full name of `pod`.
    pub fn mirror_pod_by_pod(&self, pod: &StoredPod) -> Option<Arc<StoredPod>> {
        self.state
            .read()
            .mirrors
            .by_name(&FullName::of(&pod.metadata))
            .cloned()
    }

    /// The regular pod with the full name of the mirror pod `mirror`.
    pub fn pod_by_mirror_pod(&self, mirror: &StoredPod) -> Option<Arc<StoredPod>> {
        self.pod_by_full_name(&FullName::of(&mirror.metadata))
    }

    /// `pod` itself and its counterpart. Whether `pod` is known here is not asked.
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

    /// The UID under which the node knows the pod with `uid`: that of the static pod for a known mirror pod, else the same.
    pub fn translate_pod_uid(&self, uid: &PodUid) -> ResolvedPodUid {
        let mirror = MirrorPodUid::new(uid.as_str());
        let state = self.state.read();
        let known = state.translations.get(&mirror).cloned();
        known.unwrap_or_else(|| ResolvedPodUid::new(uid.as_str()))
    }

    /// Both directions of the translation between static pods and mirror pods.
    pub fn uid_translations(&self) -> UidTranslations {
        let state = self.state.read();
        let static_pods = state.static_pods.iter();
        let mut pod_to_mirror: HashMap<_, _> = static_pods.map(|uid| (uid.clone(), None)).collect();
        for (mirror, pod) in &state.translations {
            // Of two mirrors of one pod, the one that its full name leads to.
            let current = |mirror: &MirrorPodUid| {
                let pod = &state.mirrors.by_uid[mirror];
                state.mirrors.uid_by_name(&FullName::of(&pod.metadata)) == Some(mirror)
            };
            let known = pod_to_mirror.entry(pod.clone()).or_default();
            if known.is_none() || current(mirror) {
                *known = Some(mirror.clone());
            }
        }
        UidTranslations {
            pod_to_mirror,
            mirror_to_pod: state.translations.clone(),
        }
    }

    /// How many pods of which sort there are.
    pub fn counts(&self) -> PodCounts {
        let state = self.state.read();
        let mut counts = PodCounts {
            mirrors: state.mirrors.by_uid.len() as u64,
            ..PodCounts::default()
        };
        for pod in state.regular.pods() {
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

impl State {
    fn orphaned_mirror_pods(&self) -> Vec<Arc<StoredPod>> {
        let orphaned = |mirror: &&Arc<StoredPod>| {
            let full_name = FullName::of(&mirror.metadata);
            self.regular.uid_by_name(&full_name).is_none()
        };
        self.mirrors.pods().filter(orphaned).cloned().collect()
    }

    fn static_pods_and_mirror_pods(&self) -> Vec<(Arc<StoredPod>, Option<Arc<StoredPod>>)> {
        let with_mirror = |pod: &Arc<StoredPod>| {
            let mirror = self.mirrors.by_name(&FullName::of(&pod.metadata));
            (Arc::clone(pod), mirror.cloned())
        };
        let static_pods = self.static_pods.iter();
        static_pods
            .map(|uid| with_mirror(&self.regular.by_uid[uid]))
            .collect()
    }

    fn upsert(&mut self, pod: Arc<StoredPod>) {
        let full_name = FullName::of(&pod.metadata);
        if is_mirror_pod(&pod.metadata) {
            let uid = MirrorPodUid::new(PodUid::of(&pod.metadata).as_str());
            if self.mirrors.upsert(uid.clone(), pod).is_some() {
                self.translations.remove(&uid);
            }
            if let Some(regular) = self.regular.uid_by_name(&full_name) {
                self.translations.insert(uid, regular.clone());
            }
        } else {
            let uid = ResolvedPodUid::new(PodUid::of(&pod.metadata).as_str());
            if is_static_pod(&pod.metadata) {
                self.static_pods.insert(uid.clone());
            } else {
                self.static_pods.remove(&uid);
            }
            if let Some(former_name) = self.regular.upsert(uid, pod) {
                self.translate_mirrors_of(&former_name);
            }
            self.translate_mirrors_of(&full_name);
        }
    }

    fn remove(&mut self, pod: &StoredPod) {
        let uid = PodUid::of(&pod.metadata);
        if is_mirror_pod(&pod.metadata) {
            let uid = MirrorPodUid::new(uid.as_str());
            self.mirrors.remove(&uid);
            self.translations.remove(&uid);
        } else {
            let uid = ResolvedPodUid::new(uid.as_str());
            self.static_pods.remove(&uid);
            if let Some(removed) = self.regular.remove(&uid) {
                self.translate_mirrors_of(&FullName::of(&removed.metadata));
            }
        }
    }

    /// Keeps invariant 3 after a change of the regular pods with `full_name`.
    fn translate_mirrors_of(&mut self, full_name: &FullName) {
        let Some(regular) = self.regular.uid_by_name(full_name) else {
            return;
        };
        for mirror in self.mirrors.uids_by_name(full_name) {
            self.translations.insert(mirror.clone(), regular.clone());
        }
    }
}

/// Pods of one sort, by UID and by full name.
#[derive(Debug)]
struct Index<Uid> {
    by_uid: HashMap<Uid, Arc<StoredPod>>,
    /// The UIDs that share a full name, the one touched last at the end; never empty.
    by_name: HashMap<FullName, SmallVec<[Uid; 1]>>,
}

impl<Uid> Default for Index<Uid> {
    fn default() -> Self {
        Self {
            by_uid: HashMap::new(),
            by_name: HashMap::new(),
        }
    }
}

impl<Uid: Clone + Eq + std::hash::Hash> Index<Uid> {
    fn pods(&self) -> impl Iterator<Item = &Arc<StoredPod>> {
        self.by_uid.values()
    }

    fn uids_by_name(&self, full_name: &FullName) -> &[Uid] {
        self.by_name.get(full_name).map_or(&[], SmallVec::as_slice)
    }

    fn uid_by_name(&self, full_name: &FullName) -> Option<&Uid> {
        self.uids_by_name(full_name).last()
    }

    fn by_name(&self, full_name: &FullName) -> Option<&Arc<StoredPod>> {
        self.by_uid.get(self.uid_by_name(full_name)?)
    }

    /// Puts `pod` in; the full name that the UID had before, if that was another one.
    fn upsert(&mut self, uid: Uid, pod: Arc<StoredPod>) -> Option<FullName> {
        let full_name = FullName::of(&pod.metadata);
        let before = self.by_uid.insert(uid.clone(), pod);
        let former_name = before.map(|before| FullName::of(&before.metadata));
        if let Some(former_name) = &former_name {
            self.forget_name(former_name, &uid);
        }
        self.by_name.entry(full_name.clone()).or_default().push(uid);
        former_name.filter(|former_name| *former_name != full_name)
    }

    fn remove(&mut self, uid: &Uid) -> Option<Arc<StoredPod>> {
        let pod = self.by_uid.remove(uid)?;
        self.forget_name(&FullName::of(&pod.metadata), uid);
        Some(pod)
    }

    fn forget_name(&mut self, full_name: &FullName, uid: &Uid) {
        if let Some(uids) = self.by_name.get_mut(full_name) {
            uids.retain(|known| known != uid);
            if uids.is_empty() {
                self.by_name.remove(full_name);
            }
        }
    }
}

#[cfg(test)]
mod tests;
