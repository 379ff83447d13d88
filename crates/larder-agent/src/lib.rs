//! The larder node agent: from object events to swapped volumes.
//!
//! This crate connects the others, which cache objects and write volumes, and decides when they act.
//!
//! Feature `manifests`: an embedded API server that is filled from a directory of manifests. Without it, an agent links
//! no API server.

pub mod agent;
pub mod beside;
mod blocking;
mod certificates;
pub mod checkpoint;
pub mod clean;
pub mod clock;
mod cluster_state;
pub mod config;
mod delivery;
mod events;
#[cfg(feature = "manifests")]
pub mod feed;
pub mod local_api;
#[cfg(feature = "manifests")]
pub mod manifest_dir;
mod metrics;
pub mod node;
pub mod on_change;
mod pod_deleter;
mod reconcile;
pub mod root_dir;
mod served_version;
mod serving;
pub mod status;
mod tasks;
mod tokens;

pub use self::tasks::TaskError;
