//! One pod's worker: gathers what the parts of the pod read, and delivers each part when it has all of it.
//!
//! ```text
//!  inbox ─┐
//!  fetch ─┼─► which parts are due? ─► is all they read at hand? ── yes ─► one blocking call: project and write
//!  timer ─┘                                     └─ no ─► fetch; the part waits, the others go on
//! ```
//!
//! Invariants:
//! 1. A pod has one worker, so its directories have one writer; no pod waits for another's.
//! 2. A part that waits or fails holds up no other part.
//! 3. Nothing that was fetched outlives the pass that needs it: the managers hold the objects.
//! 4. A pod is registered before anything of it is read; when its volumes are gone the worker leaves, and only then it is
//!    unregistered, by whoever runs the [lifecycle](larder_pods::lifecycle).

mod outcome;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use larder_objects::chain;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Shared,
    board::Place,
    deliver::{Job, Outcome},
    fetch::{Have, fetch, inputs},
    inbox::{Inbox, Wanted},
    pace::Pace,
    plan::{Need, Part, parts},
};
use crate::{
    backoff::Backoff,
    blocking::blocking,
    status::{Delivery, Phase},
};

/// One part and how its delivery goes.
#[derive(Debug)]
struct PartState {
    part: Part,
    /// To be delivered in the next pass.
    due: bool,
    /// Something that it reads is being fetched; it is due when that arrives.
    waits: bool,
    retry_at: Option<Instant>,
    backoff: Backoff,
    delivery: Delivery,
    last_swap: Option<Timestamp>,
    files: usize,
}

impl PartState {
    fn new(part: Part, now: Timestamp) -> Self {
        Self {
            part,
            due: true,
            waits: false,
            retry_at: None,
            backoff: Backoff::default(),
            delivery: Delivery::new(Phase::Waiting, "", now),
            last_swap: None,
            files: 0,
        }
    }
}

/// The pod's directory beside its parts: nothing in it that the pod no longer has, and a link by name to it. Looked at whenever
/// the pod changes (perhaps it did while no agent was there), in every repairing pass, and again after a failure.
#[derive(Debug, Default)]
struct Upkeep {
    /// With the next delivery.
    due: bool,
    retry_at: Option<Instant>,
    backoff: Backoff,
    /// What is wrong; empty when nothing is.
    failure: String,
}

/// Whether the worker goes on.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Stay,
    Leave,
}

/// The worker of one pod.
pub(super) struct Worker {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    place: Arc<Place>,
    wanted: Wanted,
    parts: Vec<PartState>,
    have: BTreeMap<Need, Have>,
    fetching: FuturesUnordered<BoxFuture<'static, (Need, Have)>>,
    in_flight: BTreeSet<Need>,
    pace: Pace,
    /// When the oldest change arrived that is not delivered yet.
    changed_at: Option<Instant>,
    /// When everything is looked at again, whatever happened.
    repair_at: Instant,
    upkeep: Upkeep,
    /// Delay and time of the next attempt to take the volumes down; `None` when they are down.
    teardown: Option<(Backoff, Instant)>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, inbox: Arc<Inbox>, place: Arc<Place>) -> Self {
        let now = Instant::now();
        Self {
            repair_at: now + shared.repair_period(),
            shared,
            inbox,
            place,
            wanted: Wanted::Retire,
            parts: Vec::new(),
            have: BTreeMap::new(),
            fetching: FuturesUnordered::new(),
            in_flight: BTreeSet::new(),
            pace: Pace::new(now),
            changed_at: None,
            upkeep: Upkeep::default(),
            teardown: None,
        }
    }

    /// Works until the pod is gone and everything of it, or until `shutdown`, which ends it between two passes.
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let wake = self.next_wake();
            // Every arm is cancel-safe.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = self.inbox.woken() => self.look(),
                Some((need, have)) = self.fetching.next() => self.arrived(need, have),
                () = sleep_until(wake) => {}
            }
            self.collect();
            let step = match self.wanted {
                Wanted::Serve(_) => self.serve().await,
                Wanted::Retire => self.take_down().await,
            };
            if step == Step::Leave {
                return;
            }
        }
    }

    /// Reads the inbox.
    fn look(&mut self) {
        let changes = self.inbox.take();
        self.changed_at = self.changed_at.or(changes.since);
        for need in &changes.needs {
            self.have.remove(need);
        }
        for state in &mut self.parts {
            let mut reads = state.part.reads.iter();
            if reads.any(|need| changes.needs.contains(need)) {
                state.due = true;
            }
        }
        let Some(wanted) = changes.wanted else { return };
        match &wanted {
            Wanted::Serve(pod) => {
                let pod = pod.decode();
                self.shared.register(&pod);
                self.teardown = None;
                self.plan(&pod);
            }
            Wanted::Retire => {
                self.parts.clear();
                self.fetching.clear();
                self.in_flight.clear();
                self.have.clear();
                self.teardown = Some((Backoff::default(), Instant::now()));
            }
        }
        self.wanted = wanted;
    }

    /// Takes over the parts of a new or changed pod. What it asked for before keeps its history, and is looked at again, since
    /// the pod itself is something that its parts read.
    fn plan(&mut self, pod: &Pod) {
        let now = self.shared.clock.now();
        let mut before = mem::take(&mut self.parts);
        for part in parts(pod) {
            let old = before
                .iter()
                .position(|state| state.part.target == part.target);
            let state = match old.map(|index| before.swap_remove(index)) {
                Some(state) => PartState {
                    part,
                    due: true,
                    ..state
                },
                None => PartState::new(part, now),
            };
            self.parts.push(state);
        }
        self.upkeep.due = true;
    }

    /// When something is to be done without anybody's word.
    fn next_wake(&self) -> Instant {
        if let Some((_, at)) = self.teardown {
            return at;
        }
        let retries = self.parts.iter().filter_map(|state| state.retry_at);
        let paced = self.is_due().then(|| self.pace.next(Instant::now()));
        retries
            .chain(self.upkeep.retry_at)
            .chain(paced)
            .fold(self.repair_at, Instant::min)
    }

    /// Whether there is something to deliver, as far as is known before it is fetched.
    fn is_due(&self) -> bool {
        self.parts.iter().any(|state| state.due) || self.is_upkeep_due()
    }

    /// The directory waits for the first part that can be delivered.
    fn is_upkeep_due(&self) -> bool {
        self.upkeep.due && !self.parts.iter().any(|state| state.waits)
    }

    /// Takes in what has been fetched by now, so that one pass serves all of it.
    fn collect(&mut self) {
        while let Some(Some((need, have))) = self.fetching.next().now_or_never() {
            self.arrived(need, have);
        }
    }

    fn arrived(&mut self, need: Need, have: Have) {
        self.in_flight.remove(&need);
        for state in &mut self.parts {
            if state.waits && state.part.reads.contains(&need) {
                state.due = true;
            }
        }
        self.have.insert(need, have);
    }

    /// Delivers what is due, as far as what it reads is at hand.
    async fn serve(&mut self) -> Step {
        let now = Instant::now();
        if now >= self.repair_at {
            self.repair_at = now + self.shared.repair_period();
            self.have.clear();
            self.parts.iter_mut().for_each(|state| state.due = true);
            self.upkeep.due = true;
        }
        for state in &mut self.parts {
            state.due |= state.retry_at.take_if(|at| *at <= now).is_some();
        }
        self.upkeep.due |= self.upkeep.retry_at.take_if(|at| *at <= now).is_some();
        if !self.is_due() || self.pace.next(now) > now {
            return Step::Stay;
        }
        self.fetch();
        let ready = self.ready();
        if !ready.is_empty() || self.is_upkeep_due() {
            self.deliver(ready, now).await;
        }
        self.forget_unread();
        self.publish();
        Step::Stay
    }

    /// Starts to fetch what is due to be read and neither at hand nor on its way. What a manager has in memory is at hand
    /// when this returns.
    fn fetch(&mut self) {
        let Wanted::Serve(pod) = &self.wanted else {
            return;
        };
        let due = self.parts.iter().filter(|state| state.due);
        let reads: BTreeSet<_> = due.flat_map(|state| &state.part.reads).collect();
        for need in reads {
            if !self.have.contains_key(need) && self.in_flight.insert(need.clone()) {
                let fetched = fetch(self.shared.clone(), pod.clone(), need.clone());
                self.fetching.push(fetched.boxed());
            }
        }
        self.collect();
    }

    /// Sorts the parts that are due: returns the ones that can be delivered, and lets the others wait.
    fn ready(&mut self) -> Vec<usize> {
        let now = self.shared.clock.now();
        let mut ready = Vec::new();
        for (index, state) in self.parts.iter_mut().enumerate() {
            if !mem::take(&mut state.due) {
                continue;
            }
            state.retry_at = None;
            let missing = state
                .part
                .reads
                .iter()
                .find(|need| !self.have.contains_key(need));
            state.waits = missing.is_some();
            match missing {
                None => ready.push(index),
                // What was delivered stays so, and what failed stays failed, until more is known.
                Some(need) if state.delivery.phase == Phase::Waiting => {
                    state
                        .delivery
                        .update(Phase::Waiting, &format!("waiting for {need}"), now);
                }
                Some(_) => {}
            }
        }
        ready
    }

    async fn deliver(&mut self, ready: Vec<usize>, began: Instant) {
        let Wanted::Serve(pod) = &self.wanted else {
            return;
        };
        let targets = ready
            .iter()
            .map(|&index| self.parts[index].part.target.clone());
        let job = Job {
            pod: pod.clone(),
            inputs: inputs(&self.have, &self.shared.facts.borrow()),
            targets: targets.collect(),
            keep: mem::take(&mut self.upkeep.due).then(|| {
                self.parts
                    .iter()
                    .map(|state| state.part.target.clone())
                    .collect()
            }),
            name: self.place.name.clone(),
            host: self.shared.host.clone(),
            now: self.shared.clock.now(),
        };
        let Outcome { parts, upkeep } = blocking(move || job.run()).await;
        if let Some(failure) = upkeep {
            self.record_upkeep(failure);
        }
        let mut replaced = false;
        for (index, outcome) in ready.into_iter().zip(parts) {
            replaced |= self.record(index, outcome);
        }
        let changed_at = self.changed_at.take();
        if replaced {
            self.pace.spend(began);
            if let Some(changed_at) = changed_at {
                self.shared.metrics.delayed(changed_at.elapsed());
            }
        }
    }

    /// Lets go of what no waiting part will read.
    fn forget_unread(&mut self) {
        let waiting = self.parts.iter().filter(|state| state.waits);
        let reads: BTreeSet<_> = waiting
            .flat_map(|state| &state.part.reads)
            .cloned()
            .collect();
        self.have.retain(|need, _| reads.contains(need));
        // A map that was emptied keeps its last node.
        if self.have.is_empty() {
            self.have = BTreeMap::new();
        }
        if self.in_flight.is_empty() {
            self.in_flight = BTreeSet::new();
        }
    }

    /// Takes down the volumes of a pod that has ended or is gone.
    async fn take_down(&mut self) -> Step {
        let Some((mut backoff, at)) = self.teardown else {
            return Step::Stay;
        };
        if at > Instant::now() {
            return Step::Stay;
        }
        let (host, uid) = (self.shared.host.clone(), self.place.uid.clone());
        let pod = &self.place.name;
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
        match removed.await {
            errors if errors.is_empty() => {
                info!(%pod, "volumes removed");
                self.teardown = None;
                let now = self.shared.clock.now();
                self.place.show(Phase::Ended, "", Vec::new(), now);
                if self.inbox.leave() {
                    return Step::Leave;
                }
            }
            errors => {
                let reasons: Vec<_> = errors.iter().map(|error| chain(error)).collect();
                let reason = reasons.join(", ");
                let at = Instant::now() + backoff.failed();
                self.teardown = Some((backoff, at));
                let now = self.shared.clock.now();
                if self.place.show(Phase::Removing, &reason, Vec::new(), now) {
                    warn!(%pod, error = reason, "volumes not removed, will be tried again");
                }
            }
        }
        Step::Stay
    }
}
