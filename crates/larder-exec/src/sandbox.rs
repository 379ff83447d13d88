//! `larder exec`: a command that sees what a container of a pod would see.
//!
//! ```text
//! larder exec                              larder exec-stage                    CMD
//!   namespaces of its own (namespace)        one more mount namespace             the container's
//!   volumes in a private tmpfs    ──plan──►  volumes where the container has them variables, user,
//!   follows the manifests (follow)           user, groups, directory (stage) ──►  directory, mounts
//!   signals, exit code (signals)  ──plan──►  for a command of a hook (inside) ──► in the same view, as the same user
//!   └─────────── a PID namespace for each start of the command (processes) ────────────┘
//! ```
//!
//! Invariants:
//! 1. The host's file tree is never modified: mounts and new files are in private namespaces and a private tmpfs. The
//!    kernel removes them with the last of these processes, however it ends.
//! 2. The supervisor does not see the mounts of the command, so a volume cannot hide the manifests that are followed.
//! 3. No process that the command has started outlives the command or the supervisor.

mod follow;
mod inside;
mod namespace;
mod plan;
mod privileges;
mod processes;
mod report;
mod signals;
mod stage;
mod view;

pub(crate) use follow::Follower;
pub use follow::Stamps;
pub(crate) use inside::Inside;
pub use inside::STAGE;
pub use namespace::Sandbox;
pub(crate) use plan::{CommandSettings, HookPlan, Identity, Plan, PlannedMount, StagePlan};
pub(crate) use privileges::Privileges;
pub use processes::{ANCHOR, run_anchor};
pub(crate) use processes::{Processes, ProcessesEvent};
pub use signals::exit_code;
pub(crate) use signals::{ArrivedSignal, CommandSignal, SentTo, forwarded};
pub(crate) use stage::NOT_FOUND;
pub use stage::run as run_stage;
pub(crate) use view::clear;
