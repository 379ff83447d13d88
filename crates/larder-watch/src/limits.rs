//! Limits of the requests: how many are in flight, and how often requests are repeated.
//!
//! A cause that interrupts one watch usually interrupts all of them (a restart of the API server, a cut connection, a
//! compaction, a 429), on every node of the cluster at the same moment. So all managers and collections of a node share
//! one rate limit of repeated requests. The first request of a target is exempt, since a pod waits for it.
//!
//! Invariant: in any second at most [`BURST`] and a hundred repeated requests are sent, and a hundred after
//! [`RepeatLimiter::drain_burst`].

use std::{collections::VecDeque, sync::Arc, time::Duration};

use larder_transport::TokenBucket;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

/// Time between two repeated requests.
pub(crate) const INTERVAL: Duration = Duration::from_millis(10);

/// Burst after a quiet time: the watches of one HTTP/2 connection (the API server's limit: 100 streams). A connection
/// that is cut while the API server is there is caught up with at once.
const BURST: u32 = 100;

/// The rate of repeated requests. Clones are one.
#[derive(Clone, Debug)]
pub(crate) struct RepeatLimiter(Arc<Mutex<TokenBucket>>);

impl Default for RepeatLimiter {
    fn default() -> Self {
        let bucket = TokenBucket::new(INTERVAL, BURST, Instant::now());
        Self(Arc::new(Mutex::new(bucket)))
    }
}

impl RepeatLimiter {
    /// Spends a token, and returns when the request may be sent.
    pub(crate) fn reserve(&self, now: Instant) -> Instant {
        now + self.0.lock().take(now)
    }

    /// The burst is over: an outage has ended, and all nodes of the cluster come back now.
    pub(crate) fn drain_burst(&self, now: Instant) {
        self.0.lock().empty(now);
    }
}

/// A permit of a [`PrioritySemaphore`]; dropping it gives it back.
pub(crate) type Permit = OwnedSemaphorePermit;

/// Which requesters come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A reader waits.
    Urgent,
    Normal,
}

/// Queued requesters: the urgent ones come first; each of the two groups keeps its order.
///
/// An entry may be out of date, since none is removed from the middle. So a requester that comes out is asked whether
/// it still waits. One that becomes urgent is queued a second time.
#[derive(Debug)]
pub(crate) struct Queue<R> {
    urgent: VecDeque<R>,
    normal: VecDeque<R>,
}

impl<R> Default for Queue<R> {
    fn default() -> Self {
        Self {
            urgent: VecDeque::new(),
            normal: VecDeque::new(),
        }
    }
}

impl<R> Queue<R> {
    pub(crate) fn push(&mut self, requester: R, urgency: Urgency) {
        match urgency {
            Urgency::Urgent => self.urgent.push_back(requester),
            Urgency::Normal => self.normal.push_back(requester),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<R> {
        self.urgent.pop_front().or_else(|| self.normal.pop_front())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.normal.is_empty()
    }
}

/// Limits how many requests are in flight. Requesters wait in line for a [`Permit`].
///
/// A request counts from when it is sent until it is answered: a GET or list by its body, a watch by its head, a
/// streaming list by the end of its initial events.
#[derive(Debug)]
pub(crate) struct PrioritySemaphore<R> {
    permits: Arc<Semaphore>,
    queue: Queue<R>,
}

impl<R> PrioritySemaphore<R> {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS))),
            queue: Queue::default(),
        }
    }

    /// A permit, if there is one and no requester is in line for it.
    pub(crate) fn try_acquire(&self) -> Option<Permit> {
        self.permit().filter(|_| self.queue.is_empty())
    }

    /// Queues a requester.
    pub(crate) fn enqueue(&mut self, requester: R, urgency: Urgency) {
        self.queue.push(requester, urgency);
    }

    /// The next requester in line, and its permit.
    pub(crate) fn next(&mut self) -> Option<(R, Permit)> {
        let permit = self.permit()?;
        Some((self.queue.pop()?, permit))
    }

    fn permit(&self) -> Option<Permit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_with_waiting_readers_go_first_the_rest_in_order() {
        let mut requests = PrioritySemaphore::new(1);
        let first = requests.try_acquire().unwrap();
        assert!(requests.try_acquire().is_none());
        requests.enqueue(1, Urgency::Normal);
        requests.enqueue(2, Urgency::Normal);
        requests.enqueue(3, Urgency::Normal);
        requests.enqueue(3, Urgency::Urgent);
        assert!(requests.next().is_none());
        drop(first);
        // A newcomer does not overtake those in line.
        assert!(requests.try_acquire().is_none());
        let mut order = Vec::new();
        while let Some((id, _permit)) = requests.next() {
            order.push(id);
        }
        assert_eq!(order, [3, 1, 2, 3]);
        assert!(requests.try_acquire().is_some());
    }

    /// How many of a thousand repeated requests go within a second.
    fn within_a_second(limiter: &RepeatLimiter, now: Instant) -> usize {
        let end = now + Duration::from_secs(1);
        (0..1000).take_while(|_| limiter.reserve(now) < end).count()
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_burst_a_hundred_requests_pass_each_second() {
        let now = Instant::now();
        let limiter = RepeatLimiter::default();
        assert_eq!(within_a_second(&limiter, now), 100 + 99);
        // The reservation that was too late stands.
        let now = now + Duration::from_secs(1);
        assert_eq!(within_a_second(&limiter, now), 99);
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_outage_there_is_no_burst() {
        let now = Instant::now();
        let limiter = RepeatLimiter::default();
        limiter.drain_burst(now);
        limiter.clone().drain_burst(now);
        assert_eq!(within_a_second(&limiter, now), 99);
        let now = now + Duration::from_hours(1);
        limiter.drain_burst(now);
        assert_eq!(within_a_second(&limiter, now), 99);
    }
}
