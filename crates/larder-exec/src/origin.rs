//! What a caller gives: where the pod comes from, and how the command runs.

use std::{ffi::OsString, fmt::Debug, path::PathBuf};

use crate::target::ExecTarget;

/// Where the pod comes from. It is read again after each change.
pub trait Origin: Debug + Send + Sync {
    /// The container now. Waits for disks and for an agent.
    ///
    /// # Errors
    ///
    /// Nothing could be read.
    fn read(&self) -> anyhow::Result<OriginRead>;

    /// The files and directories whose changes may concern the container.
    fn followed(&self, target: &ExecTarget) -> Vec<PathBuf>;
}

/// What a reading has found.
#[derive(Debug)]
pub enum OriginRead {
    /// The container, from valid input alone.
    Whole(Box<ExecTarget>),
    /// Something is invalid, which was reported. The container stays as it was.
    Invalid,
}

/// How the command runs.
#[derive(Clone, Debug)]
pub struct ExecSettings {
    /// The command in place of the container's; empty for that one.
    pub command: Vec<OsString>,
    /// What follows when the command fails that was restarted.
    pub on_exit: OnExit,
    /// Whether mounts by subPath follow their volume.
    pub subpath_updates: bool,
}

/// What follows when a command fails that was restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExit {
    /// It is started again by the next change.
    Wait,
    /// The run ends with it.
    Exit,
}
