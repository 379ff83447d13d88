//! Pods of one sort, found by UID and by full name.
//!
//! Invariants:
//! 1. A UID occurs once.
//! 2. A full name has all its pods. It leads to the one upserted last, which is the last of them.

use std::{hash::BuildHasher as _, mem, sync::Arc};

use foldhash::fast::RandomState;
use hashbrown::{HashTable, hash_table::Entry};
use larder_objects::ObjectKeyRef;
use smallvec::{SmallVec, smallvec};

use crate::stored::StoredPod;

/// The pods. A table of pods needs no copies of their UIDs and names.
#[derive(Debug, Default)]
pub(super) struct PodTable {
    /// At random, because UIDs and names come from outside.
    seed: RandomState,
    by_uid: HashTable<Arc<StoredPod>>,
    by_name: HashTable<Namesakes>,
}

/// The pods of one full name, of which there is at least one.
#[derive(Debug)]
struct Namesakes(SmallVec<[Arc<StoredPod>; 1]>);

impl Namesakes {
    fn name(&self) -> ObjectKeyRef<'_> {
        self.0[0].key_ref()
    }
}

impl PodTable {
    pub(super) fn len(&self) -> usize {
        self.by_uid.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<StoredPod>> {
        self.by_uid.iter()
    }

    pub(super) fn pods(&self) -> Vec<Arc<StoredPod>> {
        self.iter().cloned().collect()
    }

    pub(super) fn by_uid(&self, uid: &str) -> Option<&Arc<StoredPod>> {
        let hash = self.seed.hash_one(uid);
        self.by_uid.find(hash, |known| known.uid() == uid)
    }

    /// The pod to which the full name leads.
    pub(super) fn by_name(&self, name: ObjectKeyRef<'_>) -> Option<&Arc<StoredPod>> {
        self.all_by_name(name).last()
    }

    /// All pods that have the full name.
    pub(super) fn all_by_name(&self, name: ObjectKeyRef<'_>) -> &[Arc<StoredPod>] {
        let hash = self.seed.hash_one(name);
        let found = self.by_name.find(hash, |pods| pods.name() == name);
        found.map_or(&[], |pods| &pods.0)
    }

    /// Adds `pod`, or puts it in place of the pod of its UID, which is returned.
    pub(super) fn upsert(&mut self, pod: Arc<StoredPod>) -> Option<Arc<StoredPod>> {
        let seed = &self.seed;
        let hash_of = |pod: &Arc<StoredPod>| seed.hash_one(pod.uid());
        let is_same = |known: &Arc<StoredPod>| known.uid() == pod.uid();
        let replaced = match self.by_uid.entry(hash_of(&pod), is_same, hash_of) {
            Entry::Occupied(known) => Some(mem::replace(known.into_mut(), Arc::clone(&pod))),
            Entry::Vacant(free) => {
                free.insert(Arc::clone(&pod));
                None
            }
        };
        let name = pod.key_ref();
        if let Some(former) = replaced.as_ref().filter(|former| former.key_ref() != name) {
            self.unlink(former);
        }
        let hash_of = |pods: &Namesakes| self.seed.hash_one(pods.name());
        let hash = self.seed.hash_one(name);
        match self
            .by_name
            .entry(hash, |pods| pods.name() == name, hash_of)
        {
            Entry::Occupied(known) => {
                let pods = &mut known.into_mut().0;
                pods.retain(|known| known.uid() != pod.uid());
                pods.push(pod);
            }
            Entry::Vacant(free) => drop(free.insert(Namesakes(smallvec![pod]))),
        }
        replaced
    }

    /// Removes the pod of the UID.
    pub(super) fn remove(&mut self, uid: &str) -> Option<Arc<StoredPod>> {
        let hash = self.seed.hash_one(uid);
        let found = self.by_uid.find_entry(hash, |known| known.uid() == uid);
        let (removed, _) = found.ok()?.remove();
        self.unlink(&removed);
        Some(removed)
    }

    fn unlink(&mut self, pod: &StoredPod) {
        let name = pod.key_ref();
        let hash = self.seed.hash_one(name);
        if let Ok(mut found) = self.by_name.find_entry(hash, |pods| pods.name() == name) {
            let pods = &mut found.get_mut().0;
            pods.retain(|known| known.uid() != pod.uid());
            if pods.is_empty() {
                found.remove();
            }
        }
    }
}
