//! The objects of a collection, each in its last readable form.

use std::collections::{BTreeMap, BTreeSet};

use larder_objects::{ObjectKey, chain};
use larder_watch::collection::{CollectionEvent, Found};
use tracing::{debug, warn};

/// The objects of a collection, each in its last readable form.
#[derive(Debug)]
pub(crate) struct LastGood<T>(pub(crate) BTreeMap<ObjectKey, T>);

impl<T> Default for LastGood<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> LastGood<T> {
    /// Takes over a change, without the objects that `make` omits. Returns whether it was one.
    pub(crate) fn take<K>(
        &mut self,
        event: CollectionEvent<K>,
        make: impl Fn(K) -> Option<T>,
    ) -> bool {
        let changed = match event {
            CollectionEvent::All(all) => {
                let there: BTreeSet<_> = all.iter().map(|found| found.metadata.key()).collect();
                self.0.retain(|key, _| there.contains(key));
                all
            }
            CollectionEvent::One(found) => vec![found],
            CollectionEvent::Gone(metadata) => {
                self.0.remove(&metadata.key());
                Vec::new()
            }
            other => {
                log_failure(&other);
                return false;
            }
        };
        for found in changed {
            let key = found.metadata.key();
            let Some(object) = readable(found) else {
                continue;
            };
            match make(object) {
                Some(kept) => self.0.insert(key, kept),
                None => self.0.remove(&key),
            };
        }
        true
    }
}

/// The object, unless it cannot be decoded.
pub(crate) fn readable<K>(found: Found<K>) -> Option<K> {
    found
        .object
        .inspect_err(|error| {
            let key = found.metadata.key();
            warn!(error = error.to_string(), %key, "failed to decode object, keeping its last good copy");
        })
        .ok()
}

pub(crate) fn log_failure<K>(change: &CollectionEvent<K>) {
    if let CollectionEvent::Failed(failure) = change {
        debug!(error = chain(failure), "failed to watch, will retry");
    }
}
