//! Memory for volumes that hold Secrets: tmpfs mounts, and directories on disk where mounting is not permitted.
//!
//! Rules: kubelet 1.36, `pkg/volume/emptydir`: a tmpfs of its own for each volume, with `size` when a limit is known
//! and `noswap` when the kernel has it (6.4, and not in a user namespace). Unlike the kubelet's, these mounts are
//! `nosuid` and `nodev`. They need the mount interface of Linux 5.2; older kernels count as not permitting mounts.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use larder_files::sys;
use rustix::{
    fs,
    io::{Errno, Result},
    mount::{self, FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags},
};

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// The medium for content that must not reach a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// In a tmpfs of its own for each volume.
    Tmpfs {
        /// The kernel keeps it out of the swap space.
        noswap: bool,
    },
    /// In directories under the root directory, because this process may not mount, or was configured not to.
    Directory {
        /// The root directory itself is on a file system in memory. If not, secrets are on a disk, and the user
        /// should be warned.
        in_memory: bool,
    },
}

impl Memory {
    /// The best medium here, for volumes under `root`.
    pub(crate) fn probe(root: BorrowedFd<'_>, may_mount: bool) -> Result<Self> {
        if may_mount {
            // Not attached anywhere, so gone with its handle.
            match tmpfs(None) {
                Ok((_, noswap)) => return Ok(Self::Tmpfs { noswap }),
                Err(Errno::PERM | Errno::NOSYS) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Self::Directory {
            in_memory: is_in_memory(root)?,
        })
    }
}

/// Mounts a new tmpfs on an open directory. The handle still refers to the directory below.
pub(crate) fn mount(directory: BorrowedFd<'_>, size_limit: Option<u64>) -> Result<()> {
    let (filesystem, _) = tmpfs(size_limit)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    mount::move_mount(&filesystem, c"", directory, c"", flags)
}

/// A new tmpfs, and whether it stays out of the swap space.
fn tmpfs(size_limit: Option<u64>) -> Result<(OwnedFd, bool)> {
    let options = mount::fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    mount::fsconfig_set_string(&options, c"source", c"tmpfs")?;
    if let Some(bytes) = size_limit {
        mount::fsconfig_set_string(&options, c"size", bytes.to_string())?;
    }
    let noswap = mount::fsconfig_set_flag(&options, c"noswap").is_ok();
    mount::fsconfig_create(&options)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let filesystem = mount::fsmount(&options, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    Ok((filesystem, noswap))
}

/// Whether `child`, a directory in `parent`, is the root of a file system in memory.
pub(crate) fn is_mounted(parent: BorrowedFd<'_>, child: BorrowedFd<'_>) -> Result<bool> {
    Ok(is_in_memory(child)? && sys::stat(parent)?.st_dev != sys::stat(child)?.st_dev)
}

/// Detaches everything that is mounted on the entry `name` of `parent`. Processes that use it keep it until they are
/// done.
///
/// Where this process may not unmount, nothing of ours is mounted.
pub(crate) fn unmount(parent: BorrowedFd<'_>, name: &str) -> Result<()> {
    let path = format!("/proc/self/fd/{}/{name}", parent.as_raw_fd());
    loop {
        match mount::unmount(&*path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOENT | Errno::PERM) => return Ok(()),
            Err(errno) => return Err(errno),
        }
    }
}

/// Whether the directory is on a file system in memory: a tmpfs or ramfs.
///
/// # Errors
///
/// The file system cannot be examined.
#[expect(
    clippy::cast_sign_loss,
    reason = "a bit pattern, signed on some targets"
)]
pub fn is_in_memory(directory: impl AsFd) -> Result<bool> {
    let magic = fs::fstatfs(directory)?.f_type as u64 & 0xffff_ffff;
    Ok(magic == TMPFS_MAGIC || magic == RAMFS_MAGIC)
}
