//! Whether the API server accepts the client's credentials.
//!
//! All requests of a transport carry the same credentials, so one 401 holds for all of them. While access is in doubt,
//! one request is sent as a probe, and the others share its outcome. Access is in doubt after a 401 and after the last
//! connection is lost: a server that revokes credentials often ends the connections too.
//!
//! Invariants:
//! 1. After a 401 at most one request reaches the server for each delay, until one is answered otherwise.
//! 2. A 401 to credentials that have been replaced says nothing of those in use.
//! 3. A late answer delays other requests by at most [`PATIENCE`].

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::time::Instant;

use crate::{backoff::Backoff, connect_backoff::ConnectBackoff, credentials::Generation};

/// Delay after the first 401, and the longest delay, before jitter. Short, because a file often has new credentials by
/// then.
const DELAYS: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));

/// How long other requests wait for the answer to the probe.
const PATIENCE: Duration = Duration::from_secs(1);

/// The known state of access.
pub(super) struct Access {
    state: AccessState,
    /// Of the credentials in use.
    credentials: Generation,
    backoff: ConnectBackoff,
}

enum AccessState {
    /// As far as is known, the credentials are accepted.
    Granted,
    /// Unknown; a probe may be sent from that time on. `refused` if the last answer was a 401.
    InDoubt { not_before: Instant, refused: bool },
    /// A probe is under way. It lives as long as the mark from [`Access::probe`].
    Probing {
        since: Instant,
        probe: Weak<()>,
        refused: bool,
    },
}

/// The requests that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// All of them.
    All,
    /// One, which then holds the mark from [`Access::probe`].
    One,
    /// None before that time, unless an event changes that.
    Wait(Instant),
    /// None: each is answered as the last one was.
    Refuse,
}

impl Access {
    pub(super) fn new(random: fastrand::Rng) -> Self {
        Self {
            state: AccessState::Granted,
            credentials: Generation::default(),
            backoff: ConnectBackoff::new(DELAYS, random),
        }
    }

    /// The server has answered 401 to a request with these credentials. Returns whether they are those in use.
    pub(super) fn refused(&mut self, sent_with: Generation, now: Instant) -> bool {
        if sent_with < self.credentials {
            return false;
        }
        // A request that was under way together with the first one.
        if matches!(self.state, AccessState::InDoubt { refused: true, .. }) {
            return true;
        }
        let not_before = now + self.backoff.failed(now);
        self.state = AccessState::InDoubt {
            not_before,
            refused: true,
        };
        true
    }

    /// The probe was answered with a status other than 401.
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
    pub(super) fn renewed(&mut self, credentials: Generation, now: Instant) {
        self.credentials = credentials;
        if let AccessState::InDoubt { not_before, .. } = &mut self.state {
            *not_before = now;
        }
    }

    /// The requests that may be sent at `now`.
    pub(super) fn pass(&mut self, now: Instant) -> Pass {
        match &self.state {
            AccessState::Granted => Pass::All,
            AccessState::InDoubt { not_before, .. } if now < *not_before => Pass::Refuse,
            AccessState::InDoubt { .. } => Pass::One,
            // It was canceled, or broke without an answer.
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

    /// Starts a probe. Its request holds the returned mark.
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

    const OLD: Generation = Generation {
        handshake: 0,
        head: 0,
    };
    const NEW: Generation = Generation {
        handshake: 0,
        head: 1,
    };

    fn access() -> (Access, Instant) {
        (Access::new(fastrand::Rng::with_seed(1)), Instant::now())
    }

    #[test]
    fn after_a_401_single_probes_go_out_at_growing_intervals() {
        let (mut access, mut now) = access();
        assert_eq!(access.pass(now), Pass::All);
        let mut asked = 0;
        let end = now + Duration::from_mins(1);
        access.refused(OLD, now);
        while now < end {
            match access.pass(now) {
                Pass::One => {
                    let probe = access.probe(now);
                    assert!(matches!(access.pass(now), Pass::Wait(_)));
                    asked += 1;
                    access.refused(OLD, now);
                    drop(probe);
                }
                pass => assert_eq!(pass, Pass::Refuse),
            }
            now += Duration::from_millis(10);
        }
        assert!((5..=12).contains(&asked), "{asked}");
        access.renewed(NEW, now);
        assert_eq!(access.pass(now), Pass::One);
        let _probe = access.probe(now);
        access.granted();
        assert_eq!(access.pass(now), Pass::All);
    }

    #[test]
    fn simultaneous_401s_count_once() {
        let (mut access, now) = access();
        for _ in 0..500 {
            access.refused(OLD, now);
        }
        assert_eq!(access.pass(now + Duration::from_millis(1500)), Pass::One);
    }

    #[test]
    fn a_late_401_of_replaced_credentials_says_nothing_of_the_new_ones() {
        let (mut access, now) = access();
        assert!(access.refused(OLD, now));
        access.renewed(NEW, now);
        let _probe = access.probe(now);
        // To requests that were sent before the renewal.
        assert!(!access.refused(OLD, now));
        assert!(matches!(access.pass(now), Pass::Wait(_)));
        access.granted();
        assert!(!access.refused(OLD, now));
        assert_eq!(access.pass(now), Pass::All);
        assert!(access.refused(NEW, now));
        assert_eq!(access.pass(now), Pass::Refuse);
    }

    #[test]
    fn a_lost_probe_is_replaced_and_a_slow_one_overtaken() {
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
