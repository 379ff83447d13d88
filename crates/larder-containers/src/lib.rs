//! Internal to larder, no stability. The running containers of a node's pods: their processes, and their mounts with
//! `subPath`.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`processes`] | finds and proves the processes of containers |
//! | [`targets`] | the containers that are asked for, and those that earlier searches have found |
//! | [`subpaths`] | mounts with `subPath` that follow their volume |
//! | [`namespaces`] | threads that enter other namespaces |
//!
//! Everything that a container shows is hostile: names of its processes, its mounts, and the file systems that it mounts.
//! Each module says at its top what it believes, and for how long it waits.

pub mod namespaces;
pub mod processes;
pub mod subpaths;
pub mod targets;
