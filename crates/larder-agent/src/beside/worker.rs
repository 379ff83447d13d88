//! The worker of one pod: gathers the inputs of its parts, looks at the disk, and touches the pod when the
//! [rules](larder_kubelet::rules) say so.
//!
//! ```text
//!  inbox, fetched, swaps, timers, node ─► look (one step at the disk) ─► rules ─► permit ─► look again ─► PATCH ─► answer
//! ```
//!
//! Invariants:
//! 1. Every touch follows a look that was made after its permit was granted (R4), or in the same step.
//! 2. The rules decide when to touch. The worker's own timer is the repair pass only.
//! 3. A part that waits for an input or fails delays no other part.

mod hooks;
mod report;
mod touching;

use std::{collections::BTreeSet, mem, path::Path, sync::Arc, time::Duration};

use self::touching::{TouchStep, Touching};
use super::{
    look::{CompareJob, PartComparison},
    metrics::{PodCounts, PodGauges},
    shared::Beside,
};
use crate::{
    delivery::{
        inbox::DesiredState,
        plan::{Part, PartKind, PodPlan},
        steps::{Abandoned, StepOwner},
        sub_paths,
        worker::{PartProgress, PodWork, WorkerFactory, WorkerSeat},
    },
    status::Phase,
};
use futures::{FutureExt as _, future::BoxFuture};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use larder_containers::subpaths::PodSubPaths;
use larder_hooks::HookedParts;
use larder_kubelet::{
    backoff::RETRY,
    kubelet_dir::{SetName, VolumeIdentity},
    node_state::has_volume_of,
    node_view::NodeView,
    outdated::Outdated,
    pod_view::{PodTraits, pod_view},
    rules::{Look, Notice, PartName, PartObservation, PartState, PodRules, VolumeChange},
    swaps::{PodSwaps, SwapSignal},
    touch_limiter::{longest_spread, spread},
};
use larder_pods::StoredPod;
use larder_projection::{Need, containers};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::info;

/// Changes of objects that more than this number of pods read are spread over time (R20).
const MANY_READERS: usize = 10;

/// After an outage of the API server, touches that failed are sent again within this time, or within that of R20.
const RETRY_SPREAD: Duration = Duration::from_secs(1);

/// The comparison of one part.
#[derive(Debug, Default)]
struct ComparedPart {
    /// Arrival of the oldest change since the last look.
    changed_at: Option<Instant>,
    /// Whether many pods read the changed object.
    is_crowded: bool,
    /// Directory and set of the volume at the last look.
    place: Option<(VolumeIdentity, SetName)>,
    /// The set that mounts with `subPath` were last updated to.
    verified_set: Option<SetName>,
    state: PartState,
}

/// Makes the workers of the mode.
impl WorkerFactory for Beside {
    fn volumes(&self) -> &Path {
        self.volumes.path()
    }

    fn excludes(&self, pod: &StoredPod) -> Option<&'static str> {
        self.config.excludes(pod)
    }

    fn worker(self: Arc<Self>, seat: WorkerSeat) -> BoxFuture<'static, ()> {
        let worker = BesideWorker::new(self, seat);
        // The agent shuts down, and something does not go on.
        worker.run().map(|ended| ended.unwrap_or(())).boxed()
    }
}

/// What wakes the worker.
enum WorkerEvent {
    ShutDown,
    /// The inbox has a desired state, or inputs that have changed.
    Changes,
    /// An input was read.
    Fetched(Need),
    NodeChanged,
    TouchStepped(TouchStep),
    /// The kubelet has swapped the volume of this part.
    Swapped(usize, SwapSignal),
    /// A repair, a retry or a touch is due.
    Due,
}

/// The worker of one pod.
struct BesideWorker {
    beside: Arc<Beside>,
    work: PodWork<ComparedPart>,
    traits: PodTraits,
    gauges: PodGauges,
    rules: PodRules,
    outdated: Outdated,
    hooked: HookedParts,
    sub_paths: PodSubPaths,
    swaps: PodSwaps,
    /// The volumes whose swaps are followed, by their index in the plan.
    followed: BTreeSet<usize>,
    node: watch::Receiver<NodeView>,
    touching: Touching,
    /// The view of the node that the rules know.
    known_node: NodeView,
    /// The value of the last touch; the next one must differ.
    last_value: Option<String>,
}

impl StepOwner for BesideWorker {
    type OfMode = ComparedPart;

    fn work(&mut self) -> &mut PodWork<ComparedPart> {
        &mut self.work
    }

    fn publish_progress(&mut self) {
        if let Some(plan) = self.work.plan.clone() {
            self.publish(&plan);
        }
    }
}

impl BesideWorker {
    fn new(beside: Arc<Beside>, seat: WorkerSeat) -> Self {
        let mut node = beside.node.subscribe();
        let view = node.borrow_and_update().clone();
        let mut rules = PodRules::new(view.gate.clone(), view.cache_ttl());
        rules.set_throttled(view.throttled_until);
        let work = PodWork::new(seat);
        Self {
            rules,
            swaps: beside.swaps.of_pod(),
            gauges: beside.metrics.of_pod(),
            beside,
            sub_paths: PodSubPaths::new(&work.entry.name.namespace, RETRY),
            work,
            traits: PodTraits::default(),
            outdated: Outdated::default(),
            hooked: HookedParts::default(),
            followed: BTreeSet::new(),
            node,
            known_node: view,
            touching: Touching::Idle,
            last_value: None,
        }
    }

    /// Works until the pod has ended, or until the shutdown.
    async fn run(mut self) -> Result<(), Abandoned> {
        loop {
            let (mut arrived, mut permit) = (None, None);
            match self.next_event().await {
                WorkerEvent::ShutDown => return Ok(()),
                WorkerEvent::Changes => self.take_changes(),
                WorkerEvent::Fetched(need) => arrived = Some(need),
                WorkerEvent::NodeChanged => self.node_changed(),
                WorkerEvent::TouchStepped(step) => permit = self.touch_stepped(step),
                WorkerEvent::Swapped(key, signal) => self.swap_noticed(key, signal),
                WorkerEvent::Due => {}
            }
            // One look for all volumes that were swapped meanwhile.
            while let Some((key, signal)) = self.swaps.pending() {
                self.swap_noticed(key, signal);
            }
            let Some(plan) = self.work.plan.clone() else {
                self.touching = Touching::Idle;
                self.gauges.set(PodCounts::default());
                self.end_hooks().await?;
                let now = self.work.wall();
                self.work.entry.publish(Phase::Ended, "", Vec::new(), now);
                if self.work.inbox.leave() {
                    return Ok(());
                }
                continue;
            };
            let traits = &self.traits;
            self.work
                .collect(arrived, &plan, |part| reads(traits, &plan, part));
            self.set_hooks(&plan).await?;
            self.work.begin_repair();
            let now = Instant::now();
            // A touch that became due because of time needs a new look, too.
            if permit.is_some() || self.is_touch_due(now) {
                self.mark_outstanding(&plan);
            }
            self.look(&plan).await?;
            self.touch(permit);
            if self.node.borrow().gate.acts() {
                // A look may wait: until it ends, the status says since when.
                if self.sub_paths.is_due() {
                    self.publish(&plan);
                }
                sub_paths::update(&mut self.sub_paths, &self.work.node, &plan).await;
            }
            self.hand_over(&plan).await?;
            let overdue = self.rules.overdue(Instant::now());
            self.handle(&plan, overdue);
            if let Some(reason) = self.rules.would_touch() {
                info!(pod = %self.work.entry.name, reason, "dry run: would touch the pod");
            }
            self.follow_swaps(&plan).await?;
            self.publish(&plan);
        }
    }

    /// The next event. The inbox comes before fetched inputs, which may belong to an older plan.
    ///
    /// # Cancel safety
    ///
    /// Every arm is cancel-safe. The sender of the node lives as long as the agent.
    async fn next_event(&mut self) -> WorkerEvent {
        let wake = self.next_wake();
        tokio::select! {
            biased;
            () = self.work.shutdown.cancelled() => WorkerEvent::ShutDown,
            () = self.work.inbox.woken() => WorkerEvent::Changes,
            Some(need) = self.work.gathering.next() => WorkerEvent::Fetched(need),
            Ok(()) = self.node.changed() => WorkerEvent::NodeChanged,
            step = self.touching.next() => WorkerEvent::TouchStepped(step),
            (key, signal) = self.swaps.next() => WorkerEvent::Swapped(key, signal),
            () = sleep_until(wake) => WorkerEvent::Due,
        }
    }

    fn next_wake(&self) -> Instant {
        if self.work.plan.is_none() {
            return self.work.repair_at;
        }
        // Volumes that are followed from now on are looked at once more.
        if self.work.parts.iter().any(|state| state.due) {
            return Instant::now();
        }
        // While a touch is on its way, its own steps wake the worker.
        let rules = match self.touching {
            Touching::Idle => self.rules.next_wake(),
            Touching::Queued(_) | Touching::Sent(_) => None,
        };
        let retries = rules.into_iter().chain(self.sub_paths.retry_at());
        retries.fold(self.work.repair_at, Instant::min)
    }

    fn is_touch_due(&self, now: Instant) -> bool {
        matches!(self.touching, Touching::Idle) && self.rules.wants_touch(now)
    }

    fn take_changes(&mut self) {
        let node = Arc::clone(&self.work.node);
        let changes = self.work.take_changes(|part, plan, need, since| {
            part.of_mode.changed_at.get_or_insert(since);
            if let Some(object) = plan.object(need) {
                part.of_mode.is_crowded |= node.readers.count(&object) > MANY_READERS;
            }
        });
        match changes.desired {
            None => {}
            Some(DesiredState::Serve(plan)) => {
                if self.work.set_plan(&plan) {
                    self.sub_paths = PodSubPaths::new(&self.work.entry.name.namespace, RETRY);
                    self.follow_none();
                }
                self.view_pod(&plan, &plan.pod.decode());
            }
            Some(DesiredState::Retire) => {
                self.work.retire();
                self.hooked = HookedParts::default();
                self.follow_none();
            }
        }
    }

    /// Passes the view of the pod to the rules.
    fn view_pod(&mut self, plan: &PodPlan, pod: &Pod) {
        self.traits = PodTraits::of(pod);
        if self.work.node.sub_paths.pins(&plan.pod).is_none() {
            // Containers see the changes of these volumes, too.
            let names = containers(pod)
                .flat_map(|container| container.volume_mounts)
                .map(|mount| mount.name.as_str().into());
            self.traits.mounted.extend(names);
        }
        let republishing = Arc::clone(&self.node.borrow().republishing);
        let view = pod_view(pod, &republishing);
        self.outdated.running(&view.containers);
        let (running, now) = (view.containers.iter(), self.work.wall());
        self.sub_paths
            .running(running.map(|container| container.id.clone()), now);
        let parts = plan
            .parts
            .iter()
            .filter_map(|part| self.part_name(part))
            .collect();
        self.rules.set_pod(view, &parts);
    }

    /// The part's identity for the rules; `None` for a part that causes no touch.
    fn part_name(&self, part: &Part) -> Option<PartName> {
        match &part.kind {
            PartKind::Volume(name, _) => {
                let is_mounted = self.traits.mounted.contains(name.as_str());
                is_mounted.then(|| PartName::Volume(name.as_str().into()))
            }
            PartKind::Environment(name, _) => {
                let waits = self.traits.waiting.contains(name.as_str());
                waits.then(|| PartName::Environment(name.as_str().into()))
            }
        }
    }

    fn node_changed(&mut self) {
        let view = self.node.borrow_and_update().clone();
        let before = mem::replace(&mut self.known_node, view.clone());
        let now = Instant::now();
        if before.outages_over != view.outages_over {
            let longest = longest_spread(view.ttl).max(RETRY_SPREAD);
            self.rules
                .outage_over(now + spread(longest, &mut self.work.rng));
        }
        self.rules.set_ttl(view.cache_ttl());
        self.rules.set_throttled(view.throttled_until);
        self.rules.set_gate(view.gate, now);
        if before.republishing != view.republishing
            && let Some(plan) = &self.work.plan
        {
            let republishes = has_volume_of(&plan.pod.decode(), &view.republishing);
            self.rules.set_republishes(republishes);
        }
    }

    fn swap_noticed(&mut self, key: usize, signal: SwapSignal) {
        if let Some(state) = self.work.parts.get_mut(key) {
            state.due = true;
        }
        if signal == SwapSignal::Gone {
            // Its directory was recreated, or is missing.
            self.followed.remove(&key);
        }
    }

    /// Makes the parts due that would be the reason of a touch.
    fn mark_outstanding(&mut self, plan: &PodPlan) {
        let outstanding: BTreeSet<_> = self.rules.outstanding().cloned().collect();
        for (index, part) in plan.parts.iter().enumerate() {
            let name = self.part_name(part);
            self.work.parts[index].due |= name.is_some_and(|name| outstanding.contains(&name));
        }
    }

    /// Looks at the parts that are due and whose inputs are complete.
    async fn look(&mut self, plan: &Arc<PodPlan>) -> Result<(), Abandoned> {
        let traits = &self.traits;
        self.work.fetch(plan, |part| reads(traits, plan, part));
        let complete = self.ready(plan);
        if !complete.is_empty() {
            let inputs = self.work.inputs();
            let job = CompareJob {
                beside: Arc::clone(&self.beside),
                plan: Arc::clone(plan),
                parts: complete.clone(),
                has_started: self.traits.has_started,
                hooks: self.hook_inputs(&inputs),
                inputs,
            };
            let seen = self.at_disk(&complete, move || job.run()).await?;
            for (index, seen) in complete.into_iter().zip(seen) {
                let notices = self.seen(plan, index, seen);
                self.handle(plan, notices);
            }
        }
        let traits = &self.traits;
        self.work
            .drop_unread(plan, |part| reads(traits, plan, part));
        Ok(())
    }

    /// Returns the due parts that can be computed, and lets the others wait.
    fn ready(&mut self, plan: &PodPlan) -> Vec<usize> {
        let (now, wall) = (Instant::now(), self.work.wall());
        let mut ready = Vec::new();
        for (index, part) in plan.parts.iter().enumerate() {
            let name = self.part_name(part);
            let state = &mut self.work.parts[index];
            if !mem::take(&mut state.due) {
                continue;
            }
            let missing = part
                .reads
                .iter()
                .filter(|need| is_read(need))
                .find(|need| !self.work.gathering.has(need));
            state.waits =
                reads(&self.traits, plan, part).any(|need| !self.work.gathering.has(need));
            match (missing, name) {
                (None, _) => ready.push(index),
                (Some(need), Some(name)) => {
                    let look = Look::new(PartObservation::Unread(need.to_string()), now);
                    self.rules.look(&name, look, now, wall);
                }
                (Some(need), None) => {
                    if matches!(part.kind, PartKind::Volume(..)) {
                        state.show(PartObservation::Unread(need.to_string()).state(), wall);
                    }
                }
            }
        }
        ready
    }

    /// Takes in the result of a look at a part.
    fn seen(&mut self, plan: &PodPlan, index: usize, mut seen: PartComparison) -> Vec<Notice> {
        let (now, wall) = (Instant::now(), self.work.wall());
        let part = &plan.parts[index];
        let name = self.part_name(part);
        let delay = self.delay(index);
        let state = &mut self.work.parts[index];
        let arrived = state.of_mode.changed_at.take();
        state.of_mode.is_crowded = false;
        state.changed = false;
        self.outdated.read(mem::take(&mut seen.versions));
        let content = mem::take(&mut seen.content);
        let mut look = Look {
            payload: seen.payload,
            delay,
            ..Look::new(mem::take(&mut seen.observation), arrived.unwrap_or(now))
        };
        match &part.kind {
            PartKind::Volume(volume, _) => {
                if let Some(at) = arrived {
                    self.sub_paths.changed(volume, at);
                }
                self.volume_seen(index, volume, seen, &mut look);
                look.observation = self.with_pins(part, plan, look.observation, look.volume);
                if name.is_none() {
                    self.work.parts[index].show(look.observation.state(), wall);
                }
            }
            PartKind::Environment(container, _) => {
                self.environment_seen(index, container, seen, &look);
            }
        }
        let change = look.volume;
        let notices = name.map(|name| self.rules.look(&name, look, now, wall));
        self.seen_content(&part.kind, content, change);
        notices.unwrap_or_default()
    }

    fn volume_seen(&mut self, index: usize, volume: &str, seen: PartComparison, look: &mut Look) {
        let wall = self.work.wall();
        let state = &mut self.work.parts[index];
        state.files = seen.files;
        self.sub_paths.add_mounts(volume, seen.sub_paths);
        self.outdated.sub_paths(&volume.into(), seen.outdated);
        let Some((identity, set)) = seen.place else {
            return;
        };
        let of_mode = &mut state.of_mode;
        if look.observation == PartObservation::Same && of_mode.verified_set.as_ref() != Some(&set)
        {
            self.sub_paths
                .written(volume, Some(set.as_str()), Some(wall));
            of_mode.verified_set = Some(set.clone());
        }
        look.volume = match of_mode.place.take() {
            None => VolumeChange::First,
            Some((before, _)) if before != identity => VolumeChange::Recreated,
            Some((_, before)) if before != set => VolumeChange::Swapped,
            Some(_) => VolumeChange::None,
        };
        if look.volume.is_swap() {
            state.last_swap = Some(wall);
        }
        state.of_mode.place = Some((identity, set));
    }

    fn environment_seen(
        &mut self,
        index: usize,
        container: &str,
        seen: PartComparison,
        look: &Look,
    ) {
        // A container that runs has its variables.
        let runs = self.traits.running.contains(container);
        let shown = match &look.observation {
            PartObservation::Uncomputable(reason) if !runs => (PartState::Failing, reason.clone()),
            _ => (PartState::Delivered, String::new()),
        };
        let wall = self.work.wall();
        self.work.parts[index].show(shown, wall);
        if let Some(variables) = seen.variables {
            self.outdated.computed(container, variables);
        }
    }

    /// How long a first touch for a change of this part waits (R20).
    fn delay(&mut self, index: usize) -> Duration {
        if self.traits.is_daemon_set || self.work.parts[index].of_mode.is_crowded {
            spread(longest_spread(self.node.borrow().ttl), &mut self.work.rng)
        } else {
            Duration::ZERO
        }
    }

    /// What was observed of a volume, given the immutable objects for which the kubelet serves an earlier one (R26). The
    /// disk decides: a kubelet that has just written the computed files has read the new objects.
    fn with_pins(
        &self,
        part: &Part,
        plan: &PodPlan,
        observation: PartObservation,
        change: VolumeChange,
    ) -> PartObservation {
        let (readers, mut pinned) = (&self.work.node.readers, None);
        for object in part.reads.iter().filter_map(|need| plan.object(need)) {
            let (kind, name) = (object.0, &object.1.name);
            let Some(read) = self.work.gathering.identity(kind, name) else {
                continue;
            };
            if change != VolumeChange::None && observation == PartObservation::Same {
                readers.set_served(&object, &read);
            } else if readers.is_pinned(&object, &read) {
                pinned = Some(format!("{kind} {:?}", name.as_str()));
            }
        }
        match (observation, pinned) {
            (PartObservation::Outdated(_) | PartObservation::Invisible(_), Some(object)) => {
                PartObservation::Pinned(object)
            }
            (observation, _) => observation,
        }
    }

    /// Follows the swaps of exactly the volumes whose next swap is awaited.
    async fn follow_swaps(&mut self, plan: &PodPlan) -> Result<(), Abandoned> {
        let awaited: BTreeSet<_> = self.rules.awaited().cloned().collect();
        let mut wanted = Vec::new();
        for (key, part) in plan.parts.iter().enumerate() {
            let PartKind::Volume(volume, kind) = &part.kind else {
                continue;
            };
            let is_wanted = awaited.contains(&PartName::Volume(volume.as_str().into()));
            if is_wanted == self.followed.contains(&key) {
                continue;
            }
            if is_wanted {
                wanted.push((key, *kind, volume.clone()));
                self.followed.insert(key);
                // A swap before this call was not signaled.
                self.work.parts[key].due = true;
            } else {
                self.swaps.unfollow(key);
                self.followed.remove(&key);
            }
        }
        if !wanted.is_empty() {
            let uid = self.work.entry.uid.as_str().to_owned();
            let swaps = mem::replace(&mut self.swaps, self.beside.swaps.of_pod());
            let following = move || swaps.follow_all(&uid, wanted);
            self.swaps = self.at_disk(&[], following).await?;
        }
        Ok(())
    }

    fn follow_none(&mut self) {
        self.swaps = self.beside.swaps.of_pod();
        self.followed.clear();
    }
}

impl PartProgress<ComparedPart> {
    /// Shows this state, with its reason.
    fn show(&mut self, (state, reason): (PartState, String), now: Timestamp) {
        self.of_mode.state = state;
        let phase = match state {
            PartState::Delivered => Phase::Delivered,
            PartState::Waiting => Phase::Waiting,
            PartState::Failing => Phase::Failing,
            PartState::Pinned | PartState::Detached | PartState::Unverified => Phase::Held,
        };
        self.delivery.update(phase, &reason, now);
    }
}

/// What a look at the part reads. Tokens and certificates are left to the kubelet.
fn reads<'p>(
    traits: &PodTraits,
    plan: &'p PodPlan,
    part: &'p Part,
) -> impl Iterator<Item = &'p Need> + use<'p> {
    part.reads
        .iter()
        .chain(reads_of_mounts(traits, plan, part))
        .filter(|need| is_read(need))
}

/// What the paths of mounts of a volume depend on: the environments of containers. No look at the volume waits for it.
fn reads_of_mounts<'p>(
    traits: &PodTraits,
    plan: &'p PodPlan,
    part: &Part,
) -> impl Iterator<Item = &'p Need> + use<'p> {
    let containers = match &part.kind {
        PartKind::Volume(volume, _) => traits.expanded.get(volume.as_str()).cloned(),
        PartKind::Environment(..) => None,
    };
    let containers = containers.unwrap_or_default();
    let environments = plan.parts.iter().filter(move |part| {
        matches!(&part.kind, PartKind::Environment(name, _) if containers.contains(name.as_str()))
    });
    environments.flat_map(|part| &part.reads)
}

/// Whether larder reads it in this mode. Tokens and certificates are left to the kubelet.
fn is_read(need: &Need) -> bool {
    match need {
        Need::Token(_) | Need::PodCertificate(_) => false,
        Need::Object(..) | Need::Services | Need::Node | Need::TrustBundles => true,
    }
}
