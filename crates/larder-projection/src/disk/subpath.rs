//! `subPath`: one file or directory of a volume, mounted by itself.
//!
//! Rules: kubelet 1.36, `pkg/volume/util/subpath/subpath_linux.go`. All links are resolved once, beneath the volume,
//! and what they lead to is bind-mounted on `volume-subpaths/<volume>/<container>/<index>`. A later set of the volume
//! therefore does not show through: the content is that of the last call of [`VolumeHost::prepare_subpath`], which
//! belongs before a start of the container.
//!
//! Invariant: nothing outside the volume is reached, regardless of links in it: paths are resolved by `openat2` with
//! `RESOLVE_BENEATH`, or element by element where the kernel has none (Linux before 5.6), does not follow a link, or
//! cannot tell because of renames elsewhere.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use larder_files::sys;
use rustix::{
    fs::{self, FileType, Mode, OFlags, ResolveFlags},
    io::{Errno, Result},
    mount::{self, MoveMountFlags, OpenTreeFlags},
};

use super::{
    DiskError, VolumeHost,
    directory::Directory,
    layout::{self, element},
    tmpfs, writer,
};
use crate::{VolumeKind, mounts::check_sub_path};

/// A directory that does not have its mode yet. No path of a payload begins so, and no mount path is likely to.
const DIRECTORY_TMP: &str = "..directory_tmp";
/// Lookups of a path by `openat2` that renames elsewhere may disturb.
const LOOKUPS: usize = 32;
/// Links on the way of one path, as in the kernel.
const MAX_LINKS: usize = 40;

/// A `volumeMounts` entry with a `subPath`.
#[derive(Clone, Copy, Debug)]
pub struct SubPath<'a> {
    /// UID of the pod, as its directory is named.
    pub pod_uid: &'a str,
    /// Type of the volume.
    pub kind: VolumeKind,
    /// Name of the volume in the pod.
    pub volume: &'a str,
    /// Name of the container.
    pub container: &'a str,
    /// Position of the entry in `volumeMounts` of the container, from 0.
    pub index: usize,
    /// The path, with variables of a `subPathExpr` already expanded.
    pub path: &'a str,
}

impl VolumeHost {
    /// Bind-mounts what a `subPath` leads to, and returns where: the source of the container's mount.
    ///
    /// 1. Resolve the path. What does not exist is created as a directory with the mode of the volume's root, as by the
    ///    kubelet; if it is the name of a key, that directory hides the key from then on.
    /// 2. If that very file or directory is mounted already, there is nothing to do; if another one is, it is
    ///    unmounted.
    /// 3. Bind-mount it.
    ///
    /// # Errors
    ///
    /// The path is absolute, or leads out of the volume; or the first step that failed. Needs the permission to mount.
    pub fn prepare_subpath(&self, mount: &SubPath<'_>) -> std::result::Result<PathBuf, DiskError> {
        check_sub_path(mount.path).map_err(DiskError::SubPath)?;
        let path = &*clean(mount.path);
        let (volume, container) = (element(mount.volume)?, element(mount.container)?);
        let pod = self.ensure_pod(mount.pod_uid)?;
        // Step 1
        let root = pod
            .descendant(&[layout::VOLUMES, mount.kind.directory(), volume])?
            .ok_or_else(|| {
                let path = self.volume_path(mount.pod_uid, mount.kind, volume);
                DiskError::new("open volume", &path, Errno::NOENT)
            })?;
        let failed = root.failed("resolve subPath", path);
        let source = match resolve(root.as_fd(), path) {
            Err(Errno::NOENT) => {
                let mode = sys::stat(&root).map_err(&failed)?.st_mode & 0o7777;
                make_directories(&root, path, mode)?;
                resolve(root.as_fd(), path)
            }
            resolved => resolved,
        }
        .map_err(&failed)?;
        let targets = pod
            .ensure(layout::SUBPATHS, layout::PRIVATE)?
            .ensure(volume, layout::PRIVATE)?
            .ensure(container, layout::PRIVATE)?;
        let name = mount.index.to_string();
        bind(&source, &targets, &name).map_err(targets.failed("bind-mount on", &name))?;
        Ok(targets.path().join(name))
    }
}

/// Bind-mounts what the `subPath` `path` of the volume at `volume` leads to on `name` in the directory `targets`, and
/// returns where. What is mounted there already is replaced. If there is no such path, it becomes a directory with the
/// mode `create`, or else the answer is `None`: nothing is created in volumes of others.
///
/// # Errors
///
/// The path is absolute, or leads out of the volume; or the first step that failed. Needs the permission to mount.
pub fn bind_subpath(
    volume: &Path,
    path: &str,
    targets: &Path,
    name: &str,
    create: Option<u32>,
) -> std::result::Result<Option<PathBuf>, DiskError> {
    check_sub_path(path).map_err(DiskError::SubPath)?;
    let path = &*clean(path);
    let root = Directory::open(volume)?;
    let resolved = || resolve_at_rest(&root, path).map_err(root.failed("resolve subPath", path));
    let mut source = resolved()?;
    if let (None, Some(mode)) = (&source, create) {
        make_directories(&root, path, mode)?;
        source = resolved()?;
    }
    let Some(source) = source else {
        return Ok(None);
    };
    let targets = Directory::open(targets)?;
    bind(&source, &targets, name).map_err(targets.failed("bind-mount on", name))?;
    Ok(Some(targets.path().join(name)))
}

/// A path as the kubelet takes it: `./a/` is `a`, which may be a file.
fn clean(path: &str) -> String {
    let elements = path
        .split('/')
        .filter(|element| !matches!(*element, "" | "."));
    let clean = elements.collect::<Vec<_>>().join("/");
    if clean.is_empty() {
        ".".to_owned()
    } else {
        clean
    }
}

/// What `path` leads to, if anything, in a volume that its owner may swap meanwhile: a set that went while it was
/// looked at does not make its keys missing.
fn resolve_at_rest(root: &Directory, path: &str) -> Result<Option<OwnedFd>> {
    let set = || match sys::read_link(root.as_fd(), writer::DATA) {
        Ok(set) => Ok(Some(set)),
        // No volume that is filled from objects.
        Err(Errno::NOENT | Errno::INVAL) => Ok(None),
        Err(errno) => Err(errno),
    };
    loop {
        let before = set()?;
        match resolve(root.as_fd(), path) {
            Err(Errno::NOENT) if set()? == before => return Ok(None),
            Err(Errno::NOENT) => {}
            resolved => return resolved.map(Some),
        }
    }
}

/// Steps 2 and 3: makes `name` of `targets` a mount of `source`.
fn bind(source: &OwnedFd, targets: &Directory, name: &str) -> Result<()> {
    let wanted = sys::stat(source)?;
    let is_directory = FileType::from_raw_mode(wanted.st_mode).is_dir();
    match sys::stat_entry(targets.as_fd(), name) {
        // Only a mount makes them the same: the source is in the volume.
        Ok(found) if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino) => {
            return Ok(());
        }
        Ok(_) => {
            tmpfs::unmount(targets.as_fd(), name)?;
            remove_target(targets.as_fd(), name)?;
        }
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    if is_directory {
        sys::make_dir(targets.as_fd(), name, layout::PRIVATE)?;
    } else {
        sys::create_file(targets.as_fd(), name, 0o640)?;
    }
    let mounted = mount_at(source, targets.as_fd(), name);
    if mounted.is_err() {
        // The error names the failed operation.
        let _ = remove_target(targets.as_fd(), name);
    }
    mounted
}

fn mount_at(source: &OwnedFd, dir: BorrowedFd<'_>, name: &str) -> Result<()> {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = mount::open_tree(source, c"", clone)?;
    let attach = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    mount::move_mount(&tree, c"", dir, name, attach)
}

/// Removes the file or empty directory that something was mounted on.
fn remove_target(dir: BorrowedFd<'_>, name: &str) -> Result<()> {
    match sys::remove_file(dir, name) {
        Err(Errno::ISDIR) => sys::remove_dir(dir, name),
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Unmounts and removes all targets of a volume, and the directories that are empty then.
pub(super) fn remove(pod: &Directory, volume: &str) -> std::result::Result<(), DiskError> {
    let Some(volumes) = pod.child(layout::SUBPATHS)? else {
        return Ok(());
    };
    if let Some(containers) = volumes.child(volume)? {
        for child in containers.children()? {
            let (container, targets) = child?;
            for (target, _) in targets.entries()? {
                tmpfs::unmount(targets.as_fd(), &target)
                    .map_err(targets.failed("unmount", &target))?;
                remove_target(targets.as_fd(), &target)
                    .map_err(targets.failed("remove", &target))?;
            }
            containers.remove_if_empty(&container)?;
        }
        volumes.remove_if_empty(volume)?;
    }
    pod.remove_if_empty(layout::SUBPATHS)?;
    Ok(())
}

/// Creates the directories of `path` that are missing, each with exactly `mode`. Links that stay inside `base` are
/// followed.
///
/// # Errors
///
/// A link that leads out of `base` or nowhere, a loop of links, or something in the way that is no directory.
pub(super) fn make_directories(
    base: &Directory,
    path: &str,
    mode: u32,
) -> std::result::Result<(), DiskError> {
    let failed = base.failed("create directory", path);
    let elements = path.split('/').filter(|name| !matches!(*name, "" | "."));
    let mut reached = sys::open_dir(base.as_fd(), c".").map_err(&failed)?;
    let mut so_far = String::new();
    for name in elements {
        so_far.push_str(name);
        let next = match resolve(base.as_fd(), &so_far) {
            Err(Errno::NOENT) => make_directory(&reached, name, mode),
            Ok(found) if !is_directory(&found).map_err(&failed)? => Err(Errno::NOTDIR),
            found => found,
        };
        reached = next.map_err(&failed)?;
        so_far.push('/');
    }
    Ok(())
}

fn make_directory(parent: &OwnedFd, name: &str, mode: u32) -> Result<OwnedFd> {
    if name == ".." {
        return Err(Errno::XDEV);
    }
    // Under another name until it has its mode: once it is there, it stays as it is.
    match sys::make_dir(parent.as_fd(), DIRECTORY_TMP, 0o700) {
        // Or a crash left it.
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let created = sys::open_dir(parent.as_fd(), DIRECTORY_TMP).and_then(|created| {
        sys::set_mode(&created, mode)?;
        sys::rename(parent.as_fd(), DIRECTORY_TMP, name)?;
        Ok(created)
    });
    if created.is_err() {
        // The error names the failed operation; the next attempt uses it.
        let _ = sys::remove_dir(parent.as_fd(), DIRECTORY_TMP);
    }
    created
}

fn is_directory(file: &OwnedFd) -> Result<bool> {
    Ok(FileType::from_raw_mode(sys::stat(file)?.st_mode).is_dir())
}

/// What `path` leads to beneath `base`, links followed; a handle that cannot be read or written. A path that ends with
/// `/.` leads to a directory.
///
/// # Errors
///
/// [`Errno::XDEV`] for a path that leads out of `base`; else the kernel's.
pub fn resolve(base: BorrowedFd<'_>, path: &str) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..LOOKUPS {
        match fs::openat2(base, path, flags, Mode::empty(), resolve) {
            // Something on the machine was renamed or mounted while `..` was followed, so the kernel could not tell
            // whether that led out. A machine can be as busy as that for long.
            Err(Errno::AGAIN) => {}
            // Linux before 5.6, or a filter that does not know the call. Or `fs.protected_symlinks` blocks a link in a
            // sticky directory: only the link's owner may follow it, but others may read it.
            Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS) => break,
            resolved => return resolved,
        }
    }
    resolve_by_elements(base, path)
}

/// Like [`resolve`], one element at a time.
fn resolve_by_elements(base: BorrowedFd<'_>, path: &str) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |dir: BorrowedFd<'_>, name: &[u8]| fs::openat(dir, name, flags, Mode::empty());
    // From `base` down to what was reached; `..` goes back up.
    let mut reached = vec![open(base, b".")?];
    let mut pending: VecDeque<Vec<u8>> = elements(path.as_bytes());
    let mut links = 0;
    while let Some(name) = pending.pop_front() {
        let last = reached.last().ok_or(Errno::XDEV)?;
        match &*name {
            b"" | b"." => {
                if !is_directory(last)? {
                    return Err(Errno::NOTDIR);
                }
            }
            b".." => {
                reached.pop();
            }
            name => {
                let found = open(last.as_fd(), name)?;
                if !FileType::from_raw_mode(sys::stat(&found)?.st_mode).is_symlink() {
                    reached.push(found);
                    continue;
                }
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP);
                }
                let target = sys::read_link(last.as_fd(), name)?;
                if target.to_bytes().starts_with(b"/") {
                    return Err(Errno::XDEV);
                }
                for element in elements(target.to_bytes()).into_iter().rev() {
                    pending.push_front(element);
                }
            }
        }
    }
    reached.pop().ok_or(Errno::XDEV)
}

fn elements(path: &[u8]) -> VecDeque<Vec<u8>> {
    path.split(|&byte| byte == b'/')
        .map(<[u8]>::to_vec)
        .collect()
}

#[cfg(test)]
mod tests;
