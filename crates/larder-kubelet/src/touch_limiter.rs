//! Rate and order of the touches that this node sends (beside-kubelet R19, R20, R27).
//!
//! Pure: time and random numbers are passed in.
//!
//! Invariants:
//! 1. At most `IN_FLIGHT` touches are under way.
//! 2. The rate is between `MIN_RATE` and `MAX_RATE` per second. After a change of the rate, the burst is two
//!    seconds' worth, and larger only at full rate, so that halving takes effect at once.
//! 3. While `Retry-After` holds, nothing is sent.
//! 4. The pod with the highest priority comes first. Pods of equal priority come in random order. Touches that catch up
//!    come after all others.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use fastrand::Rng;
use larder_transport::TokenBucket;
use tokio::time::Instant;

/// Most touches under way.
const IN_FLIGHT: usize = 8;
/// Touches per second.
const MAX_RATE: u32 = 50;
/// Touches per second after many failures.
const MIN_RATE: u32 = 2;
/// Burst after a quiet time: the pods of a node.
const BURST: u32 = 110;
/// Touches per second that catch up with changes before the start (R27).
const CATCH_UP_RATE: u32 = 10;
/// The rate is doubled after a time without trouble.
const QUIET: Duration = Duration::from_mins(1);
/// The API server is overloaded if the 90th percentile of its answers takes longer.
const SLOW: Duration = Duration::from_millis(500);
/// Number of answers for a percentile.
const WINDOW: usize = 20;

/// Place of a touch in the order: the lowest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Those that catch up last.
    is_catch_up: bool,
    /// Highest priority first.
    priority: Reverse<i32>,
    random: u64,
    /// Number of the touch.
    number: u64,
}

/// The touches of a node that wait, each a `T`, and the rate at which they are sent.
#[derive(Debug)]
pub struct TouchLimiter<T> {
    random: Rng,
    waiting: BTreeMap<Rank, T>,
    /// Number of the last touch.
    last: u64,
    /// Touches that may be sent or are under way.
    granted: usize,
    rate: u32,
    bucket: TokenBucket,
    catch_up: TokenBucket,
    /// Durations of the last answers.
    answers: VecDeque<Duration>,
    /// Time of the last change of the rate, or of the last trouble.
    calm_since: Instant,
    /// No touch is sent before this time, by the API server's `Retry-After`.
    silent_until: Instant,
}

impl<T> TouchLimiter<T> {
    /// A full burst, and no touch that waits.
    pub fn new(random: Rng, now: Instant) -> Self {
        Self {
            random,
            waiting: BTreeMap::new(),
            last: 0,
            granted: 0,
            rate: MAX_RATE,
            bucket: bucket(MAX_RATE, BURST, now),
            catch_up: bucket(CATCH_UP_RATE, 1, now),
            answers: VecDeque::new(),
            calm_since: now,
            silent_until: now,
        }
    }

    /// Adds a touch of a pod with this `spec.priority`. It catches up if the change may have happened before the start of
    /// larder (R27).
    pub fn enqueue(&mut self, touch: T, priority: i32, is_catch_up: bool) -> Rank {
        self.last += 1;
        let rank = Rank {
            is_catch_up,
            priority: Reverse(priority),
            random: self.random.u64(..),
            number: self.last,
        };
        self.waiting.insert(rank, touch);
        rank
    }

    /// Removes a touch, unless it was sent.
    pub fn remove(&mut self, rank: Rank) {
        self.waiting.remove(&rank);
    }

    /// The touch to send at `now`, and whether it catches up. Call [`answered`](Self::answered) or
    /// [`not_sent`](Self::not_sent) after it.
    ///
    /// # Errors
    ///
    /// Nothing can be sent before a touch is added or answered, or before this time.
    pub fn next(&mut self, now: Instant) -> Result<(T, bool), Option<Instant>> {
        self.recover(now);
        let Some(first) = self.waiting.first_entry() else {
            return Err(None);
        };
        if self.granted >= IN_FLIGHT {
            return Err(None);
        }
        let is_catch_up = first.key().is_catch_up;
        let mut at = self.silent_until.max(now + self.bucket.wait(now));
        if is_catch_up {
            at = at.max(now + self.catch_up.wait(now));
        }
        if at > now {
            return Err(Some(at));
        }
        self.bucket.take(now);
        if is_catch_up {
            self.catch_up.take(now);
        }
        self.granted += 1;
        Ok((first.remove(), is_catch_up))
    }

    /// Records that a touch was answered or given up after `took`; with 429, nothing is sent for the time `throttled`.
    pub fn answered(&mut self, now: Instant, took: Duration, throttled: Option<Duration>) {
        self.granted = self.granted.saturating_sub(1);
        if let Some(retry_after) = throttled {
            self.silent_until = self.silent_until.max(now + retry_after);
            self.halve(now);
            return;
        }
        if self.answers.len() == WINDOW {
            self.answers.pop_front();
        }
        self.answers.push_back(took);
        if self.answers.len() == WINDOW && self.percentile_90() > SLOW {
            self.halve(now);
        }
    }

    /// Records that a touch was not sent after all, because the pod no longer needs it. It does not count.
    pub fn not_sent(&mut self, is_catch_up: bool) {
        self.granted = self.granted.saturating_sub(1);
        self.bucket.give_back();
        if is_catch_up {
            self.catch_up.give_back();
        }
    }

    /// Touches per second.
    pub fn rate(&self) -> u32 {
        self.rate
    }

    fn percentile_90(&self) -> Duration {
        let mut answers: Vec<_> = self.answers.iter().copied().collect();
        let (_, at, _) = answers.select_nth_unstable(WINDOW * 9 / 10 - 1);
        *at
    }

    fn halve(&mut self, now: Instant) {
        // The next decision needs answers of its own.
        self.answers.clear();
        self.calm_since = now;
        self.set_rate((self.rate / 2).max(MIN_RATE), now);
    }

    /// Doubles the rate for each quiet minute.
    fn recover(&mut self, now: Instant) {
        while self.rate < MAX_RATE && now >= self.calm_since + QUIET {
            self.calm_since += QUIET;
            self.set_rate((self.rate * 2).min(MAX_RATE), now);
        }
    }

    fn set_rate(&mut self, rate: u32, now: Instant) {
        if rate == self.rate {
            return;
        }
        self.rate = rate;
        let burst = if rate == MAX_RATE { BURST } else { rate * 2 };
        self.bucket = bucket(rate, burst, now);
        self.bucket.empty(now);
    }
}

fn bucket(rate: u32, burst: u32, now: Instant) -> TokenBucket {
    TokenBucket::new(Duration::from_secs(1) / rate, burst, now)
}

/// The longest wait of a touch in a cluster whose nodes have this TTL, which reflects its size (R20): for pods of
/// DaemonSets, and for changes that concern more than ten pods of the node.
pub fn longest_spread(ttl: Option<Duration>) -> Duration {
    let secs = match ttl.map_or(0, |ttl| ttl.as_secs()) {
        0 => 0,
        1..=15 => 1,
        16..=30 => 2,
        31..=60 => 5,
        _ => 20,
    };
    Duration::from_secs(secs)
}

/// A random wait of at most `longest`.
pub fn spread(longest: Duration, random: &mut Rng) -> Duration {
    longest.mul_f64(random.f64())
}

#[cfg(test)]
mod tests;
