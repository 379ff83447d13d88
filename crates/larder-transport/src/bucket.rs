//! Token bucket: a burst after a quiet time, then one token per interval.
//!
//! Its state is one instant, at which the bucket is full again. Times are passed in.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket.
///
/// ```
/// # use std::time::Duration;
/// # use larder_transport::TokenBucket;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let now = tokio::time::Instant::now();
/// let mut bucket = TokenBucket::new(Duration::from_secs(1), 1, now);
/// assert_eq!(bucket.take(now), Duration::ZERO);
/// assert_eq!(bucket.take(now), Duration::from_secs(1));
/// # }
/// ```
#[derive(Debug)]
pub struct TokenBucket {
    /// Time in which one token is added; zero means no limit.
    interval: Duration,
    /// Time in which an empty bucket fills up.
    capacity: Duration,
    /// When the bucket is full again; in the past if it is full.
    full_at: Instant,
}

impl TokenBucket {
    /// A full bucket of `burst` tokens.
    pub fn new(interval: Duration, burst: u32, now: Instant) -> Self {
        Self {
            interval,
            capacity: interval * burst,
            full_at: now,
        }
    }

    /// Time until a token is available; zero if one is.
    pub fn wait(&self, now: Instant) -> Duration {
        let taken = self.full_at.saturating_duration_since(now) + self.interval;
        taken.saturating_sub(self.capacity)
    }

    /// Takes a token in advance. Returns the time until it is available.
    pub fn take(&mut self, now: Instant) -> Duration {
        let wait = self.wait(now);
        self.full_at = self.full_at.max(now) + self.interval;
        wait
    }

    /// Returns a token.
    pub fn give_back(&mut self) {
        self.full_at -= self.interval;
    }

    /// Removes all tokens.
    pub fn empty(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now + self.capacity);
    }
}
