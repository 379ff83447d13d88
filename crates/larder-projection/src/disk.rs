//! The lower half: volumes on disk, in the kubelet's layout.
//!
//! [`AtomicWriter`] makes one directory hold exactly one [`Payload`](crate::Payload). [`VolumeHost`] puts such
//! directories where the kubelet has them, on a tmpfs if they hold Secrets, and tears them down. Everything is
//! synchronous; one call is one transaction, which cannot be cancelled halfway.
//!
//! Invariants:
//!
//! - **P1** A reader sees the old set or the new set.
//! - **P2** A failure of any kind leaves the old set in place.
//! - **P3** After a crash at any instant the next pass ends in the same tree as without the crash, and nothing is left
//!   over.
//! - **P4** No path of an object can leave its volume: every name is resolved beneath an open directory, and no link is
//!   followed.
//! - **P5** No secret byte reaches an error: errors carry paths and steps.

mod directory;
mod empty_dir;
mod env_file;
mod environment;
mod error;
mod hidden_links;
mod host;
mod layout;
mod names;
mod ownership;
mod pod_file;
mod read_back;
mod subpath;
#[cfg(test)]
mod testing;
mod tmpfs;
mod tree;
mod writer;

pub use empty_dir::{empty_dir_path, make_empty_dir, share_empty_dir};
pub use environment::{EnvironmentTextError, read_environment};
pub use error::DiskError;
pub use hidden_links::HiddenLinks;
pub use host::{PodOnDisk, PodVolume, SetUp, VolumeHost};
pub use subpath::{SubPath, bind_subpath, resolve};
pub use tmpfs::{Memory, is_in_memory};
pub use writer::{AtomicWriter, Written};

pub use crate::VolumeKind;
