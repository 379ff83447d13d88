//! What a container sees: environment and volumes, computed from a pod and the objects that it names, and written to disk.
//!
//! Two halves. The upper one is pure: pod and inputs in, environment and payload out, no I/O. The lower one takes a payload and
//! makes a volume directory hold exactly that. Both are synchronous.
//!
//! Rules: Kubernetes 1.36; each module names the upstream source of its own.

pub mod disk;
mod payload;

pub use payload::{File, FileData, PathError, Payload, VolumePath};
