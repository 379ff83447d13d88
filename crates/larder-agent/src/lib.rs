//! The larder node agent: from object events to swapped volumes.
//!
//! This crate connects the others, which cache objects and write volumes, and decides when they act.

pub mod agent;
pub mod annotations;
pub mod beside;
pub mod checkpoint;
pub mod clean;
pub mod config;
mod delivery;
mod disk_turns;
mod freshness;
pub mod local_api;
mod metrics;
pub mod node;
mod reconcile;
pub mod root_dir;
mod serving;
pub mod status;
mod tasks;
mod waits;

pub use larder_hooks as on_change;
pub use larder_inputs::clock;

pub use self::tasks::TaskError;
