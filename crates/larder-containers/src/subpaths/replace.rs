//! Replaces a mount in another mount namespace by another file or directory, without a moment in which neither is there.
//!
//! 1. In this namespace: clone the new file's mount, detached from any tree.
//! 2. In a namespace that has nothing else: give it the flags of the old one, make it private, and clone it once more.
//!    (No safe call changes a mount that is attached nowhere.)
//! 3. In the namespace of the old mount: open its mount point beneath the root, without following links. The open file
//!    is on the old mount, which cannot go as long as it is open; the table of mounts still lists it there, under nothing.
//! 4. Mount the clone beneath the old mount (`MOVE_MOUNT_BENEATH`, Linux 6.5): the old one stays visible.
//! 5. The table lists the old mount on the new one, and nothing on it: unmount it, lazily. The next lookup finds the new
//!    one. Open files keep the old content.
//!
//! Invariants:
//! 1. No path is looked up twice: from step 3 on, the old mount is an open file. So whatever is renamed or linked
//!    meanwhile, what is unmounted is that file's mount, or one that the container has mounted on it since the last look;
//!    then the old one is still listed, which is a failure.
//! 2. No lookup on the way to the mount point waits for a file system: it finds what the kernel has at hand
//!    (`RESOLVE_CACHED`), as it has every name there. The kernel may wait for an automount on the root, or for a lock of
//!    the mount point: the caller bounds the time of the whole look.
//! 3. A failure leaves the old mount visible. If it happens after step 4, the new one is beneath it, and the next attempt
//!    goes on with step 5.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, statvfs},
    io::Errno,
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount,
        mount_change, mount_remount, move_mount, open_tree, unmount,
    },
    path::Arg,
    process::{chdir, fchdir, pivot_root},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};
use tokio::time::Instant;

use super::{
    find::{MountRecord, with_id},
    reason::{CHANGED, FAILED, NotReplaced, UNSUPPORTED, failed},
};
use crate::namespaces::{in_thread, unshare};

/// How often a lookup is made again that the kernel did not finish because something was mounted or renamed meanwhile.
const LOOKUPS: usize = 100;
/// In the stage: an empty file and an empty directory to mount on.
const PLACES: [&str; 2] = ["file", "directory"];
/// Of a file's label.
const LABEL: &str = "security.selinux";
/// Longest label that is compared.
const MAX_LABEL: usize = 4096;

const OLD_KERNEL: NotReplaced =
    NotReplaced::new(UNSUPPORTED, "replacing a mount needs Linux 6.5 or later");
/// Something else is there now.
pub(super) const OTHER_MOUNT: NotReplaced =
    NotReplaced::new(CHANGED, "the mount point has changed");
const OTHER_TYPE: NotReplaced = NotReplaced::new(FAILED, "it is of another type now");
/// The programs that may read the old file might not be allowed to read the new one.
const OTHER_LABEL: NotReplaced = NotReplaced::new(FAILED, "the new file has another SELinux label");

/// A file that stays the same while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
    is_dir: bool,
}

impl FileId {
    /// The file at `path`, with links followed.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::of_stat(&rustix::fs::stat(path)?))
    }

    pub(super) fn of_open(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::of_stat(&rustix::fs::fstat(file)?))
    }

    fn of_stat(stat: &rustix::fs::Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            is_dir: rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir(),
        }
    }

    /// Whether it is a directory.
    pub fn is_dir(self) -> bool {
        self.is_dir
    }
}

/// A mount namespace with an empty file and an empty directory, which nothing else sees. Made when it is first used.
#[derive(Debug, Default)]
pub struct Stage(Mutex<Option<OwnedFd>>);

impl Stage {
    /// Steps 1 and 2: a mount of `source`, attached nowhere and private, with what `flags` forbid.
    ///
    /// # Errors
    ///
    /// This process may not mount.
    pub(super) fn mount_of(
        &self,
        source: &OwnedFd,
        flags: MountFlags,
    ) -> Result<OwnedFd, NotReplaced> {
        let is_dir = FileId::of_open(source)
            .map_err(failed("look at the new file"))?
            .is_dir;
        // One at a time: the place is everyone's.
        let mut stage = self.0.lock();
        let namespace = if let Some(namespace) = &*stage {
            namespace
        } else {
            let made = in_thread(|| io::Result::Ok(Self::make()?));
            stage.insert(made.map_err(failed("prepare a namespace"))?)
        };
        let prepare = || -> rustix::io::Result<OwnedFd> {
            unshare(UnshareFlags::FS)?;
            // Step 1
            let clone = open_tree(source, c"", CLONE | OpenTreeFlags::AT_EMPTY_PATH)?;
            // Step 2
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
            let place = PLACES[usize::from(is_dir)];
            let attach = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            move_mount(&clone, c"", CWD, place, attach)?;
            let finish = || {
                // A mount keeps what forbids more, which a user namespace may not drop.
                let kept = u32::try_from(statvfs(place)?.f_flag.bits()).unwrap_or_default();
                let kept = MountFlags::from_bits_retain(kept) & SAME_BITS;
                mount_remount(place, MountFlags::BIND | flags | kept, c"")?;
                mount_change(place, MountPropagationFlags::PRIVATE)?;
                open_tree(CWD, place, CLONE)
            };
            let finished = finish();
            let cleared = unmount(place, UnmountFlags::DETACH);
            finished.and_then(|mount| cleared.map(|()| mount))
        };
        in_thread(|| io::Result::Ok(prepare()?)).map_err(failed("prepare the new mount"))
    }

    /// 1. Leave the namespace of this process, with nothing that would appear in it or come from it.
    /// 2. Mount a tmpfs somewhere, and make it the root.
    /// 3. Unmount everything else, so that this namespace keeps no file system of the machine in use.
    fn make() -> rustix::io::Result<OwnedFd> {
        unshare(UnshareFlags::FS | UnshareFlags::NEWNS)?;
        let all_private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", all_private)?;
        let namespace = open("/proc/thread-self/ns/mnt", OFlags::RDONLY)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        let options = c"mode=0700,size=64k";
        mount("tmpfs", "/proc", "tmpfs", flags, options)?;
        chdir("/proc")?;
        let [file, directory] = PLACES;
        rustix::fs::mkdir(directory, Mode::RWXU)?;
        let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::open(file, create, Mode::RUSR)?;
        pivot_root(c".", c".")?;
        unmount(c".", UnmountFlags::DETACH)?;
        Ok(namespace)
    }
}

/// Flags that statvfs(3) reports with the bits that mount(2) takes.
const SAME_BITS: MountFlags = MountFlags::RDONLY
    .union(MountFlags::NOSUID)
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

/// Opens a file or directory to be mounted.
pub(super) fn open_source(path: &Path) -> Result<OwnedFd, NotReplaced> {
    open(path, OFlags::PATH | OFlags::NOFOLLOW).map_err(failed("open the new file"))
}

pub(super) fn open(path: impl Arg, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
}

/// Longest time in which the mounts of a container are read: a hundred times as long as the largest pod's take. A container
/// may stack as many as it likes, and the kernel takes the longer to list one the deeper its stack is.
const READING: Duration = Duration::from_secs(5);

/// When the mounts of a container must have been read, of which a look begins now.
pub(super) fn deadline() -> Instant {
    Instant::now() + READING
}

/// A table of mounts that is read in time.
pub(super) struct Table(File, Instant);

impl Read for Table {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if Instant::now() > self.1 {
            return Err(io::Error::other("that takes too long"));
        }
        self.0.read(buffer)
    }
}

/// A mount namespace that this thread is in, seen from its root.
pub(super) struct Inside {
    /// The thread in `/proc`, whose files do not depend on the namespace.
    pub(super) thread: OwnedFd,
    until: Instant,
}

impl Inside {
    /// Runs `work` in the namespace.
    ///
    /// # Errors
    ///
    /// It cannot be entered.
    pub(super) fn run<T: Send>(
        namespace: BorrowedFd<'_>,
        until: Instant,
        work: impl FnOnce(&Self) -> Result<T, NotReplaced> + Send,
    ) -> Result<T, NotReplaced> {
        let enter = || {
            let thread = open("/proc/thread-self", OFlags::PATH | OFlags::DIRECTORY)
                .map_err(failed("open /proc"))?;
            // A thread has the root directory of its process until it has one of its own.
            unshare(UnshareFlags::FS).map_err(failed("leave the root"))?;
            move_into_link_name_space(namespace, Some(LinkNameSpaceType::Mount))
                .map_err(failed("enter the container's mount namespace"))?;
            work(&Self { thread, until })
        };
        in_thread(|| io::Result::Ok(enter())).map_err(failed("start a thread"))?
    }

    /// The mounts of the namespace. To read for too long is an error.
    pub(super) fn table(&self) -> io::Result<Table> {
        self.table_at("mountinfo")
    }

    /// A table of mounts, at a path from this thread in `/proc`.
    pub(super) fn table_at(&self, path: &str) -> io::Result<Table> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let table = rustix::fs::openat(&self.thread, path, flags, Mode::empty())?;
        Ok(Table(table.into(), self.until))
    }

    /// The mount that `path` leads to, with its file. Waits for every file system on the way: for the namespace of a command
    /// that larder has prepared itself.
    pub(super) fn mount_at(&self, path: &Path) -> Result<(MountRecord, FileId), NotReplaced> {
        let target = follow(path).map_err(|_| OTHER_MOUNT)?;
        let look = || Ok::<_, io::Error>((mount_id(&target)?, FileId::of_open(&target)?));
        let (id, file) = look().map_err(failed("look at the mount point"))?;
        let record = self.with_id(id)?.0.ok_or(OTHER_MOUNT)?;
        Ok((record, file))
    }

    /// Steps 3 to 5: replaces `old` by `new`, a mount that is attached nowhere. `false`: it shows the same file already.
    pub(super) fn replace(
        &self,
        old: &MountRecord,
        new: &OwnedFd,
        enforces_labels: bool,
    ) -> Result<bool, NotReplaced> {
        let target = self.open_mount(old)?;
        let is_other = self.attach(&target, new, enforces_labels)?;
        if is_other {
            self.detach(old, &target, new)?;
        }
        Ok(is_other)
    }

    /// Step 4: attaches `new` beneath the mount that is open as `target`. `false`: that shows the same file already.
    pub(super) fn attach(
        &self,
        target: &OwnedFd,
        new: &OwnedFd,
        enforces_labels: bool,
    ) -> Result<bool, NotReplaced> {
        let looked = failed::<io::Error>("look at the mount");
        let (shown, wanted) = (
            FileId::of_open(target).map_err(&looked)?,
            FileId::of_open(new).map_err(&looked)?,
        );
        if shown == wanted {
            return Ok(false);
        }
        if shown.is_dir != wanted.is_dir {
            return Err(OTHER_TYPE);
        }
        if enforces_labels {
            let shown = self
                .label(target)
                .map_err(failed("read the label of the mounted file"))?;
            let wanted = self.label(new);
            if shown != wanted.map_err(failed("read the label of the new file"))? {
                return Err(OTHER_LABEL);
            }
        }
        let beneath = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH
            | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH
            | MoveMountFlags::MOVE_MOUNT_BENEATH;
        move_mount(new, c"", target, c"", beneath).map_err(|errno| match errno {
            Errno::INVAL if !mounts_beneath() => OLD_KERNEL,
            errno => failed("mount beneath")(errno),
        })?;
        Ok(true)
    }

    /// Step 5: unmounts `old`, open as `target`, which is on `new`.
    pub(super) fn detach(
        &self,
        old: &MountRecord,
        target: &OwnedFd,
        new: &OwnedFd,
    ) -> Result<(), NotReplaced> {
        let id = mount_id(new).map_err(failed("look at the new mount"))?;
        match self.with_id(old.id)? {
            (Some(now), false) if now.parent == id => {
                self.unmount(old, target)?;
                // If it was moved before the new one was attached, so is the new one.
                let is_in_place = now.mount_point == old.mount_point;
                is_in_place.then_some(()).ok_or(OTHER_MOUNT)
            }
            _ => Err(OTHER_MOUNT),
        }
    }

    /// Step 5 of an attempt that has ended before it: unmounts `old`, with the newer one beneath it.
    pub(super) fn uncover(&self, old: &MountRecord) -> Result<(), NotReplaced> {
        self.unmount(old, &self.open_mount(old)?)
    }

    /// Step 3: opens the root of a mount, if it is still the same in the same place, nothing is on it, and no other namespace
    /// would see what is mounted there.
    pub(super) fn open_mount(&self, mount: &MountRecord) -> Result<OwnedFd, NotReplaced> {
        let root = open("/", OFlags::PATH | OFlags::DIRECTORY).map_err(failed("open the root"))?;
        let path = &*mount.mount_point;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS
            | ResolveFlags::CACHED;
        let mut tries = 0..LOOKUPS;
        let target = loop {
            match rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve) {
                Err(Errno::AGAIN) if tries.next().is_some() => {}
                found => break found.map_err(|_| OTHER_MOUNT)?,
            }
        };
        let id = mount_id(&target).map_err(failed("look at the mount point"))?;
        match self.with_id(id)? {
            (Some(found), false) if found == *mount => Ok(target),
            _ => Err(OTHER_MOUNT),
        }
    }

    fn with_id(&self, id: u64) -> Result<(Option<MountRecord>, bool), NotReplaced> {
        self.table()
            .and_then(|table| with_id(table, id))
            .map_err(failed("read the mounts of the container"))
    }

    /// Unmounts the mount that is open as `target`. The path goes through `/proc`, so it leads nowhere else; but the
    /// kernel takes the last one that is mounted there.
    pub(super) fn unmount(&self, old: &MountRecord, target: &OwnedFd) -> Result<(), NotReplaced> {
        let unmount = || {
            fchdir(&self.thread)?;
            unmount(fd_path(target), UnmountFlags::DETACH)
        };
        unmount().map_err(failed("unmount the old mount"))?;
        match self.with_id(old.id)? {
            (None, _) => Ok(()),
            _ => Err(OTHER_MOUNT),
        }
    }

    fn label(&self, file: &OwnedFd) -> io::Result<Vec<u8>> {
        fchdir(&self.thread)?;
        let mut label = vec![0; MAX_LABEL];
        match rustix::fs::getxattr(fd_path(file), LABEL, &mut label) {
            Ok(length) => label.truncate(length),
            // A file system without labels.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => label.clear(),
            Err(errno) => return Err(errno.into()),
        }
        Ok(label)
    }
}

fn follow(path: &Path) -> rustix::io::Result<OwnedFd> {
    let root = open("/", OFlags::PATH | OFlags::DIRECTORY)?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve)
}

fn fd_path(file: &OwnedFd) -> String {
    format!("fd/{}", file.as_raw_fd())
}

/// The number of the mount that an open file is on.
pub(super) fn mount_id(file: &OwnedFd) -> io::Result<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(file, c"", flags, StatxFlags::MNT_ID)?;
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(found.stx_mnt_id)
}

/// Whether the machine enforces SELinux's rules.
pub(super) fn enforces_labels() -> bool {
    std::fs::read("/sys/fs/selinux/enforce").is_ok_and(|text| text.starts_with(b"1"))
}

/// Whether the kernel knows `MOVE_MOUNT_BENEATH`: it looks at the flags first.
fn mounts_beneath() -> bool {
    let known = move_mount(CWD, c"", CWD, c"", MoveMountFlags::MOVE_MOUNT_BENEATH);
    known != Err(Errno::INVAL)
}
