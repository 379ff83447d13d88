//! The wall clock, for what people read and for the names of sets.

use jiff::Timestamp;

/// The present.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the wall clock"
)]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}
