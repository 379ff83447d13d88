//! What is noted of one pod: its last events, and what counts one of them up.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::event::Event;

/// Requests that a pod may cost at once.
pub(super) const BURST: u32 = 25;
/// How long until it may cost one more.
pub(super) const REFILL: Duration = Duration::from_mins(5);
/// How many different texts make events similar.
pub(super) const SIMILAR: usize = 10;
/// How long no failure for a reason must have happened for its texts to be forgotten.
pub(super) const SIMILAR_WITHIN: SignedDuration = SignedDuration::from_mins(10);
/// How many events of a pod are remembered, so that they can be counted up.
const KEPT: usize = 32;

/// What is noted of one pod.
#[derive(Debug)]
pub(super) struct OfPod {
    /// The last ones, oldest first.
    pub(super) events: Vec<Event>,
    /// By the reason.
    texts: BTreeMap<&'static str, Texts>,
    pub(super) budget: u32,
    refilled: Instant,
}

/// What was told of a pod for one reason.
#[derive(Debug, Default)]
struct Texts {
    different: BTreeSet<String>,
    last: Timestamp,
}

impl OfPod {
    pub(super) fn new() -> Self {
        Self {
            events: Vec::new(),
            texts: BTreeMap::new(),
            budget: BURST,
            refilled: Instant::now(),
        }
    }

    /// Takes the price of one request, if the pod has it.
    pub(super) fn pays(&mut self, now: Instant) -> bool {
        let refill = u32::try_from((now - self.refilled).as_secs() / REFILL.as_secs());
        let refill = refill.unwrap_or(BURST).min(BURST);
        self.refilled += refill * REFILL;
        self.budget = (self.budget + refill).min(BURST);
        let rest = self.budget.checked_sub(1);
        self.budget = rest.unwrap_or_default();
        rest.is_some()
    }

    /// Counts `event` up, or keeps it as a new one.
    pub(super) fn note(&mut self, mut event: Event) {
        let texts = self.texts.entry(event.reason).or_default();
        if event.last.duration_since(texts.last) > SIMILAR_WITHIN {
            texts.different.clear();
        }
        texts.last = event.last;
        texts.different.insert(event.message.clone());
        if texts.different.len() >= SIMILAR {
            texts.different.pop_first();
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
        if self.events.len() == KEPT {
            self.events.remove(0);
        }
        self.events.push(event);
    }
}
