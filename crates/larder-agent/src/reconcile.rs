//! The core: from pod events and object events to delivered volumes and environments.
//!
//! ```text
//!  pods ────► serve, retire ─┐                              ┌─► worker of pod A ─► disk
//!  objects ─► changed ───────┼─► which pods read it? ─inbox─┼─► worker of pod B ─► disk
//!  facts ───► changed ───────┘                              └─► …
//! ```
//!
//! Invariants:
//! 1. The [`Reconciler`] never waits for a network or a disk. All waiting is in the workers, one for each pod.
//! 2. The reconciler decides a pod once: it decodes the pod, registers it with both managers and plans it, in this
//!    order and only when the specification is new. Workers get the plan.
//! 3. The reconciler owns the registration: from the first [`serve`](Reconciler::serve) to
//!    [`unregister`](Reconciler::unregister).

mod readers;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use fastrand::Rng;
use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Pod;
use larder::{ConfigMapManager, RegisteredPod, SecretManager};
use larder_objects::{ConfigMap, Kind, ObjectKey, Secret};
use larder_pods::{PodUid, ResolvedPodUid, StoredPod};
use larder_projection::disk::VolumeHost;
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info_span};

use self::readers::ObjectReaders;
use crate::{
    beside::{Beside, BesideWorker},
    certificates::{Certificates, SourceId},
    checkpoint::CheckpointBoard,
    clock::Clock,
    delivery::{
        inbox::{DesiredState, Inbox},
        plan::{Need, PodPlan},
        pod_statuses::{PodStatusEntry, PodStatuses},
    },
    events::Events,
    facts::Facts,
    metrics::Metrics,
    on_change::OnChange,
    serving::ServingWorker,
    status::Phase,
    tasks::TaskError,
    tokens::Tokens,
};

/// Name of the workers' tasks in errors.
const WORKER: &str = "pod worker";

/// The state that all workers use.
#[derive(Debug)]
pub(crate) struct AgentContext {
    pub(crate) config_maps: ConfigMapManager,
    pub(crate) secrets: SecretManager,
    pub(crate) tokens: Tokens,
    pub(crate) certificates: Certificates,
    /// `None` if events are not posted.
    pub(crate) events: Option<Arc<Events>>,
    pub(crate) facts: watch::Receiver<Facts>,
    /// Whether any pod reads ClusterTrustBundles; only then are they watched.
    pub(crate) wants_trust_bundles: watch::Sender<bool>,
    pub(crate) clock: Clock,
    pub(crate) host: Arc<VolumeHost>,
    /// The state that workers beside a kubelet share; `None` in the other mode.
    pub(crate) beside: Option<Arc<Beside>>,
    pub(crate) metrics: Metrics,
    pub(crate) on_change: OnChange,
    pub(crate) statuses: PodStatuses,
    pub(crate) checkpoint: CheckpointBoard,
    /// Time between two repair passes, before jitter; a reload may change it.
    pub(crate) sync_frequency: Mutex<Duration>,
}

impl AgentContext {
    /// The root directory of the volumes.
    pub(crate) fn volumes(&self) -> &Path {
        match &self.beside {
            Some(beside) => beside.path(),
            None => self.host.path(),
        }
    }
}

/// The registration of one pod with both managers; dropping it ends it.
#[derive(Debug)]
struct Registration {
    _config_maps: RegisteredPod<ConfigMap>,
    _secrets: RegisteredPod<Secret>,
}

impl Registration {
    fn new(context: &AgentContext, pod: &Pod) -> Self {
        Self {
            _config_maps: context.config_maps.registered(pod),
            _secrets: context.secrets.registered(pod),
        }
    }
}

/// A pod that is served or being torn down.
#[derive(Debug)]
struct TrackedPod {
    /// The inbox of the worker, which may have left.
    inbox: Arc<Inbox>,
    /// `None` while the pod is being torn down.
    plan: Option<Arc<PodPlan>>,
    /// `None` for a pod of which only the directory was found.
    registration: Option<Registration>,
}

impl TrackedPod {
    fn reads(&self) -> BTreeSet<&Need> {
        let plan = self.plan.as_ref();
        plan.map(|plan| plan.reads()).unwrap_or_default()
    }

    /// Notes a change of each need that `is_changed`.
    fn note_changes(&self, is_changed: impl Fn(&Need) -> bool) {
        for need in self.reads() {
            if is_changed(need) {
                self.inbox.note_change(need.clone());
            }
        }
    }
}

/// Routes every change to the workers of the pods that it concerns.
#[derive(Debug)]
pub(crate) struct Reconciler {
    context: Arc<AgentContext>,
    pods: BTreeMap<ResolvedPodUid, TrackedPod>,
    readers: ObjectReaders,
    /// Number of pods that read ClusterTrustBundles.
    trust_bundle_readers: usize,
    workers: JoinSet<ResolvedPodUid>,
    rng: Rng,
    shutdown: CancellationToken,
}

impl Reconciler {
    pub(crate) fn new(context: Arc<AgentContext>, rng: Rng, shutdown: CancellationToken) -> Self {
        Self {
            context,
            pods: BTreeMap::new(),
            readers: ObjectReaders::default(),
            trust_bundle_readers: 0,
            workers: JoinSet::new(),
            rng,
            shutdown,
        }
    }

    /// Serves `pod`, which is new or has changed.
    pub(crate) fn serve(&mut self, pod: &Arc<StoredPod>) {
        let uid = ResolvedPodUid::new(PodUid::of(&pod.metadata).as_str());
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
            plan.hooks = self.context.on_change.hooks(
                pod,
                decoded.as_ref(),
                known.map(|known| (&*known.pod, known.hooks.as_ref())),
            );
            self.context.on_change.updated(pod);
        }
        let plan = Arc::new(plan);
        // Not kept for the worker: decoded, a pod takes ten times as much memory, and at the start all pods come at once.
        let registration = decoded.map(|pod| Registration::new(&self.context, &pod));
        let entry = PodStatusEntry::of(pod, self.context.volumes(), self.context.clock.now());
        let desired = DesiredState::Serve(Arc::clone(&plan));
        let tracked = self.set_desired(&uid, desired, entry);
        if registration.is_some() || is_excluded {
            tracked.registration = registration;
        }
        self.set_plan(&uid, Some(plan));
    }

    /// Whether the settings or the pod itself exclude it, so that nothing of it is read.
    fn is_excluded(&self, pod: &StoredPod) -> bool {
        let beside = self.context.beside.as_ref();
        beside.is_some_and(|beside| beside.excludes(pod).is_some())
    }

    /// Tears down the volumes of `pod`, which [`Self::worker_ended`] then returns.
    pub(crate) fn retire(&mut self, pod: &StoredPod) {
        let uid = ResolvedPodUid::new(PodUid::of(&pod.metadata).as_str());
        let entry = PodStatusEntry::of(pod, self.context.volumes(), self.context.clock.now());
        self.context.on_change.forget(uid.as_str());
        self.set_desired(&uid, DesiredState::Retire, entry);
        self.set_plan(&uid, None);
    }

    /// Tears down what an earlier agent left of a pod, of which the directory is known and perhaps the name.
    pub(crate) fn clean_up(&mut self, uid: &ResolvedPodUid, name: Option<ObjectKey>) {
        let entry = self.found(uid, name);
        self.set_desired(uid, DesiredState::Retire, entry);
        self.set_plan(uid, None);
    }

    /// Publishes what an earlier agent left of a pod that may still exist. It is left untouched.
    pub(crate) fn keep(&self, uid: &ResolvedPodUid, name: Option<ObjectKey>, reason: &str) {
        self.publish(self.found(uid, name), Phase::Failing, reason);
    }

    /// Publishes a pod that is not served, and why.
    pub(crate) fn hold(&self, pod: &StoredPod, reason: &str) {
        let entry = PodStatusEntry::of(pod, self.context.volumes(), self.context.clock.now());
        self.publish(entry, Phase::Held, reason);
    }

    fn found(&self, uid: &ResolvedPodUid, name: Option<ObjectKey>) -> PodStatusEntry {
        let now = self.context.clock.now();
        PodStatusEntry::found(uid.clone(), name, self.context.volumes(), now)
    }

    fn publish(&self, entry: PodStatusEntry, phase: Phase, reason: &str) {
        entry.publish(phase, reason, Vec::new(), self.context.clock.now());
        self.context.statuses.insert(Arc::new(entry));
    }

    /// Ends the registration of a pod whose volumes are gone, and forgets what was issued to it.
    pub(crate) fn unregister(&mut self, uid: &ResolvedPodUid) {
        if let Some(tracked) = self.pods.get_mut(uid) {
            tracked.registration = None;
        }
        self.forget_left(uid);
        let uid = uid.as_str();
        self.context.tokens.forget(uid);
        self.context.certificates.forget(uid);
        if let Some(events) = &self.context.events {
            events.forget(uid);
        }
    }

    /// Removes the status of a pod.
    pub(crate) fn forget(&self, uid: &ResolvedPodUid) {
        self.context.statuses.remove(uid);
    }

    /// An object was created, changed or deleted, or cannot be read.
    pub(crate) fn object_changed(&self, kind: Kind, key: &ObjectKey) {
        let readers = self.readers.of(kind, key);
        for tracked in readers.filter_map(|uid| self.pods.get(uid)) {
            let need = Need::Object(kind, key.name.clone());
            tracked.inbox.note_change(need);
        }
    }

    /// Any object may have changed.
    pub(crate) fn any_object_changed(&self) {
        for tracked in self.pods.values() {
            tracked.note_changes(|need| matches!(need, Need::Object(..)));
        }
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
        for tracked in self.pods.values() {
            tracked.note_changes(|need| matches!(need, Need::Token(_)));
        }
    }

    /// The hooks of the configuration have changed. Notifies only the workers of affected pods.
    pub(crate) fn hooks_changed(&mut self) {
        let pods = self.pods.iter();
        let plans = pods.filter_map(|(uid, tracked)| Some((uid.clone(), tracked.plan.clone()?)));
        for (uid, plan) in plans.collect::<Vec<_>>() {
            if self.is_excluded(&plan.pod) {
                continue;
            }
            let hooks = (self.context.on_change).reloaded_hooks(&plan.pod, plan.hooks.as_ref());
            let Some(plan) = plan.with_other_hooks(hooks) else {
                continue;
            };
            let plan = Arc::new(plan);
            let desired = DesiredState::Serve(Arc::clone(&plan));
            let (root, now) = (self.context.volumes(), self.context.clock.now());
            let entry = PodStatusEntry::of(&plan.pod, root, now);
            self.set_desired(&uid, desired, entry);
            self.set_plan(&uid, Some(plan));
        }
    }

    /// The Node, the Services or the trust bundles have changed.
    pub(crate) fn facts_changed(&self) {
        for tracked in self.pods.values() {
            tracked.note_changes(|need| {
                matches!(need, Need::Node | Need::Services | Need::TrustBundles)
            });
        }
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

    /// Sets the desired state of a pod. If it has no worker, starts one that publishes to `entry`.
    fn set_desired(
        &mut self,
        uid: &ResolvedPodUid,
        desired: DesiredState,
        entry: PodStatusEntry,
    ) -> &mut TrackedPod {
        let desired = match self.pods.get(uid) {
            Some(tracked) => tracked.inbox.set_desired(desired).err(),
            None => Some(desired),
        };
        if let Some(desired) = desired {
            let inbox = self.start_worker(uid, desired, entry);
            if let Some(tracked) = self.pods.get_mut(uid) {
                tracked.inbox = inbox;
            } else {
                let tracked = TrackedPod {
                    inbox,
                    plan: None,
                    registration: None,
                };
                self.pods.insert(uid.clone(), tracked);
            }
        }
        self.pods
            .get_mut(uid)
            .expect("the pod was found or inserted")
    }

    fn start_worker(
        &mut self,
        uid: &ResolvedPodUid,
        desired: DesiredState,
        entry: PodStatusEntry,
    ) -> Arc<Inbox> {
        let (inbox, entry) = (Arc::new(Inbox::new(desired)), Arc::new(entry));
        self.context.statuses.insert(Arc::clone(&entry));
        let (context, rng) = (Arc::clone(&self.context), self.rng.fork());
        let (shutdown, left) = (self.shutdown.clone(), uid.clone());
        let (work, span) = (Arc::clone(&inbox), info_span!("pod", uid = %uid));
        // The modes differ only here: in the worker that updates the volumes.
        match context.beside.clone() {
            None => {
                let worker = ServingWorker::new(context, work, entry, rng);
                self.workers
                    .spawn(worker.run(shutdown).map(|()| left).instrument(span));
            }
            Some(beside) => {
                let worker = BesideWorker::new(context, beside, work, entry, rng);
                self.workers
                    .spawn(worker.run(shutdown).map(|()| left).instrument(span));
            }
        }
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

    /// Sets the plan of a pod, and with it what the pod reads from now on.
    fn set_plan(&mut self, uid: &ResolvedPodUid, plan: Option<Arc<PodPlan>>) {
        let Some(tracked) = self.pods.get_mut(uid) else {
            return;
        };
        let reads_bundles = |plan: &Arc<PodPlan>| plan.reads().contains(&Need::TrustBundles);
        let before = std::mem::replace(&mut tracked.plan, plan.clone());
        if let (Some(before), Some(plan)) = (&before, &plan)
            && Arc::ptr_eq(&before.parts, &plan.parts)
        {
            return;
        }
        for object in before.iter().flat_map(|plan| plan.objects()) {
            self.readers.remove(object, uid);
        }
        for object in plan.iter().flat_map(|plan| plan.objects()) {
            self.readers.add(object, uid);
        }
        self.trust_bundle_readers -= usize::from(before.as_ref().is_some_and(reads_bundles));
        self.trust_bundle_readers += usize::from(plan.as_ref().is_some_and(reads_bundles));
        let wanted = self.trust_bundle_readers > 0;
        let wants = &self.context.wants_trust_bundles;
        wants.send_if_modified(|wants| std::mem::replace(wants, wanted) != wanted);
    }
}
