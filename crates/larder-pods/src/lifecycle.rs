//! The lifecycle of a pod: when it is registered with the object managers, and when it is unregistered.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/{kubelet,pod_workers}.go`, without the parts about containers. Pure: the caller
//! passes events in, and performs the [`LifecycleAction`]s that come back.
//!
//! ```text
//!            ┌────────────────────────────────────────────────┐
//!            │ network not ready, name in use                 ▼
//!  seen ──► Held ──────────────► Served ──────────────► Retiring ──────────────► Finished ──► forgotten
//!            │        Serve         ▲  │      Retire         volumes gone         gone from its source
//!            │                      └──┘                      Unregister
//!            └─ gone from its source: forgotten        (ended, or gone from its source)
//! ```
//!
//! Invariants:
//! 1. A pod stays registered from `Serve` until its volumes are gone (K1, K3). So everything on disk can be kept fresh.
//! 2. A pod that was never served is never unregistered (K4). A mirror pod is neither served nor unregistered (K5).
//! 3. A pod that is terminating when it is first seen, after a restart, is served: its containers may run. (In the
//!    kubelet it is not, so a remount of its volumes fails.) A pod that terminates before it could start is not served.
//! 4. Of the static pods with one full name at most one is served or retiring; the others wait in order of arrival.
//! 5. No pod retires because it is missing from its source until every source has been seen: before that, the source
//!    may just not have reported it yet. The exception is a static pod that makes room for another one of its name: its
//!    source had it and has it no more, so it was edited. (The kubelet holds the new version until it has reached the API
//!    server, kubernetes#105543.)
//! 6. A pod with the UID of an earlier pod is served only after the volumes of that pod are torn down. It never takes
//!    them over.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{
    identity::{FullName, PodUid, ResolvedPodUid, is_mirror_pod, is_static_pod},
    merge::Operation,
    stored::StoredPod,
};

/// An action for the caller. Several are performed in the order given.
#[derive(Clone, Debug, PartialEq)]
pub enum LifecycleAction {
    /// Register the pod with the managers, even if it is registered already, and bring its volumes up to date.
    Serve(Arc<StoredPod>),
    /// Tear down the pod's volumes, then call [`PodLifecycle::volumes_gone`]. The pod stays registered meanwhile.
    Retire(Arc<StoredPod>),
    /// Unregister the pod from the managers.
    Unregister(ResolvedPodUid),
}

/// The state of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodLife {
    /// Not registered, without data on disk.
    Held(HeldBecause),
    /// Registered, with its volumes kept up to date.
    Served,
    /// Its volumes are being torn down.
    Retiring {
        /// Whether it was served.
        registered: bool,
    },
    /// Finished, but still in its source.
    Finished,
}

/// Why a pod is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldBecause {
    /// The network of the node is not ready, and the pod does not use the host's.
    NetworkNotReady,
    /// Another static pod has its full name.
    NameInUse,
    /// Its deletion was requested before it could start.
    EndedUnstarted,
    /// Its UID cannot be the name of a directory. The lifecycle does not have such pods; see
    /// [`PodLoop`](crate::PodLoop).
    InvalidUid,
}

/// All pods of the node and their states.
#[derive(Debug, Default)]
pub struct PodLifecycle {
    network_ready: bool,
    all_sources_seen: bool,
    pods: HashMap<ResolvedPodUid, Tracked>,
    /// Static pods by full name in order of arrival; the first may run. Never empty.
    static_pods: HashMap<FullName, VecDeque<ResolvedPodUid>>,
    restarted: RestartedPods,
    /// The answer of [`Self::working`], which is read after each change and so updated with each.
    working: WorkingPods,
    /// The answer of [`Self::terminating_static_pods`], likewise.
    terminating: TerminatingPods,
}

/// Static pods that are missing from their source and still terminate. All clones have the same pods: a copy for each
/// change would cost as much as all of them.
#[derive(Clone, Debug, Default)]
pub struct TerminatingPods(Arc<Mutex<BTreeSet<FullName>>>);

impl TerminatingPods {
    /// Whether the pod with `full_name` is one of them now.
    pub fn contains(&self, full_name: &FullName) -> bool {
        self.0.lock().contains(full_name)
    }
}

impl FromIterator<FullName> for TerminatingPods {
    fn from_iter<I: IntoIterator<Item = FullName>>(pods: I) -> Self {
        Self(Arc::new(Mutex::new(pods.into_iter().collect())))
    }
}

/// Number of pods that came again under a known UID; kubelet 1.36, `restarted_pods_total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestartedPods {
    /// Pods that are not static.
    pub ordinary: u64,
    /// Static pods.
    pub r#static: u64,
}

/// Number of pods by state; kubelet 1.36, `working_pods`.
pub type WorkingPods = BTreeMap<WorkingKind, u64>;

/// The labels of an entry of [`WorkingPods`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct WorkingKind {
    /// What is done with the pods.
    pub stage: WorkingStage,
    /// Whether the pods are missing from their source.
    pub gone: bool,
    /// Whether the pods are static.
    pub is_static: bool,
}

/// What is done with a pod, in the kubelet's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkingStage {
    /// It is served, or its start waits.
    Sync,
    /// Its volumes are gone.
    Terminated,
    /// Its volumes are being torn down.
    Terminating,
}

impl WorkingStage {
    /// The kubelet's label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Terminated => "terminated",
            Self::Terminating => "terminating",
        }
    }
}

#[derive(Debug)]
struct Tracked {
    pod: Arc<StoredPod>,
    life: PodLife,
    /// No longer in its source.
    gone: bool,
    /// A pod of the same UID that came while this one was terminating.
    successor: Option<Arc<StoredPod>>,
    /// The entry of [`WorkingPods`] that counts it.
    counted: Option<WorkingKind>,
}

impl Tracked {
    /// The entry that should count it.
    fn kind(&self) -> WorkingKind {
        WorkingKind {
            stage: match self.life {
                PodLife::Held(_) | PodLife::Served => WorkingStage::Sync,
                PodLife::Retiring { .. } => WorkingStage::Terminating,
                PodLife::Finished => WorkingStage::Terminated,
            },
            gone: self.gone,
            is_static: is_static_pod(&self.pod.metadata),
        }
    }
}

impl PodLifecycle {
    /// No pods yet. Without a network plugin to wait for, `network_ready` is true.
    pub fn new(network_ready: bool) -> Self {
        Self {
            network_ready,
            ..Self::default()
        }
    }

    /// The state of the pod with `uid`.
    pub fn life(&self, uid: &ResolvedPodUid) -> Option<&PodLife> {
        self.pods.get(uid).map(|tracked| &tracked.life)
    }

    /// Number of pods that came again under a known UID.
    pub fn restarted(&self) -> RestartedPods {
        self.restarted
    }

    /// Number of pods by state.
    pub fn working(&self) -> WorkingPods {
        self.working.clone()
    }

    /// Static pods that are missing from their source and still terminate. Their mirror pods have to stay.
    pub fn terminating_static_pods(&self) -> TerminatingPods {
        self.terminating.clone()
    }

    /// Handles one pod of an update of the sources.
    pub fn handle(&mut self, operation: Operation, pod: &Arc<StoredPod>) -> Vec<LifecycleAction> {
        if is_mirror_pod(&pod.metadata) {
            return Vec::new();
        }
        let uid = ResolvedPodUid::new(PodUid::of(&pod.metadata).as_str());
        let action = match operation {
            Operation::Remove => self.removed(&uid),
            Operation::Add | Operation::Update | Operation::Delete | Operation::Reconcile => {
                self.seen(uid.clone(), pod)
            }
        };
        self.recount(&uid);
        let replaced = self.retire_replaced(&FullName::of(&pod.metadata));
        action.into_iter().chain(replaced).collect()
    }

    /// Retires the static pod with `full_name` that its source has no more, if another one waits for its name.
    fn retire_replaced(&mut self, full_name: &FullName) -> Option<LifecycleAction> {
        let queue = self.static_pods.get(full_name)?;
        let uid = queue.front().filter(|_| queue.len() > 1)?.clone();
        let tracked = self.pods.get_mut(&uid)?;
        if !(tracked.gone && tracked.life == PodLife::Served) {
            return None;
        }
        tracked.life = PodLife::Retiring { registered: true };
        let retire = LifecycleAction::Retire(Arc::clone(&tracked.pod));
        self.recount(&uid);
        Some(retire)
    }

    /// Every source has reported all its pods: a pod that is missing is really gone.
    pub fn all_sources_seen(&mut self) -> Vec<LifecycleAction> {
        if std::mem::replace(&mut self.all_sources_seen, true) {
            return Vec::new();
        }
        let mut actions = Vec::new();
        let served = self.pods.iter_mut();
        let gone: Vec<_> = served
            .filter(|(_, pod)| pod.gone && pod.life == PodLife::Served)
            .map(|(uid, tracked)| {
                tracked.life = PodLife::Retiring { registered: true };
                actions.push(LifecycleAction::Retire(Arc::clone(&tracked.pod)));
                uid.clone()
            })
            .collect();
        for uid in &gone {
            self.recount(uid);
        }
        actions
    }

    /// The network of the node became ready or not. Served pods stay served.
    pub fn network_ready(&mut self, ready: bool) -> Vec<LifecycleAction> {
        self.network_ready = ready;
        let waits = |tracked: &Tracked| tracked.life == PodLife::Held(HeldBecause::NetworkNotReady);
        let waiting: Vec<_> = self
            .pods
            .iter()
            .filter(|(_, tracked)| waits(tracked))
            .map(|(uid, _)| uid.clone())
            .collect();
        waiting.iter().filter_map(|uid| self.start(uid)).collect()
    }

    /// The volumes of the pod with `uid` are gone, after [`LifecycleAction::Retire`].
    pub fn volumes_gone(&mut self, uid: &ResolvedPodUid) -> Vec<LifecycleAction> {
        let Some(tracked) = self.pods.get_mut(uid) else {
            return Vec::new();
        };
        let PodLife::Retiring { registered } = tracked.life else {
            return Vec::new();
        };
        tracked.life = PodLife::Finished;
        let full_name = FullName::of(&tracked.pod.metadata);
        let gone = tracked.gone;
        let successor = tracked.successor.take();
        let mut actions = Vec::new();
        if registered {
            actions.push(LifecycleAction::Unregister(uid.clone()));
        }
        if gone || successor.is_some() {
            self.forget(uid);
        }
        let next = self.leave_queue(&full_name, uid);
        if let Some(pod) = successor {
            if is_static_pod(&pod.metadata) {
                self.restarted.r#static += 1;
            } else {
                self.restarted.ordinary += 1;
            }
            actions.extend(self.seen(uid.clone(), &pod));
        }
        actions.extend(next.and_then(|next| self.start(&next)));
        self.recount(uid);
        actions
    }

    /// The source has `pod`.
    fn seen(&mut self, uid: ResolvedPodUid, pod: &Arc<StoredPod>) -> Option<LifecycleAction> {
        let Some(tracked) = self.pods.get_mut(&uid) else {
            return self.first_seen(uid, pod);
        };
        let is_other = FullName::of(&tracked.pod.metadata) != FullName::of(&pod.metadata);
        if tracked.gone && (is_other || matches!(tracked.life, PodLife::Retiring { .. })) {
            // The same UID again while the old pod terminates, or waits to: one after the other.
            tracked.successor = Some(Arc::clone(pod));
            return None;
        }
        tracked.gone = false;
        tracked.pod = Arc::clone(pod);
        match tracked.life {
            PodLife::Held(_) if pod.is_terminal() => {
                tracked.life = PodLife::Finished;
                self.start_next(&FullName::of(&pod.metadata), &uid)
            }
            PodLife::Held(_) if pod.metadata.deletion_timestamp.is_some() => {
                tracked.life = PodLife::Held(HeldBecause::EndedUnstarted);
                self.start_next(&FullName::of(&pod.metadata), &uid)
            }
            PodLife::Held(_) => self.start(&uid),
            PodLife::Served if pod.is_terminal() => {
                tracked.life = PodLife::Retiring { registered: true };
                Some(LifecycleAction::Retire(Arc::clone(pod)))
            }
            PodLife::Served => Some(LifecycleAction::Serve(Arc::clone(pod))),
            PodLife::Retiring { .. } | PodLife::Finished => None,
        }
    }

    fn first_seen(&mut self, uid: ResolvedPodUid, pod: &Arc<StoredPod>) -> Option<LifecycleAction> {
        let terminal = pod.is_terminal();
        let life = if terminal {
            // Finished before this run: its data on disk is removed, and nothing reads its objects.
            PodLife::Retiring { registered: false }
        } else {
            PodLife::Held(HeldBecause::NetworkNotReady)
        };
        let tracked = Tracked {
            pod: Arc::clone(pod),
            life,
            gone: false,
            successor: None,
            counted: None,
        };
        self.pods.insert(uid.clone(), tracked);
        if is_static_pod(&pod.metadata) {
            self.static_pods
                .entry(FullName::of(&pod.metadata))
                .or_default()
                .push_back(uid.clone());
        }
        if terminal {
            Some(LifecycleAction::Retire(Arc::clone(pod)))
        } else {
            self.start(&uid)
        }
    }

    /// The pod is no longer in its source.
    fn removed(&mut self, uid: &ResolvedPodUid) -> Option<LifecycleAction> {
        let tracked = self.pods.get_mut(uid)?;
        tracked.gone = true;
        tracked.successor = None;
        match tracked.life {
            PodLife::Served if self.all_sources_seen => {
                tracked.life = PodLife::Retiring { registered: true };
                Some(LifecycleAction::Retire(Arc::clone(&tracked.pod)))
            }
            PodLife::Served | PodLife::Retiring { .. } => None,
            PodLife::Held(_) | PodLife::Finished => {
                let full_name = FullName::of(&tracked.pod.metadata);
                self.forget(uid);
                self.start_next(&full_name, uid)
            }
        }
    }

    /// Serves a held pod if no reason to hold it remains.
    fn start(&mut self, uid: &ResolvedPodUid) -> Option<LifecycleAction> {
        let tracked = self.pods.get_mut(uid)?;
        if !matches!(
            tracked.life,
            PodLife::Held(HeldBecause::NetworkNotReady | HeldBecause::NameInUse)
        ) {
            return None;
        }
        let first = self
            .static_pods
            .get(&FullName::of(&tracked.pod.metadata))
            .and_then(VecDeque::front);
        tracked.life = if is_static_pod(&tracked.pod.metadata) && first != Some(uid) {
            PodLife::Held(HeldBecause::NameInUse)
        } else if !self.network_ready && !tracked.pod.host_network() {
            PodLife::Held(HeldBecause::NetworkNotReady)
        } else {
            PodLife::Served
        };
        let action = (tracked.life == PodLife::Served)
            .then(|| LifecycleAction::Serve(Arc::clone(&tracked.pod)));
        self.recount(uid);
        action
    }

    /// Starts the pod that was waiting for the name of the one with `uid`, which does not need it any more.
    fn start_next(
        &mut self,
        full_name: &FullName,
        uid: &ResolvedPodUid,
    ) -> Option<LifecycleAction> {
        let next = self.leave_queue(full_name, uid)?;
        self.start(&next)
    }

    fn forget(&mut self, uid: &ResolvedPodUid) {
        if let Some(Tracked { pod, counted, .. }) = self.pods.remove(uid) {
            self.count(&pod, counted, None);
        }
    }

    /// Moves the pod to the entry of its current state.
    fn recount(&mut self, uid: &ResolvedPodUid) {
        if let Some(tracked) = self.pods.get_mut(uid) {
            let kind = tracked.kind();
            let before = tracked.counted.replace(kind);
            let pod = Arc::clone(&tracked.pod);
            self.count(&pod, before, Some(kind));
        }
    }

    fn count(&mut self, pod: &StoredPod, before: Option<WorkingKind>, now: Option<WorkingKind>) {
        if before == now {
            return;
        }
        if let Some(kind) = before
            && let Some(count) = self.working.get_mut(&kind)
        {
            *count -= 1;
            if *count == 0 {
                self.working.remove(&kind);
            }
        }
        if let Some(kind) = now {
            *self.working.entry(kind).or_default() += 1;
        }
        // A held pod is forgotten as soon as it is gone. So a pod that is gone and not terminated has data on disk.
        let terminates = |kind: WorkingKind| {
            kind.is_static && kind.gone && kind.stage != WorkingStage::Terminated
        };
        if now.is_some_and(terminates) {
            let mut terminating = self.terminating.0.lock();
            terminating.insert(FullName::of(&pod.metadata));
        } else if before.is_some_and(terminates) {
            let mut terminating = self.terminating.0.lock();
            terminating.remove(&FullName::of(&pod.metadata));
        }
    }

    /// Removes `uid` from the static pods with `full_name`. Returns the pod that is first now, if that has changed.
    fn leave_queue(
        &mut self,
        full_name: &FullName,
        uid: &ResolvedPodUid,
    ) -> Option<ResolvedPodUid> {
        let queue = self.static_pods.get_mut(full_name)?;
        let was_first = queue.front() == Some(uid);
        queue.retain(|waiting| waiting != uid);
        let next = queue.front().cloned();
        if next.is_none() {
            self.static_pods.remove(full_name);
        }
        next.filter(|_| was_first)
    }
}

#[cfg(test)]
mod tests;
