//! `larder exec`: from a pod, in manifests or of a running agent, to a running command.
//!
//! Each module names only those below it:
//!
//! | module | holds |
//! | --- | --- |
//! | `session` | the volumes of the command, kept up to date over all its starts |
//! | `origin` | where the pod comes from, and which paths to follow |
//! | `delivered` | a pod of a running agent: what the agent delivered to a container |
//! | `start` | variables, mounts, user and command of one start |
//! | `security` | security contexts: user, groups, capabilities |
//! | `target` | the container, and what it reads |

mod delivered;
mod origin;
mod security;
mod session;
mod start;
mod target;

use std::process::ExitCode;

use anyhow::Context as _;

use self::{origin::Origin, session::Session};
use crate::{
    args::ExecArgs,
    outcome::Failure,
    sandbox::{Follower, Sandbox, exit_code, supervise},
};

pub(super) fn run(args: &ExecArgs) -> Result<ExitCode, Failure> {
    let origin = Origin::new(args)?;
    let seen = origin.stamps();
    let (first, _) = origin.read(args)?;
    // While this process has one thread.
    let sandbox = Sandbox::enter(&origin.needed(&first))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let status = runtime.block_on(async {
        let follower = if origin.is_followed() {
            Some(Follower::new(&origin.followed(&first), &seen)?)
        } else {
            None
        };
        let grace = first.grace();
        let session = Session::new(args, &origin, &sandbox, first)?;
        supervise(
            || session.start(),
            |follower| session.update(follower),
            follower,
            args.on_change,
            grace,
        )
        .await
    })?;
    Ok(ExitCode::from(exit_code(status)))
}
