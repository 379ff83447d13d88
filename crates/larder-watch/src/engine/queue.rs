//! The queue of requests: sends them with permits, urgent ones first, repeated ones at the limited rate.

use std::task::Wake as _;

use tokio::time::Instant;

use super::{Engine, Part, Targets};
use crate::{
    driver::Activity,
    limits::{Permit, PrioritySemaphore, Queue, RepeatLimiter, Urgency},
    report::TargetId,
    target::Target,
};

/// The requests that wait to be sent.
pub(super) struct RequestQueue {
    /// First requests and checks, in line for a permit.
    pub(super) first: PrioritySemaphore<Part>,
    /// Targets whose request is a repeated one.
    repeated: Queue<TargetId>,
    repeats: RepeatLimiter,
    /// When the next repeated request may be sent.
    reserved: Option<Instant>,
    /// When the last request was sent.
    pub(super) last_sent: Instant,
}

impl RequestQueue {
    /// An empty queue for at most `max_in_flight` requests in flight.
    pub(super) fn new(max_in_flight: usize, repeats: RepeatLimiter, now: Instant) -> Self {
        Self {
            first: PrioritySemaphore::new(max_in_flight),
            repeated: Queue::default(),
            repeats,
            reserved: None,
            last_sent: now,
        }
    }

    /// When the next repeated request is sent. None without one, or without a free permit: a response comes first.
    pub(super) fn repeat_at(&self) -> Option<Instant> {
        let repeat = self.reserved.filter(|_| !self.repeated.is_empty())?;
        self.first.try_acquire().map(|_| repeat)
    }

    /// An outage is over: there is no burst.
    pub(super) fn drain_burst(&mut self, now: Instant) {
        self.repeats.drain_burst(now);
        self.reserved = None;
    }

    /// The next repeated request that may be sent now. Entries for which `is_queued` is false are out of date and dropped.
    fn next_repeated(
        &mut self,
        now: Instant,
        is_queued: impl Fn(TargetId) -> bool,
    ) -> Option<(TargetId, Permit)> {
        if self.repeated.is_empty() {
            return None;
        }
        let permit = self.first.try_acquire()?;
        let repeats = &self.repeats;
        if *self.reserved.get_or_insert_with(|| repeats.reserve(now)) > now {
            return None;
        }
        while let Some(id) = self.repeated.pop() {
            if is_queued(id) {
                self.reserved = None;
                return Some((id, permit));
            }
        }
        None
    }
}

impl<T: Target + Clone> Engine<T> {
    /// Called after each event of a driver: sends or queues its request, and sets its timer.
    pub(super) fn settle(&mut self, id: TargetId) {
        let Some(watched) = self.targets.get_mut(&id) else {
            return;
        };
        let active = !matches!(
            watched.driver.activity(),
            Activity::Resting | Activity::BackingOff
        );
        self.pulse.set(&mut watched.active, active);
        let deadline = watched.driver.deadline();
        watched
            .timer
            .set(&mut self.timers, Part::Driver(id), deadline);
        if let Some(permit) = watched.driver.take_permit() {
            self.send(id, permit);
        } else if watched.driver.is_queued() {
            self.enqueue(id, Urgency::Normal);
        }
    }

    /// Queues the request of a driver, or sends it if it may be sent at once.
    pub(super) fn enqueue(&mut self, id: TargetId, urgency: Urgency) {
        let Some(watched) = self.targets.get(&id) else {
            return;
        };
        if watched.is_repeat {
            self.requests.repeated.push(id, urgency);
        } else if let Some(permit) = self.requests.first.try_acquire() {
            self.send(id, permit);
        } else {
            self.requests.first.enqueue(Part::Driver(id), urgency);
        }
    }

    /// Sends the queued request of a driver.
    fn send(&mut self, id: TargetId, permit: Permit) {
        let Some(watched) = self.targets.get_mut(&id) else {
            return;
        };
        let now = Instant::now();
        let seq = self.seqs.current();
        let min = watched
            .driver
            .target()
            .newest_registration()
            .and_then(|newest| self.server.min_version(newest));
        watched.is_repeat = true;
        self.requests.last_sent = now;
        let (api, server) = (&self.api, &self.server);
        watched
            .driver
            .send(api, server, seq, min.as_ref(), permit, now);
        watched.waker.wake_by_ref();
    }

    /// Sends the queued requests, as long as there are permits.
    pub(super) fn admit(&mut self) {
        while let Some((part, permit)) = self.requests.first.next() {
            match part {
                Part::Driver(id) if is_queued(&self.targets, id) => self.send(id, permit),
                Part::Driver(_) => {}
                Part::Check(object) => self.send_check(object, permit),
            }
        }
        let now = Instant::now();
        loop {
            let is_queued = |id| is_queued(&self.targets, id);
            let Some((id, permit)) = self.requests.next_repeated(now, is_queued) else {
                break;
            };
            self.send(id, permit);
        }
    }
}

fn is_queued<T: Target + Clone>(targets: &Targets<T>, id: TargetId) -> bool {
    targets
        .get(&id)
        .is_some_and(|watched| watched.driver.is_queued())
}
