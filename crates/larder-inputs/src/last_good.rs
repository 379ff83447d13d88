//! The objects of a collection, each in its last readable form.
//!
//! Invariant: an object whose newest version cannot be decoded is named with the reason, until a version comes that can
//! be, or the object is gone. So nothing that is made of an earlier version passes for current.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use larder_objects::{ObjectKey, chain};
use larder_watch::collection::{CollectionEvent, Found};
use tokio::time::Instant;
use tracing::{debug, warn};

/// Objects whose newest version cannot be decoded. An earlier one is in use, or none. Clones are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UndecodedObjects(Arc<BTreeMap<ObjectKey, UndecodedObject>>);

/// Why the newest version of an object is not in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndecodedObject {
    /// When the first version came that cannot be decoded.
    pub since: Instant,
    /// The reason, without anything of the object's values.
    pub why: String,
}

impl UndecodedObjects {
    /// The objects by their keys; those without a namespace have an empty one.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &UndecodedObject)> {
        self.0.iter()
    }
}

/// What is known of a collection's objects: a `T` of each that counts.
#[derive(Debug)]
pub(crate) struct LastGood<T> {
    /// The last readable form of each object.
    pub(crate) known: BTreeMap<ObjectKey, T>,
    /// The objects of which that is not the newest.
    pub(crate) undecoded: UndecodedObjects,
}

impl<T> LastGood<T> {
    pub(crate) fn new() -> Self {
        Self {
            known: BTreeMap::new(),
            undecoded: UndecodedObjects::default(),
        }
    }

    /// Takes a change over, without the objects that `make` omits. Returns whether it was one.
    pub(crate) fn take<K>(
        &mut self,
        event: CollectionEvent<K>,
        make: impl Fn(K) -> Option<T>,
    ) -> bool {
        let changed = match event {
            CollectionEvent::All(all) => {
                let there: BTreeSet<_> = all.iter().map(|found| found.metadata.key()).collect();
                self.known.retain(|key, _| there.contains(key));
                Arc::make_mut(&mut self.undecoded.0).retain(|key, _| there.contains(key));
                all
            }
            CollectionEvent::One(found) => vec![found],
            CollectionEvent::Gone(metadata) => {
                let key = metadata.key();
                self.known.remove(&key);
                self.decoded(&key);
                Vec::new()
            }
            CollectionEvent::Failed(failure) => {
                debug!(error = chain(&failure), "failed to watch, will retry");
                return false;
            }
            CollectionEvent::Resumed => return false,
        };
        for Found { metadata, object } in changed {
            let key = metadata.key();
            match object {
                Ok(object) => {
                    self.decoded(&key);
                    match make(object) {
                        Some(kept) => self.known.insert(key, kept),
                        None => self.known.remove(&key),
                    };
                }
                Err(error) => self.not_decoded(key, error.to_string()),
            }
        }
        true
    }

    fn decoded(&mut self, key: &ObjectKey) {
        if self.undecoded.0.contains_key(key) {
            Arc::make_mut(&mut self.undecoded.0).remove(key);
        }
    }

    fn not_decoded(&mut self, key: ObjectKey, why: String) {
        warn!(error = why, %key, "failed to decode object, keeping its last good copy");
        let undecoded = Arc::make_mut(&mut self.undecoded.0);
        let since = undecoded
            .get(&key)
            .map_or_else(Instant::now, |one| one.since);
        undecoded.insert(key, UndecodedObject { since, why });
    }
}
