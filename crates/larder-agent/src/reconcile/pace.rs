//! How soon a pod's volumes may be written again.
//!
//! A single edit goes through at once, and so does a handful of them. Whoever writes without pause gets [`INTERVAL`] between two
//! passes, each with the newest content, so that a hundred updates in a second are not a hundred writes.

use std::time::Duration;

use larder_transport::TokenBucket;
use tokio::time::Instant;

/// Passes that may follow each other without pause.
const BURST: u32 = 25;
/// Time in which one more pass becomes free.
const INTERVAL: Duration = Duration::from_millis(100);

/// The allowance of one pod: full at first, refilled with time.
#[derive(Debug)]
pub(super) struct Pace(TokenBucket);

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self(TokenBucket::new(INTERVAL, BURST, now))
    }

    /// When the next pass may begin: `now`, unless the allowance is used up.
    pub(super) fn next(&self, now: Instant) -> Instant {
        now + self.0.wait(now)
    }

    /// A pass that wrote something began at `now`.
    pub(super) fn spend(&mut self, now: Instant) {
        self.0.take(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes within a second, when there is something to write every `gap`.
    fn passes_in_a_second(gap: Duration) -> u32 {
        let start = Instant::now();
        let (mut pace, mut now, mut passes) = (Pace::new(start), start, 0);
        while now < start + Duration::from_secs(1) {
            now = pace.next(now);
            pace.spend(now);
            passes += 1;
            now += gap;
        }
        passes
    }

    #[tokio::test(start_paused = true)]
    async fn a_handful_of_edits_goes_through_at_once() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for _ in 0..BURST {
            assert_eq!(pace.next(start), start);
            pace.spend(start);
        }
        assert_eq!(pace.next(start), start + INTERVAL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_updates_in_a_second_are_not_a_hundred_passes() {
        let passes = passes_in_a_second(Duration::from_millis(10));
        // The allowance, and what is refilled meanwhile.
        assert!((BURST..=BURST + 10).contains(&passes), "{passes} passes");
    }

    #[tokio::test(start_paused = true)]
    async fn edits_at_a_humans_pace_never_wait() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        for edit in 0..1000 {
            let now = start + edit * INTERVAL;
            assert_eq!(pace.next(now), now);
            pace.spend(now);
        }
    }
}
