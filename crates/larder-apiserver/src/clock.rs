//! The server's clock.
//!
//! The time is that of the wall clock at the start, plus the time elapsed on tokio's clock. So creation times and token
//! expiry follow paused test time, and no jump of the machine's clock sets them back. tokio's clock stands still while
//! the machine sleeps: from [`MAX_LAG`] on, the wall clock counts.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// How far the wall clock may be ahead. Tokens are valid for at least ten minutes.
const MAX_LAG: SignedDuration = SignedDuration::from_mins(2);

/// Wall-clock time that follows tokio's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    started: Instant,
    started_wall: Timestamp,
}

impl Clock {
    /// A clock that starts now.
    pub(crate) fn start() -> Self {
        Self {
            started: Instant::now(),
            started_wall: wall(),
        }
    }

    /// The time, to the nanosecond.
    pub(crate) fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.started.elapsed()).ok();
        let time = elapsed.and_then(|elapsed| self.started_wall.checked_add(elapsed).ok());
        let (time, wall) = (time.unwrap_or(Timestamp::MAX), wall());
        if wall.duration_since(time) > MAX_LAG {
            wall
        } else {
            time
        }
    }

    /// The time as metadata holds it: `2026-01-31T12:00:00Z`, whole seconds.
    pub(crate) fn rfc3339(&self) -> String {
        rfc3339(self.now())
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the server's readings of the wall clock"
)]
fn wall() -> Timestamp {
    Timestamp::now()
}

/// `time` as metadata holds it, cut to whole seconds.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second())
        .expect("a timestamp without its fraction is a timestamp")
        .to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_follows_the_paused_clock() {
        let clock = Clock::start();
        let before = clock.now();
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now().as_second() - before.as_second(), 90);
        assert!(!clock.rfc3339().contains('.'), "{}", clock.rfc3339());
    }

    #[test]
    fn a_machine_that_has_slept_has_the_present_time() {
        let wall = wall();
        let hours = SignedDuration::from_hours(2);
        let asleep = Clock {
            started: Instant::now(),
            started_wall: wall.checked_sub(hours).unwrap(),
        };
        assert!(asleep.now() >= wall);
        let set_back = Clock {
            started_wall: wall.checked_add(hours).unwrap(),
            ..asleep
        };
        assert!(set_back.now() > wall);
    }
}
