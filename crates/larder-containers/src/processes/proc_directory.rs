//! `/proc`, or a directory like it.
//!
//! Invariants:
//! 1. Nothing is opened, read or queried through a link of a process: a process chooses what `exe`, `cwd` and `root`
//!    lead to, and a file system of its own might never answer. Links are only read.
//! 2. No file is read beyond [`MAX_BYTES`] bytes. `mountinfo` is read [line by line](super::mount_table).

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::{ffi::OsStringExt as _, fs::MetadataExt as _},
    path::PathBuf,
};

/// The kernel fills a buffer of this size with one read.
pub(super) const PAGE: usize = 4096;
/// Most bytes that are read of a file. The longest lines of `status` and `cgroup` take a tenth of it.
const MAX_BYTES: u64 = 16 << 20;

/// The directory.
#[derive(Debug)]
pub(super) struct ProcDirectory(pub(super) PathBuf);

impl ProcDirectory {
    fn path(&self, process: impl fmt::Display, file: &str) -> PathBuf {
        self.0.join(format!("{process}/{file}"))
    }

    /// Opens a file of a process: of the one with this number, or of `self`.
    pub(super) fn open(&self, process: impl fmt::Display, file: &str) -> io::Result<File> {
        File::open(self.path(process, file))
    }

    /// Reads a file of a process.
    pub(super) fn read(&self, process: impl fmt::Display, file: &str) -> io::Result<Vec<u8>> {
        let file = self.open(process, file)?;
        let mut text = Vec::with_capacity(PAGE);
        file.take(MAX_BYTES).read_to_end(&mut text)?;
        Ok(text)
    }

    /// The target of a link of a process.
    pub(super) fn link(&self, process: impl fmt::Display, link: &str) -> io::Result<Vec<u8>> {
        let target = fs::read_link(self.path(process, link))?;
        Ok(target.into_os_string().into_vec())
    }

    /// The effective user of a process; `None` if it has ended.
    pub(super) fn user(&self, pid: i32) -> Option<u32> {
        let found = fs::symlink_metadata(self.0.join(pid.to_string()));
        Some(found.ok()?.uid())
    }

    /// The numbers of all processes.
    pub(super) fn list(&self) -> io::Result<Vec<i32>> {
        let mut processes = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let name = entry?.file_name().into_vec();
            if name.first().is_some_and(u8::is_ascii_digit) {
                processes.extend(number::<i32>(&name));
            }
        }
        Ok(processes)
    }
}

/// A decimal number.
pub(super) fn number<N: std::str::FromStr>(digits: &[u8]) -> Option<N> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}
