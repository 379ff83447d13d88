//! The events of one pod: the last ones, and which failures count as the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use larder_transport::TokenBucket;
use tokio::time::Instant;

use super::event::PodEvent;

/// Requests that a pod may cause at once.
pub(super) const BURST: u32 = 25;
/// Time in which one more request becomes free.
pub(super) const REFILL: Duration = Duration::from_mins(5);
/// Number of different messages for one reason that makes them similar.
pub(super) const SIMILAR: usize = 10;
/// Time without a failure for a reason after which its messages are forgotten.
pub(super) const SIMILAR_WITHIN: SignedDuration = SignedDuration::from_mins(10);
/// Events of a pod that are remembered, to count them up.
const MAX_EVENTS: usize = 32;

/// The events of one pod.
#[derive(Debug)]
pub(super) struct PodEvents {
    /// The last ones, oldest first.
    pub(super) events: Vec<PodEvent>,
    /// By reason.
    messages: BTreeMap<&'static str, Messages>,
    requests: TokenBucket,
}

/// The messages of a pod for one reason.
#[derive(Debug, Default)]
struct Messages {
    different: BTreeSet<String>,
    last: Timestamp,
}

impl PodEvents {
    pub(super) fn new() -> Self {
        Self {
            events: Vec::new(),
            messages: BTreeMap::new(),
            requests: TokenBucket::new(REFILL, BURST, Instant::now()),
        }
    }

    /// Takes the token of one request, if there is one.
    pub(super) fn try_spend(&mut self, now: Instant) -> bool {
        let has_one = self.requests.wait(now).is_zero();
        if has_one {
            self.requests.take(now);
        }
        has_one
    }

    /// Counts up the event that is the same, or keeps `event` as a new one.
    pub(super) fn note(&mut self, mut event: PodEvent) {
        let messages = self.messages.entry(event.reason).or_default();
        if event.last.duration_since(messages.last) > SIMILAR_WITHIN {
            messages.different.clear();
        }
        messages.last = event.last;
        messages.different.insert(event.message.clone());
        if messages.different.len() >= SIMILAR {
            messages.different.pop_first();
            event.combine();
        }
        let same = self.events.iter_mut().find(|held| {
            held.reason == event.reason
                && held.combined == event.combined
                && (held.combined
                    || (held.message == event.message
                        && held.involved["fieldPath"] == event.involved["fieldPath"]))
        });
        if let Some(held) = same {
            held.count += 1;
            held.last = event.last;
            held.message = event.message;
            held.due = true;
            return;
        }
        if self.events.len() == MAX_EVENTS {
            self.events.remove(0);
        }
        self.events.push(event);
    }
}
