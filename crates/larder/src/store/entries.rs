//! The referenced objects of a store.
//!
//! Invariants:
//! 1. An entry exists exactly while something refers to its object. A removed entry never comes back: the next
//!    reference makes another one (I2).
//! 2. Only the registration layer adds and removes, one call at a time, under its lock; reading takes no lock.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use larder_objects::{ObjectKey, ResourceVersion};
use papaya::Equivalent;
use parking_lot::Mutex;

use crate::{
    api::Named,
    error::RequestError,
    registration::{Holder, PodIdentity, References},
    status::{ObjectState, ObjectStatus},
};

type HashState = foldhash::fast::RandomState;

/// One referenced object. In this order, so that a read finds what it needs on one cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry<C> {
    /// The moment of the newest reference: whoever holds it must not see older data.
    newest: AtomicU64,
    /// Reads that were answered without waiting.
    reads: AtomicU64,
    /// What the store knows about it.
    pub(crate) cell: C,
    /// Its name.
    pub(crate) key: ObjectKey,
    /// Who refers to it.
    pub(crate) references: Mutex<References>,
}

impl<C> Entry<C> {
    /// The moment of the newest reference.
    pub(crate) fn newest_reference(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Counts a read that was answered without waiting.
    pub(crate) fn count_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// How many have been counted.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl<C: Send + Sync> Named for Entry<C> {
    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// The referenced objects by name.
#[derive(Debug)]
pub(crate) struct Entries<C> {
    by_name: papaya::HashMap<ObjectKey, Arc<Entry<C>>, HashState>,
    moments: AtomicU64,
    /// Reads of objects that are no longer referenced.
    past_reads: AtomicU64,
}

impl<C> Default for Entries<C> {
    fn default() -> Self {
        Self {
            by_name: papaya::HashMap::default(),
            moments: AtomicU64::new(0),
            past_reads: AtomicU64::new(0),
        }
    }
}

/// What [`Entries::add`] did.
#[derive(Debug)]
pub(crate) enum Added<C> {
    /// The object had no reference before.
    Entry(Arc<Entry<C>>),
    /// It has one holder more.
    Holder(Arc<Entry<C>>),
    /// The holder had one before.
    Count,
}

impl<C> Entries<C> {
    /// The entry of an object, if something refers to it.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<Entry<C>>> {
        self.with(namespace, name, Arc::clone)
    }

    /// Looks at the entry of an object, if something refers to it.
    pub(crate) fn with<T>(
        &self,
        namespace: &str,
        name: &str,
        look: impl FnOnce(&Arc<Entry<C>>) -> T,
    ) -> Option<T> {
        let guard = self.by_name.guard();
        let key = KeyRef { namespace, name };
        Some(look(self.by_name.get(&key, &guard)?))
    }

    /// All entries, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<Entry<C>>> {
        self.by_name.pin().values().cloned().collect()
    }

    /// How many objects are referenced.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Reads that were answered without waiting, ever.
    pub(crate) fn reads(&self) -> u64 {
        let present: u64 = self.all().iter().map(|entry| entry.reads()).sum();
        self.past_reads.load(Ordering::Relaxed) + present
    }

    /// The moment of the last reference so far; a request that starts now proves everything up to it.
    pub(crate) fn now(&self) -> u64 {
        self.moments.load(Ordering::Acquire)
    }

    /// Adds a reference of `holder`; `make` makes the cell of an object that had none.
    pub(crate) fn add(
        &self,
        namespace: &str,
        name: &str,
        holder: Holder,
        make: impl FnOnce() -> C,
    ) -> Added<C> {
        let moment = || self.moments.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(entry) = self.get(namespace, name) {
            let mut references = entry.references.lock();
            let moment = moment();
            if !references.add(holder, moment) {
                return Added::Count;
            }
            entry.newest.store(moment, Ordering::Release);
            drop(references);
            return Added::Holder(entry);
        }
        let moment = moment();
        let mut references = References::default();
        references.add(holder, moment);
        let key = ObjectKey::new(namespace, name);
        let entry = Arc::new(Entry {
            newest: AtomicU64::new(moment),
            reads: AtomicU64::new(0),
            cell: make(),
            key: key.clone(),
            references: Mutex::new(references),
        });
        self.by_name.pin().insert(key, Arc::clone(&entry));
        Added::Entry(entry)
    }

    /// Drops a reference of `holder`; the entry if it was the object's last one.
    pub(crate) fn remove(
        &self,
        namespace: &str,
        name: &str,
        holder: Holder,
    ) -> Option<Arc<Entry<C>>> {
        let entry = self.get(namespace, name)?;
        let mut references = entry.references.lock();
        references.remove(holder);
        if !references.is_empty() {
            return None;
        }
        drop(references);
        self.by_name.pin().remove(&entry.key);
        self.past_reads.fetch_add(entry.reads(), Ordering::Relaxed);
        Some(entry)
    }
}

/// What a store knows about one object, for its status.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) state: ObjectState,
    pub(crate) version: ResourceVersion,
    pub(crate) age: Duration,
    pub(crate) failure: Option<Arc<RequestError>>,
}

impl<C> Entries<C> {
    /// The status of every object, in no order.
    pub(crate) fn status(
        &self,
        pods: &HashMap<Holder, PodIdentity>,
        facts: impl Fn(&C) -> Facts,
    ) -> Vec<ObjectStatus> {
        let status = |entry: Arc<Entry<C>>| {
            let holders: Vec<_> = entry.references.lock().holders().collect();
            let mut pods: Vec<_> = holders
                .iter()
                .filter_map(|holder| pods.get(holder).cloned())
                .collect();
            pods.sort_unstable();
            let Facts {
                state,
                version,
                age,
                failure,
            } = facts(&entry.cell);
            ObjectStatus {
                key: entry.key.clone(),
                state,
                version,
                age,
                failure,
                references: holders.len(),
                pods,
            }
        };
        self.all().into_iter().map(status).collect()
    }
}

/// An [`ObjectKey`] to look up, without owning its parts.
struct KeyRef<'a> {
    namespace: &'a str,
    name: &'a str,
}

/// As the derived one of [`ObjectKey`].
impl Hash for KeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.namespace.hash(state);
        self.name.hash(state);
    }
}

impl Equivalent<ObjectKey> for KeyRef<'_> {
    fn equivalent(&self, key: &ObjectKey) -> bool {
        key.name == self.name && key.namespace == self.namespace
    }
}
