//! `larder exec`: runs a command with the view of a container, from manifests or a running agent.
//!
//! Each module names only those below it:
//!
//! | module | purpose |
//! | --- | --- |
//! | `supervisor` | the loop: signals, changes, rounds of hooks, restarts |
//! | `steps` | the steps of a round |
//! | `session` | the state of the command over all its starts, kept up to date |
//! | `volumes` | the volumes of the command |
//! | `subpaths` | mounts by subPath that follow their volume |
//! | `hooks` | the hooks of the command, and the content that they select |
//! | `origin` | the origin of the pod, and the paths to follow |
//! | `delivered` | a pod of a running agent: the content delivered to a container |
//! | `start` | variables, mounts, user and command of one start |
//! | `security` | security contexts: user, groups, capabilities |
//! | `target` | the container, and its inputs |

mod delivered;
mod hooks;
mod origin;
mod security;
mod session;
mod start;
mod steps;
mod subpaths;
mod supervisor;
mod target;
mod volumes;

use std::{process::ExitCode, sync::Arc};

use larder_containers::processes::Processes;
use larder_objects::PodIdentity;
use larder_on_change::StopDefaults;
use tokio::sync::mpsc::unbounded_channel;

use self::{
    hooks::CommandHooks, origin::Origin, session::Session, steps::CommandContext,
    supervisor::supervise,
};
use crate::{
    args::ExecArgs,
    outcome::Failure,
    runtime::block_on,
    sandbox::{Follower, Sandbox, exit_code},
};

pub(super) fn run(args: ExecArgs) -> Result<ExitCode, Failure> {
    let origin = Arc::new(Origin::new(args)?);
    let seen = origin.stamps();
    let (first, _) = origin.read()?;
    let outline = first.outline();
    let hooks = origin.args.on_change.hooks(&outline);
    let hooks = hooks.map_err(Failure::unreadable)?;
    // While this process has one thread.
    let sandbox = Sandbox::enter(&origin.needed(&first))?;
    let status = block_on(async {
        let follower = origin.is_followed();
        let follower = follower.then(|| Follower::new(&origin.followed(&first), &seen));
        let follower = follower.transpose()?;
        let (sender, restarts) = unbounded_channel();
        let mut hooks = CommandHooks::new(hooks, &outline)?;
        let around = CommandContext {
            pod: PodIdentity::from(&first.pod),
            outline,
            stop: StopDefaults::of(&first.pod),
            restarts: sender,
            processes: Processes::new("/proc", sandbox.volumes()),
            staging: sandbox.staging.clone(),
        };
        let session = Session::new(origin, &sandbox, first)?;
        session.observe(&mut hooks)?;
        supervise(session, &around, restarts, hooks, follower).await
    })?;
    Ok(ExitCode::from(exit_code(status)))
}
