//! The events of one pod: the last ones, and which failures count as the same.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::SignedDuration;
use larder_objects::PodIdentity;
use larder_transport::TokenBucket;
use tokio::time::Instant;

use super::event::{Failures, PodEvent};

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

/// Time after the last failure in which all requests become free again. The API server forgets an event after an hour.
pub(super) const FORGOTTEN: Duration = REFILL.saturating_mul(BURST);

/// The events of one pod.
#[derive(Debug)]
pub(super) struct PodEvents {
    /// The last ones, oldest first.
    pub(super) events: Vec<PodEvent>,
    requests: TokenBucket,
    noted_at: Instant,
}

impl PodEvents {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            events: Vec::new(),
            requests: TokenBucket::new(REFILL, BURST, now),
            noted_at: now,
        }
    }

    /// When the pod may cause its next request.
    pub(super) fn next_request(&self, now: Instant) -> Instant {
        now + self.requests.wait(now)
    }

    /// The event of this number, to be posted now with a request that is free.
    pub(super) fn request(&mut self, number: usize, now: Instant) -> PodEvent {
        self.requests.take(now);
        let event = &mut self.events[number];
        event.due = false;
        event.clone()
    }

    /// Whether they are so old that they are worth as much as none.
    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        now >= self.noted_at + FORGOTTEN && !self.events.iter().any(|event| event.due)
    }

    /// The identity of the pod, once for all its events.
    pub(super) fn share(&self, pod: PodIdentity) -> Arc<PodIdentity> {
        self.events
            .iter()
            .find(|held| *held.pod == pod)
            .map_or_else(|| Arc::new(pod), |held| Arc::clone(&held.pod))
    }

    /// Counts up the event that is the same, or keeps `event` as a new one.
    pub(super) fn note(&mut self, mut event: PodEvent, now: Instant) {
        self.noted_at = now;
        let of_reason = |held: &&mut PodEvent| held.reason == event.reason;
        let mut similar: Vec<_> = self.events.iter_mut().filter(of_reason).collect();
        if (similar.iter()).all(|held| event.last.duration_since(held.last) > SIMILAR_WITHIN) {
            (similar.iter_mut())
                .filter(|held| held.failures == Failures::Recent)
                .for_each(|held| held.failures = Failures::Earlier);
        }
        let recent = similar
            .iter()
            .filter(|held| held.failures == Failures::Recent);
        let mut different: BTreeSet<&str> = recent.map(|held| &*held.message).collect();
        different.insert(&event.message);
        if different.len() >= SIMILAR {
            event.combine();
        }
        let is_combined = event.failures == Failures::Combined;
        let same = similar.into_iter().find(|held| match held.failures {
            Failures::Combined => is_combined,
            Failures::Recent | Failures::Earlier => {
                held.message == event.message && held.field_path == event.field_path
            }
        });
        if let Some(held) = same {
            held.count += 1;
            held.last = event.last;
            held.message = event.message;
            held.failures = event.failures;
            held.due = true;
            return;
        }
        if self.events.len() == MAX_EVENTS {
            self.events.remove(0);
        }
        // Most pods have few.
        self.events.reserve_exact(1);
        self.events.push(event);
    }
}
