//! The engine against an API server whose every response is the test's, time paused.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod checks;
mod collection;
mod driver;
mod queue;
mod scene;
#[expect(dead_code, reason = "shared with the tests of the managers")]
mod script;
