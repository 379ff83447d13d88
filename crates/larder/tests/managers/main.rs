//! The managers against API servers in memory, with time paused.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod admission;
mod caching;
mod cluster;
mod model;
mod overflow;
mod reflector;
mod scripted;
mod traffic;
mod watching;
