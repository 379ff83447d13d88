//! `larder exec`: a command that sees what a container of a pod would see.
//!
//! ```text
//! larder exec                              larder exec-stage                    CMD
//!   namespaces of its own (namespace)        one more mount namespace             the container's
//!   volumes in a private tmpfs    ──plan──►  volumes where the container has them variables, user,
//!   follows the manifests (follow)           user, groups, directory (stage) ──►  directory, mounts
//!   signals, restarts, exit code (supervisor)
//!   └─────────── a PID namespace for each start of the command (processes) ────────────┘
//! ```
//!
//! Invariants:
//! 1. The host's file tree is never modified: mounts and new files lie in private namespaces and a private tmpfs. The
//!    kernel removes them with the last of these processes, however it ends.
//! 2. The supervisor does not see the mounts of the command, so a volume cannot hide the manifests that are followed.
//! 3. No process that the command has started outlives the command or the supervisor.

mod follow;
mod namespace;
mod plan;
mod privileges;
mod processes;
mod stage;
mod supervisor;
mod view;

pub(crate) use follow::{Follower, Stamps};
pub(crate) use namespace::Sandbox;
pub(crate) use plan::{Identity, Plan, PlannedMount};
pub(crate) use privileges::Privileges;
pub(crate) use processes::{Processes, run_anchor};
pub(crate) use stage::run as run_stage;
pub(crate) use supervisor::{Update, exit_code, supervise};
pub(crate) use view::clear;
