//! Properties of the API server that an engine has learned from its requests.

use std::time::Duration;

use larder_objects::ResourceVersion;
use tokio::time::Instant;

use crate::sequence::RegistrationSeq;

/// The features that the API server supports, as far as known, and the freshest version that it has confirmed.
#[derive(Debug, Default)]
pub(crate) struct ServerState {
    /// Streaming lists of the most recent state that failed in a row.
    streaming_failures: u8,
    /// There are no streaming lists; they are not tried again before then.
    streaming_retry: Option<Instant>,
    min_version: Option<MinVersion>,
}

/// A version that was the most recent one at some time after the registration: a state that is not older than the
/// version is as fresh as the registration.
///
/// Versions of all objects of a kind come from one counter (Kubernetes 1.35 promises that they compare), so the
/// response about one object serves all.
#[derive(Clone, Debug)]
pub(crate) struct MinVersion {
    pub(crate) seq: RegistrationSeq,
    pub(crate) version: ResourceVersion,
}

/// So many streaming lists that fail in a row, each in a way that may have other reasons, count as a rejection. After
/// [`STREAMING_RETRY`] a single one does, until one succeeds.
const STREAMING_FAILURES: u8 = 3;

/// API servers are upgraded, so a rejection of streaming lists is not final.
const STREAMING_RETRY: Duration = Duration::from_mins(10);

impl ServerState {
    /// Whether to ask for a streaming list.
    pub(crate) fn streams_lists(&self, now: Instant) -> bool {
        self.streaming_retry.is_none_or(|retry| now >= retry)
    }

    /// The API server does not know streaming lists.
    pub(crate) fn streaming_rejected(&mut self, now: Instant) {
        self.streaming_failures = STREAMING_FAILURES;
        self.streaming_retry = Some(now + STREAMING_RETRY);
    }

    /// A streaming list failed as if the API server could not make any, or did not end.
    pub(crate) fn streaming_failed(&mut self, now: Instant) {
        self.streaming_failures = STREAMING_FAILURES.min(self.streaming_failures + 1);
        if self.streaming_failures == STREAMING_FAILURES {
            self.streaming_retry = Some(now + STREAMING_RETRY);
        }
    }

    /// A streaming list of the most recent state has come.
    pub(crate) fn streaming_succeeded(&mut self) {
        self.streaming_failures = 0;
        self.streaming_retry = None;
    }

    /// A streaming list sent after the registration `seq` has brought the most recent state, which is that of
    /// `version`.
    pub(crate) fn confirmed(&mut self, seq: RegistrationSeq, version: &ResourceVersion) {
        let newer = |min: &MinVersion| min.seq < seq;
        if !version.is_empty() && self.min_version.as_ref().is_none_or(newer) {
            let version = version.clone();
            self.min_version = Some(MinVersion { seq, version });
        }
    }

    /// A version that is as fresh as `seq`, if one is known. It is cheaper to ask for than the most recent state, for
    /// which the API server has to ask its storage.
    pub(crate) fn min_version(&self, seq: RegistrationSeq) -> Option<MinVersion> {
        self.min_version
            .as_ref()
            .filter(|min| min.seq >= seq)
            .cloned()
    }

    /// The API server no longer knows the minimum version: it is behind, was restored, or is another one after an
    /// outage.
    pub(crate) fn min_version_lost(&mut self) {
        self.min_version = None;
    }
}
