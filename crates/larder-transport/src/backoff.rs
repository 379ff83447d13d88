//! Delays that double.

use std::time::Duration;

/// Delays between attempts that fail: each is twice the one before, up to a cap. Users add jitter.
///
/// ```
/// use std::time::Duration;
///
/// let mut backoff = larder_transport::Backoff::new(Duration::from_secs(1), Duration::from_secs(3));
/// let delays = [(); 4].map(|()| backoff.next_delay().as_secs());
/// assert_eq!(delays, [1, 2, 3, 3]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    next: Duration,
}

impl Backoff {
    /// Starts with `first`.
    pub const fn new(first: Duration, cap: Duration) -> Self {
        let next = first;
        Self { first, cap, next }
    }

    /// The delay after one more failure.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.next.min(self.cap);
        self.next = delay.saturating_mul(2);
        delay
    }

    /// Starts over, after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}
