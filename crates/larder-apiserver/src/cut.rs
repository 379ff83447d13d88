//! The break of a connection in place of an answer, or of the rest of one.

/// The connection breaks here. Only faults, which the feature `faults` adds, break one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("connection cut by a fault")]
pub struct Cut;
