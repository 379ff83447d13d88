//! The plans that the supervisor writes for the stage. They are in the private tmpfs, because they hold the
//! environment.

use std::path::PathBuf;

use larder_projection::BindOptions;
use serde::{Deserialize, Serialize};

use super::privileges::Privileges;

/// What the stage becomes.
#[derive(Serialize, Deserialize)]
pub(crate) enum StagePlan {
    /// The command.
    Command(Plan),
    /// A command of a hook, in the view of the command that runs.
    Hook(HookPlan),
}

/// Everything that the stage needs to become a command of a hook. Its standard input is the mount namespace to enter.
#[derive(Serialize, Deserialize)]
pub(crate) struct HookPlan {
    /// Those of the command that runs, with the directory and the words of the hook.
    pub(crate) settings: CommandSettings,
    /// All variables but the one with the path of the changes.
    pub(crate) environment: Vec<(String, Vec<u8>)>,
    /// The content of the file of changes.
    pub(crate) changes: Vec<u8>,
    /// A file for the code of a command that cannot be run, which no output of the command can pretend.
    pub(crate) failure: PathBuf,
}

/// Everything that the stage needs to become the command.
#[derive(Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Where the private tmpfs is mounted; the command does not see it.
    pub(crate) staging: PathBuf,
    /// Mounts, outer ones before inner ones.
    pub(crate) mounts: Vec<PlannedMount>,
    /// All variables of the command.
    pub(crate) environment: Vec<(String, Vec<u8>)>,
    /// Everything else.
    pub(crate) settings: CommandSettings,
}

/// How the command is started, besides its mounts and variables. It may hold values of Secrets.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CommandSettings {
    /// Working directory; created in the private view if it is missing.
    pub(crate) working_dir: Option<String>,
    /// User and groups of the command.
    pub(crate) identity: Identity,
    /// The command and its arguments. A command without `/` is looked up in the `PATH` of its variables.
    pub(crate) command: Vec<Vec<u8>>,
    /// Whether `/proc` shows all processes of this machine (`hostPID`), instead of only the command's.
    pub(crate) host_processes: bool,
    /// Capabilities of the command.
    pub(crate) privileges: Privileges,
    /// Whether the command may write to its volumes only, and not to the rest of the file tree.
    pub(crate) read_only_root: bool,
}

/// One bind mount.
#[derive(Serialize, Deserialize)]
pub(crate) struct PlannedMount {
    /// The mounted file or directory, as the supervisor sees it.
    pub(crate) source: PathBuf,
    /// The mount point, as the command sees it: absolute and clean.
    pub(crate) target: String,
    /// Whether the command may only read.
    pub(crate) read_only: bool,
    /// What else the command may not do there.
    pub(crate) options: BindOptions,
}

/// User and groups of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// `runAsUser`; `None` keeps the caller's.
    pub(crate) user: Option<u32>,
    /// `runAsGroup`; without it, a given user is in group 0, as in a runtime for a user unknown to the image.
    pub(crate) group: Option<u32>,
    /// `supplementalGroups` and `fsGroup`.
    pub(crate) groups: Vec<u32>,
    /// User and group outside, if they are mapped into a user namespace, which then has only one of each.
    pub(crate) mapped: Option<(u32, u32)>,
}
