//! larder beside a kubelet: the scenarios of `docs/spec/beside-kubelet.md` that are marked F, on the fake kubelet and the
//! embedded API server, in one process and paused time.
//!
//! "PATCH" means one in the API server's audit log. Time limits are those of the scenario.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are not recognised as tests"
)]

mod arrival;
mod burst;
mod comparing;
mod disks;
mod hooks;
mod kubelet_states;
mod left_alone;
mod missing_objects;
mod outdated;
mod permissions;
mod restarts;
mod sub_paths;
mod world;
