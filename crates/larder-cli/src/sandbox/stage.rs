//! `larder exec-stage`: between supervisor and command. One thread, which becomes the command.
//!
//! 1. Take the plan.
//! 2. Enter a mount namespace of its own and make all mounts in it.
//! 3. Become the user, with the capabilities of the container.
//! 4. Go to the working directory; become the command.
//!
//! Exit codes for a command that cannot be run are those of `env`: 127 if it is not found, 126 if it cannot be
//! executed.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::ErrorKind,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::Context as _;
use rustix::{
    fs::{Gid, Uid},
    mount::{MountPropagationFlags, mount_change},
    process::{chdir, getgid, getuid},
    thread::{UnshareFlags, set_thread_gid, set_thread_groups, set_thread_uid},
};

use super::{
    namespace::{map_identity, unshare},
    plan::{Identity, Plan},
    privileges::Privileges,
    view::{PROC, View},
};
use crate::{outcome::Failure, output};

/// Runs the stage with the plan in the file `plan`. Returns only if the command could not be run.
pub(crate) fn run(plan: &Path) -> Result<ExitCode, Failure> {
    // Step 1
    let plan = take(plan)?;
    // Step 2
    unshare(UnshareFlags::NEWNS).context("cannot enter a mount namespace")?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).context("cannot detach from the mounts of the host")?;
    let here = std::env::current_dir();
    let mut view = View::new(&plan.staging);
    for mount in &plan.mounts {
        view.mount(mount)
            .with_context(|| format!("cannot mount a volume on {}", mount.target))?;
    }
    if let Some(directory) = &plan.working_dir {
        view.ensure_directory(Path::new(directory))
            .with_context(|| format!("cannot use {directory} as the working directory"))?;
    }
    if !plan.host_processes && !plan.mounts.iter().any(|mount| is_of_proc(&mount.target)) {
        view.mount_proc().context("cannot mount /proc")?;
    }
    if plan.read_only_root {
        view.make_root_read_only()
            .context("cannot apply readOnlyRootFilesystem")?;
    }
    view.enter()?;
    // Step 3
    become_user(&plan.identity, &plan.privileges)?;
    // Step 4
    match (&plan.working_dir, here) {
        (Some(directory), _) => chdir(directory.as_str())
            .with_context(|| format!("cannot use {directory} as the working directory"))?,
        // By path, because the process is still in the directory below the new mounts. If that is hidden, in the root.
        (None, Ok(here)) => chdir(&here)
            .or_else(|_| chdir(c"/"))
            .context("cannot use /")?,
        (None, Err(_)) => chdir(c"/").context("cannot use /")?,
    }
    Ok(execute(&plan))
}

fn take(path: &Path) -> anyhow::Result<Plan> {
    let text = fs::read(path).context("cannot read the plan")?;
    fs::remove_file(path).context("cannot remove the plan")?;
    serde_json::from_slice(&text).context("cannot read the plan")
}

/// Whether a volume is mounted on `/proc` or in it; then the pod decides what is there.
fn is_of_proc(target: &str) -> bool {
    Path::new(target).starts_with(PROC)
}

/// Step 3.
fn become_user(identity: &Identity, privileges: &Privileges) -> anyhow::Result<()> {
    if let Some(outside) = identity.mapped {
        let inside = (
            identity.user.unwrap_or(outside.0),
            identity.group.unwrap_or(if identity.user.is_some() {
                0
            } else {
                outside.1
            }),
        );
        // This process is root in its namespace; one more namespace in it gives it any user and group.
        let here = (getuid().as_raw(), getgid().as_raw());
        unshare(UnshareFlags::NEWUSER).context("cannot enter a user namespace")?;
        map_identity(inside, here)?;
        privileges.limit()?;
        return privileges.seal();
    }
    privileges.limit()?;
    let groups: Vec<_> = identity.groups.iter().copied().map(Gid::from_raw).collect();
    if identity.user.is_some() || identity.group.is_some() || !groups.is_empty() {
        set_thread_groups(&groups).context("cannot set supplemental groups")?;
        let group = identity.group.or(identity.user.map(|_| 0));
        if let Some(group) = group {
            set_thread_gid(Gid::from_raw(group))
                .with_context(|| format!("cannot become group {group}"))?;
        }
    }
    if let Some(user) = identity.user {
        set_thread_uid(Uid::from_raw(user))
            .with_context(|| format!("cannot become user {user}"))?;
    }
    privileges.seal()
}

/// The end of step 4. Returns the exit code if there is no command to become.
fn execute(plan: &Plan) -> ExitCode {
    let words: Vec<&OsStr> = plan
        .command
        .iter()
        .map(|word| OsStr::from_bytes(word))
        .collect();
    let Some((program, args)) = words.split_first() else {
        unreachable!("the supervisor makes no plan without a command")
    };
    let environment = plan
        .environment
        .iter()
        .map(|(name, value)| (OsString::from(name), OsStr::from_bytes(value)));
    let error = Command::new(program)
        .args(args)
        .env_clear()
        .envs(environment)
        .exec();
    let code = if error.kind() == ErrorKind::NotFound {
        127
    } else {
        126
    };
    output::error(
        anyhow::Error::from(error)
            .context(format!("cannot run {}", program.display()))
            .as_ref(),
    );
    ExitCode::from(code)
}
