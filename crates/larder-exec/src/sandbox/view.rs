//! Mounts anywhere in the file tree, without a change to the host's but for mount points in its writable volumes.
//!
//! A missing mount point must be created in a directory. In the private view, a mirror replaces that directory: a
//! directory of the private tmpfs in which each entry of the original is mounted, or copied if it is a link, and new
//! entries can be created. A mirror of `/` becomes the root of the view once everything is mounted. Files that a
//! command creates in a mirror disappear with the command. In a volume it is created as a runtime does, in the volume:
//! a mirror would make it another one, writable and without the files that are created in it later.
//!
//! Unlike an overlay, a mirror shows the mounts below, and needs no permission that a user namespace lacks.
//!
//! Invariant: nothing is mounted or created outside of the path that was looked up, even if another user owns a directory
//! of it and replaces it by a link meanwhile. Mounts are made on open directories and files, and what is missing is
//! created in the private tmpfs.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::{self, ErrorKind},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{MetadataExt, PermissionsExt, chown, symlink},
        },
    },
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, bail};
use larder_containers::processes::unescaped;
use larder_projection::BindOptions;
use rustix::{
    fs::{Mode, OFlags, ResolveFlags, StatVfsMountFlags, fstat, fstatvfs, open, openat2},
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, mount_bind_recursive, mount_remount, unmount},
    process::{chdir, pivot_root},
};

use super::{namespace::COVERED, plan::PlannedMount};

/// In the private tmpfs: the mirrors of one start.
const MIRRORS: &str = "mirrors";
/// Where processes are shown.
pub(super) const PROC: &str = "/proc";

/// The file tree that the command will see.
pub(super) struct PrivateView {
    /// `/`, or the mirror of it.
    root: PathBuf,
    staging: PathBuf,
    /// Directories in which mount points can be created, and where they are in the private tmpfs.
    own: BTreeMap<PathBuf, PathBuf>,
    /// Mount points of the volumes, in the tree of this process.
    volumes: Vec<PathBuf>,
}

/// Removes the mirrors of an earlier start from the private tmpfs. Their mounts have ended with that start's mount
/// namespace.
pub(crate) fn clear(staging: &Path) -> io::Result<()> {
    match fs::remove_dir_all(staging.join(MIRRORS)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        cleared => cleared,
    }
}

impl PrivateView {
    /// The tree of the host, with a private tmpfs on `staging`.
    pub(super) fn new(staging: &Path) -> Self {
        Self {
            root: "/".into(),
            staging: staging.to_owned(),
            own: BTreeMap::new(),
            volumes: Vec::new(),
        }
    }

    /// Mounts a file or a directory.
    pub(super) fn mount(&mut self, mount: &PlannedMount) -> anyhow::Result<()> {
        let found = fs::metadata(&mount.source)
            .with_context(|| format!("cannot find {}", mount.source.display()))?;
        let target = self.ensure(Path::new(&mount.target), Place::of(&found))?;
        mount_bind_recursive(&mount.source, &opened(&target)?.link).context("cannot bind-mount")?;
        restrict(&target, mount.read_only, mount.options)
            .context("cannot make the mount read-only")?;
        self.volumes.push(target);
        Ok(())
    }

    /// Makes every mount read-only but the volumes and, as in containers, `/proc`, `/dev` and `/sys`.
    pub(super) fn make_root_read_only(&self) -> anyhow::Result<()> {
        let table = fs::read("/proc/self/mountinfo").context("cannot read the mounts")?;
        let kept = ["proc", "dev", "sys"].map(|path| self.root.join(path));
        let kept: Vec<_> = kept.iter().chain(&self.volumes).collect();
        for point in table.split(|&byte| byte == b'\n').filter_map(mount_point) {
            let is_visible = point.starts_with(&self.root)
                && (self.root != Path::new("/") || !point.starts_with(&self.staging));
            if !is_visible || kept.iter().any(|kept| point.starts_with(kept)) {
                continue;
            }
            match restrict(&point, true, BindOptions::default()) {
                // A mount that this user cannot reach, the command cannot reach either.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::NotFound | ErrorKind::PermissionDenied
                    ) && fs::symlink_metadata(&point).is_err() => {}
                made => {
                    made.with_context(|| format!("cannot make {} read-only", point.display()))?;
                }
            }
        }
        Ok(())
    }

    /// Makes sure that there is a directory `path`.
    pub(super) fn ensure_directory(&mut self, path: &Path) -> anyhow::Result<()> {
        self.ensure(path, Place::Directory).map(drop)
    }

    /// Shows the processes of the PID namespace of this process, and no others.
    ///
    /// Where parts of `/proc` are hidden, as in most containers, a user namespace may not mount another one. Then the
    /// current one stays; `/proc/self` is right in both.
    pub(super) fn mount_proc(&mut self) -> anyhow::Result<()> {
        let target = self.ensure(Path::new(PROC), Place::Directory)?;
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
            // The old root is mounted on the new one, and unmounted from there.
            pivot_root(c".", c".")?;
            unmount(c".", UnmountFlags::DETACH)?;
            chdir(c"/")
        };
        enter().context("cannot change the root directory")
    }

    /// The path in the tree of this process for `path` of the view, with links followed. Creates what is missing.
    fn ensure(&mut self, path: &Path, place: Place) -> anyhow::Result<PathBuf> {
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
                    bail!("/{} is a dangling link", so_far.display())
                }
                None => {
                    let is_last = depth + 1 == names.len();
                    let place = if is_last { place } else { Place::Directory };
                    let created = self.create(&reached, name, place);
                    let what = || format!("cannot create /{} in a private view", so_far.display());
                    created.with_context(what)?
                }
            };
        }
        match (place, Place::of(&fs::metadata(&reached)?)) {
            (Place::Directory, Place::File) => bail!("cannot mount a directory on a file"),
            (Place::File, Place::Directory) => bail!("cannot mount a file on a directory"),
            _ => Ok(reached),
        }
    }

    /// The target of `path`, with the root of the view as the root of all links.
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
    fn create(&mut self, parent: &Path, name: &OsStr, place: Place) -> anyhow::Result<PathBuf> {
        if self.volumes.iter().any(|volume| parent.starts_with(volume)) {
            return create_in_volume(parent, name, place);
        }
        if !self.own.contains_key(parent) {
            self.mirror(parent)?;
        }
        // The mirror of the root has a path of its own.
        let is_root = parent == Path::new("/");
        let parent = if is_root { &self.root } else { parent };
        let (shown, created) = (parent.join(name), self.own[parent].join(name));
        match place {
            Place::Directory => {
                fs::create_dir(&created)?;
                fs::set_permissions(&created, fs::Permissions::from_mode(0o755))?;
                self.own.insert(shown.clone(), created);
            }
            Place::File => drop(fs::File::create_new(&created)?),
        }
        Ok(shown)
    }

    /// Replaces a directory by a mirror of it.
    fn mirror(&mut self, directory: &Path) -> anyhow::Result<()> {
        let number = self.own.len();
        let mirror = self.staging.join(MIRRORS).join(number.to_string());
        fs::create_dir_all(&mirror)?;
        // The root of a view must be a mount.
        mount_bind_recursive(&mirror, &mirror)?;
        let original = opened(directory)?;
        for entry in fs::read_dir(&original.link)? {
            let entry = entry?;
            let (mut source, copy) = (entry.path(), mirror.join(entry.file_name()));
            if directory.join(entry.file_name()) == self.staging {
                source = self.staging.join(COVERED);
            }
            match show(&source, &copy) {
                // Other processes use the directory.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                shown => shown
                    .with_context(|| format!("cannot mount {} in a mirror", source.display()))?,
            }
        }
        let metadata = fs::metadata(&original.link)?;
        // A user who may not change the owner keeps the mirror.
        let _ = chown(&mirror, Some(metadata.uid()), Some(metadata.gid()));
        fs::set_permissions(&mirror, metadata.permissions())?;
        if directory == Path::new("/") {
            self.own.insert(mirror.clone(), mirror.clone());
            self.root = mirror;
        } else {
            mount_bind_recursive(&mirror, &original.link)?;
            self.own.insert(directory.to_owned(), mirror);
        }
        Ok(())
    }
}

/// What is mounted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Directory,
    File,
}

impl Place {
    fn of(found: &fs::Metadata) -> Self {
        if found.is_dir() {
            Self::Directory
        } else {
            Self::File
        }
    }
}

/// Creates `name` in a directory of a volume, as runc does.
fn create_in_volume(parent: &Path, name: &OsStr, place: Place) -> anyhow::Result<PathBuf> {
    let volume = opened(parent)?;
    let path = parent.join(name);
    let created = volume.link.join(name);
    let made = match place {
        Place::Directory => fs::create_dir(created),
        Place::File => fs::File::create_new(created).map(drop),
    };
    made.map_err(|error| {
        let more = match error.kind() {
            ErrorKind::ReadOnlyFilesystem => ", and a container would not start either",
            _ => "",
        };
        anyhow::Error::from(error).context(format!("the volume has no such path{more}"))
    })?;
    if place == Place::Directory {
        // Whatever the umask, others must be able to pass.
        fs::set_permissions(&opened(&path)?.link, fs::Permissions::from_mode(0o755))?;
    }
    Ok(path)
}

/// What is at a path, whatever takes its place there later.
struct Opened {
    /// A link of the kernel to it.
    link: PathBuf,
    file: OwnedFd,
}

/// Opens what is at `path`, which has no links: not for reading, which may need a permission, or block.
fn opened(path: &Path) -> io::Result<Opened> {
    let file = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let found = fs::read_link(&link)?;
    // What is mounted there was removed, as the old file behind a `subPath`.
    let removed = found.as_os_str().as_bytes().strip_suffix(b" (deleted)");
    let is_removed = removed == Some(path.as_os_str().as_bytes()) && fstat(&file)?.st_nlink == 0;
    if found != path && !is_removed {
        return Err(io::Error::other("another user has replaced a directory"));
    }
    Ok(Opened { link, file })
}

/// Makes an entry of a directory appear at `copy` in a mirror.
fn show(source: &Path, copy: &Path) -> io::Result<()> {
    let kind = fs::symlink_metadata(source)?.file_type();
    if kind.is_symlink() {
        return symlink(fs::read_link(source)?, copy);
    }
    if kind.is_dir() {
        fs::create_dir(copy)?;
    } else {
        fs::File::create_new(copy)?;
    }
    mount_bind_recursive(source, copy).or_else(|errno| {
        if kind.is_dir() {
            fs::remove_dir(copy)?;
        } else {
            fs::remove_file(copy)?;
        }
        Err(errno.into())
    })
}

/// The mount point of a line of `mountinfo`, which escapes some bytes in octal.
fn mount_point(line: &[u8]) -> Option<Cow<'_, Path>> {
    line.split(|&byte| byte == b' ').nth(4).map(unescaped)
}

/// Makes a mount read-only if `read_only`, and gives it `options`. It keeps its other flags, which a user namespace may
/// not drop.
pub(super) fn restrict(target: &Path, read_only: bool, options: BindOptions) -> io::Result<()> {
    if !read_only && options == BindOptions::default() {
        return Ok(());
    }
    let target = opened(target)?;
    let kept = fstatvfs(&target.file)?.f_flag;
    let mut flags = MountFlags::BIND;
    flags.set(MountFlags::RDONLY, read_only);
    flags.set(MountFlags::NOEXEC, options.no_exec);
    flags.set(MountFlags::NODEV, options.no_dev);
    flags.set(MountFlags::NOSUID, options.no_suid);
    for (has, keep) in [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if kept.contains(has) {
            flags |= keep;
        }
    }
    Ok(mount_remount(&target.link, flags, c"")?)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn what_was_replaced_by_a_link_is_not_opened() {
        let root = TempDir::new().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let (place, other) = (root.join("place"), root.join("other"));
        fs::create_dir(&place).unwrap();
        fs::create_dir(&other).unwrap();
        let before = opened(&place).unwrap();
        fs::rename(&place, root.join("moved")).unwrap();
        symlink(&other, &place).unwrap();
        assert!(opened(&place).is_err());
        // What was opened stays the same directory.
        fs::write(before.link.join("f"), "").unwrap();
        assert!(root.join("moved/f").exists());
    }
}
