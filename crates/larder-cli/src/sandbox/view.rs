//! Mounts anywhere in the file tree, without a change to what the host has.
//!
//! A target that does not exist needs a directory to be created in. That directory is replaced, in the private view, by a mirror: a
//! directory of the private tmpfs in which each entry of the original is mounted, or copied if it is a link, and new ones
//! can be made. A mirror of `/` becomes the root of the view when all is mounted. What a command creates in a mirror is
//! gone with it.
//!
//! Unlike an overlay, this shows what is mounted below, and needs no permission that a user namespace lacks.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
    },
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, bail};
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, StatVfsMountFlags, fstatvfs, openat2},
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, mount_bind_recursive, mount_remount, unmount},
    process::{chdir, pivot_root},
};

use super::{namespace::COVERED, plan::PlannedMount};

/// In the private tmpfs: the mirrors of one start.
const MIRRORS: &str = "mirrors";
/// Where processes are shown.
pub(super) const PROC: &str = "/proc";

/// The file tree as the command will see it.
pub(super) struct View {
    /// `/`, or the mirror of it.
    root: PathBuf,
    staging: PathBuf,
    /// Directories that are ours to create in.
    own: BTreeSet<PathBuf>,
    mirrors: usize,
}

/// What a target shall be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
}

/// Removes the mirrors of an earlier start from the private tmpfs. What was mounted in them went with that start's mount namespace.
pub(crate) fn clear(staging: &Path) -> io::Result<()> {
    match fs::remove_dir_all(staging.join(MIRRORS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        cleared => cleared,
    }
}

impl View {
    /// The tree of the host, with a private tmpfs on `staging`.
    pub(super) fn new(staging: &Path) -> Self {
        Self {
            root: "/".into(),
            staging: staging.to_owned(),
            own: BTreeSet::new(),
            mirrors: 0,
        }
    }

    /// Mounts a file or a directory.
    pub(super) fn mount(&mut self, mount: &PlannedMount) -> anyhow::Result<()> {
        let is_dir = fs::metadata(&mount.source)
            .with_context(|| format!("cannot find {}", mount.source.display()))?
            .is_dir();
        let kind = if is_dir { Kind::Directory } else { Kind::File };
        let target = self.ensure(Path::new(&mount.target), kind)?;
        mount_bind_recursive(&mount.source, &target).context("cannot bind-mount")?;
        if mount.read_only {
            make_read_only(&target).context("cannot make the mount read-only")?;
        }
        Ok(())
    }

    /// Makes sure that there is a directory `path`.
    pub(super) fn ensure_directory(&mut self, path: &Path) -> anyhow::Result<()> {
        self.ensure(path, Kind::Directory).map(drop)
    }

    /// Shows the processes of the PID namespace of this process, and no others.
    ///
    /// Where parts of `/proc` are hidden, as in most containers, a user namespace may not mount another one. Then the one that is there stays;
    /// `/proc/self` is right in either.
    pub(super) fn mount_proc(&mut self) -> anyhow::Result<()> {
        let target = self.ensure(Path::new(PROC), Kind::Directory)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        match mount("proc", &target, "proc", flags, None) {
            Err(Errno::PERM) => Ok(()),
            mounted => Ok(mounted?),
        }
    }

    /// Makes the view the file tree of this process, without the private tmpfs.
    pub(super) fn enter(self) -> anyhow::Result<()> {
        if self.root == Path::new("/") {
            return unmount(&self.staging, UnmountFlags::DETACH)
                .context("cannot unmount the private tmpfs");
        }
        let enter = || {
            chdir(&self.root)?;
            // The old root ends up on the new one, from where it is taken away.
            pivot_root(c".", c".")?;
            unmount(c".", UnmountFlags::DETACH)?;
            chdir(c"/")
        };
        enter().context("cannot change the root directory")
    }

    /// What `path` of the view is in the tree of this process, links followed; created if need be.
    fn ensure(&mut self, path: &Path, kind: Kind) -> anyhow::Result<PathBuf> {
        let names: Vec<_> = path
            .components()
            .filter_map(|component| match component {
                Component::Normal(name) => Some(name),
                _ => None,
            })
            .collect();
        let mut reached = self.root.clone();
        for (depth, name) in names.iter().enumerate() {
            let so_far: PathBuf = names[..=depth].iter().collect();
            reached = match self.resolve(&so_far)? {
                Some(found) => found,
                None if fs::symlink_metadata(reached.join(name)).is_ok() => {
                    bail!("/{} is a link that leads nowhere", so_far.display())
                }
                None => {
                    let is_last = depth + 1 == names.len();
                    let kind = if is_last { kind } else { Kind::Directory };
                    self.create(&reached, name, kind).with_context(|| {
                        format!("cannot create /{} in a private view", so_far.display())
                    })?
                }
            };
        }
        let is_dir = fs::metadata(&reached)?.is_dir();
        match (kind, is_dir) {
            (Kind::Directory, false) => bail!("a directory cannot be mounted on a file"),
            (Kind::File, true) => bail!("a file cannot be mounted on a directory"),
            _ => Ok(reached),
        }
    }

    /// What `path` leads to, with the root of the view as `/` of all links.
    fn resolve(&self, path: &Path) -> anyhow::Result<Option<PathBuf>> {
        let root = fs::File::open(&self.root)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT) {
            Ok(found) => {
                let path = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
                Ok(Some(path))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno).with_context(|| format!("cannot look up /{}", path.display())),
        }
    }

    /// Creates `name` in `parent`, or in a mirror of it.
    fn create(&mut self, parent: &Path, name: &OsStr, kind: Kind) -> anyhow::Result<PathBuf> {
        if !self.own.contains(parent) {
            self.mirror(parent)?;
        }
        // A mirror of the root is elsewhere.
        let parent = if parent == Path::new("/") {
            self.root.clone()
        } else {
            parent.to_owned()
        };
        let created = parent.join(name);
        match kind {
            Kind::Directory => {
                fs::create_dir(&created)?;
                fs::set_permissions(&created, fs::Permissions::from_mode(0o755))?;
                self.own.insert(created.clone());
            }
            Kind::File => drop(fs::File::create_new(&created)?),
        }
        Ok(created)
    }

    /// Replaces a directory by a mirror of it.
    fn mirror(&mut self, directory: &Path) -> anyhow::Result<()> {
        let mirror = self.staging.join(MIRRORS).join(self.mirrors.to_string());
        self.mirrors += 1;
        fs::create_dir_all(&mirror)?;
        // From here on a mount, which the root of a view has to be.
        mount_bind_recursive(&mirror, &mirror)?;
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let (mut source, copy) = (entry.path(), mirror.join(entry.file_name()));
            if source == self.staging {
                source = self.staging.join(COVERED);
            }
            let kind = fs::symlink_metadata(&source)?.file_type();
            if kind.is_symlink() {
                symlink(fs::read_link(&source)?, &copy)?;
                continue;
            }
            if kind.is_dir() {
                fs::create_dir(&copy)?;
            } else {
                fs::File::create_new(&copy)?;
            }
            mount_bind_recursive(&source, &copy)
                .with_context(|| format!("cannot mount {} in a mirror", source.display()))?;
        }
        let metadata = fs::metadata(directory)?;
        // Where this user may not give it away, the mirror is the user's.
        let _ = chown(&mirror, Some(metadata.uid()), Some(metadata.gid()));
        fs::set_permissions(&mirror, metadata.permissions())?;
        if directory == Path::new("/") {
            self.own.insert(mirror.clone());
            self.root = mirror;
        } else {
            mount_bind_recursive(&mirror, directory)?;
            self.own.insert(directory.to_owned());
        }
        Ok(())
    }
}

/// Makes a mount read-only, and keeps its other flags, which a user namespace may not drop.
fn make_read_only(target: &Path) -> anyhow::Result<()> {
    let kept = fstatvfs(fs::File::open(target)?)?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    for (has, keep) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        flags.set(keep, kept.contains(has));
    }
    Ok(mount_remount(target, flags, c"")?)
}
