//! `larder exec`: a command that sees what a container of a pod would see.
//!
//! ```text
//! larder exec                              larder exec-stage                    CMD
//!   namespaces of its own (namespace)        one more mount namespace             the container's
//!   volumes in a private tmpfs    ──plan──►  volumes where the container has them variables, user,
//!   follows the manifests (follow)           user, groups, directory (stage) ──►  directory, mounts
//!   signals, restarts, exit code (supervisor)
//! ```
//!
//! Invariants:
//! 1. The host's file tree is never modified: what is mounted and created lies in namespaces and a tmpfs that only these processes
//!    have, and that the kernel takes away with the last of them, however it ends.
//! 2. The supervisor does not see the mounts of the command, so a volume cannot hide the manifests that are followed.
//! 3. If the supervisor dies, the command is killed.

mod follow;
mod namespace;
mod plan;
mod stage;
mod supervisor;
mod view;

pub(crate) use follow::{Follower, Stamps};
pub(crate) use namespace::Sandbox;
pub(crate) use plan::{Identity, Plan, PlannedMount};
pub(crate) use stage::run as run_stage;
pub(crate) use supervisor::{OnChange, Update, exit_code, supervise};

/// The hidden subcommand that becomes the command.
pub(crate) const STAGE: &str = "exec-stage";
