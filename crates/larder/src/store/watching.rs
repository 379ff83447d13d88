//! Strategy `Watch`: the store that the watch engine keeps in step.
//!
//! Rules W1–W21 of the kubelet's watch store (1.36, `pkg/kubelet/util/manager/watch_based_manager.go`), with these
//! differences on purpose: a reader is woken instead of polling every 10 ms, and told the cause when it gave up waiting; a
//! pod never reads data older than its registration; registration counts as an access; the removal of an entry is final.
//!
//! Invariants:
//! 1. Only the worker publishes, and only into cells that are not removed (checked under the cell's lock).
//! 2. Before the cell's lock is released, what reads have kept of an object that is known better now is outdated (I3).
//! 3. No lock is held across an await (I5).

mod cell;

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures::FutureExt as _;
use larder_objects::Object;
use larder_watch::Api;
use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::time::Duration;
use tokio_util::task::AbortOnDropHandle;

pub(crate) use self::cell::{Cell, Finding};
use super::{Entries, Entry, entries::Added, waiting::wait};
use crate::{
    changes::{ChangeKind, Publisher},
    config::{ManagerConfig, WatchScope},
    error::Error,
    metrics::Metrics,
    registration::Holder,
    status::{ObjectState, ScopeChoice},
    watch::{Command, Commands, Scopes, Worker},
};

/// What store and worker share.
#[derive(Debug)]
pub(crate) struct Shared<K: Object> {
    pub(crate) entries: Entries<Cell<K>, Weak<K>>,
    pub(crate) changes: Publisher,
    pub(crate) metrics: Metrics,
    /// For the task of the store.
    pub(crate) commands: Commands<K>,
    /// How the objects of each namespace are watched, where that is not a matter of course.
    pub(crate) scopes: Mutex<BTreeMap<SmolStr, ScopeChoice>>,
    closed: AtomicBool,
}

impl<K: Object> Shared<K> {
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

    /// What a reader gets who needs a proof of `required`; if it is not known, the worker is told.
    fn look(&self, entry: &Entry<Cell<K>>, required: u64) -> Option<Result<Arc<K>, Error>> {
        let answer = entry.cell.look(&entry.key, required);
        if answer.is_none() {
            if self.is_closed() {
                return Some(Err(Error::ShutDown { kind: K::KIND }));
            }
            self.want(&entry.cell);
        }
        answer
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
        let proves = finding.proven.is_some();
        let mut changed = known.take(finding);
        changed |= proves && cell.missed.swap(false, Ordering::AcqRel);
        let event = known.event();
        self.entries.changed();
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
            self.entries.changed();
        }
    }

    /// What is known has to be proven anew for every reader. Returns the moment that was proven.
    pub(crate) fn expire(&self, entry: &Arc<Entry<Cell<K>>>) -> u64 {
        let mut known = entry.cell.known.lock();
        self.entries.changed();
        std::mem::take(&mut known.proven)
    }
}

/// Held by the store's task. Closes the store when the task ends, even by a panic: reads fail and subscribers hear the end,
/// instead of data that goes stale unnoticed.
struct CloseOnEnd<K: Object>(Arc<Shared<K>>);

impl<K: Object> Drop for CloseOnEnd<K> {
    fn drop(&mut self) {
        self.0.close();
        for entry in self.0.entries.all() {
            entry.cell.changed.notify_waiters();
        }
        self.0.changes.close();
    }
}

/// The store of strategy `Watch`.
#[derive(Debug)]
pub(crate) struct WatchStore<K: Object> {
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
        let on_end = CloseOnEnd(Arc::clone(&shared));
        let run = async move {
            let _on_end = on_end;
            run.await;
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
        let look = |entry: &Entry<Cell<K>>| entry.cell.readable(entry.newest_reference());
        let entries = &self.shared.entries;
        entries.read(namespace, name, look, Weak::upgrade)
    }

    /// The object, not older than the references of `holder`, or of everybody.
    pub(crate) async fn get(
        &self,
        namespace: &str,
        name: &str,
        holder: Option<Holder>,
        within: Duration,
    ) -> Result<Arc<K>, Error> {
        let (entry, required) = self.shared.entries.require(namespace, name, holder)?;
        entry.touch();
        let cell = &entry.cell;
        let mut changed = pin!(cell.changed.notified());
        changed.as_mut().enable();
        if let Some(answer) = self.shared.look(&entry, required) {
            self.shared.entries.count_hit();
            return answer;
        }
        let answer = async {
            loop {
                changed.as_mut().await;
                changed.set(cell.changed.notified());
                changed.as_mut().enable();
                if let Some(answer) = self.shared.look(&entry, required) {
                    return answer;
                }
            }
        };
        let failure = || {
            cell.missed.store(true, Ordering::Release);
            cell.failure()
        };
        wait(&entry.key, within, &self.shared.metrics, answer, failure).await
    }

    /// Ends the worker with all its watches; immutable objects stay readable.
    pub(crate) async fn shut_down(&self) {
        self.shared.close();
        let worker = self.worker.lock().take();
        if let Some(worker) = worker {
            self.shared.commands.close();
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
