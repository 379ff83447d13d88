#![doc = include_str!("../README.md")]

pub mod certificates;
pub mod clock;
pub mod cluster_state;
pub mod last_good;
mod served_version;
pub mod tokens;
