//! The worker of one pod: gathers the inputs of the pod's parts, and delivers each part once its inputs are complete.
//!
//! ```text
//!  inbox ─┐
//!  fetch ─┼─► which parts are due? ─► is all they read at hand? ── yes ─► one step at the disk: project and write
//!  timer ─┘                                     └─ no ─► fetch; the part waits, the others continue
//! ```
//!
//! Invariants:
//! 1. A pod has one worker, so its directories have one writer; no pod waits for another's.
//! 2. A part that waits or fails delays no other part.
//! 3. A worker gets a plan only after its pod is registered. When the volumes are torn down, the worker ends, and only
//!    then is the pod unregistered. The reconciler does both.

mod deliver;
mod failure;
mod outcome;

use std::{mem, path::Path, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use jiff::Timestamp;
use larder_containers::subpaths::PodSubPaths;
use larder_hooks::Observer;
use larder_kubelet::backoff::RETRY;
use larder_objects::chain;
use larder_on_change::PodHooks;
use larder_projection::Need;
use larder_transport::{Backoff, TokenBucket};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use self::deliver::Job;
use crate::{
    delivery::{
        inbox::DesiredState,
        plan::{PartKind, PodPlan},
        steps::{Abandoned, StepOwner},
        sub_paths,
        worker::{DeliveryNode, PodWork, WorkerFactory, WorkerSeat},
    },
    status::Phase,
};

/// Passes over a pod that may follow each other without pause: a single edit goes through at once, and so does a short
/// burst.
const BURST: u32 = 25;
/// Time after which one more pass is allowed. A pod whose objects change without pause gets one pass in this time, each
/// with the newest content, so a hundred updates in a second are not a hundred writes.
const INTERVAL: Duration = Duration::from_millis(100);

/// The delivery of one part.
#[derive(Debug, Default)]
struct DeliveredPart {
    retry_at: Option<Instant>,
    /// Of the attempts that failed.
    backoff: Option<Backoff>,
    /// The time of the checkpoint's copies that its content comes from.
    stale_as_of: Option<Timestamp>,
    /// Names of its files or variables that hooks do not react to.
    left_out: Vec<String>,
    /// What its readers may not expect.
    note: String,
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

/// Makes the workers of the mode `Serve`.
impl WorkerFactory for DeliveryNode {
    fn volumes(&self) -> &Path {
        self.host.path()
    }

    fn worker(self: Arc<Self>, seat: WorkerSeat) -> BoxFuture<'static, ()> {
        ServingWorker::new(seat).run().boxed()
    }
}

/// What wakes the worker.
enum ServingEvent {
    ShutDown,
    /// The inbox has a desired state, or inputs that have changed.
    Changes,
    /// An input was read.
    Fetched(Need),
    /// A repair, a retry or a delivery is due.
    Due,
}

/// The worker of one pod.
struct ServingWorker {
    /// Has no plan while the volumes are being torn down.
    work: PodWork<DeliveredPart>,
    write_limiter: TokenBucket,
    /// Arrival of the oldest change that is not delivered yet.
    changed_at: Option<Instant>,
    tidying: Tidying,
    /// The hooks that earlier passes were handed over to.
    observed: Option<Arc<PodHooks>>,
    /// Delay and time of the next attempt to tear the volumes down; `None` once they are torn down.
    teardown: Option<(Backoff, Instant)>,
    sub_paths: PodSubPaths,
}

impl StepOwner for ServingWorker {
    type OfMode = DeliveredPart;

    fn work(&mut self) -> &mut PodWork<DeliveredPart> {
        &mut self.work
    }

    fn publish_progress(&mut self) {
        match self.work.plan.clone() {
            Some(plan) => self.publish(&plan),
            None => self.publish_slow_removal(),
        }
    }
}

impl ServingWorker {
    fn new(seat: WorkerSeat) -> Self {
        let work = PodWork::new(seat);
        Self {
            sub_paths: PodSubPaths::new(&work.entry.name.namespace, RETRY),
            work,
            write_limiter: TokenBucket::new(INTERVAL, BURST, Instant::now()),
            changed_at: None,
            tidying: Tidying::default(),
            observed: None,
            teardown: None,
        }
    }

    /// Works until the volumes of the pod are torn down, or until the shutdown, which ends it between two passes, or when
    /// one does not go on.
    async fn run(mut self) {
        loop {
            let mut arrived = None;
            match self.next_event().await {
                ServingEvent::ShutDown => return,
                ServingEvent::Changes => self.take_changes(),
                ServingEvent::Fetched(need) => arrived = Some(need),
                ServingEvent::Due => {}
            }
            let Some(plan) = self.work.plan.clone() else {
                match self.tear_down().await {
                    Ok(true) | Err(Abandoned) => return,
                    Ok(false) => continue,
                }
            };
            self.work.collect(arrived, &plan, |part| part.reads.iter());
            if self.serve(&plan).await == Err(Abandoned) {
                return;
            }
        }
    }

    /// The next event. The inbox comes before fetched inputs, which may belong to an older plan.
    ///
    /// # Cancel safety
    ///
    /// Every arm is cancel-safe.
    async fn next_event(&mut self) -> ServingEvent {
        let wake = self.next_wake();
        tokio::select! {
            biased;
            () = self.work.shutdown.cancelled() => ServingEvent::ShutDown,
            () = self.work.inbox.woken() => ServingEvent::Changes,
            Some(need) = self.work.gathering.next() => ServingEvent::Fetched(need),
            () = sleep_until(wake) => ServingEvent::Due,
        }
    }

    fn take_changes(&mut self) {
        let changes = self.work.take_changes(|_, _, _, _| {});
        self.changed_at = self.changed_at.or(changes.since);
        match changes.desired {
            None => {}
            Some(DesiredState::Serve(plan)) => {
                self.teardown = None;
                if self.work.set_plan(&plan) {
                    self.sub_paths = PodSubPaths::new(&self.work.entry.name.namespace, RETRY);
                }
                self.tidying.due = true;
            }
            Some(DesiredState::Retire) => {
                self.work.retire();
                self.teardown = Some((RETRY, Instant::now()));
            }
        }
    }

    /// When the worker has to act next without a change.
    fn next_wake(&self) -> Instant {
        if let Some((_, at)) = self.teardown {
            return at;
        }
        let retries = self
            .work
            .parts
            .iter()
            .filter_map(|part| part.of_mode.retry_at);
        let now = Instant::now();
        let limited = self.is_due().then(|| now + self.write_limiter.wait(now));
        retries
            .chain(self.tidying.retry_at)
            .chain(self.sub_paths.retry_at())
            .chain(limited)
            .fold(self.work.repair_at, Instant::min)
    }

    /// Whether there is something to deliver, as far as is known before it is fetched.
    fn is_due(&self) -> bool {
        self.work.parts.iter().any(|part| part.due) || self.is_tidying_due()
    }

    /// The directory waits for the first part that can be delivered.
    fn is_tidying_due(&self) -> bool {
        self.tidying.due && !self.work.parts.iter().any(|part| part.waits)
    }

    /// Delivers the due parts whose inputs are complete.
    async fn serve(&mut self, plan: &Arc<PodPlan>) -> Result<(), Abandoned> {
        let now = Instant::now();
        if self.work.begin_repair() {
            self.work.gathering.forget_all();
            self.tidying.due = true;
            self.sub_paths.all_due();
        }
        let is_time = |retry_at: &mut Option<Instant>| retry_at.take_if(|at| *at <= now).is_some();
        for part in &mut self.work.parts {
            part.due |= is_time(&mut part.of_mode.retry_at);
        }
        self.tidying.due |= is_time(&mut self.tidying.retry_at);
        if !self.is_due() || !self.write_limiter.wait(now).is_zero() {
            if self.sub_paths.retry_at().is_some_and(|at| at <= now) {
                sub_paths::update(&mut self.sub_paths, &self.work.node, plan).await;
                self.publish(plan);
            }
            return Ok(());
        }
        self.work.fetch(plan, |part| part.reads.iter());
        let ready = self.ready(plan);
        if !ready.is_empty() || self.is_tidying_due() {
            self.deliver(plan, ready, now).await?;
        }
        self.work.drop_unread(plan, |part| part.reads.iter());
        self.publish(plan);
        Ok(())
    }

    /// Returns the due parts that can be delivered, and lets the others wait.
    fn ready(&mut self, plan: &PodPlan) -> Vec<usize> {
        let (now, gathering) = (self.work.wall(), &self.work.gathering);
        let mut ready = Vec::new();
        for (index, (part, state)) in plan.parts.iter().zip(&mut self.work.parts).enumerate() {
            if !mem::take(&mut state.due) {
                continue;
            }
            state.of_mode.retry_at = None;
            let missing = part.reads.iter().find(|need| !gathering.has(need));
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

    async fn deliver(
        &mut self,
        plan: &Arc<PodPlan>,
        ready: Vec<usize>,
        began: Instant,
    ) -> Result<(), Abandoned> {
        let observer = self.observer(plan).await?;
        let mark = |index: &usize| {
            plan.parts[*index]
                .reads
                .iter()
                .filter_map(|need| self.work.gathering.stale_as_of(need))
                .min()
        };
        let marks: Vec<_> = ready.iter().map(mark).collect();
        let job = Job {
            plan: Arc::clone(plan),
            inputs: self.work.inputs(),
            parts: ready.clone(),
            tidy: mem::take(&mut self.tidying.due),
            name: self.work.entry.name.clone(),
            host: Arc::clone(&self.work.node.host),
            now: self.work.wall(),
            observer,
            serves_manifests: self.work.node.has_manifests,
        };
        let report = self.at_disk(&ready, move || job.run()).await?;
        for (volume, wanted) in report.sub_paths {
            self.sub_paths.add_mounts(&volume, wanted);
        }
        if let Some(errors) = report.tidied {
            self.record_tidying(&errors);
        }
        let mut replaced = false;
        for ((index, result), mark) in ready.into_iter().zip(report.parts).zip(marks) {
            if result.is_ok() {
                self.work.parts[index].of_mode.stale_as_of = mark;
            }
            let set = result.as_ref().ok().and_then(|done| done.set.clone());
            let swapped = self.record(plan, index, result);
            if let PartKind::Volume(name, _) = &plan.parts[index].kind {
                if swapped {
                    self.sub_paths
                        .changed(name, self.changed_at.unwrap_or(began));
                }
                let swapped_at = swapped.then(|| self.work.wall());
                self.sub_paths.written(name, set.as_deref(), swapped_at);
            }
            replaced |= swapped;
        }
        // A look may wait: until it ends, the status says since when.
        if self.sub_paths.is_due() {
            self.publish(plan);
        }
        sub_paths::update(&mut self.sub_paths, &self.work.node, plan).await;
        if let Some(observer) = report.observer {
            observer.finish();
        }
        let changed_at = self.changed_at.take();
        if replaced {
            self.write_limiter.take(began);
            if let Some(changed_at) = changed_at {
                self.work.node.metrics.delayed(changed_at.elapsed());
            }
        }
        Ok(())
    }

    /// The observer that hands the pass over to the hooks of the pod, if it has any.
    async fn observer(&mut self, plan: &Arc<PodPlan>) -> Result<Option<Observer>, Abandoned> {
        let before = match (&self.observed, &plan.hooks) {
            (None, None) => return Ok(None),
            _ => mem::replace(&mut self.observed, plan.hooks.clone()),
        };
        let Some(hooks) = &plan.hooks else {
            let dropping = self.work.dropping_hooks();
            self.at_disk(&[], dropping).await?;
            return Ok(None);
        };
        let is_new = before.is_none_or(|before| !Arc::ptr_eq(&before, hooks));
        let on_change = &self.work.node.on_change;
        Ok(Some(on_change.observer(&plan.pod, hooks, is_new)))
    }

    /// Tears down the volumes of a pod that has terminated or was removed. Returns whether they are torn down and
    /// the pod is not served again.
    async fn tear_down(&mut self) -> Result<bool, Abandoned> {
        let due = self.teardown.filter(|(_, at)| *at <= Instant::now());
        let Some((mut backoff, _)) = due else {
            return Ok(false);
        };
        let host = Arc::clone(&self.work.node.host);
        let uid = self.work.entry.uid.clone();
        if self.observed.take().is_some() {
            self.work.node.on_change.forget(uid.as_str());
        }
        let pod = self.work.entry.name.clone();
        let name = pod.clone();
        let removed = self.at_disk(&[], move || {
            let mut errors = host.remove_pod(uid.as_str()).err().unwrap_or_default();
            // A directory that was found without a link has none to remove.
            if !name.namespace.is_empty() {
                let unlinked = host.unlink_pod(&name.namespace, &name.name, uid.as_str());
                errors.extend(unlinked.err());
            }
            errors
        });
        let errors = removed.await?;
        let now = self.work.wall();
        if errors.is_empty() {
            info!(%pod, "volumes removed");
            self.teardown = None;
            self.work.entry.publish(Phase::Ended, "", Vec::new(), now);
            return Ok(self.work.inbox.leave());
        }
        let reasons: Vec<_> = errors.iter().map(|error| chain(error)).collect();
        let reason = reasons.join(", ");
        let at = Instant::now() + backoff.next_delay();
        self.teardown = Some((backoff, at));
        let entry = &self.work.entry;
        if entry.publish(Phase::Removing, &reason, Vec::new(), now) {
            warn!(%pod, error = reason, "failed to remove volumes, will retry");
        }
        Ok(false)
    }
}
