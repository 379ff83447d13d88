//! Pods of one sort, found by UID and by full name. A pod is stored once; both indexes lead to its slot.
//!
//! Invariants:
//! 1. A UID occurs in the table at most once. A full name may occur several times; it belongs to the pod upserted last.
//! 2. Hashes are computed once per call and kept beside the pod. So growing an index reads no pod, and an update
//!    touches the index by full name only if the name changes.

use std::{hash::BuildHasher as _, mem, sync::Arc};

use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table::Entry};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use slab::Slab;

use crate::stored::StoredPod;

/// A UID and its hash.
#[derive(Clone, Copy)]
pub(super) struct UidKey<'a> {
    text: &'a str,
    hash: u64,
}

/// A full name and its hash.
#[derive(Clone, Copy)]
pub(super) struct NameKey<'a> {
    namespace: &'a str,
    name: &'a str,
    hash: u64,
}

impl<'a> NameKey<'a> {
    fn new(metadata: &'a ObjectMeta, hash: impl FnOnce((&str, &str)) -> u64) -> Self {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let name = metadata.name.as_deref().unwrap_or_default();
        Self {
            namespace,
            name,
            hash: hash((namespace, name)),
        }
    }

    pub(super) fn is_of(self, pod: &StoredPod) -> bool {
        let other = NameKey::new(&pod.metadata, |_| 0);
        (self.name, self.namespace) == (other.name, other.namespace)
    }
}

impl UidKey<'_> {
    fn is_of(self, pod: &StoredPod) -> bool {
        pod.metadata.uid.as_deref().unwrap_or_default() == self.text
    }
}

/// Makes the keys of several tables. Seeded at random, because UIDs and names come from outside.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys(RandomState);

impl Keys {
    pub(super) fn uid<'a>(&self, text: &'a str) -> UidKey<'a> {
        let hash = self.0.hash_one(text);
        UidKey { text, hash }
    }

    pub(super) fn uid_of<'a>(&self, metadata: &'a ObjectMeta) -> UidKey<'a> {
        self.uid(metadata.uid.as_deref().unwrap_or_default())
    }

    pub(super) fn name<'a>(&self, namespace: &'a str, name: &'a str) -> NameKey<'a> {
        let hash = self.0.hash_one((namespace, name));
        NameKey {
            namespace,
            name,
            hash,
        }
    }

    pub(super) fn name_of<'a>(&self, metadata: &'a ObjectMeta) -> NameKey<'a> {
        NameKey::new(metadata, |texts| self.0.hash_one(texts))
    }
}

/// A pod of a [`PodTable`].
#[derive(Debug)]
pub(super) struct Slot<T> {
    pub(super) pod: Arc<StoredPod>,
    /// What the owner of the table keeps beside the pod. Survives an update.
    pub(super) note: T,
    uid_hash: u64,
    name_hash: u64,
    /// Sequence number of the last upsert of this pod.
    upserted: u64,
}

impl<T> Slot<T> {
    pub(super) fn name(&self) -> NameKey<'_> {
        NameKey::new(&self.pod.metadata, |_| self.name_hash)
    }
}

/// Pods, each with a note of type `T`.
#[derive(Debug)]
pub(super) struct PodTable<T> {
    slots: Slab<Slot<T>>,
    by_uid: HashTable<usize>,
    by_name: HashTable<usize>,
    /// Sequence number of the last upsert of any pod.
    upserted: u64,
}

impl<T> Default for PodTable<T> {
    fn default() -> Self {
        Self {
            slots: Slab::new(),
            by_uid: HashTable::new(),
            by_name: HashTable::new(),
            upserted: 0,
        }
    }
}

/// The result of an upsert.
pub(super) struct Upserted {
    /// Number of the pod's slot, valid until the pod is removed.
    pub(super) slot: usize,
    /// The pod that had the UID before.
    pub(super) replaced: Option<Arc<StoredPod>>,
}

impl<T> PodTable<T> {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<T>> {
        self.slots.iter().map(|(_, slot)| slot)
    }

    pub(super) fn pods(&self) -> Vec<Arc<StoredPod>> {
        self.iter().map(|slot| Arc::clone(&slot.pod)).collect()
    }

    pub(super) fn slot(&self, slot: usize) -> &Slot<T> {
        &self.slots[slot]
    }

    pub(super) fn slot_mut(&mut self, slot: usize) -> &mut Slot<T> {
        &mut self.slots[slot]
    }

    pub(super) fn by_uid(&self, uid: UidKey<'_>) -> Option<&Slot<T>> {
        let is_it = |&slot: &usize| uid.is_of(&self.slots[slot].pod);
        let slot = *self.by_uid.find(uid.hash, is_it)?;
        Some(&self.slots[slot])
    }

    /// The pod that has the full name.
    pub(super) fn by_name(&self, name: NameKey<'_>) -> Option<&Slot<T>> {
        let slots = self.by_name.iter_hash(name.hash);
        let slots = slots.map(|&slot| &self.slots[slot]);
        let of_name = slots.filter(|slot| name.is_of(&slot.pod));
        of_name.max_by_key(|slot| slot.upserted)
    }

    /// Sets the notes of all pods of the full name.
    pub(super) fn note_by_name(&mut self, name: NameKey<'_>, note: impl Fn() -> T) {
        for &slot in self.by_name.iter_hash(name.hash) {
            let slot = &mut self.slots[slot];
            if name.is_of(&slot.pod) {
                slot.note = note();
            }
        }
    }

    /// Removes the pod of the UID. Its slot number may be given to another pod.
    pub(super) fn remove(&mut self, uid: UidKey<'_>) -> Option<(usize, Slot<T>)> {
        let is_it = |&slot: &usize| uid.is_of(&self.slots[slot].pod);
        let found = self.by_uid.find_entry(uid.hash, is_it).ok()?;
        let (number, _) = found.remove();
        let slot = self.slots.remove(number);
        self.unlink_name(slot.name_hash, number);
        Some((number, slot))
    }

    fn link_name(&mut self, hash: u64, number: usize) {
        let slots = &self.slots;
        let hash_of = |&slot: &usize| slots[slot].name_hash;
        self.by_name.insert_unique(hash, number, hash_of);
    }

    fn unlink_name(&mut self, hash: u64, number: usize) {
        if let Ok(found) = self.by_name.find_entry(hash, |&slot| slot == number) {
            found.remove();
        }
    }
}

impl<T: Default> PodTable<T> {
    /// Adds `pod`, or puts it in place of the pod of its UID.
    pub(super) fn upsert(&mut self, keys: &Keys, pod: Arc<StoredPod>) -> Upserted {
        let (uid, name) = (keys.uid_of(&pod.metadata), keys.name_of(&pod.metadata));
        let (uid_hash, name_hash) = (uid.hash, name.hash);
        self.upserted += 1;
        let upserted = self.upserted;
        let slots = &mut self.slots;
        let found = self.by_uid.entry(
            uid_hash,
            |&slot| uid.is_of(&slots[slot].pod),
            |&slot| slots[slot].uid_hash,
        );
        match found {
            Entry::Occupied(found) => {
                let number = *found.get();
                let slot = &mut slots[number];
                slot.upserted = upserted;
                let replaced = mem::replace(&mut slot.pod, pod);
                let former_hash = mem::replace(&mut slot.name_hash, name_hash);
                if former_hash != name_hash {
                    self.unlink_name(former_hash, number);
                    self.link_name(name_hash, number);
                }
                Upserted {
                    slot: number,
                    replaced: Some(replaced),
                }
            }
            Entry::Vacant(vacant) => {
                let number = slots.insert(Slot {
                    pod,
                    note: T::default(),
                    uid_hash,
                    name_hash,
                    upserted,
                });
                vacant.insert(number);
                self.link_name(name_hash, number);
                Upserted {
                    slot: number,
                    replaced: None,
                }
            }
        }
    }
}
