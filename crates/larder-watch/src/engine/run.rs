//! The wake-ups of an engine, and its reactions.

use std::{future::poll_fn, task::Wake as _, time::Duration};

use tokio::time::{Instant, sleep_until};
use tokio_util::time::{DelayQueue, delay_queue};

use super::{Engine, Part, WatchedTarget};
use crate::{
    driver::Shared,
    report::{Report, TargetId},
    target::Target,
};

/// What wakes an engine.
enum Wake {
    /// An outage is over; retries are spread over that time.
    OutageOver(Duration),
    TimerFired(Part),
    /// The next repeated request may be sent.
    RepeatDue,
    /// The targets are due for a look at their liveness.
    ReviewDue,
    /// A request or a stream has something.
    Ready(Part),
}

/// A timer of a part, and when it fires.
#[derive(Default)]
pub(super) struct Timer(Option<(delay_queue::Key, Instant)>);

impl<T: Target + Clone> Engine<T> {
    /// The next report.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> (TargetId, Report<T>) {
        loop {
            self.admit();
            self.pulse.publish();
            if let Some(report) = self.reports.pop_front() {
                return report;
            }
            match self.wake().await {
                Wake::OutageOver(spread) => self.retry_early(spread, Instant::now()),
                Wake::TimerFired(Part::Driver(id)) => self.driver_expired(id, Instant::now()),
                Wake::TimerFired(Part::Check(object)) => self.check_expired(object),
                Wake::RepeatDue => {}
                Wake::ReviewDue => self.review(Instant::now()),
                Wake::Ready(Part::Driver(id)) => self.poll_driver(id, Instant::now()),
                Wake::Ready(Part::Check(object)) => self.poll_check(object, Instant::now()),
            }
        }
    }

    /// Every arm is cancel-safe: the receiver keeps its mark, the others their collections. Biased, so that what is ready
    /// at the same time is handled in the same order for the same seed. Streams come last, since a server that never
    /// pauses must not hold up timers.
    async fn wake(&mut self) -> Wake {
        let repeat = self.requests.repeat_at();
        tokio::select! {
            biased;
            Ok(()) = self.over.changed() => Wake::OutageOver(*self.over.borrow_and_update()),
            Some(part) = next_timer(&mut self.timers), if !self.timers.is_empty() => Wake::TimerFired(part),
            () = sleep_until(repeat.unwrap_or_else(Instant::now)), if repeat.is_some() => Wake::RepeatDue,
            () = self.pulse.review_due() => Wake::ReviewDue,
            part = self.ready.next() => Wake::Ready(part),
        }
    }

    fn poll_driver(&mut self, id: TargetId, now: Instant) {
        let Some(watched) = self.targets.get_mut(&id) else {
            return;
        };
        let WatchedTarget { driver, waker, .. } = &mut **watched;
        let (server, reports) = (&mut self.server, &mut self.reports);
        let mut shared = Shared {
            now,
            server,
            reports,
        };
        if waker
            .poll(|context| driver.poll(context, &mut shared))
            .is_ready()
        {
            waker.wake_by_ref();
            self.settle(id);
        }
    }

    fn driver_expired(&mut self, id: TargetId, now: Instant) {
        let Some(watched) = self.targets.get_mut(&id) else {
            return;
        };
        watched.timer = Timer::default();
        let (server, reports) = (&mut self.server, &mut self.reports);
        watched.driver.expired(&mut Shared {
            now,
            server,
            reports,
        });
        if watched.driver.is_overdue() {
            self.pulse.review_soon();
        }
        self.settle(id);
    }

    /// Publishes since when the longest-silent target has been silent, if any is.
    fn review(&mut self, now: Instant) {
        let last_sent = self.requests.last_sent;
        let silent_since = self
            .targets
            .values()
            .filter_map(|watched| watched.driver.silent_since(now, last_sent))
            .min();
        self.pulse.reviewed(now, silent_since);
    }

    /// An outage is over: requesters that back off for it retry soon, targets at the limited rate, checks spread over
    /// that time.
    fn retry_early(&mut self, spread: Duration, now: Instant) {
        self.requests.drain_burst(now);
        for (id, watched) in &mut self.targets {
            watched.driver.retry_early(now);
            let deadline = watched.driver.deadline();
            watched
                .timer
                .set(&mut self.timers, Part::Driver(*id), deadline);
        }
        self.retry_checks_early(spread, now);
    }
}

/// The next timer that fires. Cancel-safe: timers stay in their queue.
async fn next_timer(timers: &mut DelayQueue<Part>) -> Option<Part> {
    let expired = poll_fn(|context| timers.poll_expired(context)).await;
    Some(expired?.into_inner())
}

impl Timer {
    /// Sets the timer to fire at `deadline`, or never.
    pub(super) fn set(
        &mut self,
        timers: &mut DelayQueue<Part>,
        part: Part,
        deadline: Option<Instant>,
    ) {
        if self.0.as_ref().map(|(_, at)| *at) == deadline {
            return;
        }
        if let Some((key, _)) = self.0.take() {
            timers.remove(&key);
        }
        self.0 = deadline.map(|deadline| (timers.insert_at(part, deadline), deadline));
    }
}
