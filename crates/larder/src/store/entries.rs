//! The referenced objects of a store, the references on them, and the path of nearly all reads.
//!
//! Invariants:
//! 1. An entry exists exactly while its object is referenced. A removed entry never comes back: the next reference
//!    creates another one (I2).
//! 2. Only the registration layer adds and removes, one call at a time, under its lock.
//! 3. A read of a known object locks the cell of that object, for some nanoseconds, and nothing else if it holds the
//!    [`Reference`]; a read by name shares the lock of the map.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use larder_objects::{ObjectKey, ObjectKeyRef, PodIdentity, ResourceVersion};
use larder_watch::{Proof, RegistrationSeq, SeqCounter};
use parking_lot::RwLock;
use tokio::time::Instant;

use crate::{
    changes::Publisher,
    error::{Error, ErrorKind},
    status::{ObjectState, ObjectStatus},
};

/// What a store knows about one object.
pub(crate) trait Cell: fmt::Debug + Send + Sync + 'static {
    /// The object's type.
    type Object;

    /// The object, if it can be had without waiting by a reference that began with `required`. Counts as an access and
    /// as a hit.
    fn read_now(&self, _required: RegistrationSeq) -> Option<Arc<Self::Object>> {
        None
    }

    /// When the copy that reads return was made.
    fn stale_as_of(&self) -> Option<Timestamp> {
        None
    }

    /// How many reads were answered without waiting.
    fn hits(&self) -> u64 {
        0
    }

    /// Sets what the store knows in `status`.
    fn describe(&self, _status: &mut ObjectStatus, _now: Instant) {}

    /// The last reference is gone: no read gets anything from now on.
    fn remove(&self) {}
}

/// One referenced object.
#[derive(Debug)]
pub(crate) struct Entry<C: ?Sized> {
    /// Its name.
    pub(crate) key: ObjectKey,
    /// The newest registration that refers to the object: its pod must not see older data.
    newest: SeqCounter,
    references: AtomicUsize,
    /// What the store knows about it.
    pub(crate) cell: C,
}

impl<C: ?Sized> Entry<C> {
    /// The newest registration that refers to the object.
    pub(crate) fn newest_reference(&self) -> RegistrationSeq {
        self.newest.current()
    }
}

/// One pod's claim on one object.
#[derive(Debug)]
pub(crate) struct Reference<K> {
    pub(crate) entry: Arc<Entry<dyn Cell<Object = K>>>,
    /// The registration that it began with.
    pub(crate) since: RegistrationSeq,
}

impl<K> Clone for Reference<K> {
    fn clone(&self) -> Self {
        Self {
            entry: Arc::clone(&self.entry),
            since: self.since,
        }
    }
}

impl<K: 'static> Reference<K> {
    /// The object, if it can be had without waiting.
    #[inline]
    pub(crate) fn read_now(&self) -> Option<Arc<K>> {
        self.entry.cell.read_now(self.since)
    }
}

/// The referenced objects by name.
#[derive(Debug)]
pub(crate) struct Entries<C> {
    by_name: RwLock<hashbrown::HashMap<ObjectKey, Arc<Entry<C>>, foldhash::fast::RandomState>>,
    /// The counter of registrations.
    pub(crate) seqs: Arc<SeqCounter>,
    /// The subscriptions to changes of the objects.
    pub(crate) changes: Publisher,
    /// The hits of removed entries. Changes under the lock of the map, so that no sum misses any.
    past_hits: AtomicU64,
}

impl<C> Default for Entries<C> {
    fn default() -> Self {
        Self {
            by_name: RwLock::default(),
            seqs: Arc::default(),
            changes: Publisher::default(),
            past_hits: AtomicU64::new(0),
        }
    }
}

/// What [`Entries::add`] did.
#[derive(Debug)]
pub(crate) struct Added<C> {
    pub(crate) entry: Arc<Entry<C>>,
    pub(crate) since: RegistrationSeq,
    /// The object had no reference before.
    pub(crate) is_first: bool,
}

impl<C: Cell> Added<C> {
    pub(crate) fn reference(self) -> Reference<C::Object> {
        Reference {
            entry: self.entry,
            since: self.since,
        }
    }
}

impl<C: Cell> Entries<C> {
    /// The entry of an object, if something refers to it.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<Entry<C>>> {
        self.by_name
            .read()
            .get(&ObjectKeyRef { namespace, name })
            .cloned()
    }

    /// The entry of an object.
    ///
    /// # Errors
    ///
    /// `NotRegistered`: nothing refers to the object.
    pub(crate) fn require(&self, namespace: &str, name: &str) -> Result<Arc<Entry<C>>, Error> {
        self.get(namespace, name).ok_or_else(|| {
            let key = ObjectKey::new(namespace, name);
            ErrorKind::NotRegistered { key }.into()
        })
    }

    /// All entries, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<Entry<C>>> {
        self.by_name.read().values().cloned().collect()
    }

    /// Adds a reference; `make` makes the cell of an object that had none.
    pub(crate) fn add(&self, namespace: &str, name: &str, make: impl FnOnce() -> C) -> Added<C> {
        let since = self.seqs.advance();
        if let Some(entry) = self.get(namespace, name) {
            entry.references.fetch_add(1, Ordering::Relaxed);
            entry.newest.set(since);
            return Added {
                entry,
                since,
                is_first: false,
            };
        }
        let entry = Arc::new(Entry {
            key: ObjectKey::new(namespace, name),
            newest: SeqCounter::new(since),
            references: AtomicUsize::new(1),
            cell: make(),
        });
        let key = entry.key.clone();
        let before = self.by_name.write().insert(key, Arc::clone(&entry));
        debug_assert!(before.is_none(), "one registration at a time");
        Added {
            entry,
            since,
            is_first: true,
        }
    }

    /// Drops a reference on `entry`, which is one of these; returns it if that was the last one.
    pub(crate) fn remove(
        &self,
        entry: &Entry<dyn Cell<Object = C::Object>>,
    ) -> Option<Arc<Entry<C>>> {
        if entry.references.fetch_sub(1, Ordering::Relaxed) > 1 {
            return None;
        }
        let mut by_name = self.by_name.write();
        let removed = by_name.remove(&entry.key)?;
        removed.cell.remove();
        let hits = removed.cell.hits();
        self.past_hits.fetch_add(hits, Ordering::Relaxed);
        drop(by_name);
        self.changes.forget(&entry.key);
        Some(removed)
    }
}

/// What a manager asks of the entries of any store.
pub(crate) trait StoreEntries<K>: Sync {
    /// Where changes are published.
    fn changes(&self) -> &Publisher;

    /// The object, if it can be had without waiting by its newest reference.
    fn read_now(&self, namespace: &str, name: &str) -> Option<Arc<K>>;

    /// How many reads were answered without waiting.
    #[cfg(feature = "metrics")]
    fn hits(&self) -> u64;

    /// How many objects are referenced.
    fn len(&self) -> usize;

    /// The status of every object, in no order, with the pods that refer to it.
    fn status(&self, pods: HashMap<ObjectKey, Vec<PodIdentity>>, now: Instant)
    -> Vec<ObjectStatus>;
}

impl<C: Cell> StoreEntries<C::Object> for Entries<C> {
    fn changes(&self) -> &Publisher {
        &self.changes
    }

    fn read_now(&self, namespace: &str, name: &str) -> Option<Arc<C::Object>> {
        let by_name = self.by_name.read();
        let entry = by_name.get(&ObjectKeyRef { namespace, name })?;
        entry.cell.read_now(entry.newest_reference())
    }

    #[cfg(feature = "metrics")]
    fn hits(&self) -> u64 {
        let by_name = self.by_name.read();
        let hits = by_name.values().map(|entry| entry.cell.hits());
        hits.sum::<u64>() + self.past_hits.load(Ordering::Relaxed)
    }

    fn len(&self) -> usize {
        self.by_name.read().len()
    }

    fn status(
        &self,
        mut pods: HashMap<ObjectKey, Vec<PodIdentity>>,
        now: Instant,
    ) -> Vec<ObjectStatus> {
        let status = |entry: Arc<Entry<C>>| {
            let mut pods = pods.remove(&entry.key).unwrap_or_default();
            pods.sort_unstable();
            let mut status = ObjectStatus {
                key: entry.key.clone(),
                state: ObjectState::Pending,
                version: ResourceVersion::default(),
                proof: Proof::At(now),
                age: Duration::ZERO,
                failure: None,
                references: entry.references.load(Ordering::Relaxed),
                pods,
            };
            entry.cell.describe(&mut status, now);
            status
        };
        self.all().into_iter().map(status).collect()
    }
}
