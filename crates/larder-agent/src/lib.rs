//! The larder node agent: from object events to swapped volumes.
//!
//! This crate joins the others. It knows what happens when; how objects are cached and how volumes are written is theirs.

pub mod config;
pub mod root_dir;
