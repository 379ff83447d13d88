//! What shows that an engine is alive, and which of its targets are silent.

use std::{mem, sync::Arc};

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::liveness::{EngineLiveness, REVIEW_PERIOD, SILENT_REVIEW_PERIOD};

/// The engine's side of its [liveness](crate::liveness).
pub(super) struct Pulse {
    liveness: Arc<EngineLiveness>,
    /// Targets that neither rest nor back off.
    active: usize,
    /// Whether the last state that was published had any.
    is_active: bool,
    review: Interval,
}

impl Pulse {
    pub(super) fn new(liveness: Arc<EngineLiveness>, now: Instant) -> Self {
        let mut review = interval_at(now + REVIEW_PERIOD, REVIEW_PERIOD);
        review.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            liveness,
            active: 0,
            is_active: false,
            review,
        }
    }

    /// A target becomes active, or no longer is; `was` is what was last said of it.
    pub(super) fn set(&mut self, was: &mut bool, active: bool) {
        self.active -= usize::from(mem::replace(was, active));
        self.active += usize::from(active);
    }

    /// Publishes whether any target is active, if that has changed.
    pub(super) fn publish(&mut self) {
        if self.is_active != (self.active > 0) {
            self.is_active = !self.is_active;
            self.liveness.set_active(self.is_active, Instant::now());
        }
    }

    /// Waits until the targets are due for a review. Cancel-safe.
    pub(super) async fn review_due(&mut self) {
        self.review.tick().await;
    }

    /// A target is overdue: the next review comes soon.
    pub(super) fn review_soon(&mut self) {
        self.review.reset_after(SILENT_REVIEW_PERIOD);
    }

    /// Publishes since when the target that has been silent longest has been so, if any is.
    pub(super) fn reviewed(&mut self, now: Instant, silent_since: Option<Instant>) {
        self.liveness.reviewed(now, silent_since);
        if silent_since.is_some() {
            self.review_soon();
        }
    }
}
