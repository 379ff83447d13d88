//! Back-off between attempts to connect.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;

/// Doubling delays between failed attempts. Jitter keeps nodes that lost the same server from returning together.
pub(super) struct ConnectBackoff {
    delays: Backoff,
    random: fastrand::Rng,
    /// The last attempt failed; when the next one is due.
    not_before: Option<Instant>,
}

impl ConnectBackoff {
    pub(super) fn new(delays: Backoff, random: fastrand::Rng) -> Self {
        Self {
            delays,
            random,
            not_before: None,
        }
    }

    /// Notes a failure at `now`. Returns the delay until the next attempt.
    pub(super) fn failed(&mut self, now: Instant) -> Duration {
        let delay = self.delays.next_delay().mul_f64(0.5 + self.random.f64());
        self.not_before = Some(now + delay);
        delay
    }

    pub(super) fn succeeded(&mut self) {
        self.delays.reset();
        self.not_before = None;
    }

    pub(super) fn has_failed(&self) -> bool {
        self.not_before.is_some()
    }

    /// The earliest time of the next attempt, if it lies in the future.
    pub(super) fn pause(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|instant| *instant > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_cap_and_success_resets_them() {
        let now = Instant::now();
        let delays = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let mut backoff = ConnectBackoff::new(delays, fastrand::Rng::with_seed(1));
        for middle in [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0] {
            let delay = backoff.failed(now);
            assert!((middle * 0.5..=middle * 1.5).contains(&delay.as_secs_f64()));
            assert_eq!(backoff.pause(now), Some(now + delay));
            assert_eq!(backoff.pause(now + delay), None);
        }
        for _ in 0..100 {
            assert!(backoff.failed(now) <= Duration::from_millis(7500));
        }
        backoff.succeeded();
        assert_eq!(backoff.pause(now), None);
        assert!(backoff.failed(now) <= Duration::from_millis(150));
    }
}
