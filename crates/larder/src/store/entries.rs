//! The referenced objects of a store, and what a read may take of each without waiting.
//!
//! Invariants:
//! 1. An entry exists exactly while something refers to its object. A removed entry never comes back: the next
//!    reference makes another one (I2).
//! 2. Only the registration layer adds and removes, one call at a time, under its lock; reading takes no lock.
//! 3. What is shown of an entry is replaced as a whole, by one thread at a time, and never once the entry is removed.

mod references;

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use larder_objects::{ObjectKey, ResourceVersion};
use papaya::{Equivalent, Operation};
use parking_lot::Mutex;

use self::references::References;
use crate::{
    api::Named,
    error::{Error, RequestError},
    metrics::Tally,
    registration::{Holder, PodIdentity},
    status::{ObjectState, ObjectStatus},
};

type HashState = foldhash::fast::RandomState;

/// One referenced object. In this order, so that a read finds what it needs on one cache line.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry<C> {
    /// The moment of the newest reference: whoever holds it must not see older data.
    newest: AtomicU64,
    /// Somebody had to do with it since the store looked last: a reader, a new reference.
    accessed: AtomicBool,
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

    /// Notes an access. Looks before it writes, so that readers on several processors do not fight over the cache line.
    pub(crate) fn touch(&self) {
        if !self.accessed.load(Ordering::Relaxed) {
            self.accessed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there was an access since the last call.
    pub(crate) fn take_accessed(&self) -> bool {
        self.accessed.swap(false, Ordering::Relaxed)
    }
}

impl<C: Send + Sync> Named for Entry<C> {
    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// The referenced objects by name. `S` is what the store shows of an object; it must hold the object weakly, since the
/// map lets go of what was replaced only after a while, and the bytes of a Secret shall be gone with its last reader.
#[derive(Debug)]
pub(crate) struct Entries<C, S = ()> {
    by_name: papaya::HashMap<ObjectKey, Indexed<C, S>, HashState>,
    moments: AtomicU64,
    /// Reads that were answered without waiting.
    hits: Tally,
}

#[derive(Debug)]
struct Indexed<C, S> {
    shown: Option<S>,
    entry: Arc<Entry<C>>,
}

impl<C, S> Default for Entries<C, S> {
    fn default() -> Self {
        Self {
            by_name: papaya::HashMap::default(),
            moments: AtomicU64::new(0),
            hits: Tally::default(),
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

impl<C, S> Entries<C, S> {
    /// The entry of an object, if something refers to it.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<Entry<C>>> {
        self.with(namespace, name, Arc::clone)
    }

    /// The entry of an object, and the moment that a read must have proven: that of `holder`'s reference, or of the newest.
    ///
    /// # Errors
    ///
    /// `NotRegistered`: nothing refers to the object, or `holder` does not.
    pub(crate) fn require(
        &self,
        namespace: &str,
        name: &str,
        holder: Option<Holder>,
    ) -> Result<(Arc<Entry<C>>, u64), Error> {
        let found = self.get(namespace, name).and_then(|entry| {
            let required = match holder {
                Some(holder) => entry.references.lock().since(holder)?,
                None => entry.newest_reference(),
            };
            Some((entry, required))
        });
        found.ok_or_else(|| Error::NotRegistered {
            key: ObjectKey::new(namespace, name),
        })
    }

    /// Looks at the entry of an object, if something refers to it.
    pub(crate) fn with<T>(
        &self,
        namespace: &str,
        name: &str,
        look: impl FnOnce(&Arc<Entry<C>>) -> T,
    ) -> Option<T> {
        let entries = self.by_name.pin();
        let indexed = entries.get(&KeyRef { namespace, name })?;
        Some(look(&indexed.entry))
    }

    /// What `take` makes of what is shown of an object, counted if it is something: the path of nearly all reads.
    #[inline]
    pub(crate) fn read<T>(
        &self,
        namespace: &str,
        name: &str,
        take: impl FnOnce(&S, &Entry<C>) -> Option<T>,
    ) -> Option<T> {
        let guard = self.by_name.guard();
        let indexed = self.by_name.get(&KeyRef { namespace, name }, &guard)?;
        let taken = take(indexed.shown.as_ref()?, &indexed.entry)?;
        indexed.entry.touch();
        self.count_hit();
        Some(taken)
    }

    /// Counts a read that was answered without waiting.
    pub(crate) fn count_hit(&self) {
        self.hits.count();
    }

    /// How many have been counted.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.sum()
    }

    /// All entries, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<Entry<C>>> {
        let entries = self.by_name.pin();
        entries
            .values()
            .map(|indexed| Arc::clone(&indexed.entry))
            .collect()
    }

    /// How many objects are referenced.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
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
        let entries = self.by_name.pin();
        if let Some(Indexed { entry, .. }) = entries.get(&KeyRef { namespace, name }) {
            let mut references = entry.references.lock();
            let moment = moment();
            if !references.add(holder, moment) {
                return Added::Count;
            }
            entry.newest.store(moment, Ordering::Release);
            drop(references);
            return Added::Holder(Arc::clone(entry));
        }
        let moment = moment();
        let mut references = References::default();
        references.add(holder, moment);
        let key = ObjectKey::new(namespace, name);
        let entry = Arc::new(Entry {
            newest: AtomicU64::new(moment),
            accessed: AtomicBool::new(false),
            cell: make(),
            key: key.clone(),
            references: Mutex::new(references),
        });
        let indexed = Indexed {
            shown: None,
            entry: Arc::clone(&entry),
        };
        entries.insert(key, indexed);
        Added::Entry(entry)
    }

    /// Drops a reference of `holder`; the entry if it was the object's last one.
    pub(crate) fn remove(
        &self,
        namespace: &str,
        name: &str,
        holder: Holder,
    ) -> Option<Arc<Entry<C>>> {
        let entries = self.by_name.pin();
        let Indexed { entry, .. } = entries.get(&KeyRef { namespace, name })?;
        let mut references = entry.references.lock();
        references.remove(holder);
        if !references.is_empty() {
            return None;
        }
        drop(references);
        entries.remove(&entry.key);
        Some(Arc::clone(entry))
    }
}

impl<C, S: Clone> Entries<C, S> {
    /// Shows `shown` from now on, unless the entry is removed.
    pub(crate) fn show(&self, entry: &Arc<Entry<C>>, shown: Option<S>) {
        let entries = self.by_name.pin();
        entries.compute(entry.key.clone(), |indexed| match indexed {
            Some((_, indexed)) if Arc::ptr_eq(&indexed.entry, entry) => {
                Operation::Insert(Indexed {
                    shown: shown.clone(),
                    entry: Arc::clone(entry),
                })
            }
            _ => Operation::Abort(()),
        });
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

impl<C, S> Entries<C, S> {
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
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.namespace.hash(state);
        self.name.hash(state);
    }
}

impl Equivalent<ObjectKey> for KeyRef<'_> {
    #[inline]
    fn equivalent(&self, key: &ObjectKey) -> bool {
        key.name == self.name && key.namespace == self.namespace
    }
}
