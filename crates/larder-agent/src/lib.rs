//! The larder node agent: from object events to swapped volumes.
//!
//! This crate joins the others. It knows what happens when; how objects are cached and how volumes are written is theirs.

mod blocking;
mod chain;
pub mod config;
pub mod manifest_dir;
pub mod root_dir;
