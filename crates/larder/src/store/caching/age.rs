//! The age of an answer. While the TTL is far from over, the exact clock is not read.
//!
//! The exact clock takes half of the time of a read. The kernel's coarse one takes a tenth of that, and is behind by a
//! tick (10 ms at most) or by some more where a hypervisor delays ticks.
//!
//! Invariants:
//! 1. In the last [`SLACK`] of a TTL and after it the exact clock decides, so the TTL ends when it says (T6).
//! 2. Where tokio's clock is not the system's, because a test paused it before the answer was first looked at, tokio's
//!    decides. A test that pauses it later ages the next answer, not this one.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// More than the coarse clock is ever behind.
const SLACK: Duration = Duration::from_secs(1);

/// When an answer came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Age {
    since: Instant,
    /// `None` where invariant 2 holds.
    coarse: Option<Coarse>,
}

/// An age at a time of the coarse clock.
#[derive(Clone, Copy, Debug)]
struct Coarse {
    age: Duration,
    at: Duration,
}

impl Age {
    #[expect(
        clippy::disallowed_methods,
        reason = "shows whether tokio's clock is the system's"
    )]
    pub(super) fn since(since: Instant) -> Self {
        let before = std::time::Instant::now();
        let now = Instant::now();
        let after = std::time::Instant::now();
        let is_system_time = (before..=after).contains(&now.into_std());
        let coarse = is_system_time
            .then(coarse_clock)
            .flatten()
            .map(|at| Coarse {
                age: now.saturating_duration_since(since),
                at,
            });
        Self { since, coarse }
    }

    /// Whether the answer is younger than `ttl` now.
    pub(super) fn is_below(&self, ttl: Duration) -> bool {
        let well_below = |coarse: Coarse| Some(coarse.is_well_below(ttl, coarse_clock()?));
        self.coarse.and_then(well_below) == Some(true) || self.since.elapsed() < ttl
    }
}

impl Coarse {
    /// Whether the exact clock would also say so, when the coarse one shows `now`.
    fn is_well_below(&self, ttl: Duration, now: Duration) -> bool {
        now.saturating_sub(self.at) + self.age + SLACK < ttl
    }
}

fn coarse_clock() -> Option<Duration> {
    clock_gettime(ClockId::MonotonicCoarse).try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn coarse_clock_does_not_decide_near_the_end_of_the_ttl() {
        let coarse = Coarse {
            age: 10 * SECOND,
            at: 1000 * SECOND,
        };
        let well_below = |passed| coarse.is_well_below(60 * SECOND, coarse.at + passed);
        assert!(well_below(Duration::ZERO));
        assert!(well_below(Duration::from_nanos(48_999_999_999)));
        assert!(
            !well_below(49 * SECOND),
            "the last second is the exact clock's"
        );
        assert!(!well_below(u32::MAX * SECOND));
        assert!(!coarse.is_well_below(Duration::ZERO, coarse.at), "TTL 0");
    }

    // managers 10, managers 11
    #[tokio::test(start_paused = true)]
    async fn paused_clock_of_a_test_decides() {
        let age = Age::since(Instant::now());
        assert!(age.is_below(60 * SECOND));
        tokio::time::advance(Duration::from_nanos(59_999_999_999)).await;
        assert!(age.is_below(60 * SECOND));
        tokio::time::advance(Duration::from_nanos(1)).await;
        assert!(!age.is_below(60 * SECOND), "exactly at the TTL it is over");
    }

    #[tokio::test]
    async fn clock_of_the_system_is_told_from_a_paused_one() {
        assert!(Age::since(Instant::now()).coarse.is_some());
        tokio::time::pause();
        assert!(Age::since(Instant::now()).coarse.is_none());
    }

    #[tokio::test]
    async fn age_before_the_first_look_counts() {
        let answer = Instant::now() - 59 * SECOND;
        assert!(Age::since(answer).is_below(62 * SECOND));
        assert!(!Age::since(answer).is_below(59 * SECOND));
    }
}
