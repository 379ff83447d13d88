//! Whether the API server takes our credentials, and who finds out.
//!
//! All requests of a transport have the same credentials. So one answer 401 speaks for all, and hundreds of watches that
//! ask again, each by itself, learn nothing more from it: while it is in doubt, one request goes first, and the others
//! share its outcome. In doubt it is after a 401, and when the last connection was lost: a server that forgets who
//! we are, as one that expires credentials does, often ends the connections with it.
//!
//! Invariants:
//! 1. After a 401 at most one request reaches the server for each delay, until one is answered otherwise.
//! 2. A server that answers late holds nobody up for longer than [`PATIENCE`].

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::Instant;

use super::backoff::ConnectBackoff;

/// Delay after the first 401, and the longest one, before jitter: short, because new credentials in a file are often there
/// before anybody asks.
const DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How long others wait for the answer to the request that goes first.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the transport knows.
#[derive(Debug)]
pub(super) struct Access {
    state: AccessState,
    backoff: ConnectBackoff,
}

#[derive(Debug)]
enum AccessState {
    /// As far as is known, it takes them.
    Granted,
    /// It may not; one request may find out from that time on. It was `refused`, or is merely not known any more.
    InDoubt { not_before: Instant, refused: bool },
    /// One request finds out; it lives as long as what [`Access::probe`] gave to it.
    Probing {
        since: Instant,
        probe: Weak<()>,
        refused: bool,
    },
}

/// Who may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Everybody.
    All,
    /// One, who then holds what [`Access::probe`] gives.
    One,
    /// Nobody before that time, unless something happens.
    Wait(Instant),
    /// Nobody: whoever asks is answered as the last one was.
    Refuse,
}

impl Access {
    pub(super) fn new(random: fastrand::Rng) -> Self {
        Self {
            state: AccessState::Granted,
            backoff: ConnectBackoff::new(DELAYS.0, DELAYS.1, random),
        }
    }

    /// The server has answered 401.
    pub(super) fn refused(&mut self, now: Instant) {
        // One of those who were under way with the first one.
        if matches!(self.state, AccessState::InDoubt { refused: true, .. }) {
            return;
        }
        let not_before = now + self.backoff.failed(now);
        self.state = AccessState::InDoubt {
            not_before,
            refused: true,
        };
    }

    /// The request that went first was answered, and not with 401.
    pub(super) fn granted(&mut self) {
        if matches!(self.state, AccessState::Probing { .. }) {
            self.state = AccessState::Granted;
            self.backoff.succeeded();
        }
    }

    /// The last connection was lost.
    pub(super) fn lost(&mut self, now: Instant) {
        if matches!(self.state, AccessState::Granted) {
            self.state = AccessState::InDoubt {
                not_before: now,
                refused: false,
            };
        }
    }

    /// There are new credentials.
    pub(super) fn renewed(&mut self, now: Instant) {
        if let AccessState::InDoubt { not_before, .. } = &mut self.state {
            *not_before = now;
        }
    }

    /// Who may send at `now`.
    pub(super) fn pass(&mut self, now: Instant) -> Pass {
        match &self.state {
            AccessState::Granted => Pass::All,
            AccessState::InDoubt { not_before, .. } if now < *not_before => Pass::Refuse,
            AccessState::InDoubt { .. } => Pass::One,
            // It was given up, or broke without an answer.
            AccessState::Probing { probe, refused, .. } if probe.strong_count() == 0 => {
                self.state = AccessState::InDoubt {
                    not_before: now,
                    refused: *refused,
                };
                Pass::One
            }
            AccessState::Probing { since, .. } if now < *since + PATIENCE => {
                Pass::Wait(*since + PATIENCE)
            }
            AccessState::Probing { .. } => {
                self.state = AccessState::Granted;
                Pass::All
            }
        }
    }

    /// Marks the request that goes first.
    pub(super) fn probe(&mut self, now: Instant) -> Arc<()> {
        let mark = Arc::new(());
        let refused = matches!(self.state, AccessState::InDoubt { refused: true, .. });
        self.state = AccessState::Probing {
            since: now,
            probe: Arc::downgrade(&mark),
            refused,
        };
        mark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> (Access, Instant) {
        (Access::new(fastrand::Rng::with_seed(1)), Instant::now())
    }

    #[test]
    fn after_a_401_one_request_at_a_time_finds_out_and_ever_less_often() {
        let (mut access, mut now) = access();
        assert_eq!(access.pass(now), Pass::All);
        let mut asked = 0;
        let end = now + Duration::from_mins(1);
        access.refused(now);
        while now < end {
            match access.pass(now) {
                Pass::One => {
                    let probe = access.probe(now);
                    assert!(matches!(access.pass(now), Pass::Wait(_)));
                    asked += 1;
                    access.refused(now);
                    drop(probe);
                }
                pass => assert_eq!(pass, Pass::Refuse),
            }
            now += Duration::from_millis(10);
        }
        assert!((5..=12).contains(&asked), "{asked}");
        access.renewed(now);
        assert_eq!(access.pass(now), Pass::One);
        let _probe = access.probe(now);
        access.granted();
        assert_eq!(access.pass(now), Pass::All);
    }

    #[test]
    fn late_answers_of_the_same_moment_count_once() {
        let (mut access, now) = access();
        for _ in 0..500 {
            access.refused(now);
        }
        assert_eq!(access.pass(now + Duration::from_millis(1500)), Pass::One);
    }

    #[test]
    fn a_request_that_goes_first_and_does_not_come_back_holds_nobody_up() {
        let (mut access, now) = access();
        access.lost(now);
        assert_eq!(access.pass(now), Pass::One);
        drop(access.probe(now));
        assert_eq!(access.pass(now), Pass::One);
        let _slow = access.probe(now);
        assert_eq!(access.pass(now), Pass::Wait(now + PATIENCE));
        assert_eq!(access.pass(now + PATIENCE), Pass::All);
    }
}
