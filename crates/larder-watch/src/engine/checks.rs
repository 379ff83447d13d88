//! Freshness checks: requests for one object, in addition to the watch that covers it.
//!
//! Invariant: an object has at most one check under way, and a check that has failed backs off with a delay of its own.

use std::{
    sync::Arc,
    task::{Poll, Wake as _},
    time::Duration,
};

use larder_objects::ResourceVersion;
use tokio::time::Instant;

use super::{Engine, Event, OlderAnswer, Part, Report, Start, Timer};
use crate::{freshness::FreshnessCheck, limits::Permit, ready::ReadyWaker, target::Target};

pub(super) struct RunningCheck<T: Target> {
    check: FreshnessCheck<T>,
    waker: Arc<ReadyWaker<Part>>,
    timer: Timer,
}

impl<T: Target + Clone> Engine<T> {
    /// Ends the freshness check of an object.
    pub fn remove_check(&mut self, object: u64) {
        if let Some(mut running) = self.checks.remove(&object) {
            running
                .timer
                .set(&mut self.timers, Part::Check(object), None);
        }
    }

    /// Whether the freshness check of the object has failed, and is not due yet.
    pub fn is_check_backing_off(&self, object: u64) -> bool {
        let running = self.checks.get(&object);
        running.is_some_and(|running| running.check.is_backing_off())
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
        let Some(running) = self.checks.get_mut(&object) else {
            return OlderAnswer::Overtaken;
        };
        match running.check.known_before.replace(known) {
            None => {
                running.check.requeue();
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
        match self.checks.get_mut(&object) {
            Some(running) if running.check.is_due() => running.check.requeue(),
            Some(_) => return,
            None => {
                let Some(target) = single(object) else {
                    return;
                };
                let running = RunningCheck {
                    check: FreshnessCheck::new(object, target, watched),
                    waker: self.ready.waker(Part::Check(object)),
                    timer: Timer::default(),
                };
                self.checks.insert(object, Box::new(running));
            }
        }
        match self.requests.try_acquire() {
            Some(permit) => self.send_check(object, permit),
            None => self.requests.enqueue(Part::Check(object), true),
        }
    }

    pub(super) fn send_check(&mut self, object: u64, permit: Permit) {
        let seq = self.seqs.current();
        if let Some(running) = self.checks.get_mut(&object)
            && running.check.is_queued()
        {
            running.check.send(&self.api, seq, permit);
            running.waker.wake_by_ref();
        }
    }

    pub(super) fn poll_check(&mut self, object: u64) {
        let Some(running) = self.checks.get_mut(&object) else {
            return;
        };
        let RunningCheck {
            check,
            waker,
            timer,
        } = &mut **running;
        let random = &mut self.random;
        let Poll::Ready(end) = waker.poll(|context| check.poll(context, random)) else {
            return;
        };
        timer.set(&mut self.timers, Part::Check(object), check.deadline());
        let target = check.watched;
        let event = match end.result {
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
        self.reports.push_back(Report {
            target,
            answered: Some(end.answered),
            restart: None,
            event,
        });
    }

    /// The next request of a check that backs off is due: its target is asked whether it is still needed.
    pub(super) fn check_expired(&mut self, object: u64) {
        if let Some(running) = self.checks.get_mut(&object) {
            running.timer = Timer::default();
            running.check.expired();
            let due = Event::CheckDue(object);
            self.reports
                .push_back(Report::of(running.check.watched, due));
        }
    }

    /// An outage is over: checks that back off for it retry soon, spread over a time.
    pub(super) fn retry_checks_early(&mut self, spread: Duration, now: Instant) {
        for (object, running) in &mut self.checks {
            running
                .check
                .retry_early(spread.mul_f64(self.random.f64()), now);
            let deadline = running.check.deadline();
            running
                .timer
                .set(&mut self.timers, Part::Check(*object), deadline);
        }
    }
}
