//! The objects of a collection, each in its last readable form.

use std::collections::{BTreeMap, BTreeSet};

use larder_objects::{ObjectKey, chain};
use larder_watch::collection::{CollectionEvent, Found};
use tracing::{debug, warn};

/// Takes a change over to `known`, the objects of a collection, without those that `make` omits. Returns whether it was
/// one.
pub(crate) fn take_change<K, T>(
    known: &mut BTreeMap<ObjectKey, T>,
    event: CollectionEvent<K>,
    make: impl Fn(K) -> Option<T>,
) -> bool {
    let changed = match event {
        CollectionEvent::All(all) => {
            let there: BTreeSet<_> = all.iter().map(|found| found.metadata.key()).collect();
            known.retain(|key, _| there.contains(key));
            all
        }
        CollectionEvent::One(found) => vec![found],
        CollectionEvent::Gone(metadata) => {
            known.remove(&metadata.key());
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
            Some(kept) => known.insert(key, kept),
            None => known.remove(&key),
        };
    }
    true
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
