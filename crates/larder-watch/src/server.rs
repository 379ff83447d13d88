//! What the reflectors of a manager have learned about the API server, each for all.

use std::time::Duration;

use larder_objects::ResourceVersion;
use tokio::time::Instant;

use super::outages::{Affected, Outages};

/// What the API server was seen to be able to do, and what it has proven.
#[derive(Debug, Default)]
pub struct Server {
    /// Streaming lists of the most recent state that failed in a row.
    streaming_failures: u8,
    /// There are no streaming lists; not before then are they tried again.
    streaming_retry: Option<Instant>,
    floor: Option<Floor>,
    outages: Outages,
}

/// A version that was the most recent one at some time after the moment: whatever is not older than the version is as new
/// as the moment.
///
/// Versions of all objects of a kind come from one counter (Kubernetes 1.35 promises that they compare), so the answer
/// about one object proves something for all.
#[derive(Clone, Debug)]
pub struct Floor {
    pub moment: u64,
    pub version: ResourceVersion,
}

/// So many streaming lists that fail in a row, each in a way that may have other reasons, are taken for a refusal. After
/// [`STREAMING_RETRY`] a single one is, until one succeeds.
const STREAMING_FAILURES: u8 = 3;

/// API servers are upgraded; their refusal of streaming lists is not for ever.
const STREAMING_RETRY: Duration = Duration::from_mins(10);

impl Server {
    /// Of an API server whose outages others see as well.
    pub fn sharing(outages: Outages) -> Self {
        Self {
            outages,
            ..Self::default()
        }
    }

    pub fn outages(&self) -> &Outages {
        &self.outages
    }

    /// A request has failed with the API server; see [`Outages::failed`]. The one that comes back may be another one, for
    /// which the floor means nothing.
    pub fn failed(&mut self, delay: Duration, now: Instant, random: f64) -> (Affected, Duration) {
        self.floor = None;
        self.outages.failed(delay, now, random)
    }

    /// Whether to ask for a streaming list.
    pub fn streams_lists(&self, now: Instant) -> bool {
        self.streaming_retry.is_none_or(|retry| now >= retry)
    }

    /// The API server does not know streaming lists.
    pub fn streaming_refused(&mut self, now: Instant) {
        self.streaming_failures = STREAMING_FAILURES;
        self.streaming_retry = Some(now + STREAMING_RETRY);
    }

    /// A streaming list failed as if the API server could not make any, or did not end.
    pub fn streaming_failed(&mut self, now: Instant) {
        self.streaming_failures = STREAMING_FAILURES.min(self.streaming_failures + 1);
        if self.streaming_failures == STREAMING_FAILURES {
            self.streaming_retry = Some(now + STREAMING_RETRY);
        }
    }

    /// A streaming list of the most recent state has come.
    pub fn streaming_succeeded(&mut self) {
        self.streaming_failures = 0;
        self.streaming_retry = None;
    }

    /// A streaming list that was asked for after `moment` has brought the most recent state, which is that of `version`.
    pub fn proved(&mut self, moment: u64, version: &ResourceVersion) {
        let newer = |floor: &Floor| floor.moment < moment;
        if !version.is_empty() && self.floor.as_ref().is_none_or(newer) {
            let version = version.clone();
            self.floor = Some(Floor { moment, version });
        }
    }

    /// A version that proves `moment`, if there is one: cheaper to ask for than the most recent state, for which the API
    /// server has to ask its storage.
    pub fn floor(&self, moment: u64) -> Option<&Floor> {
        self.floor.as_ref().filter(|floor| floor.moment >= moment)
    }

    /// The API server no longer knows the version of the floor: it is behind, or was restored.
    pub fn floor_lost(&mut self) {
        self.floor = None;
    }
}
