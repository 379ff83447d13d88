//! The wall clock, read here and nowhere else.

use jiff::Timestamp;

/// The time of day, for what people and the API server read. Waiting is done by tokio's clock.
pub(crate) fn now() -> Timestamp {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the wall clock"
    )]
    Timestamp::now()
}
