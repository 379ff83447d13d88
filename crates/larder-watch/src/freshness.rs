//! Freshness checks: one request by name for all readers of an object whose known state may be too old for them.
//!
//! The watch of a target does not show how fresh a silent object is. So for a reader that has just registered, the
//! object is read once: by a GET if the target is that object, and by a list of the one name if the target is a
//! namespace. Such a list also confirms an absence, and its version. Without a watch, a GET is the only source.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use larder_objects::ResourceVersion;
use tokio::time::Instant;

use crate::{
    api::Api,
    backoff::{RequestBackoff, retry_after},
    error::{RequestError, RequestFailure, RequestPhase, outcome_label},
    limits::Permit,
    sequence::RegistrationSeq,
    target::Target,
};

/// The result of a freshness check.
#[derive(Debug)]
pub struct Confirmed<T: Target> {
    /// The object.
    pub object: u64,
    /// Its state; `None` where it does not exist.
    pub item: Option<T::Item>,
    /// The version of the state; a GET does not tell that of an absence.
    pub version: Option<ResourceVersion>,
    /// The state is as fresh as this registration.
    pub fresh_as_of: RegistrationSeq,
}

enum CheckPhase<T: Target> {
    /// Waits to be sent.
    Queued,
    Asked {
        answer: BoxFuture<'static, Result<Confirmed<T>, RequestError>>,
        /// Released once the answer is complete.
        _permit: Permit,
    },
    /// Failed.
    BackingOff {
        until: Instant,
        /// It failed with the API server: the end of an outage brings it forward to this time at the earliest.
        early: Option<Instant>,
    },
    /// The back-off is over; nothing is asked before a reader needs it.
    Due,
}

/// The check of one object.
pub(crate) struct FreshnessCheck<T: Target> {
    object: u64,
    /// The object as a target.
    target: T,
    /// The target that covers the object: the object itself, or a namespace.
    pub(crate) watched: u64,
    /// An answer was older than the known state, which was this; the object is checked once more.
    pub(crate) known_before: Option<ResourceVersion>,
    backoff: Option<Box<RequestBackoff>>,
    phase: CheckPhase<T>,
}

/// How a check has ended for now.
pub(crate) struct CheckEnd<T: Target> {
    pub(crate) answered: (&'static str, &'static str),
    pub(crate) result: Result<Confirmed<T>, RequestFailure>,
}

impl<T: Target + Clone> FreshnessCheck<T> {
    pub(crate) fn new(object: u64, target: T, watched: u64) -> Self {
        Self {
            object,
            target,
            watched,
            known_before: None,
            backoff: None,
            phase: CheckPhase::Queued,
        }
    }

    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.phase, CheckPhase::Queued)
    }

    pub(crate) fn is_due(&self) -> bool {
        matches!(self.phase, CheckPhase::Due)
    }

    pub(crate) fn is_backing_off(&self) -> bool {
        matches!(self.phase, CheckPhase::BackingOff { .. })
    }

    /// When [`expired`](Self::expired) is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            CheckPhase::BackingOff { until, .. } => Some(until),
            _ => None,
        }
    }

    /// Asks once more.
    pub(crate) fn requeue(&mut self) {
        self.phase = CheckPhase::Queued;
    }

    /// The back-off is over.
    pub(crate) fn expired(&mut self) {
        self.phase = CheckPhase::Due;
    }

    /// An outage is over: asks after `delay` if it backs off for that reason.
    pub(crate) fn retry_early(&mut self, delay: Duration, now: Instant) {
        if let CheckPhase::BackingOff { until, early } = &mut self.phase
            && let Some(early) = early.take()
        {
            *until = (*until).min(early.max(now + delay));
        }
    }

    /// Sends the request; its answer is as fresh as `fresh_as_of`.
    pub(crate) fn send(&mut self, api: &Api, fresh_as_of: RegistrationSeq, permit: Permit) {
        let (api, target) = (api.clone(), self.target.clone());
        let (object, phase) = (self.object, self.request_phase());
        let answer = async move {
            let (item, listed) = if phase == RequestPhase::Get {
                match api.get(&target, None).await {
                    Ok(item) => (Some(item), None),
                    Err(error) if error.is_not_found() => (None, None),
                    Err(error) => return Err(error),
                }
            } else {
                let listed = api.list(&target, None).await?;
                match (T::into_item(listed.state), listed.incomplete) {
                    (None, Some(error)) => return Err(error),
                    (item, _) => (item, Some(listed.version)),
                }
            };
            Ok(Confirmed {
                object,
                version: item.as_ref().map(T::version).cloned().or(listed),
                item,
                fresh_as_of,
            })
        };
        self.phase = CheckPhase::Asked {
            answer: answer.boxed(),
            _permit: permit,
        };
    }

    /// A GET reads the object that is a target itself.
    fn request_phase(&self) -> RequestPhase {
        if self.watched == self.object {
            RequestPhase::Get
        } else {
            RequestPhase::List
        }
    }

    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        random: &mut fastrand::Rng,
    ) -> Poll<CheckEnd<T>> {
        let CheckPhase::Asked { answer, .. } = &mut self.phase else {
            return Poll::Pending;
        };
        let answer = ready!(answer.poll_unpin(context));
        self.phase = CheckPhase::Due;
        let outcome = match &answer {
            Ok(Confirmed { version: None, .. }) => "not_found",
            answer => outcome_label(answer),
        };
        // An object that cannot be decoded is not known to be fresh; it would be the same again at once.
        let result = match answer {
            Ok(confirmed) => match confirmed.item.as_ref().and_then(T::decode_error) {
                Some(error) => Err(error),
                None => Ok(confirmed),
            },
            Err(error) => Err(Arc::new(error)),
        };
        if let Err(error) = &result {
            let (now, random) = (Instant::now(), random.f64());
            let backoff = self.backoff.get_or_insert_default();
            let delay = backoff.delay_after(error, now, random);
            let early = error.is_outage() || error.is_throttled();
            self.phase = CheckPhase::BackingOff {
                until: now + delay,
                early: early.then(|| now + retry_after(error, random)),
            };
        }
        let phase = self.request_phase();
        Poll::Ready(CheckEnd {
            answered: (phase.as_str(), outcome),
            result: result.map_err(|error| RequestFailure::new(phase, error)),
        })
    }
}
