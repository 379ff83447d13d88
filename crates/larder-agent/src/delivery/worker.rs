//! What the workers of both modes share: the node, the seat that connects a worker with the reconciler, and the work on
//! the parts of one pod.

use std::{collections::BTreeSet, mem, path::Path, sync::Arc, time::Duration};

use fastrand::Rng;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use larder_hooks::OnChange;
use larder_pods::StoredPod;
use larder_pods::events::{EventSubject, Events};
use larder_projection::{Inputs, Need, disk::VolumeHost};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    gathering::Gathering,
    inbox::{Inbox, PendingChanges},
    inputs::NodeInputs,
    plan::{Part, PartKind, PodPlan},
    pod_statuses::{PartStatus, PodStatusEntry, PodStatuses},
    readers::ObjectReaders,
    sub_path_settings::SubPathSettings,
};
use crate::{
    disk_turns::{DiskTurns, StepProgress},
    metrics::Metrics,
    root_dir::RootProblems,
    status::{Delivery, DiskWaitStatus, Phase},
    waits::Waits,
};

/// Longest wait for a repair pass: where a longer one is configured, tokio's clock might not count as far.
const MAX_REPAIR_PERIOD: Duration = Duration::from_hours(24 * 365);

/// What the workers of all pods share, in either mode.
pub(crate) struct DeliveryNode {
    pub(crate) inputs: Arc<NodeInputs>,
    pub(crate) readers: ObjectReaders,
    pub(crate) statuses: Arc<PodStatuses>,
    /// `None` if events are not posted.
    pub(crate) events: Option<Arc<Events>>,
    pub(crate) metrics: Metrics,
    /// The root directory of larder. Beside a kubelet it has the records of hooks only.
    pub(crate) host: Arc<VolumeHost>,
    /// What is wrong with that directory.
    pub(crate) root: Mutex<RootProblems>,
    /// Work of the agent itself that waits for a disk.
    pub(crate) waits: Waits,
    /// Of the workers' steps at a disk.
    pub(crate) disk: DiskTurns,
    pub(crate) on_change: OnChange,
    /// Whether the API server is embedded, and filled from manifests.
    pub(crate) has_manifests: bool,
    pub(crate) sub_paths: SubPathSettings,
}

impl DeliveryNode {
    /// The time of day.
    pub(crate) fn now(&self) -> Timestamp {
        self.inputs.clock.now()
    }

    /// Posts an event about `pod`, if events are posted.
    pub(crate) fn post(&self, pod: &StoredPod, subject: EventSubject<'_>, message: &str) {
        if let Some(events) = &self.events {
            events.failed(&pod.metadata, subject, message, self.now());
        }
    }
}

/// Makes the workers of pods. The modes of the agent differ in it, and nowhere else in the reconciler.
pub(crate) trait WorkerFactory: Send + Sync {
    /// The directory below which `pods/UID` is the directory of a pod.
    fn volumes(&self) -> &Path;

    /// Why nothing of the pod is read; `None` if it is served.
    fn excludes(&self, _: &StoredPod) -> Option<&'static str> {
        None
    }

    /// A worker, which works until its pod has ended and it has left the inbox, or until the shutdown.
    fn worker(self: Arc<Self>, seat: WorkerSeat) -> BoxFuture<'static, ()>;
}

/// What connects a worker with the reconciler.
pub(crate) struct WorkerSeat {
    pub(crate) node: Arc<DeliveryNode>,
    pub(crate) inbox: Arc<Inbox>,
    /// Where it publishes.
    pub(crate) entry: Arc<PodStatusEntry>,
    pub(crate) rng: Rng,
    pub(crate) shutdown: CancellationToken,
}

/// The progress of one part of a plan; the mode of the agent adds `M`.
#[derive(Debug)]
pub(crate) struct PartProgress<M> {
    /// To be looked at in the next pass.
    pub(crate) due: bool,
    /// One of its inputs is being fetched; it is due when that arrives.
    pub(crate) waits: bool,
    /// It changed, or something that it reads did, and was not looked at since.
    pub(crate) changed: bool,
    pub(crate) delivery: Delivery,
    pub(crate) last_swap: Option<Timestamp>,
    pub(crate) files: usize,
    pub(crate) of_mode: M,
}

/// The step of a pod that has not ended for a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlowStep {
    /// It works.
    Works,
    /// It waits.
    Waits(DiskWaitStatus),
}

/// The work on one pod: its plan, the progress of the plan's parts, and their inputs.
pub(crate) struct PodWork<M> {
    pub(crate) node: Arc<DeliveryNode>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) entry: Arc<PodStatusEntry>,
    pub(crate) rng: Rng,
    /// `None` once the pod has ended.
    pub(crate) plan: Option<Arc<PodPlan>>,
    /// The progress of the plan's parts, in their order.
    pub(crate) parts: Vec<PartProgress<M>>,
    pub(crate) gathering: Gathering,
    /// Time of the next repair pass, which covers all parts.
    pub(crate) repair_at: Instant,
    pub(crate) shutdown: CancellationToken,
    /// The parts that the pod's present step is about, by their index in the plan.
    pub(crate) in_step: Vec<usize>,
    /// That step, if it has become slow.
    pub(crate) slow_step: Option<SlowStep>,
}

impl<M: Default> PodWork<M> {
    pub(crate) fn new(seat: WorkerSeat) -> Self {
        let mut work = Self {
            node: seat.node,
            inbox: seat.inbox,
            entry: seat.entry,
            rng: seat.rng,
            plan: None,
            parts: Vec::new(),
            gathering: Gathering::default(),
            repair_at: Instant::now(),
            shutdown: seat.shutdown,
            in_step: Vec::new(),
            slow_step: None,
        };
        work.schedule_repair();
        work
    }

    /// The time of day.
    pub(crate) fn wall(&self) -> Timestamp {
        self.node.now()
    }

    /// Sets the time of the next repair pass: the kubelet's, 1 to 1.5 times the sync frequency (kubelet 1.36,
    /// `pkg/kubelet/pod_workers.go`).
    fn schedule_repair(&mut self) {
        let period = *self.node.inputs.sync_frequency.lock();
        let period = period.min(MAX_REPAIR_PERIOD);
        self.repair_at = Instant::now() + period.mul_f64(1.0 + 0.5 * self.rng.f64());
    }

    /// Begins a repair pass if it is time: all parts are due. Returns whether it is.
    pub(crate) fn begin_repair(&mut self) -> bool {
        let is_time = Instant::now() >= self.repair_at;
        if is_time {
            self.schedule_repair();
            self.all_due();
        }
        is_time
    }

    pub(crate) fn all_due(&mut self) {
        self.parts.iter_mut().for_each(|part| part.due = true);
    }

    /// Takes the changes out of the inbox: parts that read a changed input are due. Calls `affected` with each of them,
    /// the input, and the arrival of the change.
    pub(crate) fn take_changes(
        &mut self,
        mut affected: impl FnMut(&mut PartProgress<M>, &PodPlan, &Need, Instant),
    ) -> PendingChanges {
        let changes = self.inbox.take();
        let since = changes.since.unwrap_or_else(Instant::now);
        let needs = &changes.needs;
        for need in needs {
            self.gathering.forget(need);
        }
        if let Some(plan) = &self.plan {
            for (part, progress) in plan.parts.iter().zip(&mut self.parts) {
                for need in part.reads.iter().filter(|need| needs.contains(need)) {
                    (progress.due, progress.changed) = (true, true);
                    affected(progress, plan, need, since);
                }
            }
        }
        changes
    }

    /// Takes over a plan. A part that the previous plan had keeps its history. Every part is due, since each reads the
    /// pod itself. Returns whether the parts are other ones.
    pub(crate) fn set_plan(&mut self, plan: &Arc<PodPlan>) -> bool {
        let now = self.wall();
        let before = self.plan.replace(Arc::clone(plan));
        let is_same = |before: &Arc<PodPlan>| Arc::ptr_eq(&before.parts, &plan.parts);
        let has_others = !before.as_ref().is_some_and(is_same);
        if has_others {
            // Running fetches may belong to objects that are no longer registered.
            // The new plan may no longer register what was fetched.
            self.gathering = Gathering::default();
            let parts = mem::take(&mut self.parts);
            self.parts = plan.carry_over(before.as_deref(), parts, || PartProgress::new(now));
        }
        for part in &mut self.parts {
            (part.due, part.changed) = (true, true);
        }
        has_others
    }

    /// The pod has ended.
    pub(crate) fn retire(&mut self) {
        self.plan = None;
        self.parts.clear();
        self.gathering = Gathering::default();
    }

    /// The parts of `plan`, each with its progress.
    pub(crate) fn parts<'a>(
        &'a self,
        plan: &'a PodPlan,
    ) -> impl Iterator<Item = (&'a Part, &'a PartProgress<M>)> {
        plan.parts.iter().zip(&self.parts)
    }

    /// Takes in the completed fetches and those of `arrived`: the parts that wait for one of them are due. `reads`
    /// returns what a part reads.
    pub(crate) fn collect<'p, I: Iterator<Item = &'p Need>>(
        &mut self,
        arrived: Option<Need>,
        plan: &'p PodPlan,
        reads: impl Fn(&'p Part) -> I,
    ) {
        let mut all = self.gathering.collect();
        all.extend(arrived);
        if all.is_empty() {
            return;
        }
        for (part, progress) in plan.parts.iter().zip(&mut self.parts) {
            progress.due |= progress.waits && reads(part).any(|need| all.contains(need));
        }
    }

    /// The inputs of a projection that reads only fetched needs.
    pub(crate) fn inputs(&self) -> Inputs {
        self.gathering.inputs(&self.node.inputs.cluster.borrow())
    }

    /// Starts to fetch the inputs of due parts that are neither fetched nor being fetched. An object that a manager has
    /// in memory is fetched when this returns.
    pub(crate) fn fetch<'p, I: Iterator<Item = &'p Need>>(
        &mut self,
        plan: &'p Arc<PodPlan>,
        reads: impl Fn(&'p Part) -> I,
    ) {
        let needs: BTreeSet<_> = plan
            .parts
            .iter()
            .zip(&self.parts)
            .filter(|(_, progress)| progress.due)
            .flat_map(|(part, _)| reads(part))
            .collect();
        let inputs = &self.node.inputs;
        self.gathering.fetch(inputs, plan, needs.into_iter());
        self.collect(None, plan, reads);
    }

    /// Drops the inputs that no waiting part needs.
    pub(crate) fn drop_unread<'p, I: Iterator<Item = &'p Need>>(
        &mut self,
        plan: &'p PodPlan,
        reads: impl Fn(&'p Part) -> I,
    ) {
        let needs = plan
            .parts
            .iter()
            .zip(&self.parts)
            .filter(|(_, progress)| progress.waits)
            .flat_map(|(part, _)| reads(part))
            .collect();
        self.gathering.retain(&needs);
    }

    /// The end of the pod's hooks: they fire no more, and their record goes. Waits for the disk.
    pub(crate) fn dropping_hooks(&self) -> impl FnOnce() + Send + use<M> {
        let (node, uid) = (Arc::clone(&self.node), self.entry.uid.clone());
        move || node.on_change.drop_hooks(uid.as_str())
    }

    /// What the pod's step at the disk waits for.
    pub(crate) fn waits_for(&self) -> Option<DiskWaitStatus> {
        match self.slow_step {
            Some(SlowStep::Waits(wait)) => Some(wait),
            Some(SlowStep::Works) | None => None,
        }
    }

    /// The published delivery of the part that is at `index` of the plan. While a slow step is about it, that says more than what was before, but for a
    /// failure.
    pub(crate) fn shown(&self, index: usize) -> Delivery {
        let part = &self.parts[index];
        let known = part.delivery.clone();
        if !self.in_step.contains(&index) || known.phase > Phase::Waiting {
            return known;
        }
        match self.slow_step {
            Some(SlowStep::Waits(wait)) => {
                Delivery::new(Phase::Waiting, wait.what.reason(), wait.since)
            }
            // A look that takes long is no news, a change is.
            Some(SlowStep::Works) if part.changed && known.phase != Phase::Waiting => {
                Delivery::new(Phase::Waiting, "being written", known.since)
            }
            Some(SlowStep::Works) | None => known,
        }
    }
}

impl SlowStep {
    pub(super) fn of(progress: StepProgress, now: Timestamp) -> Self {
        match progress {
            StepProgress::Working => Self::Works,
            StepProgress::Waiting(what, since) => {
                let waited = SignedDuration::try_from(since.elapsed());
                let since = now
                    .checked_sub(waited.unwrap_or(SignedDuration::MAX))
                    .unwrap_or(Timestamp::MIN);
                Self::Waits(DiskWaitStatus { what, since })
            }
        }
    }
}

impl<M: Default> PartProgress<M> {
    fn new(now: Timestamp) -> Self {
        Self {
            due: true,
            waits: false,
            changed: true,
            delivery: Delivery::new(Phase::Waiting, "", now),
            last_swap: None,
            files: 0,
            of_mode: M::default(),
        }
    }

    /// The published status of the part, which is of `kind`, with the delivery that is [shown](PodWork::shown).
    pub(crate) fn status(&self, kind: &PartKind, shown: Delivery) -> PartStatus {
        PartStatus::new(kind, shown, self.last_swap, self.files)
    }
}
