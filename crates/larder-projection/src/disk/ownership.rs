//! Users, groups and modes, with the effect of `fsGroup`.
//!
//! Rules: kubelet 1.36, `pkg/volume/volume_linux.go`, for volumes that containers only read. A group adds bits and
//! never removes any. If the process may not change an owner (an ordinary user, an identity that its user namespace
//! does not map), that is counted and reported, not an error; the kubelet logs it and continues, too.

use std::os::fd::AsFd;

use larder_files::sys;
use rustix::io::{Errno, Result};

/// Added to the mode of files when there is a group.
const GROUP_FILE: u32 = 0o440;
/// Added to the mode of directories when there is a group; what is created in them inherits it.
const GROUP_DIRECTORY: u32 = 0o2550;
/// Only for directories whose group is the one asked for; elsewhere Linux may drop it, and each pass would ask again.
const SET_GROUP: u32 = 0o2000;
/// Mode of directories inside a set, before the group adds to it.
const DIRECTORY: u32 = 0o755;
/// The bits that this module can always set on its own files. Linux drops the set-group-ID bit where the process is not
/// in the group, so that bit is requested but not insisted on.
pub(crate) const PERMISSIONS: u32 = 0o777;

/// The group that a pod's `fsGroup` gives to its volumes, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Group(pub(crate) Option<u32>);

impl Group {
    pub(crate) fn file_mode(self, mode: u32) -> u32 {
        mode & PERMISSIONS | self.0.map_or(0, |_| GROUP_FILE)
    }

    pub(crate) fn directory_mode(self) -> u32 {
        DIRECTORY | self.0.map_or(0, |_| GROUP_DIRECTORY)
    }
}

/// Gives an open file to `user` and `group`, each if it is requested and not so already, and then the exact `mode`.
///
/// Returns whether the owner is right now.
pub(crate) fn settle(file: impl AsFd, user: Option<u32>, group: Group, mode: u32) -> Result<bool> {
    let before = sys::stat(&file)?;
    let user = user.filter(|&user| user != before.st_uid);
    let group = group.0.filter(|&group| group != before.st_gid);
    let gives = user.is_some() || group.is_some();
    let owned = !gives || permitted(sys::set_owner(&file, user, group))?;
    let mode = if owned { mode } else { mode & !SET_GROUP };
    // After the owner: giving a file away may take mode bits from it.
    if gives || before.st_mode & 0o7777 != mode {
        sys::set_mode(&file, mode)?;
    }
    Ok(owned)
}

/// Separates a missing permission (`false`) from failures.
pub(crate) fn permitted(given: Result<()>) -> Result<bool> {
    match given {
        Ok(()) => Ok(true),
        Err(Errno::PERM | Errno::INVAL) => Ok(false),
        Err(errno) => Err(errno),
    }
}
