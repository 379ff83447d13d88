//! What the supervisor tells the stage. It is handed over in the private tmpfs, because it holds the environment.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Everything that the stage needs to become the command.
#[derive(Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Where the private tmpfs is mounted; the command does not see it.
    pub(crate) staging: PathBuf,
    /// Mounts, outer ones before inner ones.
    pub(crate) mounts: Vec<PlannedMount>,
    /// Where the command starts; created in the private view if it does not exist.
    pub(crate) working_dir: Option<String>,
    /// Who the command is.
    pub(crate) identity: Identity,
    /// The command and its arguments. A command without `/` is looked up in the `PATH` of `environment`.
    pub(crate) command: Vec<Vec<u8>>,
    /// All variables of the command.
    pub(crate) environment: Vec<(String, Vec<u8>)>,
    /// Whether `/proc` shows the processes of this machine, as `hostPID` asks for, and not only those of the command.
    pub(crate) host_processes: bool,
}

/// One bind mount.
#[derive(Serialize, Deserialize)]
pub(crate) struct PlannedMount {
    /// What is mounted, as the supervisor sees it.
    pub(crate) source: PathBuf,
    /// Where, as the command sees it: absolute and clean.
    pub(crate) target: String,
    /// Whether the command must not write.
    pub(crate) read_only: bool,
}

/// Who a command is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// `runAsUser`; `None` keeps the caller's.
    pub(crate) user: Option<u32>,
    /// `runAsGroup`; without it, a given user is in group 0, as a runtime has it for a user that the image does not know.
    pub(crate) group: Option<u32>,
    /// `supplementalGroups` and `fsGroup`.
    pub(crate) groups: Vec<u32>,
    /// User and group outside, when they are mapped into a user namespace: then only one of each can be given.
    pub(crate) mapped: Option<(u32, u32)>,
}
