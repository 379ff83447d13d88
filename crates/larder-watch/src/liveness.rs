//! Whether the watches of a node are alive, for health checks.
//!
//! Each engine checks its targets once a minute, and soon after a watch has outlived its timeout. That takes no request
//! to the API server. A target is alive in three cases:
//!
//! 1. Its last response, event or bookmark is younger than the timeout of its watch plus a margin.
//! 2. Its request is in a queue that moves, or its response is not overdue.
//! 3. Its last request failed, and the failure was reported.
//!
//! An engine that no longer checks counts as a silent watch, unless it has nothing in flight: the caller may have
//! abandoned it after a failure.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time between two reviews of an engine's targets.
pub(crate) const REVIEW_PERIOD: Duration = Duration::from_mins(1);

/// Time between two reviews while a target is silent, and from the end of an overdue watch to the next review. So a new
/// watch that is opened at once goes unnoticed.
pub(crate) const SILENT_REVIEW_PERIOD: Duration = Duration::from_secs(5);

/// A request that has waited for its response for so long, or in a queue that does not move, is stuck. A long list may
/// take minutes, since only the pause between its parts is limited.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_mins(10);

/// An engine without a review for so long is stuck.
const REVIEW_TIMEOUT: Duration = Duration::from_mins(5);

/// A watch that should have been heard from by now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SilentWatch {
    /// Kind of the watched objects: `Pod`, `ConfigMap`.
    pub kind: &'static str,
    /// Time since the last response, event or bookmark.
    pub silent_for: Duration,
}

impl fmt::Display for SilentWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secs = self.silent_for.as_secs();
        write!(
            f,
            "watch of kind {}: no answer, event or bookmark for {secs} s",
            self.kind
        )
    }
}

/// The liveness of all engines of a node. Clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Liveness(Arc<Mutex<Vec<Weak<EngineLiveness>>>>);

/// The results of one engine's reviews.
#[derive(Debug)]
pub(crate) struct EngineLiveness {
    kind: &'static str,
    review: Mutex<LivenessReview>,
}

#[derive(Debug)]
struct LivenessReview {
    at: Instant,
    /// Something is under way, and is driven.
    active: bool,
    /// When the target that has been silent longest was last heard from, if any is silent.
    silent_since: Option<Instant>,
}

impl Liveness {
    /// Adds an engine whose targets are of that kind; it is forgotten when the engine is dropped.
    pub(crate) fn add(&self, kind: &'static str, now: Instant) -> Arc<EngineLiveness> {
        let review = Mutex::new(LivenessReview {
            at: now,
            active: false,
            silent_since: None,
        });
        let engine = Arc::new(EngineLiveness { kind, review });
        let mut engines = self.0.lock();
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(Arc::downgrade(&engine));
        engine
    }

    pub(crate) fn silent_watches(&self, now: Instant) -> Vec<SilentWatch> {
        let engines: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        engines
            .iter()
            .filter_map(|engine| engine.silent_watch(now))
            .collect()
    }
}

impl EngineLiveness {
    /// Publishes the result of a review.
    pub(crate) fn reviewed(&self, at: Instant, silent_since: Option<Instant>) {
        let mut review = self.review.lock();
        review.at = at;
        review.silent_since = silent_since;
    }

    /// From now on something is under way and driven, or is not.
    pub(crate) fn set_active(&self, active: bool, now: Instant) {
        let mut review = self.review.lock();
        review.at = now;
        review.active = active;
    }

    fn silent_watch(&self, now: Instant) -> Option<SilentWatch> {
        let review = self.review.lock();
        let stuck = review.active && now >= review.at + REVIEW_TIMEOUT;
        let stuck = stuck.then_some(review.at);
        let since = review.silent_since.or(stuck)?;
        Some(SilentWatch {
            kind: self.kind,
            silent_for: now.saturating_duration_since(since),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_engine_without_reviews_is_silent() {
        let (liveness, start) = (Liveness::default(), Instant::now());
        let engine = liveness.add("Pod", start);
        let later = start + REVIEW_TIMEOUT;
        assert_eq!(liveness.silent_watches(later), []);
        engine.set_active(true, start);
        assert_eq!(liveness.silent_watches(start), []);
        let [silent] = &*liveness.silent_watches(later) else {
            panic!("the engine is stuck");
        };
        assert_eq!(
            silent.to_string(),
            "watch of kind Pod: no answer, event or bookmark for 300 s"
        );
        engine.reviewed(later, None);
        assert_eq!(liveness.silent_watches(later), []);
        engine.set_active(false, later);
        assert_eq!(liveness.silent_watches(later + REVIEW_TIMEOUT), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_engine_is_forgotten() {
        let (liveness, start) = (Liveness::default(), Instant::now());
        let engine = liveness.add("Pod", start);
        engine.reviewed(start, Some(start));
        assert_eq!(liveness.silent_watches(start).len(), 1);
        drop(engine);
        assert_eq!(liveness.silent_watches(start), []);
    }
}
