//! Hooks of pods: when they fire, and what their record keeps. Rounds reach the test like those of an embedding
//! program.

mod containers;
mod firing;
mod harness;
mod left_out;
mod reloads;
mod restarts;
mod signals;
mod steps;
mod sub_paths;
mod timing;
mod writing;

pub(crate) use harness::{immediate, with_hook};
