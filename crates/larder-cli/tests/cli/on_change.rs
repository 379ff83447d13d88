//! `larder exec --on-change`: real commands, signals, requests and restarts.

mod actions;
mod failures;
mod flags;
mod harness;
mod volumes;
