//! The kubelet's root directory, opened for reading only: finds the volumes of a pod that are set up, and their files
//! that differ from the computed ones.
//!
//! ```text
//! <root>/pods/<UID>/volumes/kubernetes.io~<plugin>/<volume>/..data -> ..2026_11_22_04_34_06.1234
//! <root>/pods/<UID>/plugins/kubernetes.io~empty-dir/wrapped_<volume>/ready
//! <root>/pods/<UID>/volume-subpaths/<volume>/<container>/<index>
//! ```
//!
//! Every call blocks on the disk, opens what it needs, and closes all of it before it returns.
//!
//! Invariants:
//! 1. Nothing below the root directory is written, created or locked (beside-kubelet R1).
//! 2. Only the root directory stays open. Files and directories of a volume are closed after `OPEN_BUDGET` and the
//!    comparison of one file, because an open one makes the kubelet's unmount fail with EBUSY (R21).
//! 3. Each name is one element, resolved beneath an open directory. The only link that is followed is `..data`, and
//!    only to a directory beside it.
//! 4. Only regular files are opened, and no more bytes are read than the computed file has.
//! 5. Bytes from the disk are compared while they are read, and wiped. No result and no error contains them.

mod compare;
mod content;
mod subpath;
#[cfg(test)]
mod tests;

use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::Volume;
use larder_files::{
    beneath,
    operation_error::{OperationError, failed},
    pause, sys,
};
use larder_projection::{Projection, VolumeKind};
use rustix::io::Errno;

use self::compare::Comparer;
pub use self::{
    compare::{Differences, TouchReason},
    content::comparable,
    subpath::SubPathId,
};

/// How long files of a volume stay open before they are closed, and opened again to continue. They must not disturb the
/// kubelet's unmount; the limit is 50 ms (R21). Between, the comparison gives way to other work.
const OPEN_BUDGET: Duration = Duration::from_millis(5);

/// How often a set that vanished while it was read is read again (R21).
const READ_AGAIN: usize = 3;

/// The link to the current set of a volume.
const DATA: &str = "..data";

/// Whether volumes in memory must be mount points to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounts {
    /// As with a kubelet. A Secret volume that is not a mount point was mounted where this process does not see it.
    Required,
    /// Every volume is a plain directory: tests without the right to mount.
    NotExpected,
}

/// The kubelet's root directory.
#[derive(Debug)]
pub struct KubeletDir {
    root: OwnedFd,
    path: PathBuf,
    mounts: Mounts,
    /// See [`OPEN_BUDGET`].
    open_budget: Duration,
}

/// One volume of one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeId<'a> {
    /// UID of the pod, as its directory is named.
    pub pod_uid: &'a str,
    /// Type of the volume.
    pub kind: VolumeKind,
    /// Name of the volume in the pod.
    pub name: &'a str,
}

/// Identity of a volume's directory in its file system. If it changes during the life of a pod, the volume was torn
/// down under its containers (R22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeIdentity {
    device: u64,
    inode: u64,
    /// ext4 gives a recreated directory the inode of the old one, unless a container still holds that inode.
    created: Option<sys::CreationTime>,
}

/// Name of the set of files in a volume. The kubelet never reuses a name, so a different name means a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetName(Box<str>);

impl SetName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why the content of a volume, or of a mount of it, is unknown.
#[derive(Debug, thiserror::Error)]
pub enum UnknownContent {
    /// The kubelet has not set it up yet, or has torn it down.
    #[error("not set up by the kubelet")]
    NotSetUp,
    /// The kubelet has mounted it where this process does not see it (R23).
    #[error(
        "mounted by the kubelet, but not visible to larder: mount the directory with HostToContainer propagation"
    )]
    NotVisible,
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] OperationError),
    /// A UID or a name that cannot be the name of a directory.
    #[error("a pod's UID or a volume's name is not a file name")]
    Name,
    /// `..data` leads elsewhere.
    #[error("{} does not lead to a directory beside it", path.display())]
    NotASet {
        /// The link.
        path: PathBuf,
    },
    /// The kubelet was faster, each time.
    #[error("the files of {} were replaced while they were read, each of {} times", path.display(), READ_AGAIN + 1)]
    Replaced {
        /// The volume.
        path: PathBuf,
    },
}

/// A volume, compared with its computed files.
#[derive(Debug)]
pub struct Comparison {
    /// Its directory.
    pub identity: VolumeIdentity,
    /// The set that was compared.
    pub set: SetName,
    /// How its files differ.
    pub differences: Differences,
}

/// An open volume; see invariant 2.
struct OpenVolume {
    directory: OwnedFd,
    identity: VolumeIdentity,
}

impl KubeletDir {
    /// Opens the root directory `path`, the kubelet's `--root-dir`. It stays open.
    ///
    /// # Errors
    ///
    /// There is no such directory, or it cannot be opened.
    pub fn open(path: &Path, mounts: Mounts) -> Result<Self, OperationError> {
        Ok(Self {
            root: sys::open_root(path).map_err(failed("open", path))?,
            path: path.to_owned(),
            mounts,
            open_budget: OPEN_BUDGET,
        })
    }

    /// Compares the files of a volume with `projection`, which was computed for `volume`, a volume of the pod.
    ///
    /// # Errors
    ///
    /// The volume is not set up, or its content cannot be seen.
    pub fn compare(
        &self,
        id: &VolumeId<'_>,
        volume: &Volume,
        projection: &Projection<'_>,
    ) -> Result<Comparison, UnknownContent> {
        for _ in 0..=READ_AGAIN {
            if let Some(comparison) = self.compare_once(id, volume, projection)? {
                return Ok(comparison);
            }
        }
        let path = self.volume_path(id);
        Err(UnknownContent::Replaced { path })
    }

    /// The comparison with the current set; `None` if the set was replaced meanwhile, so that the result is void.
    fn compare_once(
        &self,
        id: &VolumeId<'_>,
        volume: &Volume,
        projection: &Projection<'_>,
    ) -> Result<Option<Comparison>, UnknownContent> {
        let path = self.volume_path(id).join(DATA);
        let mut comparer = Comparer::new(volume, projection, "", path.clone());
        let mut first: Option<(VolumeIdentity, SetName)> = None;
        loop {
            let open = self.open_volume(id)?;
            let current = (open.identity, self.current_set(id, &open)?);
            if first.get_or_insert_with(|| current.clone()) != &current {
                return Ok(None);
            }
            let (identity, set) = current;
            let directory = match sys::open_place(open.directory.as_fd(), &*set.0) {
                Ok(directory) => directory,
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::NOTDIR | Errno::LOOP) => return Err(UnknownContent::NotASet { path }),
                Err(errno) => return Err(failed("open", &path)(errno).into()),
            };
            let is_done = comparer.advance(&directory, self.open_budget)?;
            // The kubelet removes a set once it has written another. So a missing file may have been removed meanwhile.
            if self.current_set(id, &open)? != set {
                return Ok(None);
            }
            if is_done {
                return Ok(Some(Comparison {
                    identity,
                    set,
                    differences: comparer.finish(),
                }));
            }
            drop((directory, open));
            pause::point();
        }
    }

    /// Opens the directory of a volume, if the kubelet has mounted it.
    fn open_volume(&self, id: &VolumeId<'_>) -> Result<OpenVolume, UnknownContent> {
        let path = self.volume_path(id);
        let plugin = id.kind.directory();
        let parent = self
            .descend(&["pods", id.pod_uid, "volumes", plugin], &path)?
            .ok_or(UnknownContent::NotSetUp)?;
        let directory = sys::open_place(parent.as_fd(), element(id.name)?)
            .map_err(|errno| unknown_content(errno, "open", &path))?;
        if self.mounts == Mounts::Required && id.kind.wants_memory() {
            let is_mount_point = beneath::is_mount_point(parent.as_fd(), directory.as_fd());
            if !is_mount_point.map_err(failed("examine", &path))? {
                // Without the marker, the kubelet is about to mount the volume, or has just unmounted it.
                return Err(if self.is_marked_ready(id)? {
                    UnknownContent::NotVisible
                } else {
                    UnknownContent::NotSetUp
                });
            }
        }
        let stat = sys::stat(&directory).map_err(failed("examine", &path))?;
        let identity = VolumeIdentity {
            device: stat.st_dev,
            inode: stat.st_ino,
            created: sys::creation_time(&directory),
        };
        Ok(OpenVolume {
            directory,
            identity,
        })
    }

    /// Whether the kubelet has recorded that the volume is mounted (kubelet 1.36, `pkg/volume/util/util.go`, `SetReady`).
    fn is_marked_ready(&self, id: &VolumeId<'_>) -> Result<bool, UnknownContent> {
        let wrapped = format!("wrapped_{}", id.name);
        let elements = [
            "pods",
            id.pod_uid,
            "plugins",
            "kubernetes.io~empty-dir",
            &wrapped,
        ];
        let path = self.volume_path(id);
        let Some(marker) = self.descend(&elements, &path)? else {
            return Ok(false);
        };
        match sys::stat_entry(marker.as_fd(), c"ready") {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed("examine", &path)(errno).into()),
        }
    }

    /// The set that `..data` of a volume leads to.
    fn current_set(
        &self,
        id: &VolumeId<'_>,
        volume: &OpenVolume,
    ) -> Result<SetName, UnknownContent> {
        let path = self.volume_path(id).join(DATA);
        let target = match sys::read_link(volume.directory.as_fd(), DATA) {
            Ok(target) => target,
            Err(Errno::INVAL) => return Err(UnknownContent::NotASet { path }),
            Err(errno) => return Err(unknown_content(errno, "read", &path)),
        };
        match target.to_str().map(element) {
            Ok(Ok(target)) => Ok(SetName(target.into())),
            _ => Err(UnknownContent::NotASet { path }),
        }
    }

    /// The directory at `elements` below the root directory, if there is one. Errors name `path`.
    fn descend(&self, elements: &[&str], path: &Path) -> Result<Option<OwnedFd>, UnknownContent> {
        let mut reached: Option<OwnedFd> = None;
        for name in elements {
            let parent = reached.as_ref().unwrap_or(&self.root);
            match sys::open_place(parent.as_fd(), element(name)?) {
                Ok(directory) => reached = Some(directory),
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(failed("open", path)(errno).into()),
            }
        }
        Ok(reached)
    }

    /// The directory of a volume, for messages: nothing is resolved by it.
    pub fn volume_path(&self, id: &VolumeId<'_>) -> PathBuf {
        let volumes = self.path.join("pods").join(id.pod_uid).join("volumes");
        volumes.join(id.kind.directory()).join(id.name)
    }

    /// A handle that names the directory of a volume, for [`crate::swaps`]. To be closed at once.
    pub(crate) fn volume_handle(&self, id: &VolumeId<'_>) -> Result<OwnedFd, UnknownContent> {
        Ok(self.open_volume(id)?.directory)
    }
}

/// Turns the failure of a system call into an error. An entry that does not exist means that the volume is not set up.
fn unknown_content(errno: Errno, operation: &'static str, path: &Path) -> UnknownContent {
    match errno {
        Errno::NOENT => UnknownContent::NotSetUp,
        errno => failed(operation, path)(errno).into(),
    }
}

/// Checks that `name`, which comes from an object or from a link, is a single element of a path.
fn element(name: &str) -> Result<&str, UnknownContent> {
    let fits = name.len() <= 255 && !["", ".", ".."].contains(&name);
    if fits && !name.contains(['/', '\0']) {
        Ok(name)
    } else {
        Err(UnknownContent::Name)
    }
}
