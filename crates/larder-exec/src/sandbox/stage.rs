//! `larder exec-stage`: between supervisor and command. One thread, which becomes the command.
//!
//! 1. Read the plan.
//! 2. Enter a new mount namespace and make all mounts in it. Pass the namespace to the supervisor.
//! 3. Become the user, with the capabilities of the container.
//! 4. Go to the working directory; become the command.
//!
//! A command of a hook takes the same steps, but in step 2 it enters the namespace of the running command.
//!
//! Exit codes for a command that cannot be run are those of `env`: 127 if it is not found, 126 if it cannot be
//! executed.

use std::{
    ffi::OsStr,
    fs,
    io::{ErrorKind, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::{ffi::OsStrExt as _, fs::PermissionsExt as _, process::CommandExt as _},
    },
    path::Path,
    process::{Command, ExitCode},
};

use anyhow::Context as _;
use larder_actions::exec::CHANGES;
use larder_console as console;
use larder_containers::namespaces::unshare;
use rustix::{
    fs::{Gid, MemfdFlags, Uid, memfd_create},
    mount::{MountPropagationFlags, mount_change},
    process::{chdir, getgid, getuid},
    stdio::{dup2_stdin, stdin},
    thread::{
        LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_gid,
        set_thread_groups, set_thread_uid,
    },
};

use super::{
    namespace::map_identity,
    plan::{CommandSettings, HookPlan, Plan, StagePlan},
    report::connect,
    view::{PROC, PrivateView},
};

/// The exit code for a command that does not exist.
pub(crate) const NOT_FOUND: u8 = 127;

/// Runs the stage with the plan in the file `plan`. Returns only if the command could not be run.
///
/// # Errors
///
/// The view of the container cannot be made.
pub fn run(plan: &Path) -> anyhow::Result<ExitCode> {
    // Step 1
    match take(plan)? {
        StagePlan::Command(plan) => become_command(&plan),
        StagePlan::Hook(plan) => become_hook(plan),
    }
}

fn become_command(plan: &Plan) -> anyhow::Result<ExitCode> {
    let settings = &plan.settings;
    // Step 2
    unshare(UnshareFlags::NEWNS).context("cannot enter a mount namespace")?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).context("cannot detach from the mounts of the host")?;
    let here = std::env::current_dir();
    let pass_mounts = connect(&plan.staging);
    let mut view = PrivateView::new(&plan.staging);
    for mount in &plan.mounts {
        view.mount(mount)
            .with_context(|| format!("cannot mount a volume on {}", mount.target))?;
    }
    if let Some(directory) = &settings.working_dir {
        view.ensure_directory(Path::new(directory))
            .with_context(|| format!("cannot use {directory} as the working directory"))?;
    }
    // The pod decides what is there if it mounts a volume on `/proc` or in it.
    let mut targets = plan.mounts.iter().map(|mount| Path::new(&mount.target));
    if !settings.host_processes && !targets.any(|target| target.starts_with(PROC)) {
        view.mount_proc().context("cannot mount /proc")?;
    }
    if settings.read_only_root {
        view.make_root_read_only()
            .context("cannot apply readOnlyRootFilesystem")?;
    }
    view.enter()?;
    pass_mounts
        .and_then(|pass| pass())
        .context("cannot pass the mounts to the supervisor")?;
    // Step 3
    become_user(settings)?;
    // Step 4: by path, because the process is still in the directory below the new mounts. If that is hidden, in the
    // root.
    if settings.working_dir.is_none() && !here.is_ok_and(|here| chdir(&here).is_ok()) {
        chdir(c"/").context("cannot use /")?;
    }
    execute(settings, &plan.environment).map(ExitCode::from)
}

fn become_hook(mut plan: HookPlan) -> anyhow::Result<ExitCode> {
    // Step 2
    let nothing = fs::File::open("/dev/null").context("cannot open /dev/null")?;
    // It cannot be reached from the view of the command.
    let mut failure = fs::File::create(&plan.failure).context("cannot create a file")?;
    move_into_link_name_space(stdin(), Some(LinkNameSpaceType::Mount))
        .context("cannot enter the view of the command")?;
    dup2_stdin(&nothing).context("cannot empty the standard input")?;
    // Step 3
    become_user(&plan.settings)?;
    let (_changes, path) =
        changes_file(&plan.changes).context("cannot write the file of changes")?;
    plan.environment.push((CHANGES.to_owned(), path.into()));
    // Step 4
    let code = execute(&plan.settings, &plan.environment)?;
    failure.write_all(&[code]).context("cannot report")?;
    Ok(ExitCode::from(code))
}

/// The file of changes of a hook: in memory, readable by its user only, and gone with its last process. With the path by
/// which the command and the processes that it starts open it.
fn changes_file(content: &[u8]) -> anyhow::Result<(fs::File, String)> {
    // Inherited by the command.
    let file = memfd_create(c"changes.json", MemfdFlags::empty())?;
    let mut file = fs::File::from(file);
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(content)?;
    // The number of this process as `/proc` shows it; it may be that of another namespace.
    let process = fs::read_link("/proc/self").unwrap_or_else(|_| "self".into());
    let path = format!("{PROC}/{}/fd/{}", process.display(), file.as_raw_fd());
    Ok((file, path))
}

fn take(path: &Path) -> anyhow::Result<StagePlan> {
    let text = fs::read(path).context("cannot read the plan")?;
    fs::remove_file(path).context("cannot remove the plan")?;
    serde_json::from_slice(&text).context("cannot read the plan")
}

/// Step 3.
fn become_user(settings: &CommandSettings) -> anyhow::Result<()> {
    let (identity, privileges) = (&settings.identity, &settings.privileges);
    let group = identity.group.or(identity.user.map(|_| 0));
    if let Some(outside) = identity.mapped {
        let user = identity.user.unwrap_or(outside.0);
        let inside = (user, group.unwrap_or(outside.1));
        // This process is root in its namespace; one more namespace in it gives it any user and group.
        let here = (getuid().as_raw(), getgid().as_raw());
        unshare(UnshareFlags::NEWUSER).context("cannot enter a user namespace")?;
        map_identity(inside, here)?;
        privileges.limit()?;
        return privileges.seal();
    }
    privileges.limit()?;
    let groups: Vec<_> = identity.groups.iter().copied().map(Gid::from_raw).collect();
    if group.is_some() || !groups.is_empty() {
        set_thread_groups(&groups).context("cannot set supplemental groups")?;
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

/// Step 4, in the directory of the settings, if they have one. Returns the exit code if there is no command to become.
fn execute(settings: &CommandSettings, environment: &[(String, Vec<u8>)]) -> anyhow::Result<u8> {
    if let Some(directory) = &settings.working_dir {
        chdir(directory.as_str())
            .with_context(|| format!("cannot use {directory} as the working directory"))?;
    }
    let words: Vec<_> = settings
        .command
        .iter()
        .map(|word| OsStr::from_bytes(word))
        .collect();
    let Some((program, args)) = words.split_first() else {
        unreachable!("the supervisor makes no plan without a command")
    };
    let environment = environment
        .iter()
        .map(|(name, value)| (name, OsStr::from_bytes(value)));
    let error = Command::new(program)
        .args(args)
        .env_clear()
        .envs(environment)
        .exec();
    let code = if error.kind() == ErrorKind::NotFound {
        NOT_FOUND
    } else {
        126
    };
    let what = format!("cannot run {}", program.display());
    console::error(anyhow::Error::from(error).context(what).as_ref());
    Ok(code)
}
