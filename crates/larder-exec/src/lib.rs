//! A command that sees what a container of a pod would see: its variables, user and directory, and its volumes mounted
//! where the container has them, kept up to date while it runs. Hooks notify or restart it after a change.
//!
//! The caller says where the pod comes from ([`Origin`]), and is started again by this crate with the hidden
//! subcommands [`STAGE`] and [`ANCHOR`]. Each module names only those below it:
//!
//! | module | purpose |
//! | --- | --- |
//! | `supervisor` | the loop: signals, changes, rounds of hooks, restarts |
//! | `steps` | the steps of a round |
//! | `session` | the state of the command over all its starts, kept up to date |
//! | `volumes` | the volumes of the command |
//! | `subpaths` | mounts by subPath that follow their volume |
//! | `hooks` | the hooks of the command, and the content that they select |
//! | `start` | variables, mounts, user and command of one start |
//! | `security` | security contexts: user, groups, capabilities |
//! | `origin` | what a caller gives |
//! | `target` | the container, and its inputs |
//! | `sandbox` | namespaces, mounts, processes; knows nothing of pods |

mod hooks;
mod origin;
mod sandbox;
mod security;
mod session;
mod start;
mod steps;
mod subpaths;
mod supervisor;
mod target;
mod volumes;

use std::{
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::Arc,
};

use jiff::Timestamp;
use larder_containers::processes::Processes;
use larder_objects::PodIdentity;
use larder_on_change::{Hook, StopDefaults};
use larder_projection::pod_volumes;
use tokio::sync::mpsc::unbounded_channel;

use self::{
    hooks::CommandHooks, sandbox::Follower, session::Session, steps::CommandContext,
    supervisor::supervise,
};
pub use self::{
    origin::{ExecSettings, OnExit, Origin, OriginRead},
    sandbox::{ANCHOR, STAGE, Sandbox, Stamps, exit_code, run_anchor, run_stage},
    target::{
        Contents, Delivered, ExecTarget, LeftOutItems, SharedDirectory, container_called, filled,
        volumes,
    },
};

/// One command to run.
#[derive(Debug)]
pub struct Exec {
    /// Where the pod comes from.
    pub origin: Arc<dyn Origin>,
    /// What was read from it.
    pub target: ExecTarget,
    /// The stamps of the manifests from before they were read; `None` if nothing is followed.
    pub seen: Option<Stamps>,
    /// The hooks of the command.
    pub hooks: Vec<Hook>,
    /// How it runs.
    pub settings: ExecSettings,
}

impl Exec {
    /// Moves this process, which has one thread, into namespaces of its own, from which [`Exec::run`] starts the command.
    /// `needed` are paths that must stay visible, besides those of the container.
    ///
    /// # Errors
    ///
    /// This process may not mount, not even in a user namespace.
    pub fn enter(&self, mut needed: Vec<PathBuf>) -> anyhow::Result<Sandbox> {
        needed.extend(std::env::current_dir());
        needed.extend(std::env::current_exe());
        let container = self.target.container();
        let directory = container.working_dir.filter(|path| !path.is_empty());
        needed.extend(directory.map(PathBuf::from));
        let mounts = container.volume_mounts.iter();
        needed.extend(mounts.map(|mount| Path::new("/").join(&mount.mount_path)));
        let volumes = pod_volumes(&self.target.pod);
        let on_host = volumes.filter_map(|volume| volume.host_path.as_ref());
        needed.extend(on_host.map(|source| PathBuf::from(&source.path)));
        Sandbox::enter(&needed)
    }

    /// Runs the command until it ends.
    ///
    /// # Errors
    ///
    /// The command cannot be started.
    pub async fn run(self, sandbox: &Sandbox) -> anyhow::Result<ExitStatus> {
        let (origin, target) = (self.origin, self.target);
        let follower = self
            .seen
            .map(|seen| Follower::new(&origin.followed(&target), &seen))
            .transpose()?;
        // Unbounded: every entry belongs to a step of a round that waits for it.
        let (sender, restarts) = unbounded_channel();
        let outline = target.outline();
        let mut hooks = CommandHooks::new(self.hooks, &outline)?;
        let around = CommandContext {
            pod: PodIdentity::from(&target.pod),
            outline,
            stop: StopDefaults::of(&target.pod),
            restarts: sender,
            processes: Processes::new("/proc", sandbox.volumes()),
            staging: sandbox.staging.clone(),
        };
        let session = Session::new(origin, self.settings, sandbox, target)?;
        session.observe(&mut hooks)?;
        supervise(session, &around, restarts, hooks, follower).await
    }
}

/// The wall clock.
fn now() -> Timestamp {
    #[expect(
        clippy::disallowed_methods,
        reason = "this crate reads the clock here only"
    )]
    Timestamp::now()
}
