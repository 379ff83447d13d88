//! The whole agent in one process, against the embedded API server, without sockets and without mounts.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are not recognised as tests"
)]

mod api;
mod certificates;
mod checkpoint;
mod delivery;
mod disks;
mod environment;
mod events;
mod failures;
mod harness;
mod health;
mod lifecycle;
mod on_change;
mod situations;
mod static_pods;
mod tokens;
mod trust_bundles;
mod turns;
mod volumes;

// The examples, as a part of this executable.
#[path = "../../examples/embed.rs"]
mod embed;
#[path = "../../examples/own_pods.rs"]
mod own_pods;
