//! Files and directories of manifests.
//!
//! [`read_manifest`] is the one reader of manifest files: of `-f`, of `--manifests` and of static pods.
//!
//! Invariants:
//! 1. Reading takes at most [`MAX_MANIFEST_BYTES`] of memory, whatever the path leads to, also if it changes meanwhile.
//! 2. Reading never waits: only regular files are read. Links to regular files are followed, as ConfigMap volumes need.

use std::{
    fs::{self, File, FileType, OpenOptions},
    io,
    io::Read,
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags, fcntl_setfl},
    io::Errno,
};
use zeroize::Zeroizing;

use super::{Loader, ManifestError};

/// Name under which standard input appears in errors.
const STDIN: &str = "standard input";
/// Longest wait for a process that writes to a pipe.
const WRITER_TIMEOUT: Duration = Duration::from_secs(1);

/// A manifest of this many bytes is rejected. kubelet 1.36, `pkg/kubelet/config/file.go`: 10 MiB, and exactly 10 MiB is too
/// long.
pub const MAX_MANIFEST_BYTES: u64 = 10 << 20;

/// Why a manifest file is not read. The caller knows the path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestFileError {
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
    /// It is too long for a manifest.
    #[error("has {MAX_MANIFEST_BYTES} bytes or more")]
    TooLong,
}

/// Reads the manifest file at `path`.
///
/// # Errors
///
/// The file cannot be read, is not a regular file, or is too long.
pub fn read_manifest(path: &Path) -> Result<Zeroizing<Vec<u8>>, ManifestFileError> {
    let failed = |step| move |source| ManifestFileError::Io { step, source };
    // Opening some devices has an effect, so look first. What is opened may be another file by then: look again.
    regular(fs::metadata(path).map_err(failed("stat"))?.file_type())?;
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(path)
        .map_err(failed("open"))?;
    let metadata = file.metadata().map_err(failed("stat"))?;
    regular(metadata.file_type())?;
    if metadata.len() >= MAX_MANIFEST_BYTES {
        return Err(ManifestFileError::TooLong);
    }
    read_bounded(file, metadata.len())
}

fn regular(kind: FileType) -> Result<(), ManifestFileError> {
    if kind.is_file() {
        Ok(())
    } else if kind.is_dir() {
        Err(ManifestFileError::Directory)
    } else {
        Err(ManifestFileError::Special)
    }
}

/// Reads `input` to its end, which is expected after `length` bytes.
fn read_bounded(input: impl Read, length: u64) -> Result<Zeroizing<Vec<u8>>, ManifestFileError> {
    // One more than the length, so that the end is found without growing: a buffer that moves leaves its bytes behind.
    let capacity = usize::try_from(length).unwrap_or_default() + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    let mut input = input.take(MAX_MANIFEST_BYTES);
    match input.read_to_end(&mut bytes) {
        Err(source) => Err(ManifestFileError::Io {
            step: "read",
            source,
        }),
        Ok(_) if input.limit() == 0 => Err(ManifestFileError::TooLong),
        Ok(_) => Ok(bytes),
    }
}

impl Loader {
    /// Reads a file, or the `*.yaml`, `*.yml` and `*.json` files of a directory in the order of their names.
    ///
    /// Subdirectories and files whose name begins with a dot are skipped. A pipe is read to its end if `path` names it, as
    /// a shell's `<(COMMAND)` does; in a directory it is an error.
    pub fn path(&mut self, path: &Path) {
        match files(path) {
            Ok(Some(files)) => files.iter().for_each(|file| self.file(file)),
            Ok(None) if is_pipe(path) => match open_pipe(path) {
                Ok(pipe) => self.add(path, read_bounded(pipe, 0)),
                Err(source) => self.unreadable("open", path, source),
            },
            Ok(None) => self.file(path),
            Err(source) => self.unreadable("list", path, source),
        }
    }

    /// Reads `input` to its end; in errors it is called standard input.
    pub fn stdin(&mut self, input: impl Read) {
        self.add(Path::new(STDIN), read_bounded(input, 0));
    }

    /// Reads one file, with [`read_manifest`].
    pub fn file(&mut self, path: &Path) {
        self.add(path, read_manifest(path));
    }

    fn add(&mut self, path: &Path, bytes: Result<Zeroizing<Vec<u8>>, ManifestFileError>) {
        match bytes {
            Ok(bytes) => self.bytes(&path.display().to_string(), &bytes),
            Err(ManifestFileError::Io { step, source }) => {
                // A file is read; which call failed says nothing more.
                let step = if step == "open" { step } else { "read" };
                self.unreadable(step, path, source);
            }
            Err(error) => self.unreadable("read", path, io::Error::other(error)),
        }
    }

    fn bytes(&mut self, name: &str, bytes: &[u8]) {
        match str::from_utf8(bytes) {
            Ok(text) => self.text(name, text),
            Err(error) => {
                let good = &bytes[..error.valid_up_to()];
                self.manifests.errors.push(ManifestError::NotText {
                    path: name.to_owned(),
                    line: good.split(|byte| *byte == b'\n').count(),
                });
            }
        }
    }

    fn unreadable(&mut self, step: &'static str, path: &Path, source: io::Error) {
        self.manifests.errors.push(ManifestError::Read {
            step,
            path: path.display().to_string(),
            source,
        });
    }
}

/// Whether a directory entry of this name is a manifest.
pub fn is_manifest_name(name: &str) -> bool {
    let extension = Path::new(name)
        .extension()
        .and_then(|extension| extension.to_str());
    !name.starts_with('.') && matches!(extension, Some("yaml" | "yml" | "json"))
}

/// Opens a pipe for reading, and waits for a process that writes to it, but not for ever, as opening would by itself.
fn open_pipe(path: &Path) -> io::Result<impl Read> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let pipe = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let wait = Timespec::try_from(WRITER_TIMEOUT).map_err(io::Error::other)?;
    let ready = poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&wait))?;
    // Only reading shows whether a silent pipe has a writer; a byte that arrives at this moment is kept.
    let mut first = [0; 1];
    let count = match (ready, rustix::io::read(&pipe, &mut first)) {
        (0, Ok(0)) => {
            let seconds = WRITER_TIMEOUT.as_secs();
            let text = format!("no process has opened the pipe for writing within {seconds} s");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        (_, Ok(count)) => count,
        (_, Err(Errno::AGAIN)) => 0,
        (_, Err(errno)) => return Err(errno.into()),
    };
    fcntl_setfl(&pipe, OFlags::empty())?;
    Ok(io::Cursor::new(first).take(count as u64).chain(pipe))
}

fn is_pipe(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

/// The manifests of a directory, sorted; `None` if `path` is not a directory.
fn files(path: &Path) -> io::Result<Option<Vec<PathBuf>>> {
    if !path.is_dir() {
        return Ok(None);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        // A file that disappears, and everything that is not regular, is reported when it is read.
        if name.is_some_and(is_manifest_name) && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(Some(files))
}
