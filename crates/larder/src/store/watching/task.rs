//! The one task of the store: passes the targets and the needs of their readers to the engine. `scopes` decides what
//! one watch covers; `findings` takes over the engine's findings.
//!
//! Invariants:
//! 1. Requests in flight for an object end with its removal, and a finding of that moment reaches no reader (I2).
//! 2. No watch is open while no object is referenced, or while all referenced objects are final (I1, I2).

mod findings;
mod scopes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use larder_objects::Object;
use larder_watch::{Api, Engine, MinFreshness, Need, ObjectId, Presence, TargetId};
use tokio::{
    sync::mpsc,
    time::{Duration, Instant, Interval, MissedTickBehavior, interval_at},
};
use tracing::{debug, warn};

use self::scopes::Scopes;
use super::{MAX_OBJECTS, WatchStoreInner, WatchedState, target::WatchTarget};
use crate::{
    config::{ManagerConfig, WatchScope},
    status::ObjectState,
    store::Entry,
};

/// What happened to an object. Objects are named by the number of their entry.
#[derive(Debug)]
pub(super) enum Command<K> {
    /// An object got its first reference.
    Added(Arc<Entry<WatchedState<K>>>),
    /// An object that fails got one reference more.
    Referenced(ObjectId),
    /// A reader waits for the object.
    ReadPending(ObjectId),
    /// The object lost its last reference.
    Removed(ObjectId),
    /// Everything ends.
    ShutDown,
}

/// One referenced object. There may be very many.
struct WatchedObject<K> {
    entry: Arc<Entry<WatchedState<K>>>,
    /// The target that covers it: its own, or that of its namespace.
    target: Option<TargetId>,
    /// Number of requests for the state before it joined its target.
    joined: u64,
    last_read: Instant,
}

impl<K: Object> WatchedObject<K> {
    /// The known state, and whether every reference to the object may read it.
    fn freshness(&self) -> (ObjectState, bool) {
        self.entry.cell.freshness(self.entry.newest_reference())
    }

    fn is_fresh(&self) -> bool {
        self.freshness().1
    }

    /// What the readers of the object need.
    fn min_freshness(&self) -> MinFreshness {
        if self.is_fresh() {
            MinFreshness::Seen
        } else {
            MinFreshness::Newest
        }
    }

    /// Whether the known state is final, and every reference may read it.
    fn is_final(&self) -> bool {
        self.freshness() == (ObjectState::Immutable, true)
    }
}

pub(super) struct WatchTask<K: Object> {
    inner: Arc<WatchStoreInner<K>>,
    commands: mpsc::UnboundedReceiver<Command<K>>,
    config: ManagerConfig,
    engine: Engine<WatchTarget<K>>,
    objects: BTreeMap<ObjectId, WatchedObject<K>>,
    /// The namespaces with references, unless each object has a watch of its own.
    scopes: Scopes,
    /// Targets and objects for which a reader waits, or that have joined a namespace in unknown state.
    pending: BTreeSet<(TargetId, ObjectId)>,
    /// The objects beyond [`MAX_OBJECTS`].
    refused: BTreeMap<ObjectId, Arc<Entry<WatchedState<K>>>>,
    idle_pass: Interval,
}

/// Times between two passes that look for idle watches: often enough to end one soon after its time.
const IDLE_PASS_MIN: Duration = Duration::from_secs(15);
const IDLE_PASS_MAX: Duration = Duration::from_mins(1);

impl<K: Object> Drop for WatchTask<K> {
    /// However the task ends, readers get an error instead of waiting.
    fn drop(&mut self) {
        self.commands.close();
        self.inner.end();
    }
}

impl<K: Object> WatchTask<K> {
    pub(super) fn new(
        inner: Arc<WatchStoreInner<K>>,
        commands: mpsc::UnboundedReceiver<Command<K>>,
        api: Api,
        config: &ManagerConfig,
        mut random: fastrand::Rng,
    ) -> Self {
        let period = match config.watch_scope {
            WatchScope::Object => (config.max_idle() / 4).clamp(IDLE_PASS_MIN, IDLE_PASS_MAX),
            WatchScope::Namespace | WatchScope::Auto => IDLE_PASS_MIN,
        };
        let mut idle_pass = interval_at(Instant::now() + period, period);
        idle_pass.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let context = config.node_context.clone().unwrap_or_default();
        let seqs = Arc::clone(&inner.entries.seqs);
        let engine = Engine::new(
            api.clone(),
            config.max_requests_in_flight,
            seqs,
            &context,
            random.fork(),
        );
        Self {
            inner,
            commands,
            config: config.clone(),
            engine,
            objects: BTreeMap::new(),
            scopes: Scopes::new(api, context, random),
            pending: BTreeSet::new(),
            refused: BTreeMap::new(),
            idle_pass,
        }
    }

    /// Works until it is shut down or dropped.
    pub(super) async fn run(mut self) {
        loop {
            let mut commands = Vec::new();
            // Every arm is cancel-safe: commands stay in their queue, the others in their collections. Biased, so that
            // what is ready at the same time is handled in the same order for the same seed. The API server comes last,
            // since it must not hold up callers. No enum of events, so that a report is not moved once more.
            tokio::select! {
                biased;
                _ = self.commands.recv_many(&mut commands, usize::MAX) => {}
                answer = self.scopes.next_review() => self.reviewed(answer),
                _ = self.idle_pass.tick(), if !self.objects.is_empty() => self.stop_idle_watches(),
                (target, report) = self.engine.next() => self.report(target, report),
            }
            // A burst of new objects is handled once, not for each of them.
            let mut targets = BTreeSet::new();
            for command in commands {
                if let Command::ShutDown = command {
                    return;
                }
                targets.extend(self.command(command));
            }
            for target in targets {
                self.refresh(target);
            }
        }
    }

    /// Executes a command. Returns the target whose needs may have changed.
    fn command(&mut self, command: Command<K>) -> Option<TargetId> {
        match command {
            Command::ShutDown => None,
            Command::Added(entry) => self.add(entry),
            Command::Referenced(id) => {
                let object = self.objects.get(&id)?;
                let target = object.target?;
                let failure = object.entry.cell.failure();
                if self.engine.is_backing_off(target)
                    && failure.is_some_and(|failure| failure.error.is_forbidden())
                {
                    self.start(target);
                }
                Some(target)
            }
            Command::ReadPending(id) => {
                let target = self.objects.get(&id)?.target;
                // Without a target, the review of the namespace is under way. At its end, the task finds the pending
                // read.
                self.pending.insert((target?, id));
                target
            }
            Command::Removed(id) => {
                self.refused.remove(&id);
                let object = self.objects.remove(&id)?;
                self.engine.remove(TargetId::Object(id));
                if let Some(target) = object.target {
                    self.pending.remove(&(target, id));
                }
                self.leave_namespace(&object.entry.key.namespace, id);
                let mut added = None;
                while self.objects.len() < MAX_OBJECTS
                    && let Some((_, entry)) = self.refused.pop_first()
                {
                    added = self.add(entry);
                }
                added
            }
        }
    }

    fn add(&mut self, entry: Arc<Entry<WatchedState<K>>>) -> Option<TargetId> {
        // Its removal is one of the next commands.
        if entry.cell.state() == ObjectState::Removed {
            return None;
        }
        let id = entry.cell.id;
        if self.objects.len() == MAX_OBJECTS {
            if self.refused.is_empty() {
                let (kind, limit) = (K::TYPE.kind, MAX_OBJECTS);
                warn!(
                    kind,
                    limit, "too many objects are referenced, not watching the others"
                );
            }
            self.refused.insert(id, entry);
            return None;
        }
        let namespace = entry.key.namespace.clone();
        let object = WatchedObject {
            entry,
            target: None,
            joined: 0,
            last_read: Instant::now(),
        };
        self.objects.insert(id, object);
        match self.config.watch_scope {
            WatchScope::Object => self.watch_object(id),
            WatchScope::Namespace | WatchScope::Auto => self.join_namespace(&namespace, id),
        }
    }

    /// Gives an object a watch of its own.
    fn watch_object(&mut self, id: ObjectId) -> Option<TargetId> {
        let object = self.objects.get_mut(&id)?;
        let target = TargetId::Object(id);
        object.target = Some(target);
        object.joined = 0;
        let entry = Arc::clone(&object.entry);
        self.engine
            .add(target, WatchTarget::Object(Arc::clone(&entry)));
        if entry.cell.is_read_pending() {
            self.pending.insert((target, id));
        }
        if entry.cell.state() != ObjectState::Immutable {
            self.start(target);
        }
        Some(target)
    }

    /// Adds an object to the watch of its namespace.
    fn cover_object(&mut self, id: ObjectId, target: TargetId) {
        let joined = self.engine.state_requests(target);
        if let Some(object) = self.objects.get_mut(&id) {
            object.target = Some(target);
            object.joined = joined;
            // Its state is needed whether or not a reader waits.
            self.pending.insert((target, id));
        }
    }

    /// Requests the complete state of a target, as fresh as its readers need it.
    fn start(&mut self, target: TargetId) {
        let min = self
            .members(target)
            .map(WatchedObject::min_freshness)
            .max()
            .unwrap_or(MinFreshness::Seen);
        self.engine.start(target, min);
    }

    /// The objects that a target covers.
    fn members(&self, target: TargetId) -> impl Iterator<Item = &WatchedObject<K>> {
        let together = self.scopes.members(target);
        let own = match target {
            TargetId::Object(id) => self.objects.get(&id),
            TargetId::Collection(_) => None,
        };
        own.into_iter()
            .chain(together.filter_map(|id| self.objects.get(id)))
    }

    /// Requests the state that the waiting readers of a target need, unless a request is under way.
    fn refresh(&mut self, target: TargetId) {
        let mut needs = Vec::new();
        let mut min = MinFreshness::Seen;
        let pending = self
            .pending
            .range((target, ObjectId(0))..=(target, ObjectId(u64::MAX)));
        for pending in pending.copied().collect::<Vec<_>>() {
            let (_, id) = pending;
            if let Some(object) = self.objects.get(&id)
                && let Some(known) = self.insufficient(object)
            {
                min = min.max(object.min_freshness());
                needs.push(Need {
                    object: id,
                    known,
                    target: WatchTarget::Object(Arc::clone(&object.entry)),
                });
            } else {
                self.pending.remove(&pending);
            }
        }
        if needs.is_empty() {
            return;
        }
        if self.engine.is_resting(target) {
            self.touch(target);
        }
        self.engine.require_fresh(target, needs, min);
    }

    /// The known state of an object with a pending read, unless it is enough for the read.
    fn insufficient(&self, object: &WatchedObject<K>) -> Option<Presence> {
        let cell = &object.entry.cell;
        let (state, is_fresh) = object.freshness();
        let known = match state {
            ObjectState::Removed => return None,
            ObjectState::Pending | ObjectState::Stale(_) | ObjectState::Idle => {
                return Some(Presence::Unknown);
            }
            ObjectState::Synced => Presence::Present,
            ObjectState::Absent => Presence::Absent,
            ObjectState::Immutable => Presence::Final,
        };
        if !is_fresh {
            return Some(known);
        }
        cell.clear_read_pending();
        // A registration meanwhile found the read still pending and sent no command.
        if !object.is_fresh() {
            self.inner.note_pending_read(cell);
        }
        None
    }

    /// The target is in use.
    fn touch(&mut self, target: TargetId) {
        let now = Instant::now();
        if let TargetId::Object(id) = target
            && let Some(object) = self.objects.get_mut(&id)
        {
            object.last_read = now;
        }
        self.scopes.touch(target, now);
    }

    /// Stops the watch of a target if it can bring no further change.
    fn rest_if_final(&mut self, target: TargetId) {
        if !self.engine.is_resting(target) && self.members(target).all(WatchedObject::is_final) {
            self.engine.stop(target);
        }
    }

    /// Stops the watches that no reader has used for longer than `max_idle`.
    fn stop_idle_watches(&mut self) {
        let now = Instant::now();
        let max_idle = self.config.max_idle();
        let mut idle: BTreeSet<TargetId> = BTreeSet::new();
        for (id, object) in &mut self.objects {
            if object.entry.cell.take_accessed() {
                object.last_read = now;
            }
            let target = TargetId::Object(*id);
            if object.target == Some(target) {
                // An object that has not synced yet is not idle, however long it takes. An immutable one is not
                // watched.
                let state = object.entry.cell.state();
                let synced = matches!(state, ObjectState::Synced | ObjectState::Absent);
                let pending = self.pending.contains(&(target, *id));
                if synced && !pending && now > object.last_read + max_idle {
                    idle.insert(target);
                }
            }
        }
        for (target, namespace) in self.scopes.watched_namespaces() {
            let mut synced = true;
            for id in &namespace.members {
                let object = &self.objects[id];
                namespace.last_read = namespace.last_read.max(object.last_read);
                let state = object.entry.cell.state();
                synced &= !matches!(state, ObjectState::Pending | ObjectState::Stale(_))
                    && !self.pending.contains(&(target, *id));
            }
            let resting = self.engine.is_resting(target);
            if synced && now > namespace.last_read + max_idle && !resting {
                idle.insert(target);
            }
        }
        for target in idle {
            debug!(kind = K::TYPE.kind, target = %self.name(target), "stop idle watch");
            for object in self.members(target) {
                object.entry.cell.idle();
            }
            self.engine.stop(target);
        }
    }

    /// The objects of a target, for the log.
    fn name(&self, target: TargetId) -> String {
        let namespace = self.scopes.name(target).map(ToString::to_string);
        let mut members = self
            .members(target)
            .map(|object| object.entry.key.to_string());
        namespace.or_else(|| members.next()).unwrap_or_default()
    }
}
