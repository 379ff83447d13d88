//! Stores the findings of the engine in the entries of the objects that a target covers.
//!
//! Invariant: the absence of an object from the complete state of a namespace counts only if the object was referenced
//! before that state was requested, and if every item of the state has a readable name.

use std::{iter, mem, sync::Arc};

use larder_objects::Object;
use larder_watch::{Confirmed, Report, RequestFailure, RequestPhase, Snapshot, TargetId};
use tokio::time::Instant;
use tracing::warn;

use super::{
    super::{Finding, WatchedState, target::WatchTarget},
    WatchTask,
};
use crate::{changes::ChangeKind, store::Entry};

impl<K: Object> WatchTask<K> {
    /// Takes in one report of the engine.
    pub(super) fn report(&mut self, target: TargetId, report: Report<WatchTarget<K>>) {
        match report {
            Report::Responded { verb, outcome } => {
                self.inner.metrics.requested(verb, outcome);
                return;
            }
            Report::Synced(snapshot) => self.synced(target, snapshot),
            Report::Changed(finding) | Report::Deleted(finding, _) => {
                let is_covered = self
                    .objects
                    .get(&finding.entry.cell.id)
                    .is_some_and(|object| object.target == Some(target));
                if is_covered && self.take(finding, RequestPhase::Watch) {
                    self.rest_if_final(target);
                }
                return self.refresh(target);
            }
            Report::Interrupted { restart, proven } => {
                self.inner.metrics.restarted(restart.label());
                for object in self.members(target) {
                    let newest = object.entry.newest_reference();
                    object.entry.cell.interrupted(newest, proven);
                }
                return;
            }
            Report::Resumed(link) => {
                for object in self.members(target) {
                    let newest = object.entry.newest_reference();
                    let resumed = object.entry.cell.resumed(newest, link.as_ref());
                    self.inner.notify(&object.entry, resumed);
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
                    self.object_failed(&object.entry, &failure);
                }
            }
            Report::CheckDue => {}
        }
        self.rest_if_final(target);
        self.refresh(target);
    }

    /// A request for the target failed.
    pub(super) fn failed(&self, target: TargetId, failure: &RequestFailure) {
        // A client that may not watch a namespace may be permitted to read its objects one by one.
        let error = &failure.error;
        let is_denied =
            error.is_unauthorized() || error.is_forbidden() && self.scopes.name(target).is_none();
        let entries = self.members(target).map(|object| &object.entry);
        self.entries_failed(target, entries, failure, is_denied);
    }

    /// A freshness check of one object failed, or its last state cannot be decoded.
    fn object_failed(&self, entry: &Arc<Entry<WatchedState<K>>>, failure: &RequestFailure) {
        let is_denied = failure.error.is_unauthorized() || failure.error.is_forbidden();
        let target = TargetId::Object(entry.cell.id);
        self.entries_failed(target, iter::once(entry), failure, is_denied);
    }

    /// A request for these objects failed, which are those of a target or one. `is_denied`: this client may not read
    /// them, so stale copies are withdrawn.
    fn entries_failed<'a>(
        &'a self,
        target: TargetId,
        entries: impl Iterator<Item = &'a Arc<Entry<WatchedState<K>>>>,
        failure: &RequestFailure,
        is_denied: bool,
    ) {
        let now = Instant::now();
        let mut is_news = false;
        for entry in entries {
            let newest = entry.newest_reference();
            let failed = entry.cell.failed(failure, is_denied, newest, now);
            is_news |= self.inner.notify(entry, failed);
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
            link,
            request,
            reset,
            incomplete,
        } = snapshot;
        let incomplete = incomplete.map(|error| RequestFailure::new(RequestPhase::List, error));
        for object in self.members(target) {
            let covered = object.joined < request;
            let mut finding = match (state.remove(&object.entry.cell.id), &incomplete) {
                (Some(finding), _) => finding,
                (None, _) if !covered => continue,
                (None, Some(failure)) => {
                    self.object_failed(&object.entry, failure);
                    continue;
                }
                (None, None) => Finding::absent(Arc::clone(&object.entry), version.clone()),
            };
            // No object is newer than the state that contains it. A newer version would make every later state look
            // old.
            if version.is_older_than(&finding.version) {
                finding.version = version.clone();
            }
            finding.fresh_as_of = fresh_as_of.filter(|_| covered);
            finding.reset = reset;
            object.entry.cell.watched_over(link.as_ref());
            self.take(finding, RequestPhase::List);
        }
    }

    /// Takes over one state of an object, which the request of that phase has brought. One that cannot be decoded leaves
    /// the last good one in place. Returns whether the object has become final.
    fn take(&self, mut finding: Finding<K>, phase: RequestPhase) -> bool {
        match mem::replace(&mut finding.object, Ok(None)) {
            Ok(object) => {
                let entry = &finding.entry;
                let (before, after) = (entry.cell.object(), object.clone());
                let (event, is_final) = entry.cell.take(object, &finding);
                if let (Some(ChangeKind::Updated), Some(before), Some(after)) =
                    (&event, before, after)
                {
                    self.config.change_log.record(&entry.key, &*before, &*after);
                }
                self.inner.notify(entry, event);
                is_final
            }
            Err(error) => {
                self.object_failed(&finding.entry, &RequestFailure::new(phase, error));
                false
            }
        }
    }

    /// Takes over the result of a freshness check.
    fn confirmed(&mut self, target: TargetId, confirmed: Confirmed<WatchTarget<K>>) {
        let Some(object) = self.objects.get(&confirmed.object) else {
            return;
        };
        let entry = &object.entry;
        let version = confirmed.version.unwrap_or_else(|| entry.cell.version());
        let absent = || Finding::absent(Arc::clone(entry), version.clone());
        let mut finding = confirmed.item.unwrap_or_else(absent);
        finding.share();
        finding.version = version;
        finding.fresh_as_of = Some(confirmed.fresh_as_of);
        finding.reset = confirmed.reset;
        self.take(finding, RequestPhase::Get);
        if self.engine.is_resting(target) && !object.is_final() {
            // It was immutable; a new object of that name is not.
            self.start(target);
        }
    }
}
