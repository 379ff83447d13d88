//! Proofs of freshness: one live GET for all readers of an object for whom what is known may be too old.

use std::sync::Arc;

use futures::future::AbortHandle;
use larder_objects::Object;
use larder_watch::{Backoff, RequestError};
use tokio::time::Instant;
use tokio_util::time::delay_queue;

use super::{
    Worker,
    admission::{Part, Permit},
    overflow::Place,
    publish::tell,
    requests::Outcome,
    rest,
};
use crate::{
    status::ObjectState,
    store::{
        Entry,
        watching::{Cell, Finding},
    },
};

/// The live GET that shows that what is known is new enough for a new reader; without a watch, all that is known.
pub(super) enum Proof {
    None,
    /// Waits for its permit.
    Queued(Option<Box<Backoff>>),
    UnderWay(AbortHandle, Option<Box<Backoff>>),
    /// Failed; tried again after a while.
    Waiting(delay_queue::Key, Box<Backoff>),
}

impl<K: Object> Worker<K> {
    pub(super) fn pursue(&mut self, id: u64) {
        self.pursue_with(id, None);
    }

    /// Gets under way what the object's waiting readers need, unless it is.
    pub(super) fn pursue_with(&mut self, id: u64, backoff: Option<Box<Backoff>>) {
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        let cell = &object.entry.cell;
        if !cell.is_wanted() {
            return;
        }
        let is_proven = |entry: &Entry<Cell<K>>| entry.cell.proven() >= entry.newest_reference();
        if object.queued && object.asked_before {
            self.pace.queue(id, true);
        } else if object.queued {
            self.admission.queue(id, Part::Reflector, true);
        }
        let state = cell.state();
        let known = !matches!(state, ObjectState::Pending | ObjectState::Idle);
        match state {
            ObjectState::Removed => {}
            _ if known && is_proven(&object.entry) => {
                cell.satisfy();
                // A reference that came meanwhile found the want still standing and told nobody.
                if !is_proven(&object.entry) {
                    self.shared.want(cell);
                }
            }
            _ if matches!(object.place, Place::Waiting { .. }) => {
                if matches!(object.proof, Proof::None) {
                    self.prove(id, backoff);
                }
            }
            ObjectState::Pending | ObjectState::Idle => {
                if object.reflector.is_resting() {
                    object.last_read = Instant::now();
                    self.start(id);
                }
            }
            _ if object.reflector.is_obtaining() || !matches!(object.proof, Proof::None) => {}
            // An absence has no version to compare with an answer's: it takes a new list.
            ObjectState::Absent => {
                if object.reflector.is_waiting() {
                    object.reflector.want_consistent();
                } else {
                    self.start(id);
                }
            }
            _ => self.prove(id, backoff),
        }
    }

    /// Asks for the object once more, to prove that what is known is new enough for the readers.
    fn prove(&mut self, id: u64, backoff: Option<Box<Backoff>>) {
        let permit = self.admission.enter();
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        object.proof = Proof::Queued(backoff);
        match permit {
            Some(permit) => self.prove_queued(id, permit),
            None => self.admission.queue(id, Part::Proof, true),
        }
    }

    /// Sends the GET that waits for this permit, if it still does.
    pub(super) fn prove_queued(&mut self, id: u64, permit: Permit) {
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        let Proof::Queued(backoff) = &mut object.proof else {
            return;
        };
        let backoff = backoff.take();
        let moment = self.shared.entries.now();
        let (api, entry) = (self.api.clone(), Arc::clone(&object.entry));
        let handle = self.push(id, async move {
            let result = api.get(&entry.key, None).await;
            drop(permit);
            Outcome::Proof(moment, result)
        });
        if let Some(object) = self.objects.get_mut(&id) {
            object.proof = Proof::UnderWay(handle, backoff);
        }
    }

    pub(super) fn proof(&mut self, id: u64, moment: u64, result: Result<Arc<K>, RequestError>) {
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        let Proof::UnderWay(_, backoff) = std::mem::replace(&mut object.proof, Proof::None) else {
            return;
        };
        let now = Instant::now();
        let watched = !matches!(object.place, Place::Waiting { .. });
        match result {
            Ok(found) => {
                let version = found.metadata().resource_version.clone();
                let watching = !object.reflector.is_resting();
                // Older than what is known, although asked for later: either overtaken by an event meanwhile, or the
                // API server was restored from a backup. A new list tells. Without a watch, nothing can overtake.
                if watched && version.is_older_than(&object.entry.cell.version()) {
                    return self.start(id);
                }
                let last = found.is_immutable();
                object.reflector.saw(&version);
                let finding = Finding {
                    object: Some(found),
                    version,
                    proven: Some(moment),
                    reset: !watched,
                };
                let shared = &self.shared;
                tell(shared, object, |entry| shared.publish(entry, finding));
                if last {
                    rest(&mut self.timers, object);
                } else if !watched {
                    self.answered(id);
                } else if !watching {
                    // It was immutable; another one of that name is not.
                    return self.start(id);
                }
                self.pursue(id);
            }
            // Gone, at a version that a GET does not tell.
            Err(error) if error.is_not_found() && watched => self.start(id),
            Err(error) if error.is_not_found() => {
                let finding = Finding {
                    object: None,
                    version: object.entry.cell.version(),
                    proven: Some(moment),
                    reset: true,
                };
                let shared = &self.shared;
                tell(shared, object, |entry| shared.publish(entry, finding));
                self.answered(id);
                self.pursue(id);
            }
            Err(error) => {
                let mut backoff = backoff.unwrap_or_else(|| Box::new(Backoff::new()));
                let delay = backoff.delay_after(&error, now, self.random.f64());
                let key = self.timers.insert((id, Part::Proof), delay);
                object.proof = Proof::Waiting(key, backoff);
                let error = Arc::new(error);
                tell(&self.shared, object, |entry| entry.cell.failed(error, now));
                self.stand_in(id);
                self.pursue(id);
            }
        }
    }
}
