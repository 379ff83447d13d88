//! Between the agent and a command: a process that enters namespaces, makes the mounts, and becomes the command.
//!
//! 1. Read the plan from standard input.
//! 2. For a container: enter new namespaces, change the root directory to a layer over the image, and make the mounts
//!    there, so that no link of the image leads out of it. For a further command in a container: enter its namespaces.
//! 3. Become the user and go to the working directory.
//! 4. Become the command.
//!
//! The agent has chosen the PID namespace: the first process in it is this one, and the others end with it.

use std::{
    collections::BTreeMap,
    ffi::{CString, OsStr},
    fs::{self, File},
    io::{Write as _, stderr, stdin},
    os::{
        fd::AsFd as _,
        unix::{ffi::OsStrExt as _, fs::symlink, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::Context as _;
use larder_projection::disk::bind_subpath;
use rustix::{
    fs::{Gid, Mode, Uid},
    mount::{
        MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change,
        mount_remount, unmount,
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
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
/// Where the tree of the machine is while the mounts are made.
const MACHINE: &str = "/.machine";

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
    New(Surroundings),
    /// The container of this process.
    Of(u32),
}

/// What a container sees.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Surroundings {
    /// The files of the image.
    pub(crate) image: PathBuf,
    /// An empty directory for this container.
    pub(crate) scratch: PathBuf,
    pub(crate) hostname: String,
    pub(crate) mounts: Vec<PlannedMount>,
}

/// One mount. The paths have no links that containers can make.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PlannedMount {
    pub(crate) source: PathBuf,
    pub(crate) sub_path: Option<String>,
    /// The mode of the directory that a missing `sub_path` becomes.
    pub(crate) create: Option<u32>,
    pub(crate) target: PathBuf,
    /// Bits of `MountFlags`.
    pub(crate) flags: u32,
}

impl PlannedMount {
    pub(crate) fn new(source: PathBuf, target: &str, flags: MountFlags) -> Self {
        Self {
            source,
            sub_path: None,
            create: None,
            target: target.into(),
            flags: flags.bits(),
        }
    }
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

/// Runs the stage. Returns only if it did not become the command.
pub(crate) fn run() -> ExitCode {
    let Err(error) = become_command();
    // The log of the container, which is all that there is.
    let _ = writeln!(stderr(), "{error:#}");
    ExitCode::from(NOT_STARTED)
}

fn become_command() -> anyhow::Result<std::convert::Infallible> {
    // Step 1
    let plan: Plan = serde_json::from_reader(stdin()).context("cannot read the plan")?;
    // Step 2
    match plan.place {
        Place::New(surroundings) => enter_new(surroundings)?,
        Place::Of(process) => enter_existing(process).context("cannot enter the container")?,
    }
    dup2_stdin(File::open("/dev/null").context("cannot open /dev/null")?)?;
    // Step 3
    let identity = plan.identity;
    let groups: Vec<_> = identity.groups.into_iter().map(Gid::from_raw).collect();
    set_thread_groups(&groups).context("cannot set supplemental groups")?;
    set_thread_gid(Gid::from_raw(identity.group)).context("cannot become the group")?;
    set_thread_uid(Uid::from_raw(identity.user)).context("cannot become the user")?;
    let directory = identity.working_dir;
    chdir(&*directory).with_context(|| format!("cannot work in {directory}"))?;
    // Step 4
    let mut words = plan.command.iter().map(|word| OsStr::from_bytes(word));
    let program = words.next().context("the container has no command")?;
    let variables = identity.environment.iter();
    let variables = variables.map(|(name, value)| (name, OsStr::from_bytes(value)));
    let mut command = Command::new(program);
    let error = command.args(words).env_clear().envs(variables).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

fn enter_existing(process: u32) -> anyhow::Result<()> {
    let open = |name: &str| File::open(format!("/proc/{process}/ns/{name}"));
    // All are opened before the first one hides this `/proc`.
    for namespace in [open("uts")?, open("ipc")?, open("mnt")?] {
        move_into_link_name_space(namespace.as_fd(), None)?;
    }
    Ok(())
}

fn enter_new(surroundings: Surroundings) -> anyhow::Result<()> {
    let namespaces = UnshareFlags::NEWNS | UnshareFlags::NEWUTS | UnshareFlags::NEWIPC;
    #[expect(deprecated, reason = "unsafe for file tables only, and this is none")]
    rustix::thread::unshare(namespaces).context("cannot enter namespaces")?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).context("cannot detach from the mounts of the host")?;
    sethostname(surroundings.hostname.as_bytes()).context("cannot set the host name")?;

    // Directories are made with mode 0755.
    umask(Mode::from_raw_mode(0o022));
    let scratch = &surroundings.scratch;
    let memory = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", scratch, "tmpfs", memory, c"mode=0755").context("cannot mount a tmpfs")?;
    let parts = ["upper", "work", "root", "targets"].map(|name| scratch.join(name));
    for part in &parts {
        fs::create_dir(part).context("cannot create the layer")?;
    }
    let [upper, work, root, targets] = parts;
    let image = surroundings.image.display();
    let (upper, work) = (upper.display(), work.display());
    let layers = CString::new(format!("lowerdir={image},upperdir={upper},workdir={work}"))?;
    let mounted = mount("overlay", &root, "overlay", MountFlags::empty(), &*layers);
    mounted.context("cannot mount the layer")?;

    let mut mounts = surroundings.mounts;
    for (index, planned) in mounts.iter_mut().enumerate() {
        if let Some(path) = &planned.sub_path {
            let (source, name) = (&planned.source, index.to_string());
            let found = bind_subpath(source, path, &targets, &name, planned.create)?;
            planned.source = found.with_context(|| format!("subPath {path} not found"))?;
        }
    }
    for path in DEVICES.map(|name| format!("/dev/{name}")) {
        mounts.push(PlannedMount::new(
            (&path).into(),
            &path,
            MountFlags::empty(),
        ));
    }
    mounts.push(PlannedMount::new("/sys".into(), "/sys", MountFlags::RDONLY));

    let machine = root.join(&MACHINE[1..]);
    fs::create_dir(&machine).context("cannot prepare the root directory")?;
    pivot_root(&root, &machine).context("cannot change the root directory")?;
    chdir("/")?;
    for directory in ["/proc", "/dev"] {
        fs::create_dir_all(directory)?;
    }
    let mounted = mount("proc", "/proc", "proc", memory | MountFlags::NOEXEC, None);
    mounted.context("cannot mount /proc")?;
    let mounted = mount("tmpfs", "/dev", "tmpfs", MountFlags::NOSUID, c"mode=0755");
    mounted.context("cannot mount /dev")?;
    symlink("/proc/self/fd", "/dev/fd")?;
    for (number, name) in ["stdin", "stdout", "stderr"].into_iter().enumerate() {
        symlink(format!("fd/{number}"), format!("/dev/{name}"))?;
    }
    // Outer ones before inner ones.
    mounts.sort_by_key(|planned| planned.target.components().count());
    for planned in mounts {
        attach(&planned).with_context(|| format!("cannot mount {}", planned.target.display()))?;
    }
    unmount(MACHINE, UnmountFlags::DETACH)?;
    fs::remove_dir(MACHINE)?;
    Ok(())
}

/// Mounts on a target that is created if it is missing.
fn attach(planned: &PlannedMount) -> anyhow::Result<()> {
    let source = Path::new(MACHINE).join(planned.source.strip_prefix("/")?);
    let target = &planned.target;
    if fs::metadata(&source)?.is_dir() {
        fs::create_dir_all(target)?;
    } else if fs::metadata(target).is_err() {
        fs::create_dir_all(target.parent().unwrap_or(target))?;
        File::create(target)?;
    }
    mount_bind_recursive(&source, target)?;
    let flags = MountFlags::from_bits_retain(planned.flags);
    if !flags.is_empty() {
        mount_remount(target, MountFlags::BIND | flags, c"")?;
    }
    Ok(())
}
