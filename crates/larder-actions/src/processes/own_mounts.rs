//! This process's own mounts, which show the device and the directory of a pod's volume.
//!
//! The kernel formats a `mountinfo` each time that it is read, and a node has hundreds of mounts. So the table is kept,
//! with the descriptor that it was read from. A poll of the descriptor says whether mounts were added, removed or moved
//! since the last poll (proc(5)).
//!
//! Invariants:
//! 1. The descriptor is of this process's own mount namespace. One of another namespace would keep the mounts of a
//!    container that has ended, and so its volumes, in use.
//! 2. A table is polled before it is read. So a change while it is read shows in the next poll.
//! 3. The kernel does not report a renamed directory, although the paths of mounts in it change. So a table also
//!    expires, and a search that lacks a container reads it again.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Seek as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{PROC_SUPER_MAGIC, fstatfs},
};
use tokio::time::Instant;

use super::{
    EXPIRY, Namespace, Processes,
    mount_table::{MountLine, each_mount},
};

/// A longer table is read each time, so that it takes no memory between searches.
const MAX_KEPT: usize = 4096;

/// The mounts of this process.
#[derive(Debug, Default)]
pub(super) struct OwnMounts {
    /// The identifiers, which no other namespace has.
    ids: BTreeSet<u64>,
    mounts: Vec<OwnMount>,
}

#[derive(Debug)]
struct OwnMount {
    device: Box<[u8]>,
    root: Box<Path>,
    mount_point: Box<Path>,
}

impl OwnMounts {
    fn add(&mut self, line: &MountLine<'_>) {
        self.ids.insert(line.id);
        self.mounts.push(OwnMount {
            device: line.device.into(),
            root: line.root().into(),
            mount_point: line.mount_point().into(),
        });
    }

    /// Whether it is one of these mounts.
    pub(super) fn has(&self, id: u64) -> bool {
        self.ids.contains(&id)
    }

    /// Device and root of a path: of the mount that covers it.
    pub(super) fn place(&self, path: &Path) -> Option<(Box<[u8]>, PathBuf)> {
        let covering = self
            .mounts
            .iter()
            .filter(|mount| path.starts_with(&mount.mount_point));
        // Of mounts over each other the last one counts.
        let mount = covering.max_by_key(|mount| mount.mount_point.components().count())?;
        let rest = path.strip_prefix(&mount.mount_point).ok()?;
        let root = if rest.as_os_str().is_empty() {
            mount.root.to_path_buf()
        } else {
            mount.root.join(rest)
        };
        Some((mount.device.clone(), root))
    }
}

/// The table of the last search.
#[derive(Debug, Default)]
pub(super) struct KeptOwnMounts(Mutex<Option<KeptTable>>);

#[derive(Debug)]
struct KeptTable {
    /// Of the namespace that this process was in.
    file: File,
    namespace: Option<Namespace>,
    mounts: Arc<OwnMounts>,
    read_at: Instant,
}

impl KeptOwnMounts {
    /// Returns the current mounts of `namespace`. Reads them again if they may have changed, or if `reread`. Other
    /// searches wait meanwhile, since they need the same table.
    pub(super) fn get(
        &self,
        processes: &Processes,
        namespace: Option<Namespace>,
        now: Instant,
        reread: bool,
    ) -> io::Result<Arc<OwnMounts>> {
        let mut kept = self.0.lock();
        let last = kept.take().filter(|kept| kept.namespace == namespace);
        let file = match last {
            Some(last) => {
                let has_changed = has_changed(&last.file);
                if !has_changed && !reread && now < last.read_at + EXPIRY {
                    let mounts = Arc::clone(&last.mounts);
                    *kept = Some(last);
                    return Ok(mounts);
                }
                let mut file = last.file;
                file.rewind()?;
                file
            }
            None => processes.proc().open("self", "mountinfo")?,
        };
        // Invariant 2
        has_changed(&file);
        let mut mounts = OwnMounts::default();
        each_mount(&file, |line| mounts.add(line))?;
        mounts.mounts.shrink_to_fit();
        let mounts = Arc::new(mounts);
        if reports_changes(&file) && mounts.mounts.len() <= MAX_KEPT {
            *kept = Some(KeptTable {
                file,
                namespace,
                mounts: Arc::clone(&mounts),
                read_at: now,
            });
        }
        Ok(mounts)
    }
}

/// Whether a poll of the file reports changes: not where a test has made it up.
fn reports_changes(file: &File) -> bool {
    fstatfs(file).is_ok_and(|system| system.f_type == PROC_SUPER_MAGIC)
}

/// Whether the table has changed since the last poll. Where that is unknown, it may have.
fn has_changed(file: &File) -> bool {
    let mut polled = [PollFd::new(file, PollFlags::PRI)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut polled, Some(&at_once)).is_err()
        || polled[0]
            .revents()
            .intersects(PollFlags::PRI | PollFlags::ERR)
}
