//! Spaces out the requests of reflectors that have asked before.
//!
//! What interrupts one watch mostly interrupts all of them (an API server that restarts, a connection that is cut, a
//! compaction, a 429), on every node of the cluster at the same moment. So whoever asks once more goes [`AT_ONCE`] with
//! others, and then one each [`APART`]; the first request of an object is not held up, since a pod waits for it.
//!
//! Invariant: in any second at most [`AT_ONCE`] and a hundred are let through, and after [`Pace::begin`] a hundred.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use larder_transport::TokenBucket;

use larder_watch::APART;

/// So many go at once after a quiet time: what concerns a few objects holds up none.
const AT_ONCE: u32 = 50;

/// Who waits to ask once more: first those that a reader waits for, then the others, each in the order in which they came.
///
/// An entry may be out of date, as in [`Admission`](super::admission::Admission). Times are passed in.
#[derive(Debug)]
pub(super) struct Pace {
    wanted: VecDeque<u64>,
    others: VecDeque<u64>,
    bucket: TokenBucket,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            wanted: VecDeque::new(),
            others: VecDeque::new(),
            bucket: TokenBucket::new(APART, AT_ONCE, now),
        }
    }

    /// Has the object wait; again if it is wanted and was not before.
    pub(super) fn queue(&mut self, id: u64, wanted: bool) {
        if wanted {
            self.wanted.push_back(id);
        } else {
            self.others.push_back(id);
        }
    }

    /// Until the next may go, if any waits.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let waits = !(self.wanted.is_empty() && self.others.is_empty());
        waits.then(|| self.bucket.wait(now))
    }

    /// The next that waits, if it may go.
    pub(super) fn next(&mut self, now: Instant) -> Option<u64> {
        if !self.wait(now)?.is_zero() {
            return None;
        }
        self.wanted.pop_front().or_else(|| self.others.pop_front())
    }

    /// One has gone.
    pub(super) fn gone(&mut self, now: Instant) {
        self.bucket.take(now);
    }

    /// All of the cluster come now: nobody goes at once with others.
    pub(super) fn begin(&mut self, now: Instant) {
        self.bucket.empty(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thousand wait.
    fn crowd(now: Instant) -> Pace {
        let mut pace = Pace::new(now);
        for id in 0..1000 {
            pace.queue(id, false);
        }
        pace
    }

    /// How many go in a second from `now` on.
    fn within_a_second(pace: &mut Pace, mut now: Instant) -> usize {
        let end = now + Duration::from_secs(1);
        let mut count = 0;
        while now < end {
            while pace.next(now).is_some() {
                pace.gone(now);
                count += 1;
            }
            now += Duration::from_millis(1);
        }
        count
    }

    #[tokio::test(start_paused = true)]
    async fn some_go_at_once_and_then_a_hundred_in_a_second() {
        let now = Instant::now();
        let mut pace = crowd(now);
        assert_eq!(within_a_second(&mut pace, now), 50 + 99);
        let now = now + Duration::from_secs(1);
        assert_eq!(within_a_second(&mut pace, now), 100);
        // Those who come later do not overtake, but for those whom a reader waits for.
        pace.queue(1000, false);
        pace.queue(1001, true);
        let now = now + Duration::from_secs(1);
        assert_eq!(pace.next(now), Some(1001));
        pace.gone(now);
        assert_eq!(pace.next(now), None);
        assert_eq!(pace.wait(now), Some(APART));
        assert_eq!(pace.next(now + APART), Some(249));
    }

    #[tokio::test(start_paused = true)]
    async fn when_an_outage_ends_they_are_apart_from_the_first_on() {
        let now = Instant::now();
        let mut pace = crowd(now);
        pace.begin(now);
        assert_eq!(within_a_second(&mut pace, now), 99);
        // A rest is not lost by one who gets through, but used up.
        let now = now + Duration::from_hours(1);
        pace.begin(now);
        pace.begin(now);
        assert_eq!(within_a_second(&mut pace, now), 99);
    }
}
