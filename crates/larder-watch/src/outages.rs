//! The API server is away: one who waits for it finds out for all when it is back.
//!
//! Whoever fails for a reason that concerns every request alike ([`RequestError::is_outage`](crate::RequestError)) waits
//! by the schedule of [`Backoff`](crate::backoff::Backoff), which comes to a minute. That is long for data that could be
//! had, and for all to ask more often would be many requests to a server that is in trouble. So:
//!
//! 1. While anybody waits for the API server, one of them, the probe, asks after at most [`PROBE`], times a random 1.0 to
//!    2.0. (If its object loses its last reference meanwhile, the next who fails takes its place.)
//! 2. The first of them who gets through has the others ask as well: objects that are watched by name at the pace of
//!    their [`Worker`](super::worker::Worker), whatever is followed as a whole spread at random over [`APART`] for each. Each is
//!    hurried once; if it fails again it waits as before.
//! 3. Who waits because of what was answered to it alone (403, 404), or was asked to have patience (429, `Retry-After`),
//!    is not hurried and hurries nobody. Nor does one who had not failed: an object that the API server cannot read (500)
//!    would else be asked for as often as anything else is.
//!
//! No transport has to tell anything, so this holds over any `kube::Client`. client-go has nothing like it: each of its reflectors
//! waits by itself.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

/// Longest wait of the probe, before jitter.
const PROBE: Duration = Duration::from_secs(5);

/// Time between two of those who come back with the API server.
pub const APART: Duration = Duration::from_millis(10);

/// What those who share an API server know of its outages. Clones are one.
#[derive(Clone, Debug)]
pub struct Outages(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Over how long to spread those who waited for the end of the last outage.
    over: watch::Sender<Duration>,
}

#[derive(Debug)]
struct State {
    /// Somebody has failed, and nobody who had has got through since.
    away: bool,
    /// When the probe asks again.
    probe: Option<Instant>,
    /// Requests that have failed so far.
    failures: u32,
    /// Counts those who have failed.
    affected: Arc<()>,
}

/// Held by whoever has failed with the API server, until it has got through or is hurried.
#[derive(Debug)]
pub struct Affected {
    /// Counts them.
    _count: Arc<()>,
}

impl Default for Outages {
    fn default() -> Self {
        let state = State {
            away: false,
            probe: None,
            failures: 0,
            affected: Arc::new(()),
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            over: watch::Sender::new(Duration::ZERO),
        }))
    }
}

impl Outages {
    /// Somebody has failed with the API server, and would wait for `delay`. Returns how long it waits instead. `random` is
    /// uniform in `[0, 1)`.
    pub fn failed(&self, delay: Duration, now: Instant, random: f64) -> (Affected, Duration) {
        let mut state = self.0.state.lock();
        state.away = true;
        state.failures = state.failures.wrapping_add(1);
        let affected = Affected {
            _count: Arc::clone(&state.affected),
        };
        if state.probe.is_some_and(|probe| now < probe) {
            return (affected, delay);
        }
        let delay = delay.min(PROBE.mul_f64(1.0 + random));
        state.probe = Some(now + delay);
        (affected, delay)
    }

    /// One who had failed has got through.
    pub fn got_through(&self, affected: Affected) {
        drop(affected);
        let mut state = self.0.state.lock();
        if std::mem::take(&mut state.away) {
            state.probe = None;
            let others = Arc::strong_count(&state.affected) - 1;
            let spread = APART.saturating_mul(u32::try_from(others).unwrap_or(u32::MAX));
            self.0.over.send_replace(spread);
        }
    }

    /// Requests that have failed so far, round and round. What is resumed at another number than it was begun at may be
    /// resumed at another API server, or at one that was restored from a backup meanwhile.
    pub fn failures(&self) -> u32 {
        self.0.state.lock().failures
    }

    /// Tells when an outage is over, and over how long to spread those who waited for that.
    pub fn over(&self) -> watch::Receiver<Duration> {
        self.0.over.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn one_of_those_who_wait_asks_soon_and_the_others_as_they_would() {
        let (outages, mut now) = (Outages::default(), Instant::now());
        let mut probes = Vec::new();
        let mut waiting = Vec::new();
        for _ in 0..5 {
            for fails in 0..100 {
                let (affected, delay) = outages.failed(LONG, now, 0.5);
                waiting.push(affected);
                if fails == 0 {
                    probes.push(delay);
                } else {
                    assert_eq!(delay, LONG);
                }
            }
            now += *probes.last().unwrap();
        }
        assert_eq!(probes, [PROBE.mul_f64(1.5); 5]);
        // Nobody waits longer than it would.
        let soon = Duration::from_millis(800);
        assert_eq!(outages.failed(soon, now, 0.5).1, soon);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_who_gets_through_tells_how_many_others_there_are() {
        let (outages, now) = (Outages::default(), Instant::now());
        let mut over = outages.over();
        let mut waiting: Vec<_> = (0..501).map(|_| outages.failed(LONG, now, 0.0).0).collect();
        assert!(!over.has_changed().unwrap());
        outages.got_through(waiting.pop().unwrap());
        assert!(over.has_changed().unwrap());
        assert_eq!(*over.borrow_and_update(), APART * 500);
        // Once, until somebody fails again.
        outages.got_through(waiting.pop().unwrap());
        assert!(!over.has_changed().unwrap());
        waiting.truncate(9);
        waiting.push(outages.failed(LONG, now, 0.0).0);
        outages.got_through(waiting.pop().unwrap());
        assert_eq!(*over.borrow_and_update(), APART * 9);
    }
}
