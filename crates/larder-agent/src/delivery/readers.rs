//! The objects that pods read: by which pods each is read, and the immutable ones seen so far.
//!
//! Invariant: an object is in the table exactly while a pod reads it. For the same time, a kubelet that watches serves an
//! immutable object that it has read, even if it was deleted and recreated (beside-kubelet R26). One that caches or gets
//! objects serves the new one some time later, which its files show.

use std::collections::{HashMap, hash_map::Entry};

use larder_objects::{Kind, ObjectKey, Uid};
use larder_pods::ResolvedPodUid;
use parking_lot::Mutex;

/// The objects that the pods of the node read.
#[derive(Debug, Default)]
pub(crate) struct ObjectReaders(Mutex<HashMap<(Kind, ObjectKey), ObjectUse>>);

#[derive(Debug, Default)]
struct ObjectUse {
    /// Sorted. Most objects have one reader, and a set of one takes 280 bytes.
    pods: Vec<ResolvedPodUid>,
    /// The identity of the object when it was first seen as immutable.
    immutable: Option<Uid>,
}

/// The identity of an object that was read.
#[derive(Debug)]
pub(crate) struct ReadObject {
    pub(crate) uid: Uid,
    pub(crate) is_immutable: bool,
}

impl ReadObject {
    fn immutable_uid(&self) -> Option<Uid> {
        self.is_immutable.then(|| self.uid.clone())
    }
}

impl ObjectReaders {
    /// The pods that read the object, by UID.
    pub(crate) fn of(&self, object: &(Kind, ObjectKey)) -> Vec<ResolvedPodUid> {
        let objects = self.0.lock();
        let found = objects.get(object);
        found.map(|found| found.pods.clone()).unwrap_or_default()
    }

    /// The number of pods that read the object.
    pub(crate) fn count(&self, object: &(Kind, ObjectKey)) -> usize {
        let objects = self.0.lock();
        objects.get(object).map_or(0, |found| found.pods.len())
    }

    /// Records an object that was read. Returns whether the kubelet serves an earlier, immutable one in its place, or
    /// no pod reads the object any more: then the pod that has read it goes, and needs no touch.
    pub(crate) fn is_pinned(&self, object: &(Kind, ObjectKey), read: &ReadObject) -> bool {
        let mut objects = self.0.lock();
        let Some(found) = objects.get_mut(object) else {
            return true;
        };
        if let Some(seen) = &found.immutable {
            return *seen != read.uid;
        }
        found.immutable = read.immutable_uid();
        false
    }

    /// Records that the kubelet serves this object: its files have changed to the content of it.
    pub(crate) fn set_served(&self, object: &(Kind, ObjectKey), read: &ReadObject) {
        if let Some(found) = self.0.lock().get_mut(object) {
            found.immutable = read.immutable_uid();
        }
    }

    pub(crate) fn add(&self, object: (Kind, ObjectKey), pod: &ResolvedPodUid) {
        let mut objects = self.0.lock();
        let pods = &mut objects.entry(object).or_default().pods;
        if pods.is_empty() {
            // Otherwise the first has room for four.
            pods.reserve_exact(1);
        }
        if let Err(place) = pods.binary_search(pod) {
            pods.insert(place, pod.clone());
        }
    }

    pub(crate) fn remove(&self, object: (Kind, ObjectKey), pod: &ResolvedPodUid) {
        if let Entry::Occupied(mut found) = self.0.lock().entry(object) {
            found.get_mut().pods.retain(|known| known != pod);
            if found.get().pods.is_empty() {
                found.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> (Kind, ObjectKey) {
        (Kind::ConfigMap, ObjectKey::new("prod", name))
    }

    fn readers(table: &ObjectReaders, name: &str) -> Vec<String> {
        let pods = table.of(&object(name));
        pods.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn object_has_the_pods_that_were_added_and_not_removed() {
        let table = ObjectReaders::default();
        let uid = |uid: &str| ResolvedPodUid::new(uid);
        assert!(readers(&table, "a").is_empty());
        for pod in ["3", "1", "1", "2"] {
            table.add(object("a"), &uid(pod));
        }
        table.add(object("b"), &uid("1"));
        table.add(object("b"), &uid("1"));
        assert_eq!(readers(&table, "a"), ["1", "2", "3"]);
        assert_eq!(readers(&table, "b"), ["1"]);
        table.remove(object("b"), &uid("2"));
        assert_eq!(readers(&table, "b"), ["1"]);
        for (pod, left) in [("1", vec!["2", "3"]), ("3", vec!["2"]), ("2", vec![])] {
            table.remove(object("a"), &uid(pod));
            assert_eq!(readers(&table, "a"), left);
        }
        table.remove(object("b"), &uid("1"));
        assert!(table.0.lock().is_empty());
    }

    fn immutable(uid: &Uid) -> ReadObject {
        ReadObject {
            uid: uid.clone(),
            is_immutable: true,
        }
    }

    fn mutable(uid: &Uid) -> ReadObject {
        ReadObject {
            uid: uid.clone(),
            is_immutable: false,
        }
    }

    // beside-kubelet 16
    #[test]
    fn an_immutable_object_is_pinned_until_the_last_pod_is_gone() {
        let table = ObjectReaders::default();
        let (first, second) = (Uid::from("1"), Uid::from("2"));
        let (one, other) = (ResolvedPodUid::new("1"), ResolvedPodUid::new("2"));
        table.add(object("app"), &one);
        table.add(object("app"), &other);
        assert!(!table.is_pinned(&object("app"), &immutable(&first)));
        assert!(table.is_pinned(&object("app"), &mutable(&second)));
        table.remove(object("app"), &one);
        assert!(table.is_pinned(&object("app"), &mutable(&second)));
        table.remove(object("app"), &other);
        assert!(table.is_pinned(&object("app"), &mutable(&second)));
        table.add(object("app"), &one);
        assert!(!table.is_pinned(&object("app"), &mutable(&second)));
    }

    #[test]
    fn an_object_that_the_kubelet_serves_is_not_pinned() {
        let table = ObjectReaders::default();
        let [first, second, third] = ["1", "2", "3"].map(Uid::from);
        table.add(object("app"), &ResolvedPodUid::new("1"));
        assert!(!table.is_pinned(&object("app"), &immutable(&first)));
        assert!(table.is_pinned(&object("app"), &immutable(&second)));
        table.set_served(&object("app"), &immutable(&second));
        assert!(!table.is_pinned(&object("app"), &immutable(&second)));
        assert!(table.is_pinned(&object("app"), &mutable(&third)));
        table.set_served(&object("app"), &mutable(&third));
        assert!(!table.is_pinned(&object("app"), &mutable(&third)));
    }
}
