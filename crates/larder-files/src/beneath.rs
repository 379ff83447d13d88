//! Directories beneath an open directory, without crossing a link or a mount; and files beneath one.
//!
//! Invariant: mounts are distinguished by their IDs. A bind mount can have the device number of its parent, so
//! comparing device numbers would miss it.

#![expect(
    clippy::missing_errors_doc,
    reason = "errors are the kernel's; the comments name those that callers decide by"
)]

use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::{
    fs::{Mode, OFlags, ResolveFlags, openat, openat2},
    io::{Errno, Result},
};

use crate::{
    faults::point,
    sys::{DIRECTORY, PLACE},
};

/// Opens the directory `path` beneath `dir`. A link on the way is [`Errno::LOOP`] or [`Errno::NOTDIR`]; a mount, or a
/// path that leaves `dir`, is [`Errno::XDEV`].
pub fn open_dir(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    open(dir, path, DIRECTORY)
}

/// As [`open_dir`], but the handle is only good for opening what is in the directory, and for
/// [`set_mode_of_place`](crate::sys::set_mode_of_place): it needs no permission on the directory itself.
pub fn open_place(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd> {
    open(dir, path, PLACE)
}

/// Opens the file or directory `name` in `dir` for reading, without waiting for a pipe. Links are followed as long as they
/// stay beneath `dir`; one that leaves it is [`Errno::XDEV`]. Linux before 5.6 follows none: [`Errno::LOOP`].
pub fn open_file(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match openat2(dir, name, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => {
            openat(dir, name, flags | OFlags::NOFOLLOW, Mode::empty())
        }
        opened => opened,
    }
}

fn open(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let opened = point().and_then(|()| {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        openat2(dir, path, flags, Mode::empty(), resolve)
    });
    match opened {
        // Linux before 5.6, or a filter that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => open_by_elements(dir, path, flags),
        opened => opened,
    }
}

/// As [`open`], one element at a time.
fn open_by_elements(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
    let mount = mount_id(dir)?;
    let mut elements = path.split(|&byte| byte == b'/').peekable();
    let mut reached = None;
    while let Some(element) = elements.next() {
        if element == b".." {
            return Err(Errno::XDEV);
        }
        point()?;
        let parent = reached.as_ref().map_or(dir, OwnedFd::as_fd);
        // What is on the way need not be readable, only searchable.
        let flags = elements.peek().map_or(flags, |_| PLACE);
        let opened = openat(parent, element, flags, Mode::empty())?;
        if mount_id(opened.as_fd())? != mount {
            return Err(Errno::XDEV);
        }
        reached = Some(opened);
    }
    reached.ok_or(Errno::NOENT)
}

/// Whether `child`, an entry of the directory `parent`, is a mount point.
pub fn is_mount_point(parent: BorrowedFd<'_>, child: BorrowedFd<'_>) -> Result<bool> {
    Ok(mount_id(parent)? != mount_id(child)?)
}

/// The mount that an open file belongs to.
fn mount_id(file: BorrowedFd<'_>) -> Result<String> {
    let path = format!("/proc/self/fdinfo/{}", file.as_raw_fd());
    let text = std::fs::read_to_string(path).map_err(|_| Errno::NOSYS)?;
    text.lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))
        .map(|id| id.trim().to_owned())
        .ok_or(Errno::NOSYS)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use rustix::{
        mount::{MountPropagationFlags, mount_bind, mount_change},
        process::geteuid,
        thread::UnshareFlags,
    };
    use tempfile::TempDir;

    use super::*;
    use crate::{
        faults::{Fault, during},
        sys::{open_root, stat_entry},
    };

    /// With the system call, and without it.
    fn both(dir: &OwnedFd, path: &str) -> [Option<Errno>; 2] {
        let opened = open_dir(dir.as_fd(), path.as_bytes());
        let by_elements = during(0, Fault::Once(Errno::NOSYS), || {
            open_dir(dir.as_fd(), path.as_bytes())
        });
        [opened.err(), by_elements.0.err()]
    }

    #[test]
    fn no_link_and_no_parent_is_followed_also_without_openat2() {
        let root = TempDir::new().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        symlink("a", root.path().join("link")).unwrap();
        let dir = open_root(root.path()).unwrap();
        assert_eq!(both(&dir, "a/b"), [None; 2]);
        assert_eq!(both(&dir, "a/c"), [Some(Errno::NOENT); 2]);
        assert_eq!(both(&dir, "../a"), [Some(Errno::XDEV); 2]);
        assert_eq!(both(&dir, "a/../a")[1], Some(Errno::XDEV));
        for error in both(&dir, "link/b") {
            assert!(
                matches!(error, Some(Errno::LOOP | Errno::NOTDIR)),
                "{error:?}"
            );
        }
        let system = open_root(Path::new("/")).unwrap();
        assert_eq!(both(&system, "proc/self"), [Some(Errno::XDEV); 2]);
    }
    /// Runs `action` as root in a thread with mounts of its own, if that is permitted.
    fn with_mounts(action: impl FnOnce() + Send) {
        if !geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "CI must run as root");
            return;
        }
        let run = || {
            #[expect(deprecated, reason = "unsafe for file tables only, and this is none")]
            rustix::thread::unshare(UnshareFlags::NEWNS).unwrap();
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", private).unwrap();
            action();
        };
        let ended = std::thread::scope(|scope| scope.spawn(run).join());
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    }

    #[test]
    fn bind_mount_of_the_same_file_system_is_not_crossed() {
        with_mounts(|| {
            let root = TempDir::new().unwrap();
            for path in ["a/b", "outside/b"] {
                fs::create_dir_all(root.path().join(path)).unwrap();
            }
            let dir = open_root(root.path()).unwrap();
            assert_eq!(both(&dir, "a/b"), [None; 2]);
            mount_bind(root.path().join("outside"), root.path().join("a")).unwrap();
            // Its device number is that of its surroundings.
            let device = |name| stat_entry(dir.as_fd(), name).unwrap().st_dev;
            assert_eq!(device("a"), device("outside"));
            assert_eq!(both(&dir, "a"), [Some(Errno::XDEV); 2]);
            assert_eq!(both(&dir, "a/b"), [Some(Errno::XDEV); 2]);
            let mounted = crate::sys::open_place(dir.as_fd(), "a").unwrap();
            assert!(is_mount_point(dir.as_fd(), mounted.as_fd()).unwrap());
        });
    }
}
