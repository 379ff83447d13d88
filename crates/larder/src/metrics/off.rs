//! In place of the metrics where they are not wanted: counts nothing.

use std::time::Duration;

use larder_objects::Kind;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Metrics;

#[expect(
    clippy::unused_self,
    reason = "as the metrics that count, which are used the same way"
)]
impl Metrics {
    pub(crate) fn new(_: Kind) -> Self {
        Self
    }

    pub(crate) fn requested(self, _verb: &'static str, _outcome: &'static str) {}

    pub(crate) fn restarted(self, _reason: &'static str) {}

    pub(crate) fn waited(self, _time: Duration) {}
}

#[derive(Debug, Default)]
pub(crate) struct Tally(());

impl Tally {
    #[expect(clippy::unused_self, reason = "as the tally that counts")]
    pub(crate) fn count(&self) {}
}
