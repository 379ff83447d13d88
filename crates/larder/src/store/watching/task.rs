//! The one task of the store: passes the targets and the needs of their readers to the engine. `findings` takes over
//! the engine's findings.
//!
//! Invariants:
//! 1. Requests in flight for an object end with its removal, and a finding of that moment reaches no reader (I2).
//! 2. No watch is open while no object is referenced, or while all referenced objects are final (I1, I2).

mod findings;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use larder_objects::Object;
use larder_watch::{Api, Engine, Known, Limits, Need, NodeContext, Report, Start};
use smol_str::SmolStr;
use tokio::{
    sync::mpsc,
    time::{Duration, Instant, Interval, MissedTickBehavior, interval_at},
};
use tracing::{debug, warn};

use super::{
    WatchEntry, WatchStoreInner,
    scopes::{Namespace, ReviewAnswer},
    target::WatchTarget,
};
use crate::{
    config::{ManagerConfig, WatchScope},
    status::ObjectState,
    store::Entry,
};

/// What happened to an object. Objects are named by the number of their entry.
#[derive(Debug)]
pub(super) enum Command<K> {
    /// An object got its first reference.
    Added(Arc<Entry<WatchEntry<K>>>),
    /// An object that fails got one reference more.
    Referenced(u64),
    /// A reader waits for the object.
    ReadPending(u64),
    /// The object lost its last reference.
    Removed(u64),
    /// Everything ends.
    ShutDown,
}

/// One referenced object. There may be very many.
pub(super) struct WatchedObject<K> {
    pub(super) entry: Arc<Entry<WatchEntry<K>>>,
    /// The target that covers it: its own, which has the same number, or that of its namespace.
    pub(super) target: Option<u64>,
    /// Number of requests for the state before it joined its target.
    joined: u64,
    last_read: Instant,
}

impl<K: Object> WatchedObject<K> {
    /// Whether every reference to the object may read the known state.
    pub(super) fn is_fresh(&self) -> bool {
        self.entry.cell.fresh_as_of() >= self.entry.newest_reference()
    }

    /// Whether the known state is final, and every reference may read it.
    fn is_final(&self) -> bool {
        self.entry.cell.state() == ObjectState::Immutable && self.is_fresh()
    }
}

/// The events that wake the task.
enum Wake<K: Object> {
    Commands(Vec<Command<K>>),
    Review(Box<ReviewAnswer>),
    IdlePass,
    Report(Box<Report<WatchTarget<K>>>),
}

pub(super) struct WatchTask<K: Object> {
    pub(super) inner: Arc<WatchStoreInner<K>>,
    commands: mpsc::UnboundedReceiver<Command<K>>,
    pub(super) api: Api,
    pub(super) config: ManagerConfig,
    pub(super) context: NodeContext,
    pub(super) engine: Engine<WatchTarget<K>>,
    /// By the number of the entry.
    pub(super) objects: BTreeMap<u64, WatchedObject<K>>,
    /// The namespaces with references, unless each object has a watch of its own.
    pub(super) namespaces: BTreeMap<SmolStr, Namespace>,
    /// The namespaces in namespace scope, by the number of their target.
    pub(super) by_target: BTreeMap<u64, SmolStr>,
    pub(super) last_target: u64,
    /// Targets and objects for which a reader waits, or that have joined a namespace in unknown state.
    pub(super) pending: BTreeSet<(u64, u64)>,
    pub(super) reviews: FuturesUnordered<futures::future::BoxFuture<'static, ReviewAnswer>>,
    /// Whether the log has reported that the watch limit is reached.
    limit_reported: bool,
    idle_pass: Interval,
    pub(super) random: fastrand::Rng,
}

/// Times between two passes that look for idle watches: often enough to end one soon after its time.
const IDLE_PASS_MIN: Duration = Duration::from_secs(15);
const IDLE_PASS_MAX: Duration = Duration::from_mins(1);

/// Targets of namespaces have numbers from here on, objects have lower ones.
const FIRST_NAMESPACE: u64 = 1 << 63;

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
        let limits = Limits {
            max_requests_in_flight: config.max_requests_in_flight,
            max_watches: config.max_watches,
        };
        let context = config.node_context.clone().unwrap_or_default();
        let seqs = Arc::clone(inner.entries.seqs());
        let engine = Engine::new(api.clone(), limits, seqs, &context, random.fork());
        Self {
            inner,
            commands,
            api,
            config: config.clone(),
            context,
            engine,
            objects: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            by_target: BTreeMap::new(),
            last_target: FIRST_NAMESPACE,
            pending: BTreeSet::new(),
            reviews: FuturesUnordered::new(),
            limit_reported: false,
            idle_pass,
            random,
        }
    }

    /// Works until it is shut down or dropped.
    pub(super) async fn run(mut self) {
        loop {
            let mut commands = Vec::new();
            // Every arm is cancel-safe: commands stay in their queue, the others in their collections. Biased, so that
            // what is ready at the same time is handled in the same order for the same seed. The API server comes last,
            // since it must not hold up callers.
            let wake = tokio::select! {
                biased;
                _ = self.commands.recv_many(&mut commands, usize::MAX) => Wake::Commands(commands),
                Some(answer) = self.reviews.next(), if !self.reviews.is_empty() => Wake::Review(Box::new(answer)),
                _ = self.idle_pass.tick(), if !self.objects.is_empty() => Wake::IdlePass,
                report = self.engine.next() => Wake::Report(Box::new(report)),
            };
            match wake {
                Wake::Commands(commands) => {
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
                Wake::Review(answer) => self.reviewed(*answer),
                Wake::IdlePass => self.stop_idle_watches(),
                Wake::Report(report) => self.report(*report),
            }
        }
    }

    /// Executes a command. Returns the target whose needs may have changed.
    fn command(&mut self, command: Command<K>) -> Option<u64> {
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
                let object = self.objects.remove(&id)?;
                self.engine.remove_check(id);
                self.engine.remove(id);
                if let Some(target) = object.target {
                    self.pending.remove(&(target, id));
                }
                self.leave_namespace(&object.entry.key.namespace, id);
                None
            }
        }
    }

    fn add(&mut self, entry: Arc<Entry<WatchEntry<K>>>) -> Option<u64> {
        // Its removal is one of the next commands.
        if entry.cell.state() == ObjectState::Removed {
            return None;
        }
        let id = entry.cell.id;
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
    pub(super) fn watch_object(&mut self, id: u64) -> Option<u64> {
        let object = self.objects.get_mut(&id)?;
        object.target = Some(id);
        object.joined = 0;
        let target = WatchTarget::Object(Arc::clone(&object.entry));
        // Another watch may have covered it before.
        let version = object.entry.cell.version();
        self.engine.add(id, target, &version);
        let cell = &object.entry.cell;
        if cell.is_read_pending() {
            self.pending.insert((id, id));
        }
        if cell.state() != ObjectState::Immutable {
            self.start(id);
        }
        Some(id)
    }

    /// Adds an object to the watch of its namespace.
    pub(super) fn cover_object(&mut self, id: u64, target: u64) {
        let joined = self.engine.state_requests(target);
        if let Some(object) = self.objects.get_mut(&id) {
            object.target = Some(target);
            object.joined = joined;
            // Its state is needed whether or not a reader waits.
            self.pending.insert((target, id));
        }
    }

    /// Requests the complete state of a target, as fresh as its readers need it.
    pub(super) fn start(&mut self, target: u64) {
        let confirm = !self.members(target).all(WatchedObject::is_fresh);
        if self.engine.start(target, confirm) == Start::NoSlot {
            self.refuse(target);
        }
    }

    /// All watches that may be open are open: reads of the object fail until one ends.
    fn refuse(&mut self, id: u64) {
        self.pending.remove(&(id, id));
        if let Some(object) = self.objects.get(&id) {
            object.entry.cell.refuse_watch();
        }
        if !std::mem::replace(&mut self.limit_reported, true) {
            let (kind, limit) = (K::KIND.as_str(), self.config.max_watches);
            warn!(
                kind,
                limit, "watch limit reached, reads of the remaining objects fail"
            );
        }
    }

    /// The objects that a target covers.
    fn members(&self, target: u64) -> impl Iterator<Item = &WatchedObject<K>> {
        let namespace = self.by_target.get(&target);
        let namespace = namespace.and_then(|name| self.namespaces.get(name));
        let together = namespace
            .into_iter()
            .flat_map(|namespace| &namespace.members);
        let own = self.objects.get(&target);
        own.into_iter()
            .chain(together.filter_map(|id| self.objects.get(id)))
    }

    /// Those of them that a finding can change.
    fn open_members(&self, target: u64) -> impl Iterator<Item = &WatchedObject<K>> {
        self.members(target).filter(|object| !object.is_final())
    }

    /// Requests the state that the waiting readers of a target need, unless a request is under way.
    pub(super) fn refresh(&mut self, target: u64) {
        let mut needs = Vec::new();
        let mut confirm = false;
        let pending = self.pending.range((target, 0)..=(target, u64::MAX));
        for pending in pending.copied().collect::<Vec<_>>() {
            let (_, id) = pending;
            if let Some(object) = self.objects.get(&id)
                && let Some(known) = self.insufficient(object)
            {
                confirm |= !object.is_fresh();
                needs.push(Need { object: id, known });
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
        let objects = &self.objects;
        let single = |id| {
            let object = objects.get(&id)?;
            Some(WatchTarget::Object(Arc::clone(&object.entry)))
        };
        self.engine.refresh(target, &needs, confirm, single);
        if self.engine.is_without_slot(target) {
            self.refuse(target);
        }
    }

    /// The known state of an object with a pending read, unless it is enough for the read.
    fn insufficient(&self, object: &WatchedObject<K>) -> Option<Known> {
        let cell = &object.entry.cell;
        let known = match cell.state() {
            ObjectState::Removed | ObjectState::Unwatched => return None,
            ObjectState::Pending | ObjectState::Stale(_) | ObjectState::Idle => {
                return Some(Known::Nothing);
            }
            ObjectState::Synced => Known::Present,
            ObjectState::Absent => Known::Absent,
            ObjectState::Immutable => Known::Final,
        };
        if !object.is_fresh() {
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
    fn touch(&mut self, target: u64) {
        let now = Instant::now();
        if let Some(object) = self.objects.get_mut(&target) {
            object.last_read = now;
        }
        if let Some(namespace) = self.by_target.get(&target)
            && let Some(namespace) = self.namespaces.get_mut(namespace)
        {
            namespace.last_read = now;
        }
    }

    /// Stops the watch of a target if it can bring no further change.
    pub(super) fn rest_if_final(&mut self, target: u64) {
        if !self.engine.is_resting(target) && self.members(target).all(WatchedObject::is_final) {
            self.engine.stop(target);
        }
    }

    /// Stops the watches that no reader has used for longer than `max_idle`.
    fn stop_idle_watches(&mut self) {
        let (now, max_idle) = (Instant::now(), self.config.max_idle());
        let mut idle: BTreeSet<u64> = BTreeSet::new();
        for (id, object) in &mut self.objects {
            if object.entry.cell.take_accessed() {
                object.last_read = now;
            }
            if object.target == Some(*id) {
                // An object that has not synced yet is not idle, however long it takes. An immutable one is not
                // watched.
                let state = object.entry.cell.state();
                let synced = matches!(state, ObjectState::Synced | ObjectState::Absent);
                let pending = self.pending.contains(&(*id, *id));
                if synced && !pending && now > object.last_read + max_idle {
                    idle.insert(*id);
                }
            }
        }
        for (target, name) in &self.by_target {
            let Some(namespace) = self.namespaces.get_mut(name) else {
                continue;
            };
            let mut synced = true;
            for id in &namespace.members {
                let object = &self.objects[id];
                namespace.last_read = namespace.last_read.max(object.last_read);
                let state = object.entry.cell.state();
                synced &= !matches!(state, ObjectState::Pending | ObjectState::Stale(_))
                    && !self.pending.contains(&(*target, *id));
            }
            let resting = self.engine.is_resting(*target);
            if synced && now > namespace.last_read + max_idle && !resting {
                idle.insert(*target);
            }
        }
        for target in idle {
            debug!(kind = K::KIND.as_str(), target = %self.name(target), "stop idle watch");
            for object in self.members(target) {
                if object.entry.cell.state() != ObjectState::Immutable {
                    object.entry.cell.idle();
                }
            }
            self.engine.stop(target);
        }
    }

    /// The objects of a target, for the log.
    fn name(&self, target: u64) -> String {
        match (self.by_target.get(&target), self.objects.get(&target)) {
            (Some(namespace), _) => namespace.to_string(),
            (None, Some(object)) => object.entry.key.to_string(),
            (None, None) => String::new(),
        }
    }
}
