//! Between the agent and a command: a process that enters namespaces, makes the mounts, and becomes the command.
//!
//! 1. Read the plan from standard input.
//! 2. For a container: enter new namespaces, and pick up everything that it will see, detached from any tree. Change
//!    the root directory to a layer over the image, and attach the mounts there, so that no link of the image leads out
//!    of it. For a further command in a container: enter its namespaces.
//! 3. Become the user and go to the working directory.
//! 4. Become the command.
//!
//! The agent has chosen the PID namespace: the first process in it is this one, and the others end with it.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File, Permissions},
    io::{Read as _, Write as _, stderr, stdin},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{
            ffi::OsStrExt as _, fs::PermissionsExt as _, fs::symlink, process::CommandExt as _,
        },
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::Context as _;
use larder_projection::disk::bind_subpath;
use rustix::{
    fs::{CWD, FileType, Gid, Uid, fstat},
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
        mount_change, mount_remount, move_mount, open_tree, unmount,
    },
    process::{chdir, pivot_root, umask},
    stdio::dup2_stdin,
    system::sethostname,
    thread::{
        UnshareFlags, move_into_link_name_space, set_thread_gid, set_thread_groups, set_thread_uid,
    },
};
use serde::{Deserialize, Serialize};

/// The first argument of a stage.
pub(crate) const STAGE: &str = "stage";
/// The exit code if there was no command to become.
pub(crate) const NOT_STARTED: u8 = 128;
/// Devices that every container has.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// What the stage becomes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) place: Place,
    pub(crate) identity: Identity,
    pub(crate) command: Vec<Vec<u8>>,
}

/// Where a command runs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Place {
    /// A new container.
    New {
        /// The files of the image.
        image: PathBuf,
        /// An empty directory for this container.
        scratch: PathBuf,
        hostname: String,
        mounts: Vec<PlannedMount>,
    },
    /// The container of this process.
    Of(u32),
}

/// As what a command runs: the same for every command in a container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) working_dir: String,
    pub(crate) environment: BTreeMap<String, Vec<u8>>,
}

/// One mount.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PlannedMount {
    pub(crate) source: PathBuf,
    pub(crate) sub_path: Option<String>,
    pub(crate) target: String,
    pub(crate) read_only: bool,
}

/// Runs the stage. Returns only if it did not become the command.
pub(crate) fn run() -> ExitCode {
    let Err(error) = become_command();
    // The log of the container, which is all that there is.
    let _ = writeln!(stderr(), "{error:#}");
    ExitCode::from(NOT_STARTED)
}

fn become_command() -> anyhow::Result<std::convert::Infallible> {
    // Step 1
    let mut text = Vec::new();
    stdin()
        .read_to_end(&mut text)
        .context("cannot read the plan")?;
    let plan: Plan = serde_json::from_slice(&text).context("cannot read the plan")?;
    // Step 2
    match &plan.place {
        Place::New {
            image,
            scratch,
            hostname,
            mounts,
        } => enter_new(image, scratch, hostname, mounts)?,
        Place::Of(process) => enter_existing(*process).context("cannot enter the container")?,
    }
    dup2_stdin(File::open("/dev/null").context("cannot open /dev/null")?)?;
    // Step 3
    let Identity {
        user,
        group,
        groups,
        working_dir,
        environment,
    } = &plan.identity;
    let groups: Vec<_> = groups.iter().copied().map(Gid::from_raw).collect();
    set_thread_groups(&groups).context("cannot set supplemental groups")?;
    set_thread_gid(Gid::from_raw(*group)).context("cannot become the group")?;
    set_thread_uid(Uid::from_raw(*user)).context("cannot become the user")?;
    chdir(working_dir.as_str())
        .with_context(|| format!("cannot use {working_dir} as the working directory"))?;
    // Step 4
    let words: Vec<_> = plan
        .command
        .iter()
        .map(|word| OsStr::from_bytes(word))
        .collect();
    let (program, arguments) = words
        .split_first()
        .context("the container has no command")?;
    let variables = environment
        .iter()
        .map(|(name, value)| (name, OsStr::from_bytes(value)));
    let error = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(variables)
        .exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    #[expect(deprecated, reason = "unsafe for file tables only, and this is none")]
    rustix::thread::unshare(flags)
}

fn enter_existing(process: u32) -> anyhow::Result<()> {
    let open = |name: &str| File::open(format!("/proc/{process}/ns/{name}"));
    // All are opened before the first one hides this `/proc`.
    let (hostname, ipc, mounts) = (open("uts")?, open("ipc")?, open("mnt")?);
    for namespace in [hostname, ipc, mounts] {
        move_into_link_name_space(namespace.as_fd(), None)?;
    }
    Ok(())
}

fn enter_new(
    image: &Path,
    scratch: &Path,
    hostname: &str,
    mounts: &[PlannedMount],
) -> anyhow::Result<()> {
    unshare(UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC)
        .context("cannot enter namespaces")?;
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .context("cannot detach from the mounts of the host")?;
    sethostname(hostname.as_bytes()).context("cannot set the host name")?;
    // The modes below are meant as they are.
    umask(rustix::fs::Mode::empty());
    let memory = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", scratch, "tmpfs", memory, c"mode=0755").context("cannot mount a tmpfs")?;
    let [upper, work, root, targets] =
        ["upper", "work", "root", "targets"].map(|name| scratch.join(name));
    for directory in [&upper, &work, &root, &targets] {
        fs::create_dir(directory).context("cannot create the layer")?;
    }
    fs::set_permissions(&upper, Permissions::from_mode(0o755))?;
    let layers = format!(
        "lowerdir={},upperdir={},workdir={}",
        image.display(),
        upper.display(),
        work.display()
    );
    let layers = std::ffi::CString::new(layers)?;
    mount(
        "overlay",
        &root,
        "overlay",
        MountFlags::empty(),
        layers.as_c_str(),
    )
    .context("cannot mount the layer")?;

    let mut attached = Vec::new();
    for device in DEVICES.map(|name| format!("/dev/{name}")) {
        if let Ok(tree) = detached(Path::new(&device)) {
            attached.push((tree, device, false));
        }
    }
    attached.push((detached(Path::new("/sys"))?, "/sys".to_owned(), true));
    for (index, planned) in mounts.iter().enumerate() {
        let found = match &planned.sub_path {
            None => Some(planned.source.clone()),
            Some(path) => bind_subpath(&planned.source, path, &targets, &index.to_string())?,
        };
        let source = found.with_context(|| format!("subPath of {} not found", planned.target))?;
        let tree =
            detached(&source).with_context(|| format!("cannot find {}", source.display()))?;
        attached.push((tree, planned.target.clone(), planned.read_only));
    }

    chdir(&root)?;
    // The old root is mounted on the new one, and unmounted from there.
    pivot_root(c".", c".").context("cannot change the root directory")?;
    unmount(c".", UnmountFlags::DETACH)?;
    chdir(c"/")?;
    for directory in ["/proc", "/dev"] {
        fs::create_dir_all(directory)?;
    }
    mount("proc", "/proc", "proc", memory | MountFlags::NOEXEC, None)
        .context("cannot mount /proc")?;
    mount("tmpfs", "/dev", "tmpfs", MountFlags::NOSUID, c"mode=0755")
        .context("cannot mount /dev")?;
    for (name, target) in [
        ("fd", "fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ] {
        symlink(format!("/proc/self/{target}"), format!("/dev/{name}"))?;
    }
    // Outer ones before inner ones.
    attached.sort_by_key(|(_, target, _)| Path::new(target).components().count());
    for (tree, target, read_only) in attached {
        attach(&tree, &target, read_only).with_context(|| format!("cannot mount {target}"))?;
    }
    umask(rustix::fs::Mode::from_raw_mode(0o022));
    Ok(())
}

/// The tree of mounts at `path`, which stays reachable from any root.
fn detached(path: &Path) -> rustix::io::Result<OwnedFd> {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(CWD, path, clone | OpenTreeFlags::AT_RECURSIVE)
}

/// Mounts `tree` on `target`, which is created if it is missing.
fn attach(tree: &OwnedFd, target: &str, read_only: bool) -> anyhow::Result<()> {
    let path = Path::new(target);
    if FileType::from_raw_mode(fstat(tree)?.st_mode) == FileType::Directory {
        fs::create_dir_all(path)?;
    } else if fs::metadata(path).is_err() {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        File::create(path)?;
    }
    let by_descriptor =
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
    move_mount(tree, c"", CWD, path, by_descriptor)?;
    if read_only {
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        mount_remount(path, flags, c"")?;
    }
    Ok(())
}
