//! The label form against the API server in memory.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests fail as tests do; readers of files are threads with time of their own"
)]

mod application;
mod files;
mod granted;
mod names;
mod outages;
mod requests;
mod rights;
mod urls;
mod world;
