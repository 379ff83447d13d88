//! Freshness checks: one request by name for all readers of an object whose known state may be too old for them.
//!
//! The watch of a target does not show how fresh a silent object is. So for a reader that has just registered, the
//! object is read once: by a GET if the target is that object, and by a list of the one name if the target is a
//! namespace. Such a list also confirms an absence, and its version. Without a watch, a GET is the only source.
//!
//! Invariant: an object has at most one check under way, and a check that has failed backs off with a delay of its own.

use std::{
    sync::Arc,
    task::{Context, Poll, Wake as _, ready},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use larder_objects::ResourceVersion;
use tokio::time::Instant;
use tokio_util::time::DelayQueue;

use super::{Engine, OlderAnswer, Part, Start, Timer};
use crate::{
    api::Api,
    backoff::{RequestBackoff, retry_after},
    error::{RequestError, RequestFailure, RequestPhase, outcome_label},
    limits::Permit,
    ready::ReadyWaker,
    report::{Confirmed, Event, Report},
    sequence::RegistrationSeq,
    target::Target,
};

/// The check of one object.
pub(super) struct FreshnessCheck<T: Target> {
    object: u64,
    /// The object as a target.
    target: T,
    /// The target that covers the object: the object itself, or a namespace.
    watched: u64,
    /// An answer was older than the known state, which was this; the object is checked once more.
    known_before: Option<ResourceVersion>,
    backoff: Option<Box<RequestBackoff>>,
    phase: CheckPhase<T>,
    waker: Arc<ReadyWaker<Part>>,
    timer: Timer,
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

impl<T: Target + Clone> Engine<T> {
    /// Ends the freshness check of an object.
    pub fn remove_check(&mut self, object: u64) {
        if let Some(mut check) = self.checks.remove(&object) {
            check.timer.set(&mut self.timers, Part::Check(object), None);
        }
    }

    /// Whether the freshness check of the object has failed, and is not due yet.
    pub fn is_check_backing_off(&self, object: u64) -> bool {
        let check = self.checks.get(&object);
        check.is_some_and(|check| matches!(check.phase, CheckPhase::BackingOff { .. }))
    }

    /// The answer of a freshness check, `answered`, is older than what is `known`. So the object is checked once more,
    /// and the second answer decides.
    pub fn check_was_older(
        &mut self,
        id: u64,
        object: u64,
        answered: &ResourceVersion,
        known: ResourceVersion,
    ) -> OlderAnswer {
        let Some(check) = self.checks.get_mut(&object) else {
            return OlderAnswer::Overtaken;
        };
        match check.known_before.replace(known) {
            None => {
                check.phase = CheckPhase::Queued;
                self.requests.enqueue(Part::Check(object), true);
                OlderAnswer::AskedAgain
            }
            Some(before) if answered.is_older_than(&before) => {
                self.remove_check(object);
                let _ = self.start(id, true);
                OlderAnswer::Restored
            }
            Some(_) => OlderAnswer::Overtaken,
        }
    }

    /// Checks an object, unless a check is under way or backs off.
    pub(super) fn check(&mut self, watched: u64, object: u64, single: impl Fn(u64) -> Option<T>) {
        if let Some(check) = self.checks.get_mut(&object) {
            let CheckPhase::Due = check.phase else {
                return;
            };
            check.phase = CheckPhase::Queued;
        } else {
            let Some(target) = single(object) else {
                return;
            };
            let check = FreshnessCheck {
                object,
                target,
                watched,
                known_before: None,
                backoff: None,
                phase: CheckPhase::Queued,
                waker: self.ready.waker(Part::Check(object)),
                timer: Timer::default(),
            };
            self.checks.insert(object, Box::new(check));
        }
        match self.requests.try_acquire() {
            Some(permit) => self.send_check(object, permit),
            None => self.requests.enqueue(Part::Check(object), true),
        }
    }

    pub(super) fn send_check(&mut self, object: u64, permit: Permit) {
        let seq = self.seqs.current();
        if let Some(check) = self.checks.get_mut(&object)
            && let CheckPhase::Queued = check.phase
        {
            check.send(&self.api, seq, permit);
            check.waker.wake_by_ref();
        }
    }

    pub(super) fn poll_check(&mut self, object: u64) {
        let Some(check) = self.checks.get_mut(&object) else {
            return;
        };
        let (waker, random) = (Arc::clone(&check.waker), &mut self.random);
        let Poll::Ready((outcome, result)) = waker.poll(|context| check.poll(context, random))
        else {
            return;
        };
        check.set_timer(&mut self.timers);
        let (target, verb) = (check.watched, check.request_phase().as_str());
        let event = match result {
            Err(failure) => Some(Event::CheckFailed(object, failure)),
            Ok(confirmed) => {
                // A GET does not return the version of an absence; a complete state does.
                let relist = confirmed.version.is_none() && !self.is_without_slot(target);
                if relist {
                    self.remove_check(object);
                }
                // Without a slot for that, the answer to the GET is the only source.
                if relist && self.start(target, true) == Start::Started {
                    None
                } else {
                    // Events older than the check change nothing.
                    if let Some(version) = &confirmed.version
                        && target == object
                        && let Some(watched) = self.targets.get_mut(&target)
                    {
                        watched.driver.saw(version);
                    }
                    Some(Event::Confirmed(confirmed))
                }
            }
        };
        let report = Report::new(target, event).answered(verb, outcome);
        self.reports.push_back(report);
    }

    /// The next request of a check that backs off is due: its target is asked whether it is still needed.
    pub(super) fn check_expired(&mut self, object: u64) {
        if let Some(check) = self.checks.get_mut(&object) {
            check.timer = Timer::default();
            check.phase = CheckPhase::Due;
            let due = Report::new(check.watched, Event::CheckDue(object));
            self.reports.push_back(due);
        }
    }

    /// An outage is over: checks that back off for it retry soon, spread over a time.
    pub(super) fn retry_checks_early(&mut self, spread: Duration, now: Instant) {
        for check in self.checks.values_mut() {
            let delay = spread.mul_f64(self.random.f64());
            if let CheckPhase::BackingOff { until, early } = &mut check.phase
                && let Some(early) = early.take()
            {
                *until = (*until).min(early.max(now + delay));
            }
            check.set_timer(&mut self.timers);
        }
    }
}

impl<T: Target + Clone> FreshnessCheck<T> {
    /// Sends the request; its answer is as fresh as `fresh_as_of`.
    fn send(&mut self, api: &Api, fresh_as_of: RegistrationSeq, permit: Permit) {
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

    /// Once the request was answered: its outcome as a label, and the result of the check.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        random: &mut fastrand::Rng,
    ) -> Poll<(&'static str, Result<Confirmed<T>, RequestFailure>)> {
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
        let result = result.map_err(|error| RequestFailure::new(phase, error));
        Poll::Ready((outcome, result))
    }

    /// Sets the timer to the end of the back-off, if it backs off.
    fn set_timer(&mut self, timers: &mut DelayQueue<Part>) {
        let until = match self.phase {
            CheckPhase::BackingOff { until, .. } => Some(until),
            _ => None,
        };
        self.timer.set(timers, Part::Check(self.object), until);
    }
}
