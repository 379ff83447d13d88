//! The delay before a failed operation is retried.

use std::time::Duration;

/// First delay and cap: kubelet 1.36, `pkg/util/goroutinemap/exponentialbackoff`, as used for volumes.
const FIRST: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(122);

/// Doubles with every failure. A success starts over with a new one.
#[derive(Clone, Copy, Debug, Default)]
pub struct RetryBackoff {
    last: Option<Duration>,
}

impl RetryBackoff {
    /// The delay after one more failure.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.last.map_or(FIRST, |last| (last * 2).min(MAX_DELAY));
        self.last = Some(delay);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_from_half_a_second_to_two_minutes() {
        let mut backoff = RetryBackoff::default();
        let delays: Vec<_> = (0..10)
            .map(|_| backoff.next_delay().as_secs_f32())
            .collect();
        assert_eq!(
            delays,
            [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 122.0, 122.0]
        );
    }
}
