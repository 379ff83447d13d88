//! The core: turns pod events and object events into delivered volumes and environments.
//!
//! ```text
//!  pods ────► serve, retire ─┐                              ┌─► worker of pod A ─► disk
//!  objects ─► changed ───────┼─► which pods read it? ─inbox─┼─► worker of pod B ─► disk
//!  cluster ─► changed ───────┘                              └─► …
//! ```
//!
//! Invariants:
//! 1. The [`Reconciler`] never waits for a network or a disk. Only the workers wait, one for each pod.
//! 2. The reconciler decides a pod once: it decodes the pod, registers it with both managers and plans it, in this
//!    order and only when the specification is new. Workers get the plan.
//! 3. The reconciler owns the registration: from the first [`serve`](Reconciler::serve) to
//!    [`unregister`](Reconciler::unregister).

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use fastrand::Rng;
use futures::FutureExt as _;
use larder_inputs::certificates::SourceId;
use larder_objects::{Kind, ObjectKey};
use larder_pods::{PodSource, ResolvedPodUid, StoredPod};
use larder_projection::Need;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info_span};

use crate::{
    delivery::{
        inbox::{DesiredState, Inbox},
        inputs::Registration,
        plan::PodPlan,
        pod_statuses::PodStatusEntry,
        worker::{DeliveryNode, WorkerFactory, WorkerSeat},
    },
    status::Phase,
    tasks::TaskError,
};

/// Name of the workers' tasks in errors.
const WORKER: &str = "pod worker";

/// A pod that is served or being torn down.
#[derive(Debug)]
struct TrackedPod {
    /// The inbox of the worker, which may have left.
    inbox: Arc<Inbox>,
    /// `None` while the pod is being torn down.
    plan: Option<Arc<PodPlan>>,
    /// `None` for a pod of which only the directory was found.
    registration: Option<Arc<Registration>>,
}

/// Routes every change to the workers of the pods that it concerns.
pub(crate) struct Reconciler {
    factory: Arc<dyn WorkerFactory>,
    node: Arc<DeliveryNode>,
    /// Whether any pod reads ClusterTrustBundles; only then are they watched.
    wants_trust_bundles: watch::Sender<bool>,
    pods: BTreeMap<ResolvedPodUid, TrackedPod>,
    /// Number of pods that read ClusterTrustBundles.
    trust_bundle_readers: usize,
    workers: JoinSet<ResolvedPodUid>,
    rng: Rng,
    shutdown: CancellationToken,
}

impl Reconciler {
    /// Without pods. `wants_trust_bundles` follows whether any pod reads ClusterTrustBundles.
    pub(crate) fn new(
        factory: Arc<dyn WorkerFactory>,
        node: Arc<DeliveryNode>,
        wants_trust_bundles: watch::Sender<bool>,
        rng: Rng,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            factory,
            node,
            wants_trust_bundles,
            pods: BTreeMap::new(),
            trust_bundle_readers: 0,
            workers: JoinSet::new(),
            rng,
            shutdown,
        }
    }

    /// Serves `pod`, which is new or has changed.
    pub(crate) fn serve(&mut self, pod: &Arc<StoredPod>) {
        let uid = ResolvedPodUid::of(&pod.metadata);
        let tracked = self.pods.get(&uid);
        let known = tracked.and_then(|tracked| tracked.plan.as_ref());
        let is_excluded = self.is_excluded(pod);
        let kept = known.filter(|known| self.is_excluded(&known.pod) == is_excluded);
        let (mut plan, decoded) = if let Some(plan) = kept.and_then(|plan| plan.updated(pod)) {
            (plan, None)
        } else if is_excluded {
            (PodPlan::without_parts(Arc::clone(pod)), None)
        } else {
            let decoded = pod.decode();
            (PodPlan::new(Arc::clone(pod), &decoded), Some(decoded))
        };
        if !is_excluded {
            let on_change = &self.node.on_change;
            let before = known.map(|known| (&*known.pod, known.hooks.as_ref()));
            plan.hooks = on_change.hooks(pod, decoded.as_ref(), before);
            on_change.updated(pod);
        }
        // Not kept for the worker: decoded, a pod takes ten times as much memory, and at the start all pods come at once.
        if let Some(pod) = decoded {
            plan.registration = Some(Arc::new(Registration {
                config_maps: self.node.inputs.config_maps.registered(&pod),
                secrets: self.node.inputs.secrets.registered(&pod),
            }));
        }
        let entry = self.entry(pod);
        self.set_desired(&uid, DesiredState::Serve(Arc::new(plan)), entry);
    }

    /// Whether the settings or the pod itself exclude it, so that nothing of it is read.
    fn is_excluded(&self, pod: &StoredPod) -> bool {
        self.factory.excludes(pod).is_some()
    }

    /// Tears down the volumes of `pod`, which [`Self::worker_ended`] then returns.
    pub(crate) fn retire(&mut self, pod: &StoredPod) {
        let uid = ResolvedPodUid::of(&pod.metadata);
        let entry = self.entry(pod);
        self.node.on_change.forget(uid.as_str());
        self.set_desired(&uid, DesiredState::Retire, entry);
    }

    /// Tears down what an earlier agent left of a pod, of which the directory is known and perhaps the name.
    pub(crate) fn clean_up(&mut self, uid: &ResolvedPodUid, name: Option<ObjectKey>) {
        let entry = self.found(uid, name);
        self.set_desired(uid, DesiredState::Retire, entry);
    }

    /// Publishes what an earlier agent left of a pod that may still exist. It is left untouched.
    pub(crate) fn keep(&self, uid: &ResolvedPodUid, name: Option<ObjectKey>, reason: &str) {
        self.publish(self.found(uid, name), Phase::Failing, reason);
    }

    /// Publishes a pod that is not served, and why.
    pub(crate) fn hold(&self, pod: &StoredPod, reason: &str) {
        self.publish(self.entry(pod), Phase::Held, reason);
    }

    fn entry(&self, pod: &StoredPod) -> PodStatusEntry {
        let root = self.factory.volumes();
        let now = self.node.now();
        let metadata = &pod.metadata;
        let (uid, source) = (ResolvedPodUid::of(metadata), PodSource::of(metadata));
        PodStatusEntry::new(uid, pod.key(), source, root, now)
    }

    /// The entry of a pod of which only the directory was found, and perhaps a link with its name.
    fn found(&self, uid: &ResolvedPodUid, name: Option<ObjectKey>) -> PodStatusEntry {
        let name = name.unwrap_or_else(|| ObjectKey::new("", uid.as_str()));
        let root = self.factory.volumes();
        let now = self.node.now();
        PodStatusEntry::new(uid.clone(), name, None, root, now)
    }

    fn publish(&self, entry: PodStatusEntry, phase: Phase, reason: &str) {
        entry.publish(phase, reason, Vec::new(), self.node.now());
        self.node.statuses.insert(Arc::new(entry));
    }

    /// Ends the registration of a pod whose volumes are gone, and forgets what was issued to it.
    pub(crate) fn unregister(&mut self, uid: &ResolvedPodUid) {
        if let Some(tracked) = self.pods.get_mut(uid) {
            tracked.registration = None;
        }
        self.forget_left(uid);
        let uid = uid.as_str();
        self.node.inputs.tokens.forget(uid);
        self.node.inputs.certificates.forget(uid);
    }

    /// Removes the status and the events of a pod.
    pub(crate) fn forget(&self, uid: &ResolvedPodUid) {
        self.node.statuses.remove(uid);
        if let Some(events) = &self.node.events {
            events.forget(uid.as_str());
        }
    }

    /// An object was created, changed or deleted, or cannot be read.
    pub(crate) fn object_changed(&self, kind: Kind, key: &ObjectKey) {
        let readers = self.node.readers.of(&(kind, key.clone()));
        for tracked in readers.iter().filter_map(|uid| self.pods.get(uid)) {
            let need = Need::Object(kind, key.name.clone());
            tracked.inbox.note_change(need);
        }
    }

    /// Notes a change of each need that `is_changed`.
    fn note_changes(&self, is_changed: fn(&Need) -> bool) {
        for tracked in self.pods.values() {
            let reads = tracked.plan.iter().flat_map(|plan| plan.reads());
            for need in reads.filter(|need| is_changed(need)) {
                tracked.inbox.note_change(need.clone());
            }
        }
    }

    /// Any object may have changed.
    pub(crate) fn any_object_changed(&self) {
        self.note_changes(|need| matches!(need, Need::Object(..)));
    }

    /// The certificate of a source was issued or denied.
    pub(crate) fn certificate_changed(&self, source: SourceId) {
        if let Some(tracked) = self.pods.get(&ResolvedPodUid::new(&*source.pod_uid)) {
            let need = Need::PodCertificate(source.key);
            tracked.inbox.note_change(need);
        }
    }

    /// The wall clock was set, or the machine has slept: tokens may be due.
    pub(crate) fn clock_jumped(&self) {
        self.note_changes(|need| matches!(need, Need::Token(_)));
    }

    /// The hooks of the configuration have changed. Notifies only the workers of affected pods.
    pub(crate) fn hooks_changed(&mut self) {
        let plans = self
            .pods
            .iter()
            .filter_map(|(uid, tracked)| Some((uid.clone(), tracked.plan.clone()?)));
        for (uid, plan) in plans.collect::<Vec<_>>() {
            if self.is_excluded(&plan.pod) {
                continue;
            }
            let hooks = (self.node.on_change).current_hooks(&plan.pod, None, plan.hooks.as_ref());
            if plan.hooks == hooks {
                continue;
            }
            let entry = self.entry(&plan.pod);
            let plan = PodPlan::clone(&plan);
            let plan = Arc::new(PodPlan { hooks, ..plan });
            self.set_desired(&uid, DesiredState::Serve(plan), entry);
        }
    }

    /// The Node, the Services or the trust bundles have changed.
    pub(crate) fn cluster_changed(&self) {
        self.note_changes(|need| matches!(need, Need::Node | Need::Services | Need::TrustBundles));
    }

    /// Waits until a worker has ended because the volumes of its pod are gone, see [`Self::retire`]. Cancel-safe.
    ///
    /// # Errors
    ///
    /// A worker panicked.
    pub(crate) async fn worker_ended(&mut self) -> Result<ResolvedPodUid, TaskError> {
        loop {
            let Some(ended) = self.workers.join_next().await else {
                return std::future::pending().await;
            };
            let Ok(uid) = ended else {
                return Err(TaskError::new(WORKER, &ended));
            };
            // A pod that reappeared has another worker.
            let tracked = self.pods.get(&uid);
            if tracked.is_some_and(|tracked| tracked.inbox.has_left()) {
                self.forget_left(&uid);
                return Ok(uid);
            }
        }
    }

    /// Waits until every worker has ended. To be called after the shutdown was requested.
    ///
    /// # Errors
    ///
    /// A worker panicked.
    pub(crate) async fn drain(mut self) -> Result<(), TaskError> {
        let mut result = Ok(());
        while let Some(ended) = self.workers.join_next().await {
            if ended.is_err() {
                result = Err(TaskError::new(WORKER, &ended));
            }
        }
        result
    }

    /// Sets the desired state of a pod, and with it what the pod reads from now on. If it has no worker, starts one that
    /// publishes to `entry`.
    fn set_desired(&mut self, uid: &ResolvedPodUid, desired: DesiredState, entry: PodStatusEntry) {
        let plan = match &desired {
            DesiredState::Serve(plan) => Some(Arc::clone(plan)),
            DesiredState::Retire => None,
        };
        // The worker finds its objects in the table as soon as it has the plan.
        self.set_reads(uid, plan.as_ref());
        let refused = match self.pods.get(uid) {
            Some(tracked) => tracked.inbox.set_desired(desired).err(),
            None => Some(desired),
        };
        if let Some(desired) = refused {
            let inbox = self.start_worker(uid, desired, entry);
            let before = self.pods.remove(uid);
            let tracked = TrackedPod {
                inbox,
                plan: None,
                registration: before.and_then(|before| before.registration),
            };
            self.pods.insert(uid.clone(), tracked);
        }
        if let Some(entry) = self.node.statuses.get(uid) {
            let parts = plan.as_ref().map(|plan| Arc::clone(&plan.parts));
            entry.set_parts(parts.unwrap_or_default());
        }
        if let Some(tracked) = self.pods.get_mut(uid) {
            if let Some(plan) = &plan {
                tracked.registration.clone_from(&plan.registration);
            }
            tracked.plan = plan;
        }
    }

    fn start_worker(
        &mut self,
        uid: &ResolvedPodUid,
        desired: DesiredState,
        entry: PodStatusEntry,
    ) -> Arc<Inbox> {
        let entry = Arc::new(entry);
        if let DesiredState::Serve(plan) = &desired {
            entry.begin(plan, self.node.now());
        }
        self.node.statuses.insert(Arc::clone(&entry));
        let inbox = Arc::new(Inbox::new(desired));
        let seat = WorkerSeat {
            node: Arc::clone(&self.node),
            inbox: Arc::clone(&inbox),
            entry,
            rng: self.rng.fork(),
            shutdown: self.shutdown.clone(),
        };
        let worker = Arc::clone(&self.factory).worker(seat);
        let left = uid.clone();
        let span = info_span!("pod", uid = %uid);
        self.workers.spawn(worker.map(|()| left).instrument(span));
        inbox
    }

    /// Forgets a pod that has neither a worker nor a registration.
    fn forget_left(&mut self, uid: &ResolvedPodUid) {
        let tracked = self.pods.get(uid);
        if tracked.is_some_and(|tracked| tracked.inbox.has_left() && tracked.registration.is_none())
        {
            self.pods.remove(uid);
        }
    }

    /// Sets what a pod reads from now on: what its new plan does.
    fn set_reads(&mut self, uid: &ResolvedPodUid, plan: Option<&Arc<PodPlan>>) {
        let reads_bundles = |plan: &Arc<PodPlan>| plan.reads().contains(&Need::TrustBundles);
        let tracked = self.pods.get(uid);
        let before = tracked.and_then(|tracked| tracked.plan.as_ref());
        if let (Some(before), Some(plan)) = (before, plan)
            && Arc::ptr_eq(&before.parts, &plan.parts)
        {
            return;
        }
        let objects: HashSet<_> = plan.iter().flat_map(|plan| plan.objects()).collect();
        for object in &objects {
            self.node.readers.add(object.clone(), uid);
        }
        // After that, so that what is known of an object that stays is kept.
        let before_objects = before.iter().flat_map(|plan| plan.objects());
        for object in before_objects.filter(|object| !objects.contains(object)) {
            self.node.readers.remove(object, uid);
        }
        self.trust_bundle_readers -= usize::from(before.is_some_and(reads_bundles));
        self.trust_bundle_readers += usize::from(plan.is_some_and(reads_bundles));
        let wanted = self.trust_bundle_readers > 0;
        self.wants_trust_bundles
            .send_if_modified(|wants| std::mem::replace(wants, wanted) != wanted);
    }
}
