//! The lower half: volumes on disk, in the kubelet's layout.
//!
//! [`AtomicWriter`] makes one directory hold exactly one [`Payload`](crate::Payload). All of it is synchronous; one call is one
//! transaction, which cannot be cancelled halfway.
//!
//! Invariants, as `ARCHITECTURE.md` has them:
//!
//! - **P1** A reader sees the old set or the new set.
//! - **P2** A failure of any kind leaves the old set in place.
//! - **P3** After a crash at any instant the next pass ends in the same tree as without the crash, and nothing is left over.
//! - **P4** No path of an object can leave its volume: every name is resolved beneath an open directory, and no link is followed.
//! - **P5** No secret byte reaches an error: errors carry paths and steps.

mod error;
mod ownership;
mod sys;
#[cfg(test)]
mod testing;
mod tree;
mod writer;

pub use error::{DiskError, Step};
pub use writer::{AtomicWriter, Written};
