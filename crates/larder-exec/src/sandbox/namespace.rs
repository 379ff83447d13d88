//! The supervisor's namespaces: a mount namespace, and, for an ordinary user, a user namespace that permits it.
//!
//! 1. Leave the mount namespace of the host; later mounts of the host appear here, but not the reverse.
//! 2. Mount a tmpfs on a directory that this run does not need. Its content stays reachable for the command.
//!
//! Requires that the process has one thread.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use larder_containers::namespaces::unshare;
use rustix::{
    io::Errno,
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change,
        move_mount, open_tree,
    },
    process::{getgid, getuid},
    thread::UnshareFlags,
};

/// Directories that every system has and few commands need, in order of preference.
const STAGING: [&str; 8] = [
    "/mnt", "/media", "/srv", "/opt", "/home", "/var", "/run", "/tmp",
];
/// In the private tmpfs: the content of the directory below it.
pub(super) const COVERED: &str = "covered";
/// In the private tmpfs: root directory of the volumes.
const VOLUMES: &str = "volumes";

/// The private tmpfs, in private namespaces.
#[derive(Debug)]
pub struct Sandbox {
    /// Where the private tmpfs is mounted.
    pub(crate) staging: PathBuf,
    /// User and group outside, if they are mapped into a user namespace.
    pub(crate) mapped: Option<(u32, u32)>,
}

impl Sandbox {
    /// Moves this process into private namespaces. `needed` are the paths that must stay visible.
    ///
    /// # Errors
    ///
    /// This process may not mount, not even in a user namespace.
    pub(crate) fn enter(needed: &[PathBuf]) -> anyhow::Result<Self> {
        let staging = choose_staging(needed)?;
        // Step 1
        let mapped = leave_host().context("cannot enter a private mount namespace")?;
        let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        mount_change("/", slave).context("cannot detach from the mounts of the host")?;
        // Step 2
        let clone = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_RECURSIVE;
        let covered = open_tree(rustix::fs::CWD, &staging, clone)
            .with_context(|| format!("cannot keep {}", staging.display()))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", &staging, "tmpfs", flags, c"mode=0755")
            .with_context(|| format!("cannot mount a private tmpfs on {}", staging.display()))?;
        let sandbox = Self { staging, mapped };
        let covered_at = sandbox.staging.join(COVERED);
        fs::create_dir(&covered_at).context("cannot write to the private tmpfs")?;
        let attach = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&covered, c"", rustix::fs::CWD, &covered_at, attach)
            .with_context(|| format!("cannot keep {}", sandbox.staging.display()))?;
        Ok(sandbox)
    }

    /// Root directory for the volumes.
    pub(crate) fn volumes(&self) -> PathBuf {
        self.staging.join(VOLUMES)
    }
}

/// Step 1. Returns user and group outside, if the user namespace has no others: a new one, or the current one.
fn leave_host() -> anyhow::Result<Option<(u32, u32)>> {
    let outside = (getuid().as_raw(), getgid().as_raw());
    match unshare(UnshareFlags::NEWNS) {
        Ok(()) => return Ok(is_only_user().then_some(outside)),
        Err(Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
        .context(
            "not permitted here, and user namespaces are not available either; `larder render --to DIR` writes the volumes, and `larder render -o env` the variables",
        )?;
    map_identity((0, 0), outside)?;
    Ok(Some(outside))
}

/// Whether this is the root of a user namespace that may not change its groups, such as that of `unshare -r`.
fn is_only_user() -> bool {
    fs::read_to_string("/proc/self/setgroups").is_ok_and(|answer| answer.trim() == "deny")
}

/// Makes `outside` appear as `inside` in the user namespace that this process has just entered.
pub(super) fn map_identity(inside: (u32, u32), outside: (u32, u32)) -> anyhow::Result<()> {
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text)
            .with_context(|| format!("cannot write {file}"))
    };
    // The kernel requires this of a process that may not set groups outside.
    write("setgroups", "deny".to_owned())?;
    write("gid_map", format!("{} {} 1", inside.1, outside.1))?;
    write("uid_map", format!("{} {} 1", inside.0, outside.0))
}

/// A directory that neither contains one of `needed` nor lies in one.
fn choose_staging(needed: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let is_free = |candidate: &Path| {
        let related = |path: &PathBuf| {
            (path.starts_with(candidate) || candidate.starts_with(path)) && path != Path::new("/")
        };
        let is_dir = fs::symlink_metadata(candidate).is_ok_and(|metadata| metadata.is_dir());
        is_dir && !needed.iter().any(related)
    };
    let mut candidates = STAGING.iter().map(Path::new);
    candidates
        .find(|candidate| is_free(candidate))
        .map(Path::to_owned)
        .ok_or_else(|| {
            let all = STAGING.join(", ");
            anyhow!("cannot find a place for a private tmpfs: the pod uses all of {all}")
        })
}
