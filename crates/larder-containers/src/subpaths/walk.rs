//! Where the path of a mount in the specification leads, as the container sees it.
//!
//! Images have links on the way (`/var/run`), and the container may mount anything there, such as a file system over FUSE
//! or NFS that answers slowly, or never. A thread that asks it waits in the kernel, and nothing ends it.
//!
//! Invariants:
//! 1. Names come from what the kernel has at hand (`RESOLVE_CACHED`), as it has every mount point. Only one file system is
//!    asked for others: the overlay that a runtime has made for the container. It is mounted on the machine, too, so
//!    neither the container nor its author has made it. It is not asked while there is an automount, which may be in it.
//! 2. The target of a link comes from there, from memory (tmpfs), or from what the kernel has at hand.
//! 3. What is left is [unknown](LeadsTo::Unknown), and its mount is left alone.

use std::{
    ffi::OsString,
    io,
    ops::ControlFlow,
    os::{fd::OwnedFd, unix::ffi::OsStringExt as _},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags, openat2, readlinkat, statx},
    io::Errno,
};

use super::{
    find::LeadsTo,
    replace::{Inside, mount_id, open},
};
use crate::processes::each_mount;

/// How often a lookup is made again that the kernel did not finish: something may have been renamed meanwhile.
const TRIES: usize = 10;
/// Most links on the way, as for the kernel.
const MAX_LINKS: usize = 40;
/// Most directories on the way: each is an open file.
const MAX_DEPTH: usize = 64;

/// What a file system may be asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MayAsk {
    /// Nothing: it may never answer.
    Nothing,
    /// Where a link leads.
    Links,
    /// That, and for names.
    Names,
}

impl Inside {
    /// Where `path`, which is absolute, leads.
    pub(super) fn leads_to(&self, path: &str) -> LeadsTo {
        match follow_at_hand(path) {
            Ok(id) => LeadsTo::Mount(id),
            Err(Errno::AGAIN) => self.walk(Path::new(path)).unwrap_or(LeadsTo::Nowhere),
            Err(_) => LeadsTo::Nowhere,
        }
    }

    /// Follows the path name by name.
    fn walk(&self, path: &Path) -> io::Result<LeadsTo> {
        let (mut way, mut left, mut links) = (vec![root()?], names(path), 0);
        while let Some(name) = left.pop() {
            let here = &way[way.len() - 1];
            if name == ".." {
                way.truncate((way.len() - 1).max(1));
                continue;
            }
            let Some(next) = self.step(here, &name)? else {
                return Ok(LeadsTo::Unknown);
            };
            if !is_link(&next)? {
                way.push(next);
                if way.len() > MAX_DEPTH {
                    return Ok(LeadsTo::Unknown);
                }
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Ok(LeadsTo::Nowhere);
            }
            if self.may_ask(mount_id(&next)?)? == MayAsk::Nothing {
                return Ok(LeadsTo::Unknown);
            }
            let target = readlinkat(&next, c"", Vec::new())?.into_bytes();
            let target = PathBuf::from(OsString::from_vec(target));
            if target.is_absolute() {
                way.truncate(1);
            }
            left.extend(names(&target));
        }
        Ok(LeadsTo::Mount(mount_id(&way[way.len() - 1])?))
    }

    /// Opens what has this name in a directory; `None` if only a file system knows that may never answer.
    fn step(&self, directory: &OwnedFd, name: &OsString) -> io::Result<Option<OwnedFd>> {
        let flags = PATH | OFlags::NOFOLLOW;
        let look = |resolve| openat2(directory, name, flags, Mode::empty(), resolve);
        for _ in 0..TRIES {
            match look(ResolveFlags::CACHED) {
                Err(Errno::AGAIN) => {}
                found => return Ok(Some(found?)),
            }
        }
        match self.may_ask(mount_id(directory)?)? {
            MayAsk::Nothing => Ok(None),
            // Every name in memory is at hand.
            MayAsk::Links => Err(Errno::NOENT.into()),
            MayAsk::Names => match look(ResolveFlags::NO_XDEV) {
                Err(Errno::XDEV) => Ok(None),
                found => Ok(Some(found?)),
            },
        }
    }

    /// What may be asked of the file system of the mount with this number.
    fn may_ask(&self, mount: u64) -> io::Result<MayAsk> {
        let (mut file_system, mut device, mut has_automount) = (Vec::new(), Vec::new(), false);
        each_mount(self.table()?, |line| {
            has_automount |= line.file_system == b"autofs";
            if line.id == mount {
                line.file_system.clone_into(&mut file_system);
                line.device.clone_into(&mut device);
            }
            ControlFlow::Continue(())
        })?;
        match &*file_system {
            b"overlay" if !has_automount && self.machine_has(&device)? => Ok(MayAsk::Names),
            b"tmpfs" => Ok(MayAsk::Links),
            _ => Ok(MayAsk::Nothing),
        }
    }

    /// Whether the machine has mounted the file system: larder sees it itself, or process 1 does.
    fn machine_has(&self, device: &[u8]) -> io::Result<bool> {
        // Of this process, whose first thread has not entered the namespace; and of process 1.
        for table in ["../../mountinfo", "../../../1/mountinfo"] {
            let Ok(table) = self.table_at(table) else {
                continue;
            };
            let mut is_there = false;
            each_mount(table, |line| {
                is_there = line.device == device;
                if is_there {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })?;
            if is_there {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// The mount that the path leads to, if the kernel has all names and links at hand.
fn follow_at_hand(path: &str) -> rustix::io::Result<u64> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::CACHED;
    let found = openat2(root()?, path, PATH, Mode::empty(), resolve)?;
    mount_id(&found).map_err(|_| Errno::NOSYS)
}

fn root() -> rustix::io::Result<OwnedFd> {
    open("/", OFlags::PATH | OFlags::DIRECTORY)
}

/// The names in a path, the first one last.
fn names(path: &Path) -> Vec<OsString> {
    path.components()
        .rev()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

/// Whether the open file is a link, as far as the kernel knows without asking its file system.
fn is_link(file: &OwnedFd) -> io::Result<bool> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(file, c"", flags, StatxFlags::TYPE)?;
    let mode = u32::from(found.stx_mode);
    Ok(FileType::from_raw_mode(mode).is_symlink())
}
