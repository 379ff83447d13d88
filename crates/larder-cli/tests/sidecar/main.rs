//! The label form against the API server in memory: from variables to files.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests fail as tests do; readers of files are threads with time of their own"
)]

#[path = "../../../larder-sidecar/tests/shared/application.rs"]
mod application;
mod files;
#[path = "../../../larder-sidecar/tests/shared/granted.rs"]
mod granted;
mod names;
mod outages;
mod requests;
mod rights;
mod urls;
mod world;
