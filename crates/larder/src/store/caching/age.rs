//! The age of an answer. While the TTL is far from over, the exact clock is not read: that takes as long as the rest of
//! a read, and the kernel's coarse clock a quarter of it.
//!
//! Invariants:
//! 1. In the last [`SLACK`] of a TTL and after it the exact clock decides, so the TTL ends when it says (T6).
//! 2. Where tokio's clock is not the system's, because a test has paused it, tokio's decides.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// More than the coarse clock is ever behind: a tick (10 ms at most), or some more where a hypervisor delays ticks.
const SLACK: Duration = Duration::from_secs(1);

/// When an answer came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Age {
    since: Instant,
    /// A time of the coarse clock that is not later. `None` where invariant 2 holds.
    coarse: Option<Duration>,
}

impl Age {
    pub(super) fn since(since: Instant) -> Self {
        let coarse = coarse_now();
        // A paused clock may meet the system's, but the next moment it is behind.
        let is_system_time = is_in_step() && is_in_step();
        let age = since.elapsed();
        Self {
            since,
            coarse: is_system_time.then(|| coarse.saturating_sub(age)),
        }
    }

    pub(super) fn at(self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Whether the answer is younger than the TTL now.
    pub(super) fn is_below(self, ttl: Duration) -> bool {
        let well_below = |since| coarse_now().saturating_sub(since) + SLACK < ttl;
        self.coarse.is_some_and(well_below) || self.since.elapsed() < ttl
    }
}

fn coarse_now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::MonotonicCoarse)).unwrap_or_default()
}

/// Whether tokio's clock shows the system's time.
#[expect(
    clippy::disallowed_methods,
    reason = "shows whether tokio's clock is the system's"
)]
fn is_in_step() -> bool {
    let before = std::time::Instant::now();
    let now = Instant::now().into_std();
    (before..=std::time::Instant::now()).contains(&now)
}

#[cfg(test)]
mod tests {
    use super::*;

    // managers 10, managers 11
    #[tokio::test(start_paused = true)]
    async fn paused_clock_of_a_test_decides() {
        let age = Age::since(Instant::now());
        let ttl = Duration::from_mins(1);
        tokio::time::advance(Duration::from_nanos(59_999_999_999)).await;
        assert!(age.is_below(ttl));
        tokio::time::advance(Duration::from_nanos(1)).await;
        assert!(!age.is_below(ttl), "exactly at the TTL it is over");
    }

    #[tokio::test]
    async fn system_clock_is_distinguished_from_a_paused_one() {
        assert!(Age::since(Instant::now()).coarse.is_some());
        tokio::time::pause();
        assert!(Age::since(Instant::now()).coarse.is_none());
    }

    #[tokio::test(start_paused = true)]
    #[expect(clippy::disallowed_methods, reason = "the system's clock")]
    async fn paused_clock_that_meets_the_systems_decides() {
        let meeting = Duration::from_micros(20);
        for _ in 0..200 {
            let system = std::time::Instant::now();
            let behind = system.saturating_duration_since(Instant::now().into_std());
            tokio::time::advance(behind + meeting).await;
            while system.elapsed() < 2 * meeting {
                assert!(Age::since(Instant::now()).coarse.is_none());
            }
        }
    }

    #[tokio::test]
    async fn exact_clock_decides_near_the_end_of_the_ttl() {
        let age = Age::since(Instant::now() - Duration::from_secs(59));
        assert!(age.is_below(Duration::from_secs(100)));
        assert!(age.is_below(Duration::from_mins(1)));
        assert!(!age.is_below(Duration::from_secs(59)));
        assert!(!age.is_below(Duration::ZERO));
    }
}
