//! What the worker tells readers and subscribers.

use std::sync::Arc;

use larder_objects::Object;
use tokio::time::Instant;
use tracing::warn;

use super::Watched;
use crate::{
    changes::ChangeKind,
    store::{
        Entry,
        watching::{Cell, Finding, Shared},
    },
};
use larder_watch::Effect;

/// Publishes what the reflector found out, which is about `found` or its absence. Returns whether that is final: nothing
/// more can come of an object that is immutable.
pub(super) fn publish<K: Object>(
    shared: &Shared<K>,
    object: &Watched<K>,
    effect: Effect,
    found: Option<Arc<K>>,
) -> bool {
    let finding = match effect {
        Effect::Synced {
            version,
            consistent,
            reset,
        } => Finding {
            version: match &found {
                Some(found) => found.metadata().resource_version.clone(),
                None => version,
            },
            object: found,
            proven: consistent.then_some(object.asked),
            reset,
        },
        Effect::Changed(version) => Finding {
            object: found,
            version,
            proven: None,
            reset: false,
        },
        Effect::Collect => return false,
        Effect::Resumed => {
            tell(shared, object, |entry| entry.cell.resumed());
            return false;
        }
        Effect::Failed(error) => {
            let now = Instant::now();
            tell(shared, object, |entry| entry.cell.failed(error, now));
            return false;
        }
    };
    let last = finding.object.as_ref().is_some_and(|o| o.is_immutable());
    tell(shared, object, |entry| shared.publish(entry, finding));
    last
}

/// Changes what is known of the object and tells the subscribers if it is news.
pub(super) fn tell<K: Object>(
    shared: &Shared<K>,
    object: &Watched<K>,
    change: impl FnOnce(&Arc<Entry<Cell<K>>>) -> Option<ChangeKind>,
) {
    let key = &object.entry.key;
    if let Some(event) = change(&object.entry) {
        // Once for each cause, not for each attempt.
        if let ChangeKind::Failed(error) = &event {
            let error: &dyn std::error::Error = error;
            warn!(kind = K::KIND.as_str(), %key, error, "failed to follow an object, will retry");
        }
        shared.changes.publish(key, &event);
    }
}
