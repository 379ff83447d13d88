//! The referenced objects of a store, and what reads of each may have without waiting.
//!
//! Invariants:
//! 1. An entry exists exactly while something refers to its object. A removed entry never comes back: the next
//!    reference makes another one (I2).
//! 2. Only the registration layer adds and removes, one call at a time, under its lock.
//! 3. A read that finds what it read before takes no lock; see [`readers`].

mod readers;
mod references;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use hashbrown::Equivalent;
use larder_objects::ObjectKey;
use larder_watch::{RegistrationSeq, SeqCounter, SharedSeq};
use parking_lot::{Mutex, RwLock};

use self::{readers::Readers, references::References};
use crate::{
    error::{Error, ErrorKind},
    registration::{Holder, PodIdentity},
    status::ObjectStatus,
};

type HashState = foldhash::fast::RandomState;

/// One referenced object.
#[derive(Debug)]
pub(crate) struct Entry<C> {
    /// The newest registration that refers to the object: its pod must not see older data.
    newest: SharedSeq,
    /// There was a read or a new reference since the store looked last.
    accessed: AtomicBool,
    /// What the store knows about it.
    pub(crate) cell: C,
    /// Its name.
    pub(crate) key: ObjectKey,
    /// The holders that refer to it.
    pub(crate) references: Mutex<References>,
}

impl<C> Entry<C> {
    /// The newest registration that refers to the object.
    pub(crate) fn newest_reference(&self) -> RegistrationSeq {
        self.newest.load()
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

/// The referenced objects by name. `S` is what a read keeps of an object that it may have.
#[derive(Debug)]
pub(crate) struct Entries<C, S: Send = ()> {
    by_name: RwLock<hashbrown::HashMap<ObjectKey, Arc<Entry<C>>, HashState>>,
    seqs: Arc<SeqCounter>,
    readers: Readers<S>,
}

impl<C, S: Send> Default for Entries<C, S> {
    fn default() -> Self {
        Self {
            by_name: RwLock::default(),
            seqs: Arc::default(),
            readers: Readers::default(),
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

impl<C, S: Send> Entries<C, S> {
    /// The entry of an object, if something refers to it.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<Entry<C>>> {
        self.by_name
            .read()
            .get(&KeyRef { namespace, name })
            .cloned()
    }

    /// The entry of an object, and how fresh its state must be for a read: as `holder`'s registration, or as the
    /// newest.
    ///
    /// # Errors
    ///
    /// `NotRegistered`: nothing refers to the object, or `holder` does not.
    pub(crate) fn require(
        &self,
        namespace: &str,
        name: &str,
        holder: Option<Holder>,
    ) -> Result<(Arc<Entry<C>>, RegistrationSeq), Error> {
        let found = self.get(namespace, name).and_then(|entry| {
            let required = match holder {
                Some(holder) => entry.references.lock().since(holder)?,
                None => entry.newest_reference(),
            };
            Some((entry, required))
        });
        found.ok_or_else(|| {
            let key = ObjectKey::new(namespace, name);
            ErrorKind::NotRegistered { key }.into()
        })
    }

    /// What `take` makes of what `look` finds: the path of nearly all reads. What was found is kept, and found again
    /// without looking, until something [changes](Self::changed).
    #[inline]
    pub(crate) fn read<T>(
        &self,
        namespace: &str,
        name: &str,
        look: impl FnOnce(&Entry<C>) -> Option<S>,
        take: impl Fn(&S) -> Option<T>,
    ) -> Option<T> {
        self.readers.read(&KeyRef { namespace, name }, take, || {
            let entry = self.get(namespace, name)?;
            let found = look(&entry)?;
            entry.touch();
            Some((entry.key.clone(), found))
        })
    }

    /// Makes every read look its object up again, because what it kept may be outdated, or to notice which objects are
    /// still read. Call this before the change is published, and before the lock under which reads look is released.
    pub(crate) fn changed(&self) {
        self.readers.changed();
    }

    /// Counts a read that was answered without waiting, but not by [`read`](Self::read).
    pub(crate) fn count_hit(&self) {
        self.readers.count_hit();
    }

    /// How many reads were answered without waiting.
    #[cfg(feature = "metrics")]
    pub(crate) fn hits(&self) -> u64 {
        self.readers.hits.sum()
    }

    /// All entries, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<Entry<C>>> {
        self.by_name.read().values().cloned().collect()
    }

    /// How many objects are referenced.
    pub(crate) fn len(&self) -> usize {
        self.by_name.read().len()
    }

    /// The newest registration so far; a request that is sent now is as fresh.
    pub(crate) fn current_seq(&self) -> RegistrationSeq {
        self.seqs.current()
    }

    /// The counter of registrations.
    pub(crate) fn seqs(&self) -> &Arc<SeqCounter> {
        &self.seqs
    }

    /// Adds a reference of `holder`; `make` makes the cell of an object that had none.
    pub(crate) fn add(
        &self,
        namespace: &str,
        name: &str,
        holder: Holder,
        make: impl FnOnce() -> C,
    ) -> Added<C> {
        if let Some(entry) = self.by_name.read().get(&KeyRef { namespace, name }) {
            let mut references = entry.references.lock();
            let seq = self.seqs.advance();
            if !references.add(holder, seq) {
                return Added::Count;
            }
            entry.newest.store(seq);
            self.changed();
            drop(references);
            return Added::Holder(Arc::clone(entry));
        }
        let seq = self.seqs.advance();
        let mut references = References::default();
        references.add(holder, seq);
        let entry = Arc::new(Entry {
            newest: SharedSeq::new(seq),
            accessed: AtomicBool::new(false),
            cell: make(),
            key: ObjectKey::new(namespace, name),
            references: Mutex::new(references),
        });
        let key = entry.key.clone();
        let before = self.by_name.write().insert(key, Arc::clone(&entry));
        debug_assert!(before.is_none(), "one registration at a time");
        Added::Entry(entry)
    }

    /// Drops a reference of `holder`; the entry if it was the object's last one.
    pub(crate) fn remove(
        &self,
        namespace: &str,
        name: &str,
        holder: Holder,
    ) -> Option<Arc<Entry<C>>> {
        let key = KeyRef { namespace, name };
        {
            let entries = self.by_name.read();
            let mut references = entries.get(&key)?.references.lock();
            references.remove(holder);
            if !references.is_empty() {
                return None;
            }
        }
        let entry = self.by_name.write().remove(&key)?;
        self.changed();
        Some(entry)
    }
}

impl<C, S: Send> Entries<C, S> {
    /// The status of every object, in no order. `known` sets what the store knows about one.
    pub(crate) fn status(
        &self,
        pods: &HashMap<Holder, PodIdentity>,
        known: impl Fn(&C, &mut ObjectStatus),
    ) -> Vec<ObjectStatus> {
        let status = |entry: Arc<Entry<C>>| {
            let holders: Vec<_> = entry.references.lock().holders().collect();
            let pods = holders.iter().filter_map(|holder| pods.get(holder));
            let mut status = ObjectStatus::unknown(entry.key.clone());
            status.references = holders.len();
            status.pods = pods.cloned().collect();
            status.pods.sort_unstable();
            known(&entry.cell, &mut status);
            status
        };
        self.all().into_iter().map(status).collect()
    }
}

/// A name to look up. Its hash is that of the [`ObjectKey`].
#[derive(Hash)]
struct KeyRef<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl Equivalent<ObjectKey> for KeyRef<'_> {
    #[inline]
    fn equivalent(&self, key: &ObjectKey) -> bool {
        self.namespace == key.namespace && self.name == key.name
    }
}
