//! Outages of the API server: one requester probes for its return on behalf of all.
//!
//! A requester that fails for a reason that affects every request alike ([`RequestError::is_outage`]), or that is
//! throttled, backs off by the schedule of [`RequestBackoff`], up to a minute. That is long once
//! the server is back. But if all requesters retried more often, an API server in trouble would get many requests. So:
//!
//! 1. During an outage, one requester, the probe, retries after at most [`PROBE`], times a random 1.0 to 2.0. (If its
//!    object loses its last reference meanwhile, the next requester that fails takes its place.)
//! 2. The first success has the others retry early, at the rate of the [`RepeatLimiter`](crate::limits::RepeatLimiter).
//!    Each of them does so once; if it fails again it backs off as before.
//! 3. No requester returns before its `Retry-After`. A requester rejected for a reason of its own (403, 404) keeps its
//!    delay, and its success does not affect the others. So an object that the API server cannot read (500) is
//!    requested less often than the others.
//!
//! No transport has to report anything, so this holds over any `kube::Client`. client-go has nothing like it: each of
//! its reflectors waits out its own back-off.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use crate::{
    backoff::{RequestBackoff, retry_after},
    error::RequestError,
    limits::INTERVAL,
};

/// Longest delay of the probe, before jitter.
const PROBE: Duration = Duration::from_secs(5);

/// The state of an API server's outages, shared by its requesters. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outages(Arc<OutagesInner>);

#[derive(Debug, Default)]
struct OutagesInner {
    state: Mutex<OutageState>,
    /// Over how long to spread those that backed off until the end of the last outage.
    over: watch::Sender<Duration>,
}

#[derive(Debug, Default)]
struct OutageState {
    /// A requester has failed, and none that had has succeeded since.
    away: bool,
    /// When the probe asks again.
    probe: Option<Instant>,
    /// Requests that have failed so far; throttled ones do not count.
    failures: u32,
    /// Counts the guards.
    affected: Arc<()>,
}

/// Held by a requester that has failed with the API server, until it succeeds or retries early.
type OutageGuard = Arc<()>;

impl Outages {
    /// A requester has failed with `error`, and would back off for `delay`, but at least for `least`. Returns how long
    /// it backs off instead. `random` is uniform in `[0, 1)`.
    fn failed(
        &self,
        error: &RequestError,
        delay: Duration,
        least: Duration,
        now: Instant,
        random: f64,
    ) -> (OutageGuard, Duration) {
        let mut state = self.0.state.lock();
        state.away = true;
        if error.is_outage() {
            state.failures = state.failures.wrapping_add(1);
        }
        let guard = Arc::clone(&state.affected);
        if state.probe.is_some_and(|probe| now < probe) {
            return (guard, delay);
        }
        let delay = delay.min(PROBE.mul_f64(1.0 + random)).max(least);
        state.probe = Some(now + delay);
        (guard, delay)
    }

    /// A requester that had failed has succeeded.
    fn recovered(&self, guard: OutageGuard) {
        drop(guard);
        let mut state = self.0.state.lock();
        if std::mem::take(&mut state.away) {
            state.probe = None;
            let others = Arc::strong_count(&state.affected) - 1;
            let spread = INTERVAL.saturating_mul(u32::try_from(others).unwrap_or(u32::MAX));
            self.0.over.send_replace(spread);
        }
    }

    /// Changes when an outage is over; holds over how long to spread those that backed off until then.
    pub(crate) fn over(&self) -> watch::Receiver<Duration> {
        self.0.over.subscribe()
    }
}

/// When a requester asks again: the delays of its own failures, and what outages change about them.
#[derive(Debug)]
pub(crate) struct Retry {
    outages: Outages,
    pub(crate) backoff: RequestBackoff,
    /// The last request failed with the API server or was throttled, and none has succeeded since.
    outage: Option<OutageGuard>,
    /// The end of an outage does not bring the next request forward to before this time.
    not_before: Instant,
}

impl Retry {
    pub(crate) fn new(outages: Outages, now: Instant) -> Self {
        Self {
            outages,
            backoff: RequestBackoff::default(),
            outage: None,
            not_before: now,
        }
    }

    /// A request failed. Returns the delay of the next one.
    pub(crate) fn failed(
        &mut self,
        error: &RequestError,
        now: Instant,
        random: &mut fastrand::Rng,
    ) -> Duration {
        let stretch = random.f64();
        let delay = self.backoff.delay_after(error, now, stretch);
        if !error.is_outage() && !error.is_throttled() {
            return delay;
        }
        let least = retry_after(error, stretch);
        let failed = self.outages.failed(error, delay, least, now, random.f64());
        let (outage, delay) = failed;
        self.outage = Some(outage);
        self.not_before = now + least;
        delay
    }

    /// The API server has answered.
    pub(crate) fn recovered(&mut self) {
        if let Some(outage) = self.outage.take() {
            self.outages.recovered(outage);
        }
    }

    /// Requests of any requester that have failed so far, wrapping. A watch that is resumed at another number than its
    /// state was asked for at may be resumed at another API server, or at one that was restored from a backup meanwhile.
    pub(crate) fn failures(&self) -> u32 {
        self.outages.0.state.lock().failures
    }

    /// The last failure says nothing of the API server any more.
    pub(crate) fn leave_outage(&mut self) {
        self.outage = None;
    }

    /// An outage is over. Returns when the next request is due instead of at `until`, if the requester backs off for an
    /// outage or because it was throttled.
    pub(crate) fn retry_early(&mut self, until: Instant, now: Instant) -> Option<Instant> {
        self.outage.take()?;
        Some(until.min(now.max(self.not_before)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    fn fail(
        outages: &Outages,
        delay: Duration,
        now: Instant,
        random: f64,
    ) -> (OutageGuard, Duration) {
        let error = RequestError::Timeout(LONG);
        outages.failed(&error, delay, Duration::ZERO, now, random)
    }

    #[tokio::test(start_paused = true)]
    async fn one_requester_probes_and_the_others_keep_their_delay() {
        let (outages, mut now) = (Outages::default(), Instant::now());
        let mut probes = Vec::new();
        let mut waiting = Vec::new();
        for _ in 0..5 {
            for fails in 0..100 {
                let (guard, delay) = fail(&outages, LONG, now, 0.5);
                waiting.push(guard);
                if fails == 0 {
                    probes.push(delay);
                } else {
                    assert_eq!(delay, LONG);
                }
            }
            now += *probes.last().unwrap();
        }
        assert_eq!(probes, [PROBE.mul_f64(1.5); 5]);
        // No delay gets longer.
        let soon = Duration::from_millis(800);
        assert_eq!(fail(&outages, soon, now, 0.5).1, soon);
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_waits_out_its_retry_after() {
        let (outages, now) = (Outages::default(), Instant::now());
        let error = RequestError::Timeout(LONG);
        let least = Duration::from_secs(20);
        assert_eq!(outages.failed(&error, LONG, least, now, 0.5).1, least);
    }

    #[tokio::test(start_paused = true)]
    async fn first_success_reports_the_number_of_others_once() {
        let (outages, now) = (Outages::default(), Instant::now());
        let mut over = outages.over();
        let mut waiting: Vec<_> = (0..501).map(|_| fail(&outages, LONG, now, 0.0).0).collect();
        assert!(!over.has_changed().unwrap());
        outages.recovered(waiting.pop().unwrap());
        assert!(over.has_changed().unwrap());
        assert_eq!(*over.borrow_and_update(), INTERVAL * 500);
        // Once, until the next failure.
        outages.recovered(waiting.pop().unwrap());
        assert!(!over.has_changed().unwrap());
        waiting.truncate(9);
        waiting.push(fail(&outages, LONG, now, 0.0).0);
        outages.recovered(waiting.pop().unwrap());
        assert_eq!(*over.borrow_and_update(), INTERVAL * 9);
    }
}
