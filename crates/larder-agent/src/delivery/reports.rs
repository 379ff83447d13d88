//! The recipients of the reports of all workers.

use std::sync::Arc;

use super::pod_statuses::PodStatuses;
use crate::{events::Events, metrics::Metrics};

/// Where workers report.
pub(crate) struct Reports {
    pub(crate) statuses: PodStatuses,
    /// `None` if events are not posted.
    pub(crate) events: Option<Arc<Events>>,
    pub(crate) metrics: Metrics,
}
