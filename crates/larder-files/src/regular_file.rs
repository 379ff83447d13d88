//! Bounded reading of files whose path or content comes from outside: manifests, configuration, credentials, copies.
//!
//! Invariants:
//! 1. Reading takes at most twice the limit of memory, wherever the path leads and even if the file changes meanwhile.
//! 2. Reading never waits: only regular files are read.
//! 3. The bytes are wiped when they are dropped, and no copy is left behind.

use std::{
    fs::{self, File, FileType, OpenOptions},
    io::{self, Read},
    mem,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt as _},
    path::Path,
};

use rustix::{
    fs::{OFlags, Stat},
    io::Errno,
};
use zeroize::Zeroizing;

use crate::sys;

/// Least size of the buffer, for files that do not say their length, as those of `/proc`.
const MIN_BUFFER: u64 = 4 << 10;

/// Why a file is not read. The caller knows the path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegularFileError {
    /// A system call failed.
    #[error("cannot {step} the file")]
    Io {
        /// `stat`, `open` or `read`.
        step: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// It is a directory.
    #[error("expected a regular file, found a directory")]
    Directory,
    /// It is a device, a pipe or a socket, or a link to one.
    #[error("expected a regular file, found a device, pipe or socket")]
    Special,
    /// It is longer than what may be read.
    #[error("has {max_bytes} bytes or more")]
    TooLong {
        /// The limit.
        max_bytes: u64,
    },
    /// It is not text.
    #[error("not UTF-8")]
    NotText,
}

impl From<RegularFileError> for io::Error {
    fn from(error: RegularFileError) -> Self {
        match error {
            RegularFileError::Io { source, .. } => source,
            error => Self::new(io::ErrorKind::InvalidData, error),
        }
    }
}

/// Reads the regular file at `path`, which must have fewer than `max_bytes` bytes. Links to regular files are followed,
/// as ConfigMap volumes need.
///
/// # Errors
///
/// The file cannot be read, is not a regular file, or is too long.
pub fn read_regular_file(
    path: &Path,
    max_bytes: u64,
) -> Result<Zeroizing<Vec<u8>>, RegularFileError> {
    // Opening some devices has an effect, so look first. What is opened may be another file by then: look again.
    regular(fs::metadata(path).map_err(failed("stat"))?.file_type())?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(failed("open"))?;
    read_file(file, max_bytes)
}

/// Reads a file that was opened without waiting for a pipe; see [`read_regular_file`].
///
/// # Errors
///
/// Those of [`read_regular_file`].
pub fn read_file(file: File, max_bytes: u64) -> Result<Zeroizing<Vec<u8>>, RegularFileError> {
    let metadata = file.metadata().map_err(failed("stat"))?;
    regular(metadata.file_type())?;
    read_bounded(file, metadata.len(), max_bytes)
}

/// Reads the text in the regular file at `path`; see [`read_regular_file`].
///
/// # Errors
///
/// Those of [`read_regular_file`], or the content is not UTF-8.
pub fn read_regular_text(
    path: &Path,
    max_bytes: u64,
) -> Result<Zeroizing<String>, RegularFileError> {
    let mut bytes = read_regular_file(path, max_bytes)?;
    String::from_utf8(mem::take(&mut *bytes))
        .map(Zeroizing::new)
        .map_err(|error| {
            drop(Zeroizing::new(error.into_bytes()));
            RegularFileError::NotText
        })
}

fn failed(step: &'static str) -> impl Fn(io::Error) -> RegularFileError {
    move |source| RegularFileError::Io { step, source }
}

fn regular(kind: FileType) -> Result<(), RegularFileError> {
    if kind.is_file() {
        Ok(())
    } else if kind.is_dir() {
        Err(RegularFileError::Directory)
    } else {
        Err(RegularFileError::Special)
    }
}

/// Reads the open file, whose status is `stat`, from its position to its end. A file of more than `limit` bytes is
/// [`Errno::FBIG`].
///
/// # Errors
///
/// Reading fails, or the file is too long.
pub fn read_open(
    file: &OwnedFd,
    stat: &Stat,
    limit: usize,
) -> rustix::io::Result<Zeroizing<Vec<u8>>> {
    let length = u64::try_from(stat.st_size).unwrap_or_default();
    read_bounded(OpenFile(file), length, limit as u64 + 1).map_err(|error| match error {
        RegularFileError::Io { source, .. } => Errno::from_io_error(&source).unwrap_or(Errno::IO),
        _ => Errno::FBIG,
    })
}

/// Passes the fault points of [`sys`].
struct OpenFile<'a>(&'a OwnedFd);

impl Read for OpenFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(sys::read(self.0, buffer)?)
    }
}

/// Reads `input` to its end, which is expected after `length` bytes and before `max_bytes`.
///
/// # Errors
///
/// Reading fails, or the input is too long.
pub fn read_bounded(
    mut input: impl Read,
    length: u64,
    max_bytes: u64,
) -> Result<Zeroizing<Vec<u8>>, RegularFileError> {
    if length >= max_bytes {
        return Err(RegularFileError::TooLong { max_bytes });
    }
    // One byte more than the length, so that the end is found without another buffer.
    let capacity = usize::try_from((length + 1).max(MIN_BUFFER)).unwrap_or(usize::MAX);
    let mut bytes = Zeroizing::new(vec![0; capacity]);
    let mut filled = 0;
    loop {
        if filled == bytes.len() {
            // Not `resize`: a buffer that moves leaves its bytes behind unwiped.
            let mut longer = Zeroizing::new(vec![0; 2 * filled]);
            longer[..filled].copy_from_slice(&bytes);
            bytes = longer;
        }
        match input.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed("read")(error)),
        }
        if filled as u64 >= max_bytes {
            return Err(RegularFileError::TooLong { max_bytes });
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType as NodeType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_regular_files_below_the_limit_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), "text").unwrap();
        assert_eq!(**read_regular_file(&at("file"), 5).unwrap(), *b"text");
        mknodat(CWD, at("fifo"), NodeType::Fifo, Mode::RUSR, 0).unwrap();
        let huge = fs::File::create(at("huge")).unwrap();
        huge.set_len(1 << 40).unwrap();
        let special = "expected a regular file, found a device, pipe or socket";
        for (path, problem) in [
            (at("file"), "has 4 bytes or more"),
            (at("huge"), "has 4 bytes or more"),
            (at("fifo"), special),
            ("/dev/zero".into(), special),
            (at("."), "expected a regular file, found a directory"),
        ] {
            let error = read_regular_file(&path, 4).unwrap_err();
            assert_eq!(error.to_string(), problem, "{}", path.display());
        }
        assert_eq!(**read_regular_text(&at("file"), 5).unwrap(), *"text");
        fs::write(at("binary"), [0xff]).unwrap();
        let error = read_regular_text(&at("binary"), 5).unwrap_err();
        assert_eq!(error.to_string(), "not UTF-8");
        let error = read_regular_file(&at("none"), 4).unwrap_err();
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn input_longer_than_announced_is_bounded() {
        let endless = read_bounded(io::repeat(b'a'), 0, 1 << 20);
        assert!(matches!(endless, Err(RegularFileError::TooLong { .. })));
        let long = vec![b'a'; 100_000];
        assert_eq!(**read_bounded(&*long, 10, 1 << 20).unwrap(), *long);
    }
}
