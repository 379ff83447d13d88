//! Stores the findings of the engine in the entries of the objects that a target covers.
//!
//! Invariant: the absence of an object from the complete state of a namespace counts only if the object was referenced
//! before that state was requested, and if every item of the state has a readable name.

use std::iter;

use larder_objects::{Object, ResourceVersion};
use larder_watch::{
    Confirmed, ObjectId, RegistrationSeq, Report, RequestFailure, RequestPhase, Snapshot, TargetId,
};
use tokio::time::Instant;
use tracing::warn;

use super::{
    super::{
        ObjectFinding,
        target::{Decoded, SeenObject, WatchTarget},
    },
    WatchTask, WatchedObject,
};

impl<K: Object> WatchTask<K> {
    /// Takes in one report of the engine.
    pub(super) fn report(&mut self, target: TargetId, report: Report<WatchTarget<K>>) {
        match report {
            Report::Responded { verb, outcome } => {
                self.inner.metrics.requested(verb, outcome);
                return;
            }
            Report::Synced(snapshot) => self.synced(target, snapshot),
            Report::Changed(SeenObject { id, object }) => {
                if let Some(known) = self.open_object(target, id) {
                    self.see(known, object, None, None, false);
                }
            }
            Report::Deleted(id, version) => {
                if let Some(known) = self.open_object(target, id) {
                    let finding = ObjectFinding {
                        object: None,
                        version,
                        fresh_as_of: None,
                        reset: false,
                    };
                    self.inner.publish(&known.entry, finding);
                }
            }
            Report::Interrupted(reason) => {
                self.inner.metrics.restarted(reason.label());
                let now = Instant::now();
                for object in self.open_members(target) {
                    object.entry.cell.interrupted(now);
                }
                return;
            }
            Report::Resumed => {
                for object in self.open_members(target) {
                    self.inner.resumed(&object.entry);
                }
            }
            Report::Failed(failure) => {
                self.failed(target, &failure);
                if failure.error.is_forbidden() {
                    self.fall_back_to_objects(target);
                }
            }
            Report::Confirmed(confirmed) => self.confirmed(target, confirmed),
            Report::CheckFailed(id, failure) => {
                if let Some(object) = self.objects.get(&id) {
                    self.object_failed(object, &failure);
                }
            }
            Report::CheckDue => {}
            Report::SlotGranted => {
                for object in self.members(target) {
                    object.entry.cell.grant_watch();
                }
                self.touch(target);
                self.start(target);
            }
        }
        self.rest_if_final(target);
        self.refresh(target);
    }

    /// The object, if the target covers it and a finding can change it.
    fn open_object(&self, target: TargetId, id: ObjectId) -> Option<&WatchedObject<K>> {
        let object = self.objects.get(&id)?;
        (object.target == Some(target) && !object.is_final()).then_some(object)
    }

    /// A request for the target failed.
    pub(super) fn failed(&self, target: TargetId, failure: &RequestFailure) {
        // A client that may not watch a namespace may be permitted to read its objects one by one.
        let error = &failure.error;
        let is_denied =
            error.is_unauthorized() || error.is_forbidden() && self.scopes.name(target).is_none();
        self.objects_failed(target, self.open_members(target), failure, is_denied);
    }

    /// A freshness check of one object failed, or its last state cannot be decoded.
    fn object_failed(&self, object: &WatchedObject<K>, failure: &RequestFailure) {
        let is_denied = failure.error.is_unauthorized() || failure.error.is_forbidden();
        let target = TargetId::Object(object.entry.cell.id);
        self.objects_failed(target, iter::once(object), failure, is_denied);
    }

    /// A request for these objects failed, which are those of a target or one.
    fn objects_failed<'a>(
        &'a self,
        target: TargetId,
        objects: impl Iterator<Item = &'a WatchedObject<K>>,
        failure: &RequestFailure,
        is_denied: bool,
    ) {
        let now = Instant::now();
        let mut is_news = false;
        for object in objects {
            is_news |= self.inner.failed(&object.entry, failure, is_denied, now);
        }
        // Once for each cause, not for each attempt.
        if is_news {
            let error: &dyn std::error::Error = &*failure.error;
            warn!(
                kind = K::TYPE.kind, target = %self.name(target),
                phase = failure.phase.as_str(), error,
                "failed to sync, will retry"
            );
        }
    }

    /// Takes over the complete state of a target.
    fn synced(&self, target: TargetId, snapshot: Snapshot<WatchTarget<K>>) {
        let Snapshot {
            mut state,
            version,
            fresh_as_of,
            request,
            reset,
            incomplete,
        } = snapshot;
        let incomplete = incomplete.map(|error| RequestFailure::new(RequestPhase::List, error));
        for object in self.open_members(target) {
            let covered = object.joined < request;
            let fresh_as_of = fresh_as_of.filter(|_| covered);
            match (state.remove(&object.entry.cell.id), &incomplete) {
                (Some(seen), _) => {
                    self.see(object, seen, Some(&version), fresh_as_of, reset);
                }
                (None, _) if !covered => {}
                (None, Some(failure)) => self.object_failed(object, failure),
                (None, None) => {
                    let finding = ObjectFinding {
                        object: None,
                        version: version.clone(),
                        fresh_as_of,
                        reset,
                    };
                    self.inner.publish(&object.entry, finding);
                }
            }
        }
    }

    /// Takes over one state of an object, from the watch or from the complete state at version `listed`. One that
    /// cannot be decoded leaves the last good one in place.
    fn see(
        &self,
        object: &WatchedObject<K>,
        seen: Decoded<K>,
        listed: Option<&ResourceVersion>,
        fresh_as_of: Option<RegistrationSeq>,
        reset: bool,
    ) {
        match seen {
            Ok(found) => {
                let mut version = found.metadata().resource_version.clone();
                // No object is newer than the state that contains it. A newer version would make every later state look
                // old.
                if let Some(listed) = listed
                    && listed.is_older_than(&version)
                {
                    version = listed.clone();
                }
                let finding = ObjectFinding {
                    version,
                    object: Some(found),
                    fresh_as_of,
                    reset,
                };
                self.inner.publish(&object.entry, finding);
            }
            Err(unreadable) => {
                let phase = match listed {
                    Some(_) => RequestPhase::List,
                    None => RequestPhase::Watch,
                };
                let failure = RequestFailure::new(phase, unreadable.error);
                self.object_failed(object, &failure);
            }
        }
    }

    /// Takes over the result of a freshness check.
    fn confirmed(&mut self, target: TargetId, confirmed: Confirmed<WatchTarget<K>>) {
        let Some(object) = self.objects.get(&confirmed.object) else {
            return;
        };
        let found = match confirmed.item.map(|item| item.object) {
            None => None,
            Some(Ok(found)) => Some(found),
            // The engine reports that as a failure.
            Some(Err(_)) => return,
        };
        let version = confirmed.version;
        let finding = ObjectFinding {
            object: found,
            version: version.unwrap_or_else(|| object.entry.cell.version()),
            fresh_as_of: Some(confirmed.fresh_as_of),
            reset: confirmed.reset,
        };
        self.inner.publish(&object.entry, finding);
        if self.engine.is_resting(target) && !object.is_final() {
            // It was immutable; a new object of that name is not.
            self.start(target);
        }
    }
}
