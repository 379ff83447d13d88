//! Delays between requests for the same thing that fail.

use std::time::Duration;

use larder_transport::Backoff;
use tokio::time::Instant;

use crate::error::RequestError;

/// Delays that double: 0.8, 1.6, 3.2 … 30 s, each times a random 1.0 to 2.0.
///
/// The schedule restarts when more than 2 min have passed since it last did (client-go 1.36,
/// `tools/cache/reflector.go`: 800 ms, 30 s, 2 min, factor 2, jitter 1).
#[derive(Debug)]
pub struct RequestBackoff {
    delays: Backoff,
    restarted: Option<Instant>,
}

const BASE: Duration = Duration::from_millis(800);
const CAP: Duration = Duration::from_secs(30);
/// The longest of them.
pub(crate) const LONGEST_OWN_DELAY: Duration = Duration::from_mins(1);
const RESTART_AFTER: Duration = Duration::from_mins(2);

/// A node gets 403 for a moment after a pod was bound, until the authorizer has seen the pod. So the first retries
/// after one come sooner: 0.1, 0.2, 0.4 s, then the ordinary schedule.
const BASE_SOON: Duration = Duration::from_millis(100);

impl Default for RequestBackoff {
    fn default() -> Self {
        Self {
            delays: Backoff::new(BASE, CAP),
            restarted: None,
        }
    }
}

impl RequestBackoff {
    /// The next delay; `soon`: the cause may be over in a moment. `random` is uniform in `[0, 1)`.
    pub(crate) fn delay(&mut self, now: Instant, soon: bool, random: f64) -> Duration {
        if self
            .restarted
            .is_none_or(|restarted| now - restarted > RESTART_AFTER)
        {
            self.restarted = Some(now);
            self.delays = Backoff::new(if soon { BASE_SOON } else { BASE }, CAP);
        }
        self.delays.next_delay().mul_f64(1.0 + random)
    }

    /// The next delay after `error`: at least its `retry_after`. `random` is uniform in `[0, 1)`.
    pub fn delay_after(&mut self, error: &RequestError, now: Instant, random: f64) -> Duration {
        // Credentials are renewed at any moment, too.
        let soon = error.is_forbidden() || error.is_unauthorized();
        let delay = self.delay(now, soon, random);
        delay.max(retry_after(error, random))
    }

    /// Forgets the failures so far.
    pub fn reset(&mut self) {
        self.restarted = None;
    }
}

/// The API server's `Retry-After`, itself stretched by up to 50 %, so that clients rejected together do not return
/// together. `random` is uniform in `[0, 1)`.
pub(crate) fn retry_after(error: &RequestError, random: f64) -> Duration {
    let asked = error.retry_after().unwrap_or_default();
    asked.mul_f64(1.0 + random / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(backoff: &mut RequestBackoff, now: Instant, soon: bool, count: usize) -> Vec<u128> {
        (0..count)
            .map(|_| backoff.delay(now, soon, 0.0).as_millis())
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn delays_double_up_to_a_cap_and_reset_when_idle() {
        let (mut backoff, now) = (RequestBackoff::default(), Instant::now());
        assert_eq!(
            millis(&mut backoff, now, false, 8),
            [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]
        );
        let later = now + RESTART_AFTER;
        assert_eq!(millis(&mut backoff, later, false, 1), [30_000]);
        let later = later + Duration::from_millis(1);
        assert_eq!(millis(&mut backoff, later, false, 2), [800, 1600]);
        assert_eq!(
            backoff.delay(later, false, 0.5),
            Duration::from_millis(3200 + 1600)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn forbidden_right_after_binding_is_retried_soon() {
        let (mut backoff, now) = (RequestBackoff::default(), Instant::now());
        assert_eq!(
            millis(&mut backoff, now, true, 5),
            [100, 200, 400, 800, 1600]
        );
        backoff.reset();
        assert_eq!(millis(&mut backoff, now, true, 1), [100]);
    }
}
