//! Helpers of this half's tests: payloads in a line, and directories as text.

use std::{
    borrow::Borrow,
    env,
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
};

use expect_test::Expect;
use jiff::Timestamp;
use rustix::{
    fs::{Gid, Uid},
    mount::{MountPropagationFlags, mount_change},
    thread::{UnshareFlags, set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};
use tempfile::TempDir;

use super::{AtomicWriter, DiskError, Written};
use crate::{File, Payload, Value, VolumePath};

/// A payload of files with mode 0644.
pub(crate) fn files<const N: usize>(files: [(&str, &'static str); N]) -> Payload<'static> {
    files.map(|(path, data)| file(path, data, 0o644)).into()
}

/// A file of a payload.
pub(crate) fn file(path: &str, data: &'static str, mode: u32) -> (VolumePath, File<'static>) {
    let file = File {
        data: Value::Borrowed(data.as_bytes()),
        mode,
        owner: None,
    };
    (VolumePath::parse(path).unwrap(), file)
}

/// 2026-03-01 12:00:00 UTC.
pub(crate) fn noon() -> Timestamp {
    Timestamp::from_second(1_772_366_400).unwrap()
}

/// A directory that a writer may fill: in `TMPDIR` if that is set, else in memory where that is possible, as a volume of
/// a Secret is.
pub(crate) struct TestVolume {
    dir: TempDir,
    random: fastrand::Rng,
}

impl TestVolume {
    pub(crate) fn new() -> Self {
        Self {
            dir: match env::var_os("TMPDIR") {
                None => TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()),
                Some(_) => TempDir::new(),
            }
            .unwrap(),
            random: fastrand::Rng::with_seed(1),
        }
    }

    /// A volume after the first write.
    pub(crate) fn holding(payload: &Payload<'_>) -> Self {
        let mut volume = Self::new();
        volume.write(payload).unwrap();
        volume
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn write(&mut self, payload: &Payload<'_>) -> Result<Written, DiskError> {
        AtomicWriter::open(self.dir.path())?.write(payload, noon(), &mut self.random)
    }

    /// The target of `..data`.
    pub(crate) fn current(&self) -> PathBuf {
        fs::read_link(self.path().join("..data")).unwrap()
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path().join(path)).unwrap()
    }

    #[track_caller]
    pub(crate) fn check(&self, expected: impl Borrow<Expect>) {
        expected.borrow().assert_eq(&show(self.path()));
    }
}

/// Runs `action` as root in a thread with a mount namespace of its own, so that its mounts end with it.
///
/// Where that is not permitted, an ordinary developer's run continues without; CI fails.
pub(crate) fn as_root_with_mounts(action: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "CI must run as root");
        return;
    }
    in_own_thread(|| {
        unshare(UnshareFlags::NEWNS);
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).unwrap();
        action();
    });
}

/// Runs `action` as root in a thread that is then user and group 1000 of no further groups, without capabilities.
pub(crate) fn as_ordinary_user(action: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        return action();
    }
    in_own_thread(|| {
        let (user, group) = (Uid::from_raw(1000), Gid::from_raw(1000));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        action();
    });
}

/// Takes from this thread what it shares with the others of the process.
pub(crate) fn unshare(flags: UnshareFlags) {
    #[expect(deprecated, reason = "unsafe for file tables only, and this is none")]
    rustix::thread::unshare(flags).unwrap();
}

/// Runs `action` in a thread whose state ends with it.
pub(crate) fn in_own_thread<T: Send>(action: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(action).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// A directory as text. The set that `..data` leads to is called `..set`, because its name differs each time.
pub(crate) fn show(directory: &Path) -> String {
    let mut lines = Vec::new();
    let current = fs::read_link(directory.join("..data")).ok();
    show_into(directory, "", &mut lines);
    let mut text = lines.join("\n");
    if let Some(name) = current.as_deref().and_then(Path::to_str) {
        text = text.replace(name, "..set");
        let mut sorted: Vec<_> = text.lines().collect();
        sorted.sort_unstable();
        text = sorted.join("\n");
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

fn show_into(directory: &Path, prefix: &str, lines: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        let mut line = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        let metadata = entry.metadata().unwrap();
        let mode = metadata.permissions().mode() & 0o7777;
        if metadata.is_symlink() {
            write!(line, " -> {}", fs::read_link(&path).unwrap().display()).unwrap();
        } else if metadata.is_dir() {
            line.push('/');
            show_into(&path, &line, lines);
            write!(line, " {mode:04o}").unwrap();
        } else {
            let bytes = fs::read(&path).unwrap();
            write!(line, " {mode:04o} {:?}", String::from_utf8_lossy(&bytes)).unwrap();
        }
        lines.push(line);
    }
    lines.sort_unstable();
}
