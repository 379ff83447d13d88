//! The worker of one pod: gathers the inputs of the pod's parts, and delivers each part once its inputs are complete.
//!
//! ```text
//!  inbox ─┐
//!  fetch ─┼─► which parts are due? ─► is all they read at hand? ── yes ─► one blocking call: project and write
//!  timer ─┘                                     └─ no ─► fetch; the part waits, the others continue
//! ```
//!
//! Invariants:
//! 1. A pod has one worker, so its directories have one writer; no pod waits for another's.
//! 2. A part that waits or fails delays no other part.
//! 3. A worker gets a plan only after its pod is registered. When the volumes are torn down, the worker ends, and only
//!    then is the pod unregistered. The reconciler does both.

mod deliver;
mod outcome;
mod write_limiter;

use std::{collections::BTreeSet, mem, ops::ControlFlow, path::Path, sync::Arc, time::Duration};

use fastrand::Rng;
use futures::{FutureExt as _, future::BoxFuture};
use jiff::Timestamp;
use larder_kubelet::backoff::RETRY;
use larder_objects::chain;
use larder_on_change::PodHooks;
use larder_pods::StoredPod;
use larder_projection::disk::VolumeHost;
use larder_transport::Backoff;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::{
    deliver::{Job, JobReport},
    write_limiter::WriteLimiter,
};
use crate::{
    blocking::blocking,
    delivery::{
        gathering::Gathering,
        inbox::{DesiredState, Inbox},
        inputs::NodeInputs,
        plan::{Need, Part, PodPlan},
        pod_statuses::PodStatusEntry,
        reports::Reports,
        worker::{WorkerFactory, WorkerSeat},
    },
    on_change::{Observer, OnChange},
    status::{Delivery, Phase},
};

/// Longest wait for a repair pass: where a longer one is configured, tokio's clock might not count as far.
const MAX_REPAIR_PERIOD: Duration = Duration::from_hours(24 * 365);

/// The state of one part of the plan.
#[derive(Debug)]
struct DeliveredPart {
    /// To be delivered in the next pass.
    due: bool,
    /// One of its inputs is being fetched; it is due when that arrives.
    waits: bool,
    retry_at: Option<Instant>,
    backoff: Backoff,
    delivery: Delivery,
    last_swap: Option<Timestamp>,
    files: usize,
    /// The time of the checkpoint's copies that its content comes from.
    stale_as_of: Option<Timestamp>,
}

impl DeliveredPart {
    fn new(now: Timestamp) -> Self {
        Self {
            due: true,
            waits: false,
            retry_at: None,
            backoff: RETRY,
            delivery: Delivery::new(Phase::Waiting, "", now),
            last_swap: None,
            files: 0,
            stale_as_of: None,
        }
    }
}

/// The pod's directory apart from its parts: it contains nothing that the pod no longer has, and a link by name leads
/// to it. Tidied whenever the pod changes (perhaps while no agent ran), in every repair pass, and again after a
/// failure.
#[derive(Debug, Default)]
struct Tidying {
    /// With the next delivery.
    due: bool,
    retry_at: Option<Instant>,
    /// Of the attempts that failed.
    backoff: Option<Backoff>,
    /// Why it failed; empty when it did not.
    failure: String,
}

/// What the workers of the mode `Serve` share.
pub(crate) struct ServingNode {
    pub(crate) inputs: Arc<NodeInputs>,
    pub(crate) reports: Arc<Reports>,
    pub(crate) host: Arc<VolumeHost>,
    pub(crate) on_change: OnChange,
}

impl WorkerFactory for ServingNode {
    fn volumes(&self) -> &Path {
        self.host.path()
    }

    fn excludes(&self, _: &StoredPod) -> Option<&'static str> {
        None
    }

    fn worker(
        self: Arc<Self>,
        seat: WorkerSeat,
        shutdown: CancellationToken,
    ) -> BoxFuture<'static, ()> {
        ServingWorker::new(self, seat).run(shutdown).boxed()
    }
}

/// The worker of one pod.
struct ServingWorker {
    node: Arc<ServingNode>,
    inbox: Arc<Inbox>,
    entry: Arc<PodStatusEntry>,
    rng: Rng,
    /// `None` while the volumes are being torn down.
    plan: Option<Arc<PodPlan>>,
    /// States of the plan's parts, in their order.
    parts: Vec<DeliveredPart>,
    gathering: Gathering,
    write_limiter: WriteLimiter,
    /// Arrival of the oldest change that is not delivered yet.
    changed_at: Option<Instant>,
    /// Time of the next repair pass, which covers all parts.
    repair_at: Instant,
    tidying: Tidying,
    /// The hooks that earlier passes were handed over to.
    observed: Option<Arc<PodHooks>>,
    /// Delay and time of the next attempt to tear the volumes down; `None` once they are torn down.
    teardown: Option<(Backoff, Instant)>,
}

impl ServingWorker {
    fn new(node: Arc<ServingNode>, seat: WorkerSeat) -> Self {
        let WorkerSeat { inbox, entry, rng } = seat;
        let now = Instant::now();
        let mut worker = Self {
            node,
            inbox,
            entry,
            rng,
            plan: None,
            parts: Vec::new(),
            gathering: Gathering::default(),
            write_limiter: WriteLimiter::new(now),
            changed_at: None,
            repair_at: now,
            tidying: Tidying::default(),
            observed: None,
            teardown: None,
        };
        worker.schedule_repair(now);
        worker
    }

    /// Works until the volumes of the pod are torn down, or until `shutdown`, which ends it between two passes.
    async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let wake = self.next_wake();
            // Every arm is cancel-safe. The inbox comes before fetched inputs, which may belong to an older plan.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = self.inbox.woken() => self.take_changes(),
                Some(need) = self.gathering.next() => self.wake_parts(&[need].into()),
                () = sleep_until(wake) => {}
            }
            self.collect();
            let flow = match self.plan.clone() {
                Some(plan) => {
                    self.serve(&plan).await;
                    ControlFlow::Continue(())
                }
                None => self.tear_down().await,
            };
            if flow.is_break() {
                return;
            }
        }
    }

    /// Sets the time of the next repair pass: the kubelet's, 1 to 1.5 times the sync frequency (kubelet 1.36,
    /// `pkg/kubelet/pod_workers.go`).
    fn schedule_repair(&mut self, now: Instant) {
        let period = *self.node.inputs.sync_frequency.lock();
        let period = period.min(MAX_REPAIR_PERIOD);
        self.repair_at = now + period.mul_f64(1.0 + 0.5 * self.rng.f64());
    }

    fn take_changes(&mut self) {
        let changes = self.inbox.take();
        self.changed_at = self.changed_at.or(changes.since);
        for need in &changes.needs {
            self.gathering.forget(need);
        }
        if let Some(plan) = &self.plan {
            for (part, state) in plan.parts.iter().zip(&mut self.parts) {
                state.due |= part.reads.iter().any(|need| changes.needs.contains(need));
            }
        }
        match changes.desired {
            None => {}
            Some(DesiredState::Serve(plan)) => {
                self.teardown = None;
                self.set_plan(plan);
            }
            Some(DesiredState::Retire) => {
                self.plan = None;
                self.parts.clear();
                self.gathering.stop();
                self.teardown = Some((RETRY, Instant::now()));
            }
        }
    }

    /// Takes over a plan. A part that the previous plan had keeps its history. Every part is due, since each reads the
    /// pod itself.
    fn set_plan(&mut self, plan: Arc<PodPlan>) {
        let now = self.node.inputs.clock.now();
        let before = self.plan.replace(Arc::clone(&plan));
        let is_same = |before: &Arc<PodPlan>| Arc::ptr_eq(&before.parts, &plan.parts);
        if !before.as_ref().is_some_and(is_same) {
            // Running fetches may belong to objects that are no longer registered.
            self.gathering.stop();
            let states = mem::take(&mut self.parts);
            self.parts = plan.carry_over(before.as_deref(), states, || DeliveredPart::new(now));
        }
        self.parts.iter_mut().for_each(|state| state.due = true);
        self.tidying.due = true;
    }

    /// When the worker has to act next without a change.
    fn next_wake(&self) -> Instant {
        if let Some((_, at)) = self.teardown {
            return at;
        }
        let retries = self.parts.iter().filter_map(|state| state.retry_at);
        let limited = self
            .is_due()
            .then(|| self.write_limiter.next(Instant::now()));
        retries
            .chain(self.tidying.retry_at)
            .chain(limited)
            .fold(self.repair_at, Instant::min)
    }

    /// Whether there is something to deliver, as far as is known before it is fetched.
    fn is_due(&self) -> bool {
        self.parts.iter().any(|state| state.due) || self.is_tidying_due()
    }

    /// The directory waits for the first part that can be delivered.
    fn is_tidying_due(&self) -> bool {
        self.tidying.due && !self.parts.iter().any(|state| state.waits)
    }

    /// Takes in the completed fetches, so that one pass serves all of them.
    fn collect(&mut self) {
        let arrived = self.gathering.collect();
        self.wake_parts(&arrived);
    }

    /// Makes the parts due that wait for one of `arrived`.
    fn wake_parts(&mut self, arrived: &BTreeSet<Need>) {
        let Some(plan) = self.plan.as_ref().filter(|_| !arrived.is_empty()) else {
            return;
        };
        for (part, state) in plan.parts.iter().zip(&mut self.parts) {
            state.due |= state.waits && part.reads.iter().any(|need| arrived.contains(need));
        }
    }

    /// Delivers the due parts whose inputs are complete.
    async fn serve(&mut self, plan: &Arc<PodPlan>) {
        let now = Instant::now();
        if now >= self.repair_at {
            self.schedule_repair(now);
            self.gathering.forget_all();
            self.parts.iter_mut().for_each(|state| state.due = true);
            self.tidying.due = true;
        }
        for state in &mut self.parts {
            state.due |= state.retry_at.take_if(|at| *at <= now).is_some();
        }
        self.tidying.due |= self.tidying.retry_at.take_if(|at| *at <= now).is_some();
        if !self.is_due() || self.write_limiter.next(now) > now {
            return;
        }
        self.fetch(plan);
        let ready = self.ready(plan);
        if !ready.is_empty() || self.is_tidying_due() {
            self.deliver(plan, ready, now).await;
        }
        self.drop_unread(plan);
        self.publish(plan);
    }

    /// Starts to fetch the inputs of due parts that are neither fetched nor being fetched. An object that a manager has
    /// in memory is fetched when this returns.
    fn fetch(&mut self, plan: &Arc<PodPlan>) {
        let reads: BTreeSet<_> = states(plan, &self.parts)
            .filter(|(_, state)| state.due)
            .flat_map(|(part, _)| &part.reads)
            .collect();
        self.gathering
            .fetch(&self.node.inputs, plan, reads.into_iter());
        self.collect();
    }

    /// Returns the due parts that can be delivered, and lets the others wait.
    fn ready(&mut self, plan: &PodPlan) -> Vec<usize> {
        let now = self.node.inputs.clock.now();
        let mut ready = Vec::new();
        for (index, (part, state)) in plan.parts.iter().zip(&mut self.parts).enumerate() {
            if !mem::take(&mut state.due) {
                continue;
            }
            state.retry_at = None;
            let missing = part.reads.iter().find(|need| !self.gathering.has(need));
            state.waits = missing.is_some();
            match missing {
                None => ready.push(index),
                // A part that was delivered or has failed stays so until more is known.
                Some(need) if state.delivery.phase == Phase::Waiting => {
                    let reason = format!("waiting for {need}");
                    state.delivery.update(Phase::Waiting, &reason, now);
                }
                Some(_) => {}
            }
        }
        ready
    }

    async fn deliver(&mut self, plan: &Arc<PodPlan>, ready: Vec<usize>, began: Instant) {
        let observer = self.observer(plan).await;
        let mark = |index: &usize| {
            let needs = plan.parts[*index].reads.iter();
            let marks = needs.filter_map(|need| self.gathering.stale_as_of(need));
            marks.min()
        };
        let marks: Vec<_> = ready.iter().map(mark).collect();
        let job = Job {
            plan: Arc::clone(plan),
            inputs: self.gathering.inputs(&self.node.inputs.cluster.borrow()),
            parts: ready.clone(),
            tidy: mem::take(&mut self.tidying.due),
            name: self.entry.name.clone(),
            host: Arc::clone(&self.node.host),
            now: self.node.inputs.clock.now(),
            observer,
        };
        let JobReport { parts, tidied } = blocking(move || job.run()).await;
        if let Some(failure) = tidied {
            self.record_tidying(failure);
        }
        let mut replaced = false;
        for ((index, result), mark) in ready.into_iter().zip(parts).zip(marks) {
            if result.is_ok() {
                self.parts[index].stale_as_of = mark;
            }
            replaced |= self.record(plan, index, result);
        }
        let changed_at = self.changed_at.take();
        if replaced {
            self.write_limiter.spend(began);
            if let Some(changed_at) = changed_at {
                self.node.reports.metrics.delayed(changed_at.elapsed());
            }
        }
    }

    /// The observer that hands the pass over to the hooks of the pod, if it has any.
    async fn observer(&mut self, plan: &Arc<PodPlan>) -> Option<Observer> {
        let before = match (&self.observed, &plan.hooks) {
            (None, None) => return None,
            _ => mem::replace(&mut self.observed, plan.hooks.clone()),
        };
        let on_change = &self.node.on_change;
        let Some(hooks) = &plan.hooks else {
            let (on_change, uid) = (on_change.clone(), self.entry.uid.clone());
            blocking(move || on_change.drop_hooks(uid.as_str())).await;
            return None;
        };
        let is_new = before.is_none_or(|before| !Arc::ptr_eq(&before, hooks));
        Some(on_change.observer(&plan.pod, hooks, is_new))
    }

    /// Drops the inputs that no waiting part needs.
    fn drop_unread(&mut self, plan: &PodPlan) {
        let waiting = states(plan, &self.parts).filter(|(_, state)| state.waits);
        let reads: BTreeSet<_> = waiting.flat_map(|(part, _)| &part.reads).collect();
        self.gathering.retain(&reads);
    }

    /// Tears down the volumes of a pod that has terminated or was removed. Breaks once they are torn down and the pod
    /// is not served again.
    async fn tear_down(&mut self) -> ControlFlow<()> {
        let Some((mut backoff, at)) = self.teardown else {
            return ControlFlow::Continue(());
        };
        if at > Instant::now() {
            return ControlFlow::Continue(());
        }
        let (host, uid) = (Arc::clone(&self.node.host), self.entry.uid.clone());
        if self.observed.take().is_some() {
            self.node.on_change.forget(uid.as_str());
        }
        let pod = &self.entry.name;
        let name = pod.clone();
        let removed = blocking(move || {
            let mut errors = host.remove_pod(uid.as_str()).err().unwrap_or_default();
            // A directory that was found without a link has none to remove.
            if !name.namespace.is_empty() {
                let unlinked = host.unlink_pod(&name.namespace, &name.name, uid.as_str());
                errors.extend(unlinked.err());
            }
            errors
        });
        let errors = removed.await;
        let now = self.node.inputs.clock.now();
        if errors.is_empty() {
            info!(%pod, "volumes removed");
            self.teardown = None;
            self.entry.publish(Phase::Ended, "", Vec::new(), now);
            return if self.inbox.leave() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            };
        }
        let reasons: Vec<_> = errors.iter().map(|error| chain(error)).collect();
        let reason = reasons.join(", ");
        let at = Instant::now() + backoff.next_delay();
        self.teardown = Some((backoff, at));
        let is_news = self
            .entry
            .publish(Phase::Removing, &reason, Vec::new(), now);
        if is_news {
            warn!(%pod, error = reason, "failed to remove volumes, will retry");
        }
        ControlFlow::Continue(())
    }
}

/// The parts of `plan`, each with its state.
fn states<'a>(
    plan: &'a PodPlan,
    states: &'a [DeliveredPart],
) -> impl Iterator<Item = (&'a Part, &'a DeliveredPart)> {
    plan.parts.iter().zip(states)
}
