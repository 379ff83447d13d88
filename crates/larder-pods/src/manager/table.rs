//! Pods of one sort, found by UID and by full name.
//!
//! Invariants:
//! 1. A UID occurs once.
//! 2. A full name has the UIDs of all its pods. It leads to the one upserted last, which is the last of them.

use std::{collections::HashMap, mem, sync::Arc};

use foldhash::fast::RandomState;
use larder_objects::ObjectKey;
use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::stored::StoredPod;

/// The pods. Hashes are seeded at random, because UIDs and names come from outside.
#[derive(Debug, Default)]
pub(super) struct PodTable {
    by_uid: HashMap<SmolStr, Arc<StoredPod>, RandomState>,
    uids_by_name: HashMap<ObjectKey, SmallVec<[SmolStr; 1]>, RandomState>,
}

impl PodTable {
    pub(super) fn len(&self) -> usize {
        self.by_uid.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<StoredPod>> {
        self.by_uid.values()
    }

    pub(super) fn pods(&self) -> Vec<Arc<StoredPod>> {
        self.iter().cloned().collect()
    }

    pub(super) fn by_uid(&self, uid: &str) -> Option<&Arc<StoredPod>> {
        self.by_uid.get(uid)
    }

    /// The pod to which the full name leads.
    pub(super) fn by_name(&self, name: &ObjectKey) -> Option<&Arc<StoredPod>> {
        self.by_uid(self.uids_by_name(name).last()?)
    }

    /// All pods that have the full name.
    pub(super) fn uids_by_name(&self, name: &ObjectKey) -> &[SmolStr] {
        self.uids_by_name.get(name).map_or(&[], |uids| uids)
    }

    /// Adds `pod`, or puts it in place of the pod of its UID, which is returned.
    pub(super) fn upsert(&mut self, pod: Arc<StoredPod>) -> Option<Arc<StoredPod>> {
        let name = pod.key();
        let Some(known) = self.by_uid.get_mut(pod.uid()) else {
            let uid = SmolStr::new(pod.uid());
            self.by_uid.insert(uid.clone(), pod);
            self.uids_by_name.entry(name).or_default().push(uid);
            return None;
        };
        let replaced = mem::replace(known, Arc::clone(&pod));
        let former_name = replaced.key();
        if former_name != name || self.uids_by_name(&name).len() > 1 {
            let uid = self.unlink(&former_name, pod.uid());
            self.uids_by_name.entry(name).or_default().extend(uid);
        }
        Some(replaced)
    }

    /// Removes the pod of the UID.
    pub(super) fn remove(&mut self, uid: &str) -> Option<Arc<StoredPod>> {
        let removed = self.by_uid.remove(uid)?;
        self.unlink(&removed.key(), uid);
        Some(removed)
    }

    fn unlink(&mut self, name: &ObjectKey, uid: &str) -> Option<SmolStr> {
        let uids = self.uids_by_name.get_mut(name)?;
        let at = uids.iter().position(|known| known == uid)?;
        let unlinked = uids.remove(at);
        if uids.is_empty() {
            self.uids_by_name.remove(name);
        }
        Some(unlinked)
    }
}
