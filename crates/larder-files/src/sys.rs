//! The system calls, relative to open directories. No call follows a link or waits for a pipe.
//!
//! Each passes a fault point; see [`faults`](crate::faults).

#![expect(
    clippy::missing_errors_doc,
    reason = "errors are the kernel's; the comments name those that callers decide by"
)]

use std::{
    ffi::{CStr, CString},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{self, AtFlags, FileType, Gid, Mode, OFlags, RawDir, SeekFrom, Stat, StatxFlags, Uid},
    io::{Errno, Result, retry_on_intr},
    path::Arg,
};

use crate::faults::point;

/// Room for about a hundred directory entries per call.
const LISTING_BYTES: usize = 4096;
/// Longer than any target that [`is_link_to`] is asked for: a directory and the longest name.
const TARGET_BYTES: usize = 512;

pub(crate) const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Only names a directory.
pub(crate) const PLACE: OFlags = DIRECTORY.union(OFlags::PATH);
const FILE: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Opens the directory `name` of `dir`.
pub fn open_dir(dir: BorrowedFd<'_>, name: impl Arg) -> Result<OwnedFd> {
    point()?;
    fs::openat(dir, name, DIRECTORY, Mode::empty())
}

/// Opens the directory `name` of `dir` to open what is in it. The handle cannot be listed, and needs no permission to.
pub fn open_place(dir: BorrowedFd<'_>, name: impl Arg) -> Result<OwnedFd> {
    point()?;
    fs::openat(dir, name, PLACE, Mode::empty())
}

/// As [`open_place`], for a path that the user has chosen: its links are followed.
pub fn open_root(path: &Path) -> Result<OwnedFd> {
    point()?;
    fs::open(path, PLACE.difference(OFlags::NOFOLLOW), Mode::empty())
}

/// Opens a file for reading, whatever kind of file it is.
pub fn open_file(dir: BorrowedFd<'_>, name: impl Arg) -> Result<OwnedFd> {
    point()?;
    fs::openat(dir, name, FILE, Mode::empty())
}

/// Opens the regular file `name` of `dir` for reading. Anything else is [`Errno::INVAL`], and is not opened: opening a
/// device may have an effect.
pub fn open_regular(dir: BorrowedFd<'_>, name: impl Arg + Copy) -> Result<(OwnedFd, Stat)> {
    let is_regular = |found: &Stat| file_type(found) == FileType::RegularFile;
    if !is_regular(&stat_entry(dir, name)?) {
        return Err(Errno::INVAL);
    }
    // It may have been replaced since.
    let file = open_file(dir, name)?;
    let found = stat(&file)?;
    if is_regular(&found) {
        Ok((file, found))
    } else {
        Err(Errno::INVAL)
    }
}

/// Creates a file that must not exist, for writing; `mode` is subject to the umask.
pub fn create_file(dir: BorrowedFd<'_>, name: impl Arg, mode: u32) -> Result<OwnedFd> {
    point()?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::from_raw_mode(mode))
}

/// Creates a directory; `mode` is subject to the umask.
pub fn make_dir(dir: BorrowedFd<'_>, name: impl Arg, mode: u32) -> Result<()> {
    point()?;
    fs::mkdirat(dir, name, Mode::from_raw_mode(mode))
}

/// Reads from `file` until `buffer` is full or the file ends; returns the number of bytes.
pub fn read(file: impl AsFd, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        point()?;
        match retry_on_intr(|| rustix::io::read(&file, &mut buffer[filled..]))? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// Writes all of `bytes`.
pub fn write(file: impl AsFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        point()?;
        let count = retry_on_intr(|| rustix::io::write(&file, bytes))?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Returns when a file or directory is on the disk.
pub fn sync(file: impl AsFd) -> Result<()> {
    point()?;
    retry_on_intr(|| fs::fsync(&file))
}

/// Returns when everything that was written to the file system of `directory` is on the disk.
///
/// Linux 5.8 or later also returns the errors of those writes.
pub fn sync_file_system(directory: impl AsFd) -> Result<()> {
    point()?;
    retry_on_intr(|| fs::syncfs(&directory))
}

/// Status of an open file.
pub fn stat(file: impl AsFd) -> Result<Stat> {
    point()?;
    fs::fstat(file)
}

/// Status of the entry `name` of `dir`; of a link itself, not of its target.
pub fn stat_entry(dir: BorrowedFd<'_>, name: impl Arg) -> Result<Stat> {
    point()?;
    fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// The type of file.
pub fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// When a file was created, in seconds and nanoseconds since 1970.
pub type CreationTime = (i64, u32);

/// When `file` was created, if its file system and the kernel record it.
pub fn creation_time(file: impl AsFd) -> Option<CreationTime> {
    let found = fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let is_known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    is_known.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec))
}

/// Sets the mode of an open file, whatever the umask.
pub fn set_mode(file: impl AsFd, mode: u32) -> Result<()> {
    point()?;
    fs::fchmod(file, Mode::from_raw_mode(mode))
}

/// Sets the mode of a directory whose handle only names it; see [`open_place`].
pub fn set_mode_of_place(directory: &OwnedFd, mode: u32) -> Result<()> {
    point()?;
    let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
    fs::chmod(path, Mode::from_raw_mode(mode)).map_err(|_| Errno::ACCESS)
}

/// Sets user and group of an open file; `None` leaves it.
pub fn set_owner(file: impl AsFd, user: Option<u32>, group: Option<u32>) -> Result<()> {
    point()?;
    fs::fchown(file, user.map(Uid::from_raw), group.map(Gid::from_raw))
}

/// Sets user and group of an entry; of a link itself, not its target.
pub fn set_entry_owner(
    dir: BorrowedFd<'_>,
    name: impl Arg,
    user: Option<u32>,
    group: Option<u32>,
) -> Result<()> {
    point()?;
    let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
    fs::chownat(dir, name, user, group, AtFlags::SYMLINK_NOFOLLOW)
}

/// Creates the link `name` to `target`.
pub fn link(target: impl Arg, dir: BorrowedFd<'_>, name: impl Arg) -> Result<()> {
    point()?;
    fs::symlinkat(target, dir, name)
}

/// The target of the link `name`.
pub fn read_link(dir: BorrowedFd<'_>, name: impl Arg) -> Result<CString> {
    point()?;
    fs::readlinkat(dir, name, Vec::new())
}

/// Whether the link `name` leads to the entry `name` of `directory`. Unlike [`read_link`] it allocates nothing.
pub fn is_link_to(dir: BorrowedFd<'_>, directory: &str, name: &str) -> Result<bool> {
    point()?;
    let mut buffer = [MaybeUninit::uninit(); TARGET_BYTES];
    let (target, _) = fs::readlinkat_raw(dir, name, &mut buffer)?;
    let found = target
        .strip_prefix(directory.as_bytes())
        .and_then(|found| found.strip_prefix(b"/"));
    Ok(found == Some(name.as_bytes()))
}

/// Renames `from` over `to`, in one step.
pub fn rename(dir: BorrowedFd<'_>, from: impl Arg, to: impl Arg) -> Result<()> {
    rename_to(dir, from, dir, to)
}

/// Renames `from` over `to` of another directory, in one step.
pub fn rename_to(
    dir: BorrowedFd<'_>,
    from: impl Arg,
    to_dir: BorrowedFd<'_>,
    to: impl Arg,
) -> Result<()> {
    point()?;
    fs::renameat(dir, from, to_dir, to)
}

/// Removes an entry that is not a directory.
pub fn remove_file(dir: BorrowedFd<'_>, name: impl Arg) -> Result<()> {
    point()?;
    fs::unlinkat(dir, name, AtFlags::empty())
}

/// Removes an empty directory.
pub fn remove_dir(dir: BorrowedFd<'_>, name: impl Arg) -> Result<()> {
    point()?;
    fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
}

/// The result of a removal where the entry may be missing.
pub fn may_be_missing(removed: Result<()>) -> Result<()> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Calls `visit` with each entry of the directory, in no order.
pub fn list(dir: &OwnedFd, mut visit: impl FnMut(&CStr, FileType)) -> Result<()> {
    point()?;
    fs::seek(dir, SeekFrom::Start(0))?;
    walk(dir, |name, kind| {
        visit(name, kind);
        Ok(true)
    })
}

/// The names in a directory, sorted; those that are not UTF-8 belong to other programs.
pub fn names(dir: &OwnedFd) -> Result<Vec<String>> {
    let mut names = Vec::new();
    list(dir, |name, _| {
        names.extend(name.to_str().map(str::to_owned));
    })?;
    names.sort_unstable();
    Ok(names)
}

/// Calls `visit` with each entry of `dir`, in no order, until it returns false. The handle may be one that only names the
/// directory.
pub fn list_until(dir: &OwnedFd, visit: impl FnMut(&CStr, FileType) -> Result<bool>) -> Result<()> {
    walk(&open_dir(dir.as_fd(), c".")?, visit)
}

/// Visits the entries from the position of the handle on, until `visit` returns false.
fn walk(dir: &OwnedFd, mut visit: impl FnMut(&CStr, FileType) -> Result<bool>) -> Result<()> {
    let mut buffer = Vec::with_capacity(LISTING_BYTES);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
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
    }
    Ok(())
}
