//! The system calls, relative to open directories. None follows a link, none waits for a pipe, none writes.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{self, AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, Stat, StatxFlags},
    io::{Errno, Result, retry_on_intr},
    path::Arg,
};

/// Room for about a hundred directory entries per call.
const LISTING_BYTES: usize = 4096;

/// So many entries are listed before the time is looked at.
const PAUSE_AFTER: usize = 256;

/// A handle that only names a directory.
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens the root directory; the links in its path are the user's.
pub(super) fn open_root(path: &Path) -> Result<OwnedFd> {
    fs::open(path, PLACE, Mode::empty())
}

/// Opens the directory `name` of `dir`, for opening its entries.
pub(super) fn open_dir(dir: BorrowedFd<'_>, name: impl Arg) -> Result<OwnedFd> {
    fs::openat(dir, name, PLACE.union(OFlags::NOFOLLOW), Mode::empty())
}

/// Opens the directory `path` beneath `dir`. A link on the way is [`Errno::LOOP`], a mount [`Errno::XDEV`].
pub(super) fn open_dir_beneath(dir: BorrowedFd<'_>, path: &str) -> Result<OwnedFd> {
    let flags = PLACE.union(OFlags::NOFOLLOW);
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match fs::openat2(dir, path, flags, Mode::empty(), resolve) {
        // Linux before 5.6, or a seccomp filter that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => open_by_elements(dir, path),
        opened => opened,
    }
}

/// Like [`open_dir_beneath`], one element at a time.
pub(super) fn open_by_elements(dir: BorrowedFd<'_>, path: &str) -> Result<OwnedFd> {
    let device = stat(dir)?.st_dev;
    let mut reached: Option<OwnedFd> = None;
    for name in path.split('/') {
        if name == ".." {
            return Err(Errno::XDEV);
        }
        let parent = reached.as_ref().map_or(dir, |parent| parent.as_fd());
        let directory = open_dir(parent, name)?;
        if stat(&directory)?.st_dev != device {
            return Err(Errno::XDEV);
        }
        reached = Some(directory);
    }
    reached.ok_or(Errno::NOENT)
}

/// Opens the regular file `name` of `dir` for reading. Anything else is [`Errno::INVAL`], and is not opened.
pub(super) fn open_file(dir: BorrowedFd<'_>, name: impl Arg + Copy) -> Result<(OwnedFd, Stat)> {
    // Opening a device may do something.
    if file_type(&stat_entry(dir, name)?) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    // It may have been replaced by a pipe since.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::openat(dir, name, flags.union(OFlags::NOCTTY), Mode::empty())?;
    let stat = stat(&file)?;
    if file_type(&stat) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    Ok((file, stat))
}

/// Reads from `file` until `buffer` is full or the file ends; returns the number of bytes.
pub(super) fn read(file: &OwnedFd, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match retry_on_intr(|| rustix::io::read(file, &mut buffer[filled..]))? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// When a file was created, in seconds and nanoseconds.
pub(super) type CreationTime = (i64, u32);

/// When `file` was created, if its file system and the kernel record it.
pub(super) fn creation_time(file: impl AsFd) -> Option<CreationTime> {
    let found = fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let is_known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    is_known.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec))
}

pub(super) fn stat(file: impl AsFd) -> Result<Stat> {
    fs::fstat(file)
}

/// Type of the entry `name` of `dir`; of a link itself, not of its target.
pub(super) fn stat_entry(dir: BorrowedFd<'_>, name: impl Arg) -> Result<Stat> {
    fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

pub(super) fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The target of the link `name`.
pub(super) fn read_link(dir: BorrowedFd<'_>, name: impl Arg) -> Result<CString> {
    fs::readlinkat(dir, name, Vec::new())
}

/// Calls `visit` with each entry of `dir` after the position `from`, in no order, until it returns false. After each 256
/// entries it pauses if `is_over` says so: it returns the position to continue from, also in `dir` opened again.
pub(super) fn list(
    dir: &OwnedFd,
    from: u64,
    mut visit: impl FnMut(&CStr, FileType) -> Result<bool>,
    is_over: impl Fn() -> bool,
) -> Result<Option<u64>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let listed = fs::openat(dir, c".", flags, Mode::empty())?;
    if from > 0 {
        fs::seek(&listed, SeekFrom::Start(from))?;
    }
    let mut buffer = Vec::with_capacity(LISTING_BYTES);
    let mut entries = RawDir::new(&listed, buffer.spare_capacity_mut());
    let mut visited = 0_usize;
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if [c".", c".."].contains(&entry.file_name()) {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => file_type(&stat_entry(dir.as_fd(), entry.file_name())?),
            kind => kind,
        };
        if !visit(entry.file_name(), kind)? {
            break;
        }
        visited += 1;
        if visited.is_multiple_of(PAUSE_AFTER) && is_over() {
            return Ok(Some(entry.next_entry_cookie()));
        }
    }
    Ok(None)
}

/// Whether `child`, an entry of the directory `parent`, is a mount point. A bind mount can have the device number of
/// its parent, so the mount IDs are compared.
pub(super) fn is_mount_point(parent: BorrowedFd<'_>, child: BorrowedFd<'_>) -> Result<bool> {
    Ok(mount_id(parent)? != mount_id(child)?)
}

fn mount_id(file: BorrowedFd<'_>) -> Result<String> {
    let path = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
    let text = std::fs::read_to_string(path).map_err(|_| Errno::NOSYS)?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.map(|id| id.trim().to_owned()).ok_or(Errno::NOSYS)
}
