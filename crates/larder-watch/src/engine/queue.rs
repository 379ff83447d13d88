//! The queue of requests: sends them with permits, urgent ones first, repeated ones at the limited rate.

use std::{mem, task::Wake as _};

use tokio::time::Instant;

use super::{Engine, Part};
use crate::{driver::Activity, limits::Permit, report::TargetId, target::Target};

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
        self.active -= usize::from(mem::replace(&mut watched.active, active));
        self.active += usize::from(active);
        let deadline = watched.driver.deadline();
        watched
            .timer
            .set(&mut self.timers, Part::Driver(id), deadline);
        if let Some(permit) = watched.driver.take_permit() {
            self.send(id, permit);
        } else if watched.driver.is_queued() {
            self.enqueue(id, false);
        }
    }

    /// Queues the request of a driver, or sends it if it may be sent at once.
    pub(super) fn enqueue(&mut self, id: TargetId, urgent: bool) {
        let Some(watched) = self.targets.get(&id) else {
            return;
        };
        if watched.is_repeat {
            self.repeated.push(id, urgent);
        } else if let Some(permit) = self.requests.try_acquire() {
            self.send(id, permit);
        } else {
            self.requests.enqueue(Part::Driver(id), urgent);
        }
    }

    /// Sends the queued request of a driver.
    fn send(&mut self, id: TargetId, permit: Permit) {
        let Some(watched) = self.targets.get_mut(&id) else {
            return;
        };
        let (now, seq) = (Instant::now(), self.seqs.current());
        let newest = watched.driver.target().newest_registration();
        let min = newest.and_then(|newest| self.server.min_version(newest));
        watched.is_repeat = true;
        self.last_sent = now;
        let (api, server) = (&self.api, &self.server);
        watched
            .driver
            .send(api, server, (seq, min.as_ref()), permit, now);
        watched.waker.wake_by_ref();
    }

    fn is_queued(&self, id: TargetId) -> bool {
        let watched = self.targets.get(&id);
        watched.is_some_and(|watched| watched.driver.is_queued())
    }

    /// Sends the queued requests, as long as there are permits.
    pub(super) fn admit(&mut self) {
        while let Some((part, permit)) = self.requests.next() {
            match part {
                Part::Driver(id) if self.is_queued(id) => self.send(id, permit),
                Part::Driver(_) => {}
                Part::Check(object) => self.send_check(object, permit),
            }
        }
        let now = Instant::now();
        while !self.repeated.is_empty()
            && let Some(permit) = self.requests.try_acquire()
        {
            let repeats = &self.repeats;
            if *self.reserved.get_or_insert_with(|| repeats.reserve(now)) > now {
                break;
            }
            // An entry may be out of date.
            while let Some(id) = self.repeated.pop() {
                if self.is_queued(id) {
                    self.reserved = None;
                    self.send(id, permit);
                    break;
                }
            }
        }
    }
}
