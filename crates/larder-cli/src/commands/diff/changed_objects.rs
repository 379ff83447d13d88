//! The ConfigMaps and Secrets that differ, with or without a container that sees them.

use std::collections::BTreeSet;

use larder_objects::{Kind, ObjectKey};

use crate::offline::Offline;

pub(super) type Object = (Kind, ObjectKey);

/// The objects that differ.
pub(super) struct ChangedObjects {
    pub(super) all: BTreeSet<Object>,
    /// Those that both sides have.
    updated: BTreeSet<Object>,
}

impl ChangedObjects {
    pub(super) fn between(from: &Offline, to: &Offline) -> Self {
        let objects = from.objects().chain(to.objects());
        let made = from
            .made()
            .chain(to.made())
            .map(|made| (made.kind, &made.key));
        let objects = objects.chain(made);
        let all: BTreeSet<_> = objects
            .filter(|(kind, key)| !from.has_same_object(to, *kind, key))
            .map(|(kind, key)| (kind, key.clone()))
            .collect();
        let is_updated =
            |(kind, key): &&Object| from.has_object(*kind, key) && to.has_object(*kind, key);
        let updated = all.iter().filter(is_updated).cloned().collect();
        Self { all, updated }
    }

    /// Whether both sides have the object, and it differs.
    pub(super) fn has_updated(&self, object: &Object) -> bool {
        self.updated.contains(object)
    }

    /// Those of a namespace that both sides have.
    pub(super) fn updated_in(&self, namespace: &str) -> impl Iterator<Item = &Object> {
        self.updated
            .iter()
            .filter(move |(_, key)| key.namespace == namespace)
    }
}
