//! The objects that pods of the node reference: the number of pods that read each, and the immutable ones seen so far.
//!
//! Invariant: an entry lives as long as a pod references its object. For the same time, a kubelet serves an immutable
//! object that it has read, even if it was deleted and recreated (R26).

use std::{collections::HashMap, sync::Arc};

use larder_objects::{Kind, ObjectKey, Uid};
use parking_lot::Mutex;

/// The objects of a node. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub struct NodeObjects(Arc<Mutex<HashMap<(Kind, ObjectKey), ObjectUse>>>);

#[derive(Debug, Default)]
struct ObjectUse {
    pods: usize,
    /// The identity of the object when it was first seen as immutable.
    immutable: Option<Uid>,
}

/// The objects of one pod; dropping it ends its references.
#[derive(Debug, Default)]
pub struct PodObjects {
    objects: NodeObjects,
    keys: Vec<(Kind, ObjectKey)>,
}

impl NodeObjects {
    /// The references of one pod.
    pub fn referred(&self, keys: impl Iterator<Item = (Kind, ObjectKey)>) -> PodObjects {
        let keys: Vec<_> = keys.collect();
        let mut objects = self.0.lock();
        for key in &keys {
            objects.entry(key.clone()).or_default().pods += 1;
        }
        drop(objects);
        PodObjects {
            objects: self.clone(),
            keys,
        }
    }

    /// Number of pods of the node that read the object.
    pub fn readers(&self, key: &(Kind, ObjectKey)) -> usize {
        self.0.lock().get(key).map_or(0, |found| found.pods)
    }

    /// Records an object that was read. Returns whether the kubelet serves an earlier, immutable one in its place.
    pub fn is_pinned(&self, key: &(Kind, ObjectKey), uid: &Uid, is_immutable: bool) -> bool {
        let mut objects = self.0.lock();
        let Some(found) = objects.get_mut(key) else {
            return false;
        };
        if let Some(seen) = &found.immutable {
            return seen != uid;
        }
        found.immutable = is_immutable.then(|| uid.clone());
        false
    }
}

impl Drop for PodObjects {
    fn drop(&mut self) {
        let mut objects = self.objects.0.lock();
        for key in &self.keys {
            if let Some(found) = objects.get_mut(key) {
                found.pods -= 1;
                if found.pods == 0 {
                    objects.remove(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // beside-kubelet 16
    #[test]
    fn an_immutable_object_is_pinned_until_the_last_pod_is_gone() {
        let objects = NodeObjects::default();
        let key = (Kind::ConfigMap, ObjectKey::new("n", "app"));
        let (first, second) = (Uid::from("1"), Uid::from("2"));
        let one = objects.referred([key.clone()].into_iter());
        let other = objects.referred([key.clone()].into_iter());
        assert_eq!(objects.readers(&key), 2);
        assert!(!objects.is_pinned(&key, &first, true));
        assert!(objects.is_pinned(&key, &second, false));
        drop(one);
        assert!(objects.is_pinned(&key, &second, false));
        drop(other);
        let _next = objects.referred([key.clone()].into_iter());
        assert!(!objects.is_pinned(&key, &second, false));
    }
}
