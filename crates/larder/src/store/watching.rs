//! Strategy `Watch`: the store that the watch engine keeps in sync.
//!
//! Rules W1–W21 of the kubelet's watch store (1.36, `pkg/kubelet/util/manager/watch_based_manager.go`), with these
//! intentional differences: a reader is woken instead of polling every 10 ms, and gets the cause when its wait times
//! out; a pod never reads data older than its registration; registration counts as an access; the removal of an entry
//! is final.
//!
//! [`task`] owns the engine and takes its findings over; `task/scopes` decides what one watch covers.
//!
//! Invariants:
//! 1. Only the task publishes, and only into entries that are not removed (checked under the entry's lock). Stale
//!    copies are the exception: the store puts them into entries of which nothing is known.
//! 2. No lock is held across an await (I5).

mod state;
mod target;
mod task;

use std::{
    collections::{BTreeMap, HashMap},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use larder_objects::{Object, ObjectKey};
use larder_watch::{Api, ObjectId, RegistrationSeq};
use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::{
    sync::mpsc,
    time::{Duration, Instant},
};
use tokio_util::task::AbortOnDropHandle;

pub(crate) use self::state::{Finding, WatchedState};
use self::task::{Command, WatchTask};
use super::{Cell, Entries, Entry, Reference, StoreEntries as _, waiting::wait};
use crate::{
    changes::ChangeKind,
    config::ManagerConfig,
    error::{Error, ErrorKind},
    metrics::Metrics,
    status::{KnownObject, NamespaceScope, ObjectState, ScopeChoice, StaleObject},
};

/// Most objects of a kind that are watched: ten times the pods of the largest nodes, with twenty objects each. A mistake
/// in one controller must not exhaust the memory of this process or of the API server.
const MAX_OBJECTS: usize = 50_000;

/// What store and task share.
#[derive(Debug)]
pub(crate) struct WatchStoreInner<K: Object> {
    pub(crate) entries: Entries<WatchedState<K>>,
    pub(crate) metrics: Arc<dyn Metrics>,
    /// For the task of the store.
    commands: mpsc::UnboundedSender<Command<K>>,
    /// How the objects of each namespace are watched, where that was chosen.
    pub(crate) scopes: Mutex<BTreeMap<SmolStr, ScopeChoice>>,
    /// Copies that an earlier process kept, while references may be served from them.
    stale: Mutex<HashMap<ObjectKey, StaleObject<K>>>,
}

impl<K: Object> WatchStoreInner<K> {
    /// Sends the task a command. One that has ended needs none.
    fn send(&self, command: Command<K>) {
        let _ = self.commands.send(command);
    }

    /// The task has ended, perhaps by a panic: reads fail and subscribers hear the end, instead of data that goes stale
    /// unnoticed.
    fn end(&self) {
        for entry in self.entries.all() {
            entry.cell.changed.notify_waiters();
        }
        self.entries.changes.close();
    }

    /// Notes that a reader waits, and sends the task a command if it does not know.
    fn note_pending_read(&self, cell: &WatchedState<K>) {
        if !cell.read_pending.swap(true, Ordering::AcqRel) {
            self.send(Command::ReadPending(cell.id));
        }
    }

    /// The answer to a read that needs a state as fresh as `required`; if it is not known, the task has to obtain it.
    fn look(
        &self,
        entry: &Entry<WatchedState<K>>,
        required: RegistrationSeq,
    ) -> Option<Result<Arc<K>, Error>> {
        let answer = entry.cell.look(&entry.key, required);
        if answer.is_none() {
            let kind = K::TYPE;
            if self.commands.is_closed() {
                return Some(Err(ErrorKind::ShutDown { kind }.into()));
            }
            if self.entries.len() > MAX_OBJECTS && entry.cell.state() == ObjectState::Pending {
                let (key, limit) = (entry.key.clone(), MAX_OBJECTS);
                return Some(Err(ErrorKind::TooManyObjects { kind, key, limit }.into()));
            }
            self.note_pending_read(&entry.cell);
        }
        answer
    }

    /// Notifies the subscribers of news about an object. Returns whether there is any.
    fn notify(&self, entry: &Entry<WatchedState<K>>, event: Option<ChangeKind>) -> bool {
        if let Some(event) = &event {
            self.entries.changes.publish(&entry.key, event);
        }
        event.is_some()
    }

    /// Serves the entry from the copies, if nothing else is known of it.
    fn serve_copy(
        &self,
        entry: &Entry<WatchedState<K>>,
        copies: &HashMap<ObjectKey, StaleObject<K>>,
    ) {
        if let Some(copy) = copies.get(&entry.key) {
            let seq = entry.newest_reference();
            self.notify(entry, entry.cell.serve_copy(copy, seq));
        }
    }
}

/// The store of strategy `Watch`.
#[derive(Debug)]
pub(crate) struct WatchStore<K: Object> {
    pub(crate) inner: Arc<WatchStoreInner<K>>,
    last_id: AtomicU64,
    task: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl<K: Object> WatchStore<K> {
    /// Starts the task on the current runtime; it ends with the store.
    pub(crate) fn new(
        api: Api,
        config: &ManagerConfig,
        metrics: Arc<dyn Metrics>,
        random: fastrand::Rng,
    ) -> Self {
        // Unbounded, so that a registration never waits: each entry is a reference that came or went, or a read that
        // waits, and the task takes all of them at once.
        let (commands, received) = mpsc::unbounded_channel();
        let inner = Arc::new(WatchStoreInner {
            entries: Entries::default(),
            metrics,
            commands,
            scopes: Mutex::default(),
            stale: Mutex::default(),
        });
        let task = WatchTask::new(Arc::clone(&inner), received, api, config, random);
        #[expect(
            clippy::disallowed_methods,
            reason = "the one task of a store, owned by the handle that the store keeps"
        )]
        let task = AbortOnDropHandle::new(tokio::spawn(task.run()));
        Self {
            inner,
            last_id: AtomicU64::new(0),
            task: Mutex::new(Some(task)),
        }
    }

    pub(crate) fn add_reference(&self, namespace: &str, name: &str) -> Reference<K> {
        let make = || WatchedState::new(ObjectId(self.last_id.fetch_add(1, Ordering::Relaxed)));
        let added = self.inner.entries.add(namespace, name, make);
        let entry = &added.entry;
        let serve_copy = || self.inner.serve_copy(entry, &self.inner.stale.lock());
        if added.is_first {
            serve_copy();
            self.inner.send(Command::Added(Arc::clone(entry)));
        } else if entry.cell.touch() {
            serve_copy();
            // A new pod may have brought the permission that was missing.
            if entry.cell.state() == ObjectState::Pending && entry.cell.failure().is_some() {
                self.inner.send(Command::Referenced(entry.cell.id));
            }
        }
        added.reference()
    }

    pub(crate) fn drop_reference(&self, entry: &Entry<dyn Cell<Object = K>>) {
        if let Some(entry) = self.inner.entries.remove(entry) {
            self.inner.send(Command::Removed(entry.cell.id));
        }
    }

    /// Serves these copies to what is referenced now and later, and no others from now on.
    pub(crate) fn serve_stale(&self, copies: HashMap<ObjectKey, StaleObject<K>>) {
        for entry in self.inner.entries.all() {
            self.inner.serve_copy(&entry, &copies);
        }
        *self.inner.stale.lock() = copies;
    }

    /// When the copy that reads get was made.
    pub(crate) fn stale_as_of(&self, namespace: &str, name: &str) -> Option<Timestamp> {
        let entry = self.inner.entries.get(namespace, name)?;
        entry.cell.stale_as_of()
    }

    /// What is known of every object, in no order.
    pub(crate) fn known(&self, now: Instant) -> Vec<KnownObject<K>> {
        let entries = self.inner.entries.all().into_iter();
        entries
            .map(|entry| entry.cell.known(&entry.key, now))
            .collect()
    }

    /// What was chosen for each namespace, sorted.
    pub(crate) fn scopes(&self) -> Vec<NamespaceScope> {
        let scopes = self.inner.scopes.lock();
        let scope = |(namespace, choice): (&SmolStr, &ScopeChoice)| NamespaceScope {
            namespace: namespace.clone(),
            choice: choice.clone(),
        };
        scopes.iter().map(scope).collect()
    }

    /// The object, as fresh as a reference that began with `required`, or as the newest one.
    pub(crate) async fn get(
        &self,
        namespace: &str,
        name: &str,
        required: Option<RegistrationSeq>,
        within: Duration,
    ) -> Result<Arc<K>, Error> {
        let entry = self.inner.entries.require(namespace, name)?;
        let required = required.unwrap_or_else(|| entry.newest_reference());
        entry.cell.touch();
        let cell = &entry.cell;
        let mut changed = pin!(cell.changed.notified());
        changed.as_mut().enable();
        if let Some(answer) = self.inner.look(&entry, required) {
            cell.count_hit();
            return answer;
        }
        let answer = async {
            loop {
                changed.as_mut().await;
                changed.set(cell.changed.notified());
                changed.as_mut().enable();
                if let Some(answer) = self.inner.look(&entry, required) {
                    return answer;
                }
            }
        };
        let failure = || {
            cell.missed.store(true, Ordering::Release);
            cell.failure()
        };
        wait(&entry.key, within, &*self.inner.metrics, answer, failure).await
    }

    /// Ends the task with all its watches; immutable objects stay readable.
    pub(crate) async fn shut_down(&self) {
        let task = self.task.lock().take();
        if let Some(task) = task {
            self.inner.send(Command::ShutDown);
            if let Err(error) = task.await
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
        for entry in self.inner.entries.all() {
            entry.cell.idle();
        }
        self.inner.end();
    }
}
