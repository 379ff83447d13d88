//! The pods that read each object.
//!
//! Invariant: an object is in the table exactly while a pod reads it.

use std::collections::{HashMap, hash_map::Entry};

use larder_objects::{Kind, ObjectKey};
use larder_pods::ResolvedPodUid;

/// The pods that read each object, sorted. Most objects have one reader, and a set of one takes 280 bytes.
#[derive(Debug, Default)]
pub(super) struct ObjectReaders(HashMap<(Kind, ObjectKey), Vec<ResolvedPodUid>>);

impl ObjectReaders {
    /// The pods that read the object, by UID.
    pub(super) fn of(&self, kind: Kind, key: &ObjectKey) -> &[ResolvedPodUid] {
        let readers = self.0.get(&(kind, key.clone()));
        readers.map_or(&[], Vec::as_slice)
    }

    pub(super) fn add(&mut self, object: (Kind, ObjectKey), pod: &ResolvedPodUid) {
        let readers = self.0.entry(object).or_default();
        if let Err(place) = readers.binary_search(pod) {
            readers.insert(place, pod.clone());
        }
    }

    pub(super) fn remove(&mut self, object: (Kind, ObjectKey), pod: &ResolvedPodUid) {
        if let Entry::Occupied(mut readers) = self.0.entry(object) {
            readers.get_mut().retain(|known| known != pod);
            if readers.get().is_empty() {
                readers.remove();
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
        let (kind, key) = object(name);
        table
            .of(kind, &key)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn object_has_the_pods_that_were_added_and_not_removed() {
        let mut table = ObjectReaders::default();
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
        assert!(table.0.is_empty());
    }
}
