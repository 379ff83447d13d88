//! Proofs of freshness: one list by name for a member that joined later, or has a new reader.

use std::sync::Arc;

use futures::future::{AbortHandle, Abortable, BoxFuture};
use larder_objects::Object;
use larder_watch::{Backoff, ByName, Listed, RequestError, outcome_label};
use tokio::time::Instant;
use tokio_util::time::delay_queue;

use super::Namespace;
use crate::{status::ObjectState, store::watching::Finding};

/// The list by name that shows that what is known is new enough for a new reader.
pub(super) enum Proof {
    UnderWay(AbortHandle, Backoff),
    Waiting(delay_queue::Key, Backoff),
}

/// The end of a list by name.
pub(super) struct Proved<K: Object> {
    id: u64,
    moment: u64,
    /// An answer before was older than what is known.
    again: bool,
    result: Result<Listed<ByName<K>>, RequestError>,
}

impl<K: Object> Namespace<K> {
    pub(super) fn list(&mut self, open: &[(u64, ObjectState)]) {
        for (id, _) in open {
            self.list_by_name(*id, Backoff::new(), false);
        }
    }

    fn list_by_name(&mut self, id: u64, backoff: Backoff, again: bool) {
        let Some(member) = self.members.get(&id) else {
            return;
        };
        let moment = self.shared.entries.now();
        let (api, entry) = (self.api.clone(), Arc::clone(&member.entry));
        let (handle, registration) = AbortHandle::new_pair();
        let list: BoxFuture<'static, _> = Box::pin(async move {
            let result = api.list(&ByName::<K>::new(entry), None).await;
            Proved {
                id,
                moment,
                again,
                result,
            }
        });
        self.lists.push(Abortable::new(list, registration));
        self.proofs.insert(id, Proof::UnderWay(handle, backoff));
    }

    pub(super) fn proved(&mut self, proved: Proved<K>) {
        let Proved {
            id,
            moment,
            again,
            result,
        } = proved;
        let outcome = outcome_label(&result);
        self.shared.metrics.requested("list", outcome);
        let Some(member) = self.members.get(&id) else {
            return;
        };
        let Some(Proof::UnderWay(_, mut backoff)) = self.proofs.remove(&id) else {
            return;
        };
        match result {
            Ok(Listed { state, version }) => {
                let version = match &state {
                    Some(object) => object.metadata().resource_version.clone(),
                    None => version,
                };
                if version.is_older_than(&member.entry.cell.version()) {
                    // Overtaken by an event, or the API server was restored from a backup: the second time, a new state tells.
                    if again {
                        self.follower.start(true);
                    } else {
                        self.list_by_name(id, backoff, true);
                    }
                    return;
                }
                let finding = Finding {
                    object: state,
                    version,
                    proven: Some(moment),
                    reset: false,
                };
                self.tell(member, |entry| self.shared.publish(entry, finding));
                if self.follower.is_resting() && !member.is_final() {
                    // It was immutable; another one of that name is not.
                    self.follower.start(false);
                }
            }
            Err(error) => {
                let now = Instant::now();
                let delay = backoff.delay_after(&error, now, self.random.f64());
                let key = self.timers.insert(id, delay);
                self.proofs.insert(id, Proof::Waiting(key, backoff));
                let error = Arc::new(error);
                self.tell(member, |entry| entry.cell.failed(error, now));
            }
        }
    }

    /// A list by name failed a while ago.
    pub(super) fn retry(&mut self, id: u64) {
        let Some(member) = self.members.get(&id) else {
            return;
        };
        if let Some(Proof::Waiting(_, backoff)) = self.proofs.remove(&id) {
            let watching = !self.follower.is_waiting() && !self.follower.awaits_answer();
            if watching && !member.is_proven() {
                self.list_by_name(id, backoff, false);
            }
        }
    }

    pub(super) fn cancel(&mut self, id: u64) {
        match self.proofs.remove(&id) {
            None => {}
            Some(Proof::UnderWay(handle, _)) => handle.abort(),
            Some(Proof::Waiting(key, _)) => {
                self.timers.remove(&key);
            }
        }
    }
}
