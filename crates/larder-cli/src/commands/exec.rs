//! `larder exec`: runs a command with the view of a container, from manifests or a running agent. `larder-exec` is its
//! runtime; here is where the pod comes from.
//!
//! | module | purpose |
//! | --- | --- |
//! | `origin` | the origin of the pod, and the paths to follow |
//! | `delivered` | a pod of a running agent: the content delivered to a container |
//! | `manifests` | a pod of manifests |

mod delivered;
mod manifests;
mod origin;

use std::{process::ExitCode, sync::Arc};

use larder_console::Format;
use larder_exec::{Exec, ExecSettings, exit_code};

pub use self::manifests::exec_starts;
use self::origin::Origin;
use crate::{
    args::ExecArgs,
    outcome::Failure,
    output,
    runtime::{block_on, wait_for_threads},
};

pub(super) fn run(args: ExecArgs) -> Result<ExitCode, Failure> {
    // A reader that stops must not stop the command. While an API server is asked, the threads that write would begin,
    // too soon for the sandbox.
    if args.kubeconfig.is_none() {
        larder_console::hold(Format::Text);
    }
    let origin = Arc::new(Origin::new(args)?);
    let seen = origin.stamps();
    let (target, _) = origin.read()?;
    larder_console::hold(Format::Text);
    let hooks = origin
        .args
        .on_change
        .hooks(&target.outline())
        .map_err(Failure::unreadable)?;
    let settings = ExecSettings {
        command: origin.args.command.clone(),
        on_exit: origin.args.on_exit.into(),
        subpath_updates: origin.args.subpath_updates,
    };
    let needed = origin.needed();
    let may_miss_cluster = !origin.args.filenames.is_empty() && origin.args.kubeconfig.is_none();
    let exec = Exec {
        origin,
        target,
        seen,
        hooks,
        settings,
    };
    // While this process has one thread: those that an API server was asked with are about to end.
    wait_for_threads();
    let sandbox = exec.enter(needed)?;
    let status = block_on(exec.run(&sandbox)).inspect_err(|_: &anyhow::Error| {
        if may_miss_cluster {
            output::note_kubeconfig();
        }
    })?;
    Ok(ExitCode::from(exit_code(status)))
}

/// Process 1 of a command's PID namespace.
pub(super) fn run_anchor() -> Result<ExitCode, Failure> {
    block_on(larder_exec::run_anchor())?;
    Ok(ExitCode::SUCCESS)
}
