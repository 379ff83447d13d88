//! The pods that read each object.
//!
//! Invariant: an object is in the table exactly while a pod reads it.

use std::collections::{BTreeSet, HashMap, hash_map::Entry};

use larder_objects::{Kind, ObjectKey};
use larder_pods::ResolvedPodUid;

/// The pods that read each object.
#[derive(Debug, Default)]
pub(super) struct ObjectReaders(HashMap<(Kind, ObjectKey), ReadingPods>);

/// The pods that read one object.
#[derive(Debug)]
enum ReadingPods {
    /// Most objects have one reader. A set of one takes 280 bytes.
    One(ResolvedPodUid),
    Several(BTreeSet<ResolvedPodUid>),
}

impl ObjectReaders {
    /// The pods that read the object, by UID.
    pub(super) fn of(
        &self,
        kind: Kind,
        key: &ObjectKey,
    ) -> impl Iterator<Item = &ResolvedPodUid> + use<'_> {
        let (one, several) = match self.0.get(&(kind, key.clone())) {
            None => (None, None),
            Some(ReadingPods::One(pod)) => (Some(pod), None),
            Some(ReadingPods::Several(pods)) => (None, Some(pods)),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    pub(super) fn add(&mut self, object: (Kind, ObjectKey), pod: &ResolvedPodUid) {
        match self.0.entry(object) {
            Entry::Vacant(vacant) => {
                vacant.insert(ReadingPods::One(pod.clone()));
            }
            Entry::Occupied(mut occupied) => match occupied.get_mut() {
                ReadingPods::One(known) if known == pod => {}
                ReadingPods::One(known) => {
                    let pods = [known.clone(), pod.clone()].into();
                    occupied.insert(ReadingPods::Several(pods));
                }
                ReadingPods::Several(pods) => {
                    pods.insert(pod.clone());
                }
            },
        }
    }

    pub(super) fn remove(&mut self, object: (Kind, ObjectKey), pod: &ResolvedPodUid) {
        let Entry::Occupied(mut occupied) = self.0.entry(object) else {
            return;
        };
        let is_unread = match occupied.get_mut() {
            ReadingPods::One(known) => known == pod,
            ReadingPods::Several(pods) => {
                pods.remove(pod);
                pods.is_empty()
            }
        };
        if is_unread {
            occupied.remove();
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
        table.of(kind, &key).map(ToString::to_string).collect()
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
