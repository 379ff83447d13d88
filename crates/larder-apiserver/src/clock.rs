//! The server's clock.
//!
//! The wall clock is read once, at the start. From then on, the time is that reading plus the time elapsed on tokio's
//! clock. So creation times and token expiry follow paused test time, and a jump of the machine's clock does not set
//! them back.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

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
            #[expect(
                clippy::disallowed_methods,
                reason = "the one reading of the wall clock"
            )]
            started_wall: Timestamp::now(),
        }
    }

    /// The time, to the nanosecond.
    pub(crate) fn now(&self) -> Timestamp {
        SignedDuration::try_from(self.started.elapsed())
            .ok()
            .and_then(|elapsed| self.started_wall.checked_add(elapsed).ok())
            .unwrap_or(Timestamp::MAX)
    }

    /// The time as metadata holds it: `2026-01-31T12:00:00Z`, whole seconds.
    pub(crate) fn rfc3339(&self) -> String {
        rfc3339(self.now())
    }
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
}
