//! The system calls of this half, relative to open directories; none follows a link.
//!
//! Each passes through [`point`], where tests let it fail, or let the process die before it.

use std::{
    ffi::{CStr, CString},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{
        self, AtFlags, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, ResolveFlags, Stat, Uid,
    },
    io::{Errno, Result, retry_on_intr},
    path::Arg,
};

/// Room for about a hundred directory entries per call.
const LISTING_BYTES: usize = 4096;
/// Longer than any target that [`is_link_to`] is asked for: a directory and the longest name.
const TARGET_BYTES: usize = 512;

pub(super) const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Opens the directory `name` of `dir`.
pub(crate) fn open_dir(dir: BorrowedFd<'_>, name: impl Arg) -> Result<OwnedFd> {
    point()?;
    fs::openat(dir, name, DIRECTORY, Mode::empty())
}

/// Opens the directory `path` beneath `dir`. No link on the way is followed and no mount is crossed.
pub(crate) fn open_dir_beneath(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    open_beneath(dir, path, DIRECTORY)
}

/// The same, but the handle is only good for [`set_mode_by_path`] and for opening what is below: it needs no permission
/// on the directory itself.
pub(crate) fn open_dir_path(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    open_beneath(dir, path, DIRECTORY.union(OFlags::PATH))
}

fn open_beneath(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let opened = point().and_then(|()| {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        fs::openat2(dir, path, flags, Mode::empty(), resolve)
    });
    match opened {
        // Linux before 5.6, or a filter that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => open_by_elements(dir, path, flags),
        opened => opened,
    }
}

/// Like [`open_beneath`], one element at a time.
pub(super) fn open_by_elements(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let mount = mount_id(dir)?;
    let mut elements = path.split(|&byte| byte == b'/').peekable();
    let mut reached = None;
    while let Some(element) = elements.next() {
        if element == b".." {
            return Err(Errno::XDEV);
        }
        point()?;
        let parent = reached.as_ref().map_or(dir, OwnedFd::as_fd);
        let flags = elements.peek().map_or(flags, |_| DIRECTORY);
        let opened = fs::openat(parent, element, flags, Mode::empty())?;
        if mount_id(opened.as_fd())? != mount {
            return Err(Errno::XDEV);
        }
        reached = Some(opened);
    }
    reached.ok_or(Errno::NOENT)
}

/// The mount that an open file belongs to. A bind mount can have the device number of its surroundings.
fn mount_id(file: BorrowedFd<'_>) -> Result<String> {
    let path = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
    let text = std::fs::read_to_string(path).map_err(|_| Errno::NOSYS)?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.map(|id| id.trim().to_owned()).ok_or(Errno::NOSYS)
}

/// Opens a file for reading. Whatever it turns out to be, this does not block.
pub(crate) fn open_file(dir: BorrowedFd<'_>, name: impl Arg) -> Result<OwnedFd> {
    point()?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::empty())
}

/// Opens an existing file for writing, without truncating it.
pub(crate) fn open_file_to_write(dir: BorrowedFd<'_>, name: impl Arg) -> Result<OwnedFd> {
    point()?;
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::empty())
}

/// Creates a file that must not exist, for writing; `mode` is subject to the umask.
pub(crate) fn create_file(dir: BorrowedFd<'_>, name: impl Arg, mode: u32) -> Result<OwnedFd> {
    point()?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::from_raw_mode(mode))
}

/// Creates a directory; `mode` is subject to the umask.
pub(crate) fn make_dir(dir: BorrowedFd<'_>, name: impl Arg, mode: u32) -> Result<()> {
    point()?;
    fs::mkdirat(dir, name, Mode::from_raw_mode(mode))
}

/// Reads from `file` until `buffer` is full or the file ends; returns the bytes read.
pub(crate) fn read(file: &OwnedFd, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        point()?;
        match retry_on_intr(|| rustix::io::read(file, &mut buffer[filled..]))? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// Writes all of `bytes`.
pub(crate) fn write(file: &OwnedFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        point()?;
        let count = retry_on_intr(|| rustix::io::write(file, bytes))?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Cuts an open file off after `size` bytes.
pub(crate) fn truncate(file: &OwnedFd, size: u64) -> Result<()> {
    point()?;
    retry_on_intr(|| fs::ftruncate(file, size))
}

/// Status of an open file.
pub(crate) fn stat(file: impl AsFd) -> Result<Stat> {
    point()?;
    fs::fstat(file)
}

/// Status of the entry `name` of `dir`; of a link itself, not of its target.
pub(crate) fn stat_entry(dir: BorrowedFd<'_>, name: impl Arg) -> Result<Stat> {
    point()?;
    fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Sets the mode of an open file, whatever the umask.
pub(crate) fn set_mode(file: impl AsFd, mode: u32) -> Result<()> {
    point()?;
    fs::fchmod(file, Mode::from_raw_mode(mode))
}

/// Sets the mode of a directory that [`open_dir_path`] has opened.
pub(crate) fn set_mode_by_path(directory: &OwnedFd, mode: u32) -> Result<()> {
    point()?;
    let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
    fs::chmod(path, Mode::from_raw_mode(mode)).map_err(|_| Errno::ACCESS)
}

/// Sets user and group of an open file; `None` leaves it.
pub(crate) fn set_owner(file: impl AsFd, user: Option<u32>, group: Option<u32>) -> Result<()> {
    point()?;
    fs::fchown(file, user.map(Uid::from_raw), group.map(Gid::from_raw))
}

/// Sets user and group of an entry; of a link itself, not its target.
pub(crate) fn set_entry_owner(
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
pub(crate) fn link(target: impl Arg, dir: BorrowedFd<'_>, name: impl Arg) -> Result<()> {
    point()?;
    fs::symlinkat(target, dir, name)
}

/// The target of the link `name`.
pub(crate) fn read_link(dir: BorrowedFd<'_>, name: impl Arg) -> Result<CString> {
    point()?;
    fs::readlinkat(dir, name, Vec::new())
}

/// Whether the link `name` leads to the entry `name` of `directory`. Unlike [`read_link`] it allocates nothing.
pub(crate) fn is_link_to(dir: BorrowedFd<'_>, directory: &str, name: &str) -> Result<bool> {
    point()?;
    let mut buffer = [MaybeUninit::uninit(); TARGET_BYTES];
    let (target, _) = fs::readlinkat_raw(dir, name, &mut buffer)?;
    let found = target.strip_prefix(directory.as_bytes());
    let found = found.and_then(|found| found.strip_prefix(b"/"));
    Ok(found == Some(name.as_bytes()))
}

/// Renames `from` over `to`, in one step.
pub(crate) fn rename(dir: BorrowedFd<'_>, from: impl Arg, to: impl Arg) -> Result<()> {
    point()?;
    fs::renameat(dir, from, dir, to)
}

/// Exchanges two entries of a directory, in one step. Both must exist, and not every file system can do it.
pub(crate) fn exchange(dir: BorrowedFd<'_>, one: impl Arg, other: impl Arg) -> Result<()> {
    point()?;
    fs::renameat_with(dir, one, dir, other, RenameFlags::EXCHANGE)
}

/// Removes an entry that is not a directory.
pub(crate) fn remove_file(dir: BorrowedFd<'_>, name: impl Arg) -> Result<()> {
    point()?;
    fs::unlinkat(dir, name, AtFlags::empty())
}

/// Removes an empty directory.
pub(crate) fn remove_dir(dir: BorrowedFd<'_>, name: impl Arg) -> Result<()> {
    point()?;
    fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
}

/// Lets a directory be listed again by the same handle.
pub(crate) fn rewind(dir: &OwnedFd) -> Result<()> {
    point()?;
    fs::seek(dir, fs::SeekFrom::Start(0)).map(drop)
}

/// Calls `visit` with each entry of the directory, in no order. A handle that has been listed before needs [`rewind`].
pub(crate) fn list(dir: &OwnedFd, mut visit: impl FnMut(&CStr, FileType)) -> Result<()> {
    point()?;
    let mut buffer = Vec::with_capacity(LISTING_BYTES);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if [c".", c".."].contains(&entry.file_name()) {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                FileType::from_raw_mode(stat_entry(dir.as_fd(), entry.file_name())?.st_mode)
            }
            kind => kind,
        };
        visit(entry.file_name(), kind);
    }
    Ok(())
}

#[cfg(not(test))]
#[inline(always)]
#[expect(
    clippy::unnecessary_wraps,
    clippy::inline_always,
    reason = "stands for the fault point of tests and vanishes"
)]
fn point() -> Result<()> {
    Ok(())
}

#[cfg(test)]
use faults::point;

/// Failures and deaths at a chosen system call, for tests.
#[cfg(test)]
pub(crate) mod faults {
    use std::cell::Cell;

    use rustix::{
        io::{Errno, Result},
        process::{Signal, getpid, kill_process},
    };

    /// The effect of a fault point.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Fault {
        /// The call fails; those after it do not.
        Once(Errno),
        /// The call and all after it fail.
        FromNowOn(Errno),
        /// The process is killed before the call.
        Kill,
    }

    thread_local! {
        /// System calls of this thread since the last [`during`] began.
        static CALLS: Cell<usize> = const { Cell::new(0) };
        static FAULT: Cell<Option<(usize, Fault)>> = const { Cell::new(None) };
    }

    pub(crate) fn point() -> Result<()> {
        let call = CALLS.replace(CALLS.get() + 1);
        match FAULT.get() {
            Some((at, Fault::Once(errno))) if call == at => Err(errno),
            Some((from, Fault::FromNowOn(errno))) if call >= from => Err(errno),
            Some((at, Fault::Kill)) if call == at => {
                kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
                unreachable!("SIGKILL does not return")
            }
            _ => Ok(()),
        }
    }

    /// Runs `action` with a fault at its system call number `at`, from 0; returns whether it got that far.
    pub(crate) fn during<T>(at: usize, fault: Fault, action: impl FnOnce() -> T) -> (T, bool) {
        CALLS.set(0);
        FAULT.set(Some((at, fault)));
        let result = action();
        FAULT.set(None);
        (result, CALLS.get() > at)
    }
}
