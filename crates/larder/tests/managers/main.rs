//! The managers against API servers in memory, with time paused.

#![expect(
    clippy::duplicate_mod,
    reason = "`watching.rs` and `faults.rs` hold in either scope"
)]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod admission;
mod by_namespace;
mod by_object;
mod caching;
mod cluster;
mod garbage;
mod liveness;
mod model;
mod namespaces;
mod network;
mod outages;
mod races;
mod reflector;
mod scripted;
mod stale;
mod third_kind;
mod throttled;
mod traffic;
mod watch_limit;
