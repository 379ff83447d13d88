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
mod change_log;
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
mod silence;
mod stale;
mod third_kind;
mod throttled;
mod traffic;
mod watch_limit;

// The examples, as a part of this executable.
#[path = "../../examples/change_events.rs"]
mod change_events;
#[path = "../../examples/fake_in_a_test.rs"]
mod fake_in_a_test;
#[path = "../../examples/slow_and_stale.rs"]
mod slow_and_stale;
#[path = "../../examples/two_managers.rs"]
mod two_managers;
