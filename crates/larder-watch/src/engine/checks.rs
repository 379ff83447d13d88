//! Freshness checks: one request by name for all readers of an object whose known state may be too old for them.
//!
//! The watch of a target does not show how fresh a silent object is. So for a reader that has just registered, the
//! object is read once: by a GET if the target is that object, and by a list of the one name if the target is a
//! collection. Such a list also confirms an absence, and its version. Without a watch, a GET is the only source.
//!
//! Invariant: an object has at most one check in flight, and a failed check has a back-off of its own.

use std::{
    sync::Arc,
    task::{Context, Poll, Wake as _, ready},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::time::Instant;

use super::{Engine, Need, Part, Timer};
use crate::{
    api::Api,
    backoff::{RequestBackoff, retry_after},
    error::{RequestError, RequestFailure, RequestPhase, outcome_label},
    limits::{Permit, Urgency},
    ready::ReadyWaker,
    reflector::MinFreshness,
    report::{Confirmed, ObjectId, Report, TargetId},
    restored::{Recency, RestoreDetector},
    sequence::RegistrationSeq,
    target::Target,
};

/// The check of one object.
pub(super) struct FreshnessCheck<T: Target> {
    object: ObjectId,
    /// The object as a target.
    target: T,
    /// The target that covers the object: the object itself, or a collection.
    watched: TargetId,
    restored: RestoreDetector,
    backoff: Option<Box<RequestBackoff>>,
    phase: CheckPhase<T>,
    waker: Arc<ReadyWaker<Part>>,
    timer: Timer,
}

enum CheckPhase<T: Target> {
    /// Waits to be sent.
    Queued,
    Sent {
        response: BoxFuture<'static, Result<Confirmed<T>, RequestError>>,
        /// Released once the response is complete.
        _permit: Permit,
    },
    /// Failed.
    BackingOff {
        until: Instant,
        /// It failed with the API server: the end of an outage brings it forward to this time at the earliest.
        early: Option<Instant>,
    },
    /// The back-off is over; nothing is requested before a reader needs it.
    Due,
}

impl<T: Target + Clone> Engine<T> {
    /// Ends the freshness check of an object.
    pub(super) fn remove_check(&mut self, object: ObjectId) {
        if let Some(mut check) = self.checks.remove(&object) {
            check.timer.set(&mut self.timers, Part::Check(object), None);
        }
    }

    /// Checks an object, unless a check is under way or backs off.
    pub(super) fn check(&mut self, watched: TargetId, need: Need<T>) {
        let object = need.object;
        if let Some(check) = self.checks.get_mut(&object) {
            let CheckPhase::Due = check.phase else {
                return;
            };
            check.phase = CheckPhase::Queued;
        } else {
            let check = FreshnessCheck {
                object,
                target: need.target,
                watched,
                restored: RestoreDetector::default(),
                backoff: None,
                phase: CheckPhase::Queued,
                waker: self.ready.waker(Part::Check(object)),
                timer: Timer::default(),
            };
            self.checks.insert(object, Box::new(check));
        }
        match self.requests.first.try_acquire() {
            Some(permit) => self.send_check(object, permit),
            None => self
                .requests
                .first
                .enqueue(Part::Check(object), Urgency::Urgent),
        }
    }

    pub(super) fn send_check(&mut self, object: ObjectId, permit: Permit) {
        let seq = self.seqs.current();
        if let Some(check) = self.checks.get_mut(&object)
            && let CheckPhase::Queued = check.phase
        {
            check.send(&self.api, seq, permit);
            check.waker.wake_by_ref();
        }
    }

    pub(super) fn poll_check(&mut self, object: ObjectId, now: Instant) {
        let Some(check) = self.checks.get_mut(&object) else {
            return;
        };
        let waker = Arc::clone(&check.waker);
        let Poll::Ready(response) = waker.poll(|context| check.poll(context)) else {
            return;
        };
        let (target, phase) = (check.watched, check.request_phase());
        let (verb, outcome) = (phase.as_str(), outcome_of(&response));
        let responded = Report::Responded { verb, outcome };
        self.reports.push_back((target, responded));
        // An object that cannot be decoded is not known to be fresh; it would be the same again at once.
        let error = match response {
            Ok(confirmed) => match confirmed.item.as_ref().and_then(T::decode_error) {
                None => return self.confirmed(target, confirmed),
                Some(error) => error,
            },
            Err(error) => Arc::new(error),
        };
        check.back_off(&error, now, self.random.f64());
        let deadline = check.deadline();
        check
            .timer
            .set(&mut self.timers, Part::Check(object), deadline);
        let failure = RequestFailure::new(phase, error);
        let failed = Report::CheckFailed(object, failure);
        self.reports.push_back((target, failed));
    }

    /// Reports the result of a check, unless that takes another request.
    fn confirmed(&mut self, target: TargetId, mut confirmed: Confirmed<T>) {
        let object = confirmed.object;
        let (Some(version), Some(check)) = (&confirmed.version, self.checks.get_mut(&object))
        else {
            // A GET does not return the version of an absence; a complete state does.
            self.remove_check(object);
            return self.start(target, MinFreshness::Newest);
        };
        match check.restored.judge(version, &check.target.known_version()) {
            Recency::InDoubt => {
                check.phase = CheckPhase::Queued;
                self.requests
                    .first
                    .enqueue(Part::Check(object), Urgency::Urgent);
                return;
            }
            Recency::Current | Recency::Overtaken => {
                // Events older than the check change nothing.
                if let TargetId::Object(_) = target
                    && let Some(watched) = self.targets.get_mut(&target)
                {
                    watched.driver.saw(version);
                }
            }
            Recency::Restored => {
                confirmed.reset = true;
                self.server.min_version_lost();
                self.start(target, MinFreshness::Newest);
            }
        }
        self.remove_check(object);
        self.reports
            .push_back((target, Report::Confirmed(confirmed)));
    }

    /// The next request of a check that backs off is due: its target is asked whether it is still needed.
    pub(super) fn check_expired(&mut self, object: ObjectId) {
        if let Some(check) = self.checks.get_mut(&object) {
            check.timer = Timer::default();
            check.phase = CheckPhase::Due;
            self.reports.push_back((check.watched, Report::CheckDue));
        }
    }

    /// An outage is over: checks that back off for it retry soon, spread over a time.
    pub(super) fn retry_checks_early(&mut self, spread: Duration, now: Instant) {
        for (object, check) in &mut self.checks {
            let delay = spread.mul_f64(self.random.f64());
            if let CheckPhase::BackingOff { until, early } = &mut check.phase
                && let Some(early) = early.take()
            {
                *until = (*until).min(early.max(now + delay));
            }
            let deadline = check.deadline();
            check
                .timer
                .set(&mut self.timers, Part::Check(*object), deadline);
        }
    }
}

impl<T: Target + Clone> FreshnessCheck<T> {
    /// Sends the request; its response is as fresh as `fresh_as_of`.
    fn send(&mut self, api: &Api, fresh_as_of: RegistrationSeq, permit: Permit) {
        let (api, target) = (api.clone(), self.target.clone());
        let (object, phase) = (self.object, self.request_phase());
        let response = async move {
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
                reset: false,
            })
        };
        self.phase = CheckPhase::Sent {
            response: response.boxed(),
            _permit: permit,
        };
    }

    /// A GET reads the object that is a target itself.
    fn request_phase(&self) -> RequestPhase {
        match self.watched {
            TargetId::Object(_) => RequestPhase::Get,
            TargetId::Collection(_) => RequestPhase::List,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Confirmed<T>, RequestError>> {
        let CheckPhase::Sent { response, .. } = &mut self.phase else {
            return Poll::Pending;
        };
        let response = ready!(response.poll_unpin(context));
        self.phase = CheckPhase::Due;
        Poll::Ready(response)
    }

    fn back_off(&mut self, error: &RequestError, now: Instant, random: f64) {
        let backoff = self.backoff.get_or_insert_default();
        let early = error.is_outage() || error.is_throttled();
        self.phase = CheckPhase::BackingOff {
            until: now + backoff.delay_after(error, now, random),
            early: early.then(|| now + retry_after(error, random)),
        };
    }

    /// The end of the back-off, if it backs off.
    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            CheckPhase::BackingOff { until, .. } => Some(until),
            _ => None,
        }
    }
}

fn outcome_of<T: Target>(response: &Result<Confirmed<T>, RequestError>) -> &'static str {
    match response {
        Ok(Confirmed { version: None, .. }) => "not_found",
        response => outcome_label(response),
    }
}
