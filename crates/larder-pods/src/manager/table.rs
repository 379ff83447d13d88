//! Pods of one sort, found by UID and by full name.
//!
//! Invariants:
//! 1. A UID occurs once. A full name has all its pods, and leads to the one upserted last.
//! 2. A pod is held once: both indexes lead to its slot. So an update of a pod touches the index of names only if its
//!    name changes.

use std::{hash::BuildHasher as _, mem, sync::Arc};

use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table::Entry};
use larder_objects::ObjectKeyRef;
use slab::Slab;

use crate::stored::StoredPod;

/// The pods. A table of pods needs no copies of their UIDs and names.
#[derive(Debug, Default)]
pub(super) struct PodTable {
    /// At random, because UIDs and names come from outside.
    seed: RandomState,
    slots: Slab<Slot>,
    by_uid: HashTable<usize>,
    by_name: HashTable<usize>,
    /// Sequence number of the last upsert.
    upserts: u64,
}

#[derive(Debug)]
struct Slot {
    pod: Arc<StoredPod>,
    /// The hash of its full name.
    name_hash: u64,
    /// Sequence number of its last upsert.
    upserted: u64,
}

impl PodTable {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<StoredPod>> {
        self.slots.iter().map(|(_, slot)| &slot.pod)
    }

    pub(super) fn pods(&self) -> Vec<Arc<StoredPod>> {
        self.iter().cloned().collect()
    }

    pub(super) fn by_uid(&self, uid: &str) -> Option<&Arc<StoredPod>> {
        let is_it = |&slot: &usize| self.slots[slot].pod.uid() == uid;
        let slot = self.by_uid.find(self.seed.hash_one(uid), is_it)?;
        Some(&self.slots[*slot].pod)
    }

    /// The pod to which the full name leads.
    pub(super) fn by_name(&self, name: ObjectKeyRef<'_>) -> Option<&Arc<StoredPod>> {
        let last = self.slots_of(name).max_by_key(|slot| slot.upserted)?;
        Some(&last.pod)
    }

    /// All pods that have the full name.
    pub(super) fn all_by_name(
        &self,
        name: ObjectKeyRef<'_>,
    ) -> impl Iterator<Item = &Arc<StoredPod>> {
        self.slots_of(name).map(|slot| &slot.pod)
    }

    fn slots_of(&self, name: ObjectKeyRef<'_>) -> impl Iterator<Item = &Slot> {
        self.by_name
            .iter_hash(self.seed.hash_one(name))
            .map(|&slot| &self.slots[slot])
            .filter(move |slot| slot.pod.key_ref() == name)
    }

    /// Adds `pod`, or puts it in place of the pod of its UID, which is returned.
    pub(super) fn upsert(&mut self, pod: Arc<StoredPod>) -> Option<Arc<StoredPod>> {
        self.upserts += 1;
        let upserted = self.upserts;
        let slots = &mut self.slots;
        let found = self.by_uid.entry(
            self.seed.hash_one(pod.uid()),
            |&slot| slots[slot].pod.uid() == pod.uid(),
            |&slot| self.seed.hash_one(slots[slot].pod.uid()),
        );
        match found {
            Entry::Occupied(known) => {
                let number = *known.get();
                let slot = &mut slots[number];
                slot.upserted = upserted;
                let former = mem::replace(&mut slot.pod, pod);
                if former.key_ref() != slot.pod.key_ref() {
                    self.unlink(number);
                    let name = self.slots[number].pod.key_ref();
                    self.slots[number].name_hash = self.seed.hash_one(name);
                    self.link(number);
                }
                Some(former)
            }
            Entry::Vacant(free) => {
                let name_hash = self.seed.hash_one(pod.key_ref());
                let slot = Slot {
                    pod,
                    name_hash,
                    upserted,
                };
                let number = slots.insert(slot);
                free.insert(number);
                self.link(number);
                None
            }
        }
    }

    /// Removes the pod of the UID.
    pub(super) fn remove(&mut self, uid: &str) -> Option<Arc<StoredPod>> {
        let is_it = |&slot: &usize| self.slots[slot].pod.uid() == uid;
        let found = self.by_uid.find_entry(self.seed.hash_one(uid), is_it);
        let (number, _) = found.ok()?.remove();
        self.unlink(number);
        Some(self.slots.remove(number).pod)
    }

    /// Lets the name of the pod in the slot `number` lead to it.
    fn link(&mut self, number: usize) {
        let hash_of = |&slot: &usize| self.slots[slot].name_hash;
        self.by_name
            .insert_unique(hash_of(&number), number, hash_of);
    }

    /// The name of the pod in the slot `number` no longer leads to it.
    fn unlink(&mut self, number: usize) {
        let hash = self.slots[number].name_hash;
        if let Ok(found) = self.by_name.find_entry(hash, |&slot| slot == number) {
            found.remove();
        }
    }
}
