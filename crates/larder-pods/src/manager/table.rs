//! Pods of one sort, found by UID and by full name.
//!
//! Invariants:
//! 1. A UID occurs once.
//! 2. A full name has all its pods. It leads to the one upserted last, which is the last of them.

use std::{
    borrow::Borrow,
    hash::{Hash, Hasher},
    sync::Arc,
};

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet, hash_map::EntryRef};
use larder_objects::{ObjectKey, ObjectKeyRef};
use smallvec::{SmallVec, smallvec};

use crate::stored::StoredPod;

/// The pods. Hashes are seeded at random, because UIDs and names come from outside.
#[derive(Debug, Default)]
pub(super) struct PodTable {
    by_uid: HashSet<ByUid, RandomState>,
    by_name: HashMap<ObjectKey, SmallVec<[Arc<StoredPod>; 1]>, RandomState>,
}

/// A pod in a set of UIDs.
#[derive(Debug)]
pub(super) struct ByUid(pub(super) Arc<StoredPod>);

impl Borrow<str> for ByUid {
    fn borrow(&self) -> &str {
        self.0.uid()
    }
}

impl Hash for ByUid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.uid().hash(state);
    }
}

impl PartialEq for ByUid {
    fn eq(&self, other: &Self) -> bool {
        self.0.uid() == other.0.uid()
    }
}

impl Eq for ByUid {}

impl PodTable {
    pub(super) fn len(&self) -> usize {
        self.by_uid.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<StoredPod>> {
        self.by_uid.iter().map(|ByUid(pod)| pod)
    }

    pub(super) fn pods(&self) -> Vec<Arc<StoredPod>> {
        self.iter().cloned().collect()
    }

    pub(super) fn by_uid(&self, uid: &str) -> Option<&Arc<StoredPod>> {
        self.by_uid.get(uid).map(|ByUid(pod)| pod)
    }

    /// The pod to which the full name leads.
    pub(super) fn by_name(&self, name: ObjectKeyRef<'_>) -> Option<&Arc<StoredPod>> {
        self.all_by_name(name).last()
    }

    /// All pods that have the full name.
    pub(super) fn all_by_name(&self, name: ObjectKeyRef<'_>) -> &[Arc<StoredPod>] {
        self.by_name.get(&name).map_or(&[], |pods| pods)
    }

    /// Adds `pod`, or puts it in place of the pod of its UID, which is returned.
    pub(super) fn upsert(&mut self, pod: Arc<StoredPod>) -> Option<Arc<StoredPod>> {
        let replaced = self.by_uid.replace(ByUid(Arc::clone(&pod)));
        let replaced = replaced.map(|ByUid(pod)| pod);
        let former = replaced.as_deref();
        if let Some(former) = former.filter(|former| former.key_ref() != pod.key_ref()) {
            self.unlink(former);
        }
        if let Some(pods) = self.by_name.get_mut(&pod.key_ref()) {
            pods.retain(|known| known.uid() != pod.uid());
            pods.push(pod);
        } else {
            self.by_name.insert(pod.key(), smallvec![pod]);
        }
        replaced
    }

    /// Removes the pod of the UID.
    pub(super) fn remove(&mut self, uid: &str) -> Option<Arc<StoredPod>> {
        let ByUid(removed) = self.by_uid.take(uid)?;
        self.unlink(&removed);
        Some(removed)
    }

    fn unlink(&mut self, pod: &StoredPod) {
        if let EntryRef::Occupied(mut entry) = self.by_name.entry_ref(&pod.key_ref()) {
            entry.get_mut().retain(|known| known.uid() != pod.uid());
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }
}
