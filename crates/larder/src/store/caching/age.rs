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

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// In nanoseconds; more than the coarse clock is ever behind.
const SLACK: u64 = NANOS_PER_SEC;

/// When an answer came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Age {
    since: Instant,
    /// The same on the coarse clock. `None` where invariant 2 holds.
    coarse: Option<Coarse>,
}

/// A time of the coarse clock, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Coarse(u64);

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
        let age = now.saturating_duration_since(since);
        let coarse = is_system_time
            .then(Coarse::now)
            .flatten()
            .and_then(|now| now.before(age));
        Self { since, coarse }
    }

    /// Whether the answer is younger than the TTL now.
    pub(super) fn is_below(&self, ttl_nanos: u64) -> bool {
        let well_below = |since: Coarse| Some(since.is_well_below(ttl_nanos, Coarse::now()?));
        self.coarse.and_then(well_below) == Some(true)
            || self.since.elapsed() < Duration::from_nanos(ttl_nanos)
    }
}

impl Coarse {
    fn now() -> Option<Self> {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        let (secs, nanos) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
        let nanos = secs
            .ok()?
            .checked_mul(NANOS_PER_SEC)?
            .checked_add(nanos.ok()?);
        nanos.map(Self)
    }

    fn before(self, age: Duration) -> Option<Self> {
        let age = u64::try_from(age.as_nanos()).ok()?;
        self.0.checked_sub(age).map(Self)
    }

    /// Whether the exact clock would also say so, when the coarse one shows `now`.
    fn is_well_below(self, ttl_nanos: u64, now: Self) -> bool {
        now.0.saturating_sub(self.0).saturating_add(SLACK) < ttl_nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    impl Age {
        fn is_below_secs(&self, secs: u64) -> bool {
            self.is_below(secs * NANOS_PER_SEC)
        }
    }

    #[test]
    fn coarse_clock_does_not_decide_near_the_end_of_the_ttl() {
        let at = Coarse(1000 * NANOS_PER_SEC);
        let since = at.before(10 * SECOND).unwrap();
        let well_below =
            |passed| since.is_well_below(60 * NANOS_PER_SEC, Coarse(at.0.saturating_add(passed)));
        assert!(well_below(0));
        assert!(well_below(48_999_999_999));
        assert!(
            !well_below(49 * NANOS_PER_SEC),
            "the last second is the exact clock's"
        );
        assert!(!well_below(u64::MAX));
        assert!(!since.is_well_below(0, at), "TTL 0");
        assert!(Coarse(1).before(SECOND).is_none(), "before the clock began");
    }

    // managers 10, managers 11
    #[tokio::test(start_paused = true)]
    async fn paused_clock_of_a_test_decides() {
        let age = Age::since(Instant::now());
        assert!(age.is_below_secs(60));
        tokio::time::advance(Duration::from_nanos(59_999_999_999)).await;
        assert!(age.is_below_secs(60));
        tokio::time::advance(Duration::from_nanos(1)).await;
        assert!(!age.is_below_secs(60), "exactly at the TTL it is over");
    }

    #[tokio::test]
    async fn system_clock_is_distinguished_from_a_paused_one() {
        assert!(Age::since(Instant::now()).coarse.is_some());
        tokio::time::pause();
        assert!(Age::since(Instant::now()).coarse.is_none());
    }

    #[tokio::test]
    async fn age_before_the_first_look_counts() {
        let answer = Instant::now() - 59 * SECOND;
        assert!(Age::since(answer).is_below_secs(62));
        assert!(!Age::since(answer).is_below_secs(59));
    }
}
