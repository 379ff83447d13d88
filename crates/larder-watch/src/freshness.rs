//! Freshness checks: one request by name for all readers of an object whose known state may be too old for them.
//!
//! The watch of a target does not show how fresh a silent object is. So for a reader that has just registered, the
//! object is read once: by a GET if the target is that object, and by a list of the one name if the target is a
//! namespace. Such a list also confirms an absence, and its version. Without a watch, a GET is the only source.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use larder_objects::ResourceVersion;
use tokio::time::Instant;

use crate::{
    api::{Api, Listed},
    backoff::{RequestBackoff, retry_after},
    driver::InFlight,
    error::{RequestError, RequestFailure, RequestPhase, outcome_label},
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

/// How a check asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckKind {
    Get,
    List,
}

impl CheckKind {
    const fn phase(self) -> RequestPhase {
        match self {
            Self::Get => RequestPhase::Get,
            Self::List => RequestPhase::List,
        }
    }
}

type Answer<T> = (Option<<T as Target>::Item>, Option<ResourceVersion>);

enum CheckPhase<T: Target> {
    /// Waits to be sent.
    Queued,
    Asked {
        answer: BoxFuture<'static, Result<Answer<T>, RequestError>>,
        in_flight: InFlight,
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
    /// The one object.
    target: T,
    /// The target that covers the object.
    pub(crate) watched: u64,
    kind: CheckKind,
    /// An answer was older than the known state, which was this; the object is checked once more.
    pub(crate) known_before: Option<ResourceVersion>,
    backoff: Option<Box<RequestBackoff>>,
    phase: CheckPhase<T>,
}

/// The item, the version of the state, and the registration that it is as fresh as.
type CheckAnswer<T> = (
    Option<<T as Target>::Item>,
    Option<ResourceVersion>,
    RegistrationSeq,
);

/// How a check has ended for now.
pub(crate) struct CheckEnd<T: Target> {
    pub(crate) answered: (&'static str, &'static str),
    pub(crate) result: Result<CheckAnswer<T>, RequestFailure>,
}

impl<T: Target + Clone> FreshnessCheck<T> {
    pub(crate) fn new(target: T, watched: u64, kind: CheckKind) -> Self {
        Self {
            target,
            watched,
            kind,
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

    pub(crate) fn send(&mut self, api: &Api, in_flight: InFlight) {
        let (api, target, kind) = (api.clone(), self.target.clone(), self.kind);
        let answer = async move {
            match kind {
                CheckKind::Get => match api.get(&target, None).await {
                    Ok(item) => {
                        let version = T::version(&item).clone();
                        Ok((Some(item), Some(version)))
                    }
                    Err(error) if error.is_not_found() => Ok((None, None)),
                    Err(error) => Err(error),
                },
                CheckKind::List => {
                    let Listed {
                        state,
                        version,
                        incomplete,
                    } = api.list(&target, None).await?;
                    match (T::into_item(state), incomplete) {
                        (None, Some(error)) => Err(error),
                        (None, None) => Ok((None, Some(version))),
                        (Some(item), _) => {
                            let version = T::version(&item).clone();
                            Ok((Some(item), Some(version)))
                        }
                    }
                }
            }
        };
        self.phase = CheckPhase::Asked {
            answer: answer.boxed(),
            in_flight,
        };
    }

    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        random: &mut fastrand::Rng,
    ) -> Poll<CheckEnd<T>> {
        let CheckPhase::Asked { answer, in_flight } = &mut self.phase else {
            return Poll::Pending;
        };
        let Poll::Ready(answer) = answer.poll_unpin(context) else {
            return Poll::Pending;
        };
        let seq = in_flight.seq;
        let outcome = match &answer {
            Ok((None, None)) => "not_found",
            answer => outcome_label(answer),
        };
        self.phase = CheckPhase::Due;
        // An object that cannot be decoded is not known to be fresh; it would be the same again at once.
        let answer = answer.map_err(Arc::new).and_then(|(item, version)| {
            match item.as_ref().and_then(T::decode_error) {
                Some(error) => Err(error),
                None => Ok((item, version, seq)),
            }
        });
        let phase = self.kind.phase();
        let result = answer
            .map_err(|error| RequestFailure::new(phase, error))
            .inspect_err(|failure| {
                let error = &*failure.error;
                let (now, random) = (Instant::now(), random.f64());
                let backoff = self.backoff.get_or_insert_default();
                let delay = backoff.delay_after(error, now, random);
                let early = error.is_outage() || error.is_throttled();
                self.phase = CheckPhase::BackingOff {
                    until: now + delay,
                    early: early.then(|| now + retry_after(error, random)),
                };
            });
        Poll::Ready(CheckEnd {
            answered: (phase.as_str(), outcome),
            result,
        })
    }
}
