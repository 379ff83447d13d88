//! A bucket of tokens: so many at once after a quiet time, and then one each interval.
//!
//! Kept as one number, the instant at which the bucket would be full again. Times are passed in.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket.
#[derive(Debug)]
pub struct TokenBucket {
    /// Time that one token takes; zero when there is no limit.
    interval: Duration,
    /// Time that a full bucket takes.
    capacity: Duration,
    /// When the bucket is full again; in the past when it is.
    full_at: Instant,
}

impl TokenBucket {
    /// A full one.
    pub fn new(interval: Duration, burst: u32, now: Instant) -> Self {
        Self {
            interval,
            capacity: interval * burst,
            full_at: now,
        }
    }

    /// Until there is a token; zero when there is one.
    pub fn wait(&self, now: Instant) -> Duration {
        let taken = self.full_at.saturating_duration_since(now) + self.interval;
        taken.saturating_sub(self.capacity)
    }

    /// Takes a token at once. Returns how long it takes until it has been earned.
    pub fn take(&mut self, now: Instant) -> Duration {
        let wait = self.wait(now);
        self.full_at = self.full_at.max(now) + self.interval;
        wait
    }

    /// Gives back a token that was taken.
    pub fn give_back(&mut self) {
        self.full_at -= self.interval;
    }

    /// Spills what it holds.
    pub fn empty(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now + self.capacity);
    }
}
