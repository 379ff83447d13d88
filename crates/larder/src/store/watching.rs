//! Strategy `Watch`: the store that the watch engine keeps in step.
//!
//! Rules W1–W21 of the kubelet's watch store (1.36, `pkg/kubelet/util/manager/watch_based_manager.go`), with these
//! differences on purpose: a reader is woken instead of polling every 10 ms, and told the cause when it gave up waiting; a
//! pod never reads data older than its registration; registration counts as an access; the removal of an entry is final.
//!
//! Invariants:
//! 1. Only the worker publishes, and only into cells that are not removed (checked under the cell's lock).
//! 2. What is known is shown to reads together with the proof of its freshness, before the cell's lock is released: no
//!    reader finds something older shown than what it was told before (I3).
//! 3. No lock is held across an await (I5).

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures::FutureExt as _;
use larder_objects::{Object, ObjectKey, ResourceVersion};
use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::{
    sync::Notify,
    time::{Duration, Instant, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Entries, Entry,
    entries::{Added, Facts},
};
use crate::{
    api::Api,
    changes::{ChangeKind, Publisher},
    config::{ManagerConfig, WatchScope},
    error::{Error, RequestError},
    metrics::Metrics,
    registration::Holder,
    status::{ObjectState, ScopeChoice},
    watch::{Command, Scopes, Worker},
};

/// What the store knows about one object.
#[derive(Debug)]
pub(crate) struct Cell<K> {
    /// Number of this incarnation of the entry; the worker's name for it.
    pub(crate) id: u64,
    /// A reader waits for something that nothing under way may bring; the worker clears it.
    wanted: AtomicBool,
    /// A reader gave up waiting.
    missed: AtomicBool,
    changed: Notify,
    known: Mutex<Known<K>>,
}

#[derive(Debug)]
struct Known<K> {
    state: ObjectState,
    /// The object, while it may be read.
    object: Option<Arc<K>>,
    /// Version of the last state published, also of an absence; readers never go back behind it (I3).
    version: ResourceVersion,
    /// All references up to this moment may read what is known.
    proven: u64,
    failure: Option<Arc<RequestError>>,
    /// Since when the state may have changed unnoticed.
    out_of_step: Option<Instant>,
    /// There are more objects than watches, and this one has none.
    unwatched: bool,
}

/// What reads may have without waiting.
#[derive(Debug)]
pub(crate) struct Shown<K> {
    object: Weak<K>,
    proven: u64,
}

impl<K> Clone for Shown<K> {
    fn clone(&self) -> Self {
        Self {
            object: Weak::clone(&self.object),
            proven: self.proven,
        }
    }
}

/// What a state that the worker found out means for the object.
#[derive(Debug)]
pub(crate) struct Finding<K> {
    /// The object, or that it does not exist.
    pub(crate) object: Option<Arc<K>>,
    /// The version of that state.
    pub(crate) version: ResourceVersion,
    /// It is as new as this moment.
    pub(crate) proven: Option<u64>,
    /// Take it even if it is older than what is known.
    pub(crate) reset: bool,
}

enum Look<K> {
    Object(Arc<K>),
    Absent,
    Removed,
    /// Not known, or not proven to be new enough.
    Unknown,
}

impl<K: Object> Cell<K> {
    fn new(id: u64) -> Self {
        Self {
            id,
            wanted: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            changed: Notify::new(),
            known: Mutex::new(Known {
                state: ObjectState::Pending,
                object: None,
                version: ResourceVersion::default(),
                proven: 0,
                failure: None,
                out_of_step: None,
                unwatched: false,
            }),
        }
    }

    fn look(&self, required: u64) -> Look<K> {
        let known = self.known.lock();
        match (known.state, &known.object) {
            (ObjectState::Removed, _) => Look::Removed,
            _ if known.proven < required => Look::Unknown,
            (ObjectState::Absent, _) => Look::Absent,
            (_, Some(object)) => Look::Object(Arc::clone(object)),
            (_, None) => Look::Unknown,
        }
    }

    // What follows is the worker's.

    pub(crate) fn proven(&self) -> u64 {
        self.known.lock().proven
    }

    pub(crate) fn state(&self) -> ObjectState {
        self.known.lock().state
    }

    pub(crate) fn version(&self) -> ResourceVersion {
        self.known.lock().version.clone()
    }

    pub(crate) fn failure(&self) -> Option<Arc<RequestError>> {
        self.known.lock().failure.clone()
    }

    pub(crate) fn facts(&self, now: Instant) -> Facts {
        let known = self.known.lock();
        let state = match known.state {
            ObjectState::Pending | ObjectState::Synced | ObjectState::Absent if known.unwatched => {
                ObjectState::Unwatched
            }
            state => state,
        };
        Facts {
            state,
            version: known.version.clone(),
            age: known
                .out_of_step
                .map(|since| now.saturating_duration_since(since))
                .unwrap_or_default(),
            failure: known.failure.clone(),
        }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Ends the want; pairs with the swap of a reader, which sees `false` and asks anew, or is seen here.
    pub(crate) fn satisfy(&self) {
        self.wanted.swap(false, Ordering::AcqRel);
    }

    /// The watch goes on after an interruption.
    pub(crate) fn resumed(&self) -> Option<ChangeKind> {
        let mut known = self.known.lock();
        known.out_of_step = None;
        known.failure.take().map(|_| match known.state {
            ObjectState::Absent => ChangeKind::Deleted,
            _ => ChangeKind::Updated,
        })
    }

    /// The watch is interrupted.
    pub(crate) fn interrupted(&self, now: Instant) {
        self.known.lock().out_of_step.get_or_insert(now);
    }

    /// A request failed; returns an event when that is news.
    pub(crate) fn failed(&self, error: Arc<RequestError>, now: Instant) -> Option<ChangeKind> {
        let mut known = self.known.lock();
        if known.state == ObjectState::Removed {
            return None;
        }
        known.out_of_step.get_or_insert(now);
        let before = known.failure.replace(Arc::clone(&error));
        let news = before.is_none_or(|before| before.label() != error.label());
        news.then_some(ChangeKind::Failed(error))
    }

    /// Whether the object has a watch, for the status.
    pub(crate) fn set_watched(&self, watched: bool) {
        self.known.lock().unwatched = !watched;
    }

    /// The last reference is gone.
    fn remove(&self) {
        let mut known = self.known.lock();
        known.state = ObjectState::Removed;
        known.object = None;
        drop(known);
        self.changed.notify_waiters();
    }
}

/// What store and worker share.
#[derive(Debug)]
pub(crate) struct Shared<K> {
    pub(crate) entries: Entries<Cell<K>, Shown<K>>,
    pub(crate) changes: Publisher,
    pub(crate) metrics: Metrics,
    /// For the task of the store.
    pub(crate) commands: Commands<K>,
    /// How the objects of each namespace are watched, where that is not a matter of course.
    pub(crate) scopes: Mutex<BTreeMap<SmolStr, ScopeChoice>>,
    closed: AtomicBool,
}

/// A queue of commands. Its owner waits for `arrived` and takes them all.
#[derive(Debug)]
pub(crate) struct Commands<K> {
    queue: Mutex<Vec<Command<K>>>,
    pub(crate) arrived: Notify,
}

impl<K> Default for Commands<K> {
    fn default() -> Self {
        Self {
            queue: Mutex::default(),
            arrived: Notify::new(),
        }
    }
}

impl<K> Commands<K> {
    pub(crate) fn send(&self, command: Command<K>) {
        self.queue.lock().push(command);
        self.arrived.notify_one();
    }

    pub(crate) fn take(&self) -> Vec<Command<K>> {
        std::mem::take(&mut *self.queue.lock())
    }
}

impl<K> Shared<K> {
    /// Nothing will be published any more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }
}

impl<K: Object> Shared<K> {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Tells the worker that a reader waits, unless it knows.
    pub(crate) fn want(&self, cell: &Cell<K>) {
        if !cell.wanted.swap(true, Ordering::AcqRel) {
            self.commands.send(Command::Wanted(cell.id));
        }
    }

    /// Publishes a state; returns the event that subscribers should see.
    pub(crate) fn publish(
        &self,
        entry: &Arc<Entry<Cell<K>>>,
        finding: Finding<K>,
    ) -> Option<ChangeKind> {
        let cell = &entry.cell;
        let mut known = cell.known.lock();
        if known.state == ObjectState::Removed {
            return None;
        }
        let late = !finding.reset && finding.version.is_older_than(&known.version);
        let mut changed = known.state == ObjectState::Pending;
        // What is late was overtaken by a newer state: that one stands, as long as it is readable.
        if !late {
            let differs = known.version != finding.version;
            changed |= match (&finding.object, known.state) {
                (None, ObjectState::Absent) => false,
                // A GET does not tell at which version.
                (None, ObjectState::Synced | ObjectState::Immutable) => true,
                _ => differs,
            };
            known.state = match &finding.object {
                Some(object) if object.is_immutable() => ObjectState::Immutable,
                Some(_) => ObjectState::Synced,
                None => ObjectState::Absent,
            };
            known.version = match &finding.object {
                Some(object) => object.metadata().resource_version.clone(),
                None => finding.version,
            };
            known.object = finding.object;
        }
        if let Some(moment) = finding.proven {
            known.proven = known.proven.max(moment);
        }
        changed |= known.failure.take().is_some();
        changed |= finding.proven.is_some() && cell.missed.swap(false, Ordering::AcqRel);
        known.out_of_step = None;
        let event = match known.state {
            ObjectState::Absent => ChangeKind::Deleted,
            _ => ChangeKind::Updated,
        };
        self.show(entry, &known);
        drop(known);
        cell.changed.notify_waiters();
        changed.then_some(event)
    }

    /// The watch was stopped; nothing may be concluded from what was known, but for the version.
    pub(crate) fn idle(&self, entry: &Arc<Entry<Cell<K>>>) {
        let mut known = entry.cell.known.lock();
        if known.state != ObjectState::Removed {
            known.state = ObjectState::Idle;
            known.object = None;
            self.show(entry, &known);
        }
    }

    /// What is known has to be proven anew for every reader. Returns the moment that was proven.
    pub(crate) fn expire(&self, entry: &Arc<Entry<Cell<K>>>) -> u64 {
        let mut known = entry.cell.known.lock();
        let proven = std::mem::take(&mut known.proven);
        self.show(entry, &known);
        proven
    }

    /// What has expired stands in, for references up to that moment.
    pub(crate) fn stand_in(&self, entry: &Arc<Entry<Cell<K>>>, moment: u64) {
        let mut known = entry.cell.known.lock();
        known.proven = known.proven.max(moment);
        self.show(entry, &known);
        drop(known);
        entry.cell.changed.notify_waiters();
    }

    fn show(&self, entry: &Arc<Entry<Cell<K>>>, known: &Known<K>) {
        let shown = known.object.as_ref().map(|object| Shown {
            object: Arc::downgrade(object),
            proven: known.proven,
        });
        self.entries.show(entry, shown);
    }
}

/// The store of strategy `Watch`.
#[derive(Debug)]
pub(crate) struct WatchStore<K> {
    pub(crate) shared: Arc<Shared<K>>,
    last_id: AtomicU64,
    worker: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl<K: Object> WatchStore<K> {
    /// Starts the worker on the current runtime; it ends with the store.
    pub(crate) fn new(api: Api, config: &ManagerConfig, metrics: Metrics) -> Self {
        let shared = Arc::new(Shared {
            entries: Entries::default(),
            changes: Publisher::default(),
            metrics,
            commands: Commands::default(),
            scopes: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        let run = match config.watch_scope {
            WatchScope::Object => Worker::new(Arc::clone(&shared), api, config).run().boxed(),
            WatchScope::Namespace | WatchScope::Auto => {
                Scopes::new(Arc::clone(&shared), api, config).run().boxed()
            }
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "the one task of a store, owned by the handle that the store keeps"
        )]
        let worker = AbortOnDropHandle::new(tokio::spawn(run));
        Self {
            shared,
            last_id: AtomicU64::new(0),
            worker: Mutex::new(Some(worker)),
        }
    }

    pub(crate) fn add_reference(&self, namespace: &str, name: &str, holder: Holder) {
        let make = || Cell::new(self.last_id.fetch_add(1, Ordering::Relaxed));
        match self.shared.entries.add(namespace, name, holder, make) {
            Added::Entry(entry) if !self.shared.is_closed() => {
                self.shared.commands.send(Command::Added(entry));
            }
            Added::Holder(entry) => {
                entry.touch();
                // A new pod may have brought the right that was missing.
                if entry.cell.state() == ObjectState::Pending && entry.cell.failure().is_some() {
                    self.shared
                        .commands
                        .send(Command::Referenced(entry.cell.id));
                }
            }
            Added::Entry(_) | Added::Count => {}
        }
    }

    pub(crate) fn delete_reference(&self, namespace: &str, name: &str, holder: Holder) {
        if let Some(entry) = self.shared.entries.remove(namespace, name, holder) {
            entry.cell.remove();
            self.shared.changes.forget(&entry.key);
            self.shared.commands.send(Command::Removed(entry.cell.id));
        }
    }

    /// The object, if it can be had without waiting: the path of nearly all reads.
    pub(crate) fn get_now(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let entries = &self.shared.entries;
        entries.read(namespace, name, |shown, entry| {
            let proven = shown.proven >= entry.newest_reference();
            proven.then(|| shown.object.upgrade()).flatten()
        })
    }

    /// The object, not older than the references of `holder`, or of everybody.
    pub(crate) async fn get(
        &self,
        namespace: &str,
        name: &str,
        holder: Option<Holder>,
        within: Duration,
    ) -> Result<Arc<K>, Error> {
        let kind = K::KIND;
        let not_registered = || Error::NotRegistered {
            key: ObjectKey::new(namespace, name),
        };
        let Some(entry) = self.shared.entries.get(namespace, name) else {
            return Err(not_registered());
        };
        let required = match holder {
            Some(holder) => entry.references.lock().since(holder),
            None => Some(entry.newest_reference()),
        };
        let Some(required) = required else {
            return Err(not_registered());
        };
        let cell = &entry.cell;
        entry.touch();
        let started = Instant::now();
        let mut changed = pin!(cell.changed.notified());
        let mut waited = false;
        loop {
            changed.as_mut().enable();
            let look = cell.look(required);
            if !matches!(look, Look::Unknown) {
                if waited {
                    self.shared.metrics.waited(started.elapsed());
                } else {
                    self.shared.entries.count_hit();
                }
            }
            match look {
                Look::Object(object) => return Ok(object),
                Look::Absent => {
                    let key = entry.key.clone();
                    return Err(Error::NotFound { kind, key });
                }
                Look::Removed => return Err(not_registered()),
                Look::Unknown if self.shared.is_closed() => return Err(Error::ShutDown { kind }),
                Look::Unknown => self.shared.want(cell),
            }
            waited = true;
            let deadline = started + within;
            if timeout_at(deadline, changed.as_mut()).await.is_err() {
                cell.missed.store(true, Ordering::Release);
                self.shared.metrics.waited(within);
                return Err(Error::NotSynced {
                    kind,
                    key: entry.key.clone(),
                    waited: within,
                    source: cell.failure(),
                });
            }
            changed.set(cell.changed.notified());
        }
    }

    /// Ends the worker with all its watches; immutable objects stay readable.
    pub(crate) async fn shut_down(&self) {
        self.shared.close();
        let worker = self.worker.lock().take();
        if let Some(worker) = worker {
            self.shared.commands.send(Command::ShutDown);
            if let Err(error) = worker.await
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
        for entry in self.shared.entries.all() {
            if entry.cell.state() != ObjectState::Immutable {
                self.shared.idle(&entry);
            }
            entry.cell.changed.notify_waiters();
        }
        self.shared.changes.close();
    }
}
