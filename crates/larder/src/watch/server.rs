//! What the reflectors of a manager have learned about the API server, each for all.

use std::time::Duration;

use tokio::time::Instant;

/// What the API server was seen to be able to do.
#[derive(Debug, Default)]
pub(crate) struct Server {
    /// Streaming lists were refused; not before then are they tried again.
    streaming_retry: Option<Instant>,
}

/// API servers are upgraded; their refusal of streaming lists is not for ever.
const STREAMING_RETRY: Duration = Duration::from_mins(10);

impl Server {
    /// Whether to ask for a streaming list.
    pub(super) fn streams_lists(&self, now: Instant) -> bool {
        self.streaming_retry.is_none_or(|retry| now >= retry)
    }

    /// A streaming list was refused, or did not end.
    pub(super) fn streaming_failed(&mut self, now: Instant) {
        self.streaming_retry = Some(now + STREAMING_RETRY);
    }
}
