//! `/proc`, or a directory like it, read relative to a descriptor.
//!
//! A search reads a link of every process of the machine. So a path is composed on the stack, and a link is read into
//! the caller's buffer.
//!
//! Invariants:
//! 1. Nothing is opened, read or queried through a link of a process: a process chooses what `exe`, `cwd` and `root`
//!    lead to, and a file system of its own might never answer. Links are only read.
//! 2. No file is read beyond [`MAX_BYTES`] bytes. `mountinfo` is read [line by line](super::mount_table).

use std::{
    fmt::{self, Write as _},
    fs::File,
    io::{self, Read as _},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::OnceLock,
};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, openat, readlinkat_raw, statat};

/// The kernel fills a buffer of this size with one read.
pub(super) const PAGE: usize = 4096;
/// Most bytes that are read of a file. The longest lines of `status` and `cgroup` take a tenth of it.
const MAX_BYTES: u64 = 16 << 20;
/// Takes the entries of a thousand processes with one call.
const LISTING: usize = 32 * 1024;

/// The directory.
#[derive(Debug)]
pub(super) struct ProcDirectory {
    path: PathBuf,
    /// Opened by the first use.
    directory: OnceLock<OwnedFd>,
}

/// A buffer for the target of a link. The kernel refuses longer ones.
pub(super) type LinkBuffer = [MaybeUninit<u8>; PAGE];

impl ProcDirectory {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            directory: OnceLock::new(),
        }
    }

    fn directory(&self) -> io::Result<&OwnedFd> {
        if let Some(directory) = self.directory.get() {
            return Ok(directory);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, &self.path, flags, Mode::empty())?;
        // Another thread may have opened it meanwhile.
        Ok(self.directory.get_or_init(|| opened))
    }

    /// Opens a file of a process: of the one with this number, or of `self`.
    pub(super) fn open(&self, process: impl fmt::Display, file: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let path = ProcPath::new(process, file)?;
        let opened = openat(self.directory()?, path.bytes(), flags, Mode::empty())?;
        Ok(File::from(opened))
    }

    /// Reads a file of a process. Such files have no size, so `fs::read` would make several small reads.
    pub(super) fn read(&self, pid: i32, file: &str) -> io::Result<Vec<u8>> {
        let file = self.open(pid, file)?;
        let mut text = Vec::with_capacity(PAGE);
        // `read_to_end` of a file asks for its size and position first, that of `Take` does not.
        file.take(MAX_BYTES).read_to_end(&mut text)?;
        Ok(text)
    }

    /// Reads the start of a file of a process with one call, as much as fits into `buffer`.
    pub(super) fn read_start<'a>(
        &self,
        process: impl fmt::Display,
        file: &str,
        buffer: &'a mut [u8],
    ) -> io::Result<&'a [u8]> {
        let length = self.open(process, file)?.read(buffer)?;
        Ok(&buffer[..length])
    }

    /// Reads a link of a process.
    pub(super) fn link<'a>(
        &self,
        process: impl fmt::Display,
        link: &str,
        buffer: &'a mut [MaybeUninit<u8>],
    ) -> io::Result<&'a [u8]> {
        let path = ProcPath::new(process, link)?;
        let (target, rest) = readlinkat_raw(self.directory()?, path.bytes(), buffer)?;
        if rest.is_empty() {
            // It may have been cut off.
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(target)
    }

    /// The user of a process.
    pub(super) fn user(&self, pid: i32) -> Option<u32> {
        let path = ProcPath::new(pid, "").ok()?;
        let stat = statat(self.directory().ok()?, path.bytes(), AtFlags::empty());
        Some(stat.ok()?.st_uid)
    }

    /// The numbers of all processes.
    pub(super) fn list(&self) -> io::Result<Vec<i32>> {
        // A listing has its own descriptor, since the position belongs to it.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = openat(self.directory()?.as_fd(), c".", flags, Mode::empty())?;
        let mut buffer = Vec::with_capacity(LISTING);
        let mut entries = RawDir::new(listed, buffer.spare_capacity_mut());
        let mut processes = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name.first().is_some_and(u8::is_ascii_digit)
                && let Some(pid) = number(name)
            {
                processes.push(pid);
            }
        }
        Ok(processes)
    }
}

/// A decimal number.
pub(super) fn number<N: std::str::FromStr>(digits: &[u8]) -> Option<N> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// A path below the directory.
struct ProcPath {
    bytes: [u8; 64],
    length: usize,
}

impl ProcPath {
    fn new(process: impl fmt::Display, file: &str) -> io::Result<Self> {
        let mut path = Self {
            bytes: [0; 64],
            length: 0,
        };
        write!(path, "{process}/{file}").map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(path)
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl fmt::Write for ProcPath {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        let place = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}
