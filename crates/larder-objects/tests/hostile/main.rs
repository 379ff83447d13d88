//! Manifests that an attacker writes: bounded time and memory, whatever the text is.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a seed and figures, in a test's output"
)]
#![expect(clippy::unwrap_used, reason = "tests, with helpers of their own")]

mod attacks;
mod limits;
mod mutations;
mod texts;
