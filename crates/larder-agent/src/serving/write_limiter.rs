//! Limits how often a pod's volumes are written.
//!
//! A single edit goes through at once, and so does a short burst. A pod whose objects change without pause gets one
//! pass every [`INTERVAL`], each with the newest content, so a hundred updates in a second are not a hundred writes.

use std::time::Duration;

use tokio::time::Instant;

/// Passes that may follow each other without pause.
const BURST: u32 = 25;
/// Time after which one more pass is allowed.
const INTERVAL: Duration = Duration::from_millis(100);

/// The token bucket of one pod: full at first, refilled with time.
#[derive(Debug)]
pub(super) struct WriteLimiter {
    /// When the bucket is full again. The further ahead, the less is left.
    full_at: Instant,
}

impl WriteLimiter {
    pub(super) fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// When the next pass may begin: `now`, unless the bucket is empty.
    pub(super) fn next(&self, now: Instant) -> Instant {
        let free = self.full_at.checked_sub(INTERVAL * (BURST - 1));
        free.map_or(now, |free| free.max(now))
    }

    /// Takes the token of a pass that began at `now` and wrote something.
    pub(super) fn spend(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes within a second, with a change every `gap`.
    fn passes_in_a_second(gap: Duration) -> u32 {
        let start = Instant::now();
        let (mut limiter, mut now, mut passes) = (WriteLimiter::new(start), start, 0);
        while now < start + Duration::from_secs(1) {
            now = limiter.next(now);
            limiter.spend(now);
            passes += 1;
            now += gap;
        }
        passes
    }

    #[tokio::test(start_paused = true)]
    async fn burst_of_edits_goes_through_at_once() {
        let start = Instant::now();
        let mut limiter = WriteLimiter::new(start);
        for _ in 0..BURST {
            assert_eq!(limiter.next(start), start);
            limiter.spend(start);
        }
        assert_eq!(limiter.next(start), start + INTERVAL);
    }

    #[tokio::test(start_paused = true)]
    async fn hundred_updates_in_a_second_are_fewer_passes() {
        let passes = passes_in_a_second(Duration::from_millis(10));
        // The burst, and what is refilled meanwhile.
        assert!((BURST..=BURST + 10).contains(&passes), "{passes} passes");
    }

    #[tokio::test(start_paused = true)]
    async fn edits_by_hand_never_wait() {
        let start = Instant::now();
        let mut limiter = WriteLimiter::new(start);
        for edit in 0..1000 {
            let now = start + edit * INTERVAL;
            assert_eq!(limiter.next(now), now);
            limiter.spend(now);
        }
    }
}
