//! Hooks of pods: when they fire, and what is remembered of them. Rounds reach the test as those of an embedding
//! program.

mod containers;
mod firing;
mod harness;
mod reloads;
mod restarts;
mod signals;
mod steps;
mod timing;
mod writing;
