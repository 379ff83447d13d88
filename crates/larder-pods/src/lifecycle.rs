//! When a pod is registered with the object managers, and when no longer.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/{kubelet,pod_workers}.go`, without what concerns containers. Pure: it is told what happens and
//! answers what to do, in [`Step`]s.
//!
//! ```text
//!            ┌────────────────────────────────────────────────┐
//!            │ network not ready, name in use                 ▼
//!  seen ──► Held ──────────────► Served ──────────────► Retiring ──────────────► Finished ──► forgotten
//!            │    Step::Serve       ▲  │   Step::Retire      volumes gone         gone from its source
//!            │                      └──┘                     Step::Unregister
//!            └─ gone from its source: forgotten        (ended, or gone from its source)
//! ```
//!
//! Invariants:
//! 1. A pod is registered from `Serve` until its volumes are gone, never in between and never after (K1, K3). So whatever is on
//!    disk can be kept fresh.
//! 2. A pod that was never served is never unregistered (K4), and a mirror pod is neither (K5).
//! 3. A pod that is ending when it is first seen, after a restart, is served: its containers may run. (In the kubelet it is not,
//!    so a remount of its volumes fails.) One that ends before it could start is not.
//! 4. Of the static pods with one full name at most one is served or retiring; the others wait in order of arrival.
//! 5. Nothing retires for being gone from its source until every source has been seen: it may only seem to be gone.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use super::{
    identity::{FullName, PodUid, ResolvedPodUid, is_mirror_pod, is_static_pod},
    merge::Operation,
    stored::StoredPod,
};

/// One thing to do, in the order given.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Register the pod with the managers, also when it is registered already, and bring its volumes up to date.
    Serve(Arc<StoredPod>),
    /// Take the pod's volumes away; then say so with [`PodLifecycle::volumes_gone`]. The pod stays registered meanwhile.
    Retire(Arc<StoredPod>),
    /// Unregister the pod from the managers.
    Unregister(ResolvedPodUid),
}

/// How far a pod has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodLife {
    /// Not registered, and nothing of it is on disk.
    Held(HeldBecause),
    /// Registered, and its volumes are kept up to date.
    Served,
    /// Its volumes are being taken away.
    Retiring {
        /// Whether it was served.
        registered: bool,
    },
    /// Over, but still in its source.
    Finished,
}

/// Why a pod is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldBecause {
    /// The network of the node is not ready, and the pod does not use the host's.
    NetworkNotReady,
    /// Another static pod has its full name.
    NameInUse,
    /// It was to end before it could start.
    EndedUnstarted,
}

/// All pods of the node, and how far each has come.
#[derive(Debug, Default)]
pub struct PodLifecycle {
    network_ready: bool,
    all_sources_seen: bool,
    pods: HashMap<ResolvedPodUid, Tracked>,
    /// Static pods by full name in order of arrival; the first may run. Never empty.
    static_pods: HashMap<FullName, VecDeque<ResolvedPodUid>>,
    restarted: RestartedPods,
    /// What [`Self::working`] tells: kept up with each change, for it is asked after each.
    working: WorkingPods,
    /// What [`Self::ending_static_pods`] tells, likewise.
    ending: BTreeSet<FullName>,
}

/// How many pods came again under a UID that was known; kubelet 1.36, `restarted_pods_total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestartedPods {
    /// Pods that are not static.
    pub ordinary: u64,
    /// Static pods.
    pub r#static: u64,
}

/// Pods by how far they have come; kubelet 1.36, `working_pods`.
pub type WorkingPods = BTreeMap<WorkingKind, u64>;

/// What the pods of one entry have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkingKind {
    /// The kubelet's word: `sync`, `terminating`, `terminated`.
    pub lifecycle: &'static str,
    /// Whether they have gone from their source.
    pub gone: bool,
    /// Whether they are static pods.
    pub is_static: bool,
}

#[derive(Debug)]
struct Tracked {
    pod: Arc<StoredPod>,
    life: PodLife,
    /// No longer in its source.
    gone: bool,
    /// A pod of the same UID that came while this one was ending.
    successor: Option<Arc<StoredPod>>,
    /// As what it is counted.
    counted: Option<WorkingKind>,
}

impl Tracked {
    /// What it is to be counted as. Held pods count as `sync`, as the kubelet's do whose start waits.
    fn kind(&self) -> WorkingKind {
        WorkingKind {
            lifecycle: match self.life {
                PodLife::Held(_) | PodLife::Served => "sync",
                PodLife::Retiring { .. } => "terminating",
                PodLife::Finished => "terminated",
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

    /// How far the pod with `uid` has come.
    pub fn life(&self, uid: &ResolvedPodUid) -> Option<&PodLife> {
        self.pods.get(uid).map(|tracked| &tracked.life)
    }

    /// How many pods came again under a known UID.
    pub fn restarted(&self) -> RestartedPods {
        self.restarted
    }

    /// How many pods have come how far.
    pub fn working(&self) -> WorkingPods {
        self.working.clone()
    }

    /// Static pods that have gone from their source and still end: their mirror pods have to stay.
    pub fn ending_static_pods(&self) -> BTreeSet<FullName> {
        self.ending.clone()
    }

    /// Takes in one pod of an update of the sources.
    pub fn handle(&mut self, operation: Operation, pod: &Arc<StoredPod>) -> Vec<Step> {
        if is_mirror_pod(&pod.metadata) {
            return Vec::new();
        }
        let uid = ResolvedPodUid::new(PodUid::of(&pod.metadata).as_str());
        let steps = match operation {
            Operation::Remove => self.removed(&uid),
            Operation::Add | Operation::Update | Operation::Delete | Operation::Reconcile => {
                self.seen(uid.clone(), pod)
            }
        };
        self.recount(&uid);
        steps
    }

    /// Every source has named all its pods: what is gone is gone.
    pub fn all_sources_seen(&mut self) -> Vec<Step> {
        if std::mem::replace(&mut self.all_sources_seen, true) {
            return Vec::new();
        }
        let gone = self.pods.iter().filter(|(_, tracked)| tracked.gone);
        let gone: Vec<_> = gone.map(|(uid, _)| uid.clone()).collect();
        let mut steps = Vec::new();
        for uid in gone {
            steps.extend(self.removed(&uid));
            self.recount(&uid);
        }
        steps
    }

    /// The network of the node came or went. What is served stays so.
    pub fn network_ready(&mut self, ready: bool) -> Vec<Step> {
        self.network_ready = ready;
        let waits = |tracked: &Tracked| tracked.life == PodLife::Held(HeldBecause::NetworkNotReady);
        let waiting = self.pods.iter().filter(|(_, tracked)| waits(tracked));
        let waiting: Vec<_> = waiting.map(|(uid, _)| uid.clone()).collect();
        waiting.iter().filter_map(|uid| self.start(uid)).collect()
    }

    /// The volumes of the pod with `uid` are gone, after [`Step::Retire`].
    pub fn volumes_gone(&mut self, uid: &ResolvedPodUid) -> Vec<Step> {
        let Some(tracked) = self.pods.get_mut(uid) else {
            return Vec::new();
        };
        let PodLife::Retiring { registered } = tracked.life else {
            return Vec::new();
        };
        tracked.life = PodLife::Finished;
        let full_name = FullName::of(&tracked.pod.metadata);
        let (gone, successor) = (tracked.gone, tracked.successor.take());
        let mut steps = Vec::new();
        if registered {
            steps.push(Step::Unregister(uid.clone()));
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
            steps.extend(self.seen(uid.clone(), &pod));
        }
        steps.extend(next.and_then(|next| self.start(&next)));
        self.recount(uid);
        steps
    }

    /// The pod is in its source, as `pod` says.
    fn seen(&mut self, uid: ResolvedPodUid, pod: &Arc<StoredPod>) -> Vec<Step> {
        let Some(tracked) = self.pods.get_mut(&uid) else {
            return self.first_seen(uid, pod);
        };
        let ends = pod.metadata.deletion_timestamp.is_some();
        if tracked.gone && matches!(tracked.life, PodLife::Retiring { .. }) {
            // The same UID again while the old pod ends: one after the other.
            tracked.successor = Some(Arc::clone(pod));
            return Vec::new();
        }
        tracked.gone = false;
        tracked.pod = Arc::clone(pod);
        match tracked.life {
            PodLife::Held(_) if pod.is_terminal() => {
                tracked.life = PodLife::Finished;
                let full_name = FullName::of(&pod.metadata);
                let next = self.leave_queue(&full_name, &uid);
                next.and_then(|next| self.start(&next))
                    .into_iter()
                    .collect()
            }
            PodLife::Held(_) if ends => {
                tracked.life = PodLife::Held(HeldBecause::EndedUnstarted);
                let full_name = FullName::of(&pod.metadata);
                let next = self.leave_queue(&full_name, &uid);
                next.and_then(|next| self.start(&next))
                    .into_iter()
                    .collect()
            }
            PodLife::Held(_) => self.start(&uid).into_iter().collect(),
            PodLife::Served if pod.is_terminal() => {
                tracked.life = PodLife::Retiring { registered: true };
                vec![Step::Retire(Arc::clone(pod))]
            }
            PodLife::Served => vec![Step::Serve(Arc::clone(pod))],
            PodLife::Retiring { .. } | PodLife::Finished => Vec::new(),
        }
    }

    fn first_seen(&mut self, uid: ResolvedPodUid, pod: &Arc<StoredPod>) -> Vec<Step> {
        let terminal = pod.is_terminal();
        let life = if terminal {
            // Over before this run: what it left on disk goes, and there is nobody to read its objects.
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
            let queue = self
                .static_pods
                .entry(FullName::of(&pod.metadata))
                .or_default();
            queue.push_back(uid.clone());
        }
        if terminal {
            vec![Step::Retire(Arc::clone(pod))]
        } else {
            self.start(&uid).into_iter().collect()
        }
    }

    /// The pod is no longer in its source.
    fn removed(&mut self, uid: &ResolvedPodUid) -> Vec<Step> {
        let Some(tracked) = self.pods.get_mut(uid) else {
            return Vec::new();
        };
        tracked.gone = true;
        tracked.successor = None;
        match tracked.life {
            PodLife::Served if self.all_sources_seen => {
                tracked.life = PodLife::Retiring { registered: true };
                vec![Step::Retire(Arc::clone(&tracked.pod))]
            }
            PodLife::Served | PodLife::Retiring { .. } => Vec::new(),
            PodLife::Held(_) | PodLife::Finished => {
                let full_name = FullName::of(&tracked.pod.metadata);
                self.forget(uid);
                let next = self.leave_queue(&full_name, uid);
                next.and_then(|next| self.start(&next))
                    .into_iter()
                    .collect()
            }
        }
    }

    /// Serves a held pod, if nothing speaks against it any more.
    fn start(&mut self, uid: &ResolvedPodUid) -> Option<Step> {
        let tracked = self.pods.get_mut(uid)?;
        if !matches!(
            tracked.life,
            PodLife::Held(HeldBecause::NetworkNotReady | HeldBecause::NameInUse)
        ) {
            return None;
        }
        let queue = self.static_pods.get(&FullName::of(&tracked.pod.metadata));
        let first = queue.and_then(VecDeque::front);
        tracked.life = if is_static_pod(&tracked.pod.metadata) && first != Some(uid) {
            PodLife::Held(HeldBecause::NameInUse)
        } else if !self.network_ready && !tracked.pod.host_network() {
            PodLife::Held(HeldBecause::NetworkNotReady)
        } else {
            PodLife::Served
        };
        let step = (tracked.life == PodLife::Served).then(|| Step::Serve(Arc::clone(&tracked.pod)));
        self.recount(uid);
        step
    }

    fn forget(&mut self, uid: &ResolvedPodUid) {
        if let Some(Tracked { pod, counted, .. }) = self.pods.remove(uid) {
            self.count(&pod, counted, None);
        }
    }

    /// Counts the pod as what it is now.
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
        // A held pod that goes is forgotten at once, so what is gone and not over is on disk.
        let ends =
            |kind: WorkingKind| kind.is_static && kind.gone && kind.lifecycle != "terminated";
        if now.is_some_and(ends) {
            self.ending.insert(FullName::of(&pod.metadata));
        } else if before.is_some_and(ends) {
            self.ending.remove(&FullName::of(&pod.metadata));
        }
    }

    /// Takes `uid` out of the static pods with `full_name`; the one that is first now, if that has changed.
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
