//! How long to wait before what failed is tried again.

use std::time::Duration;

/// First wait and cap: kubelet 1.36, `pkg/util/goroutinemap/exponentialbackoff`, as used for volumes.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(122);

/// Doubles with every failure; a success starts over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    /// The wait after one more failure.
    pub(crate) fn failed(&mut self) -> Duration {
        let wait = self.last.map_or(FIRST, |last| (last * 2).min(LONGEST));
        self.last = Some(wait);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_half_a_second_to_two_minutes() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..10).map(|_| backoff.failed().as_secs_f32()).collect();
        assert_eq!(
            waits,
            [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 122.0, 122.0]
        );
    }
}
