//! Files and directories of manifests.
//!
//! [`read_manifest`] is the one reader of manifest files: of `-f`, of `--manifests` and of static pods.
//! Files are read as [`read_regular_file`] does, so reading is bounded and never waits.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use larder_files::regular_file::{RegularFileError, read_bounded, read_file, read_regular_file};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags, fcntl_setfl},
    io::Errno,
};
use zeroize::Zeroizing;

use super::{
    Loader, ManifestError,
    exclude::{Exclusion, outermost},
};

/// Name under which standard input appears in errors.
const STDIN: &str = "standard input";
/// Why a link is not read.
pub const LEAVES: &str = "it is a link that leads out of the directory";
/// Most entries of subdirectories that are looked at where these are not read.
const MAX_ENTRIES: usize = 10_000;
/// Longest wait for a process that writes to a pipe.
const WRITER_TIMEOUT: Duration = Duration::from_secs(1);

/// A manifest of this many bytes is rejected. kubelet 1.36, `pkg/kubelet/config/file.go`: 10 MiB, and exactly 10 MiB is
/// too long.
pub const MAX_MANIFEST_BYTES: u64 = 10 << 20;

/// Reads the manifest file at `path`.
///
/// # Errors
///
/// The file cannot be read, is not a regular file, or is too long.
pub fn read_manifest(path: &Path) -> Result<Zeroizing<Vec<u8>>, RegularFileError> {
    read_regular_file(path, MAX_MANIFEST_BYTES)
}

impl Loader {
    /// Reads a file, or the `*.yaml`, `*.yml` and `*.json` files of a directory in the order of their names.
    ///
    /// Subdirectories are skipped, unless [`Loader::recursive`] was called. A link in a directory is followed if it stays
    /// below it. A pipe is read to its end if `path` names it, as a shell's `<(COMMAND)` does; in a directory it is an
    /// error.
    pub fn path(&mut self, path: &Path) {
        if !self.recursive && has_manifests_below(path, &self.exclusions) {
            self.not_searched(path);
        }
        match files(path, self.recursive, &self.exclusions) {
            Ok(Some(found)) => {
                self.manifests.excluded.extend(found.excluded);
                for (directory, source) in found.unlisted {
                    self.unreadable("list", &directory, source);
                }
                for (file, leaves) in found.files {
                    if leaves {
                        self.not_read(&file, LEAVES);
                    } else {
                        self.file(&file);
                    }
                }
            }
            Ok(None) if is_pipe(path) => match open_pipe(path) {
                Ok(pipe) => self.add(path, read_bounded(pipe, 0, MAX_MANIFEST_BYTES)),
                Err(source) => self.unreadable("open", path, source),
            },
            Ok(None) => self.file(path),
            Err(source) => self.unreadable("list", path, source),
        }
    }

    /// Reads `input` to its end; in errors it is called standard input.
    pub fn stdin(&mut self, input: impl Read) {
        self.input(Path::new(STDIN), input);
    }

    /// Reads `input` to its end, as the file at `path`.
    pub fn input(&mut self, path: &Path, input: impl Read) {
        self.add(path, read_bounded(input, 0, MAX_MANIFEST_BYTES));
    }

    /// Reads one file, with [`read_manifest`].
    pub fn file(&mut self, path: &Path) {
        self.add(path, read_manifest(path));
    }

    /// Reads a file that was opened without waiting for a pipe, as the file at `path`.
    pub fn opened(&mut self, path: &Path, file: File) {
        self.add(path, read_file(file, MAX_MANIFEST_BYTES));
    }

    fn add(&mut self, path: &Path, bytes: Result<Zeroizing<Vec<u8>>, RegularFileError>) {
        self.manifests.files += 1;
        match bytes {
            Ok(bytes) => self.bytes(&path.display().to_string(), &bytes),
            Err(RegularFileError::Io { step, source }) => {
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

    /// Notes that the directory at `path` has manifests in subdirectories, which are not searched.
    pub fn not_searched(&mut self, path: &Path) {
        self.manifests.unsearched.insert(path.to_owned());
    }

    /// Notes that the file at `path` is not read, and why.
    pub fn not_read(&mut self, path: &Path, why: &str) {
        self.manifests.files += 1;
        self.unreadable("read", path, io::Error::other(why));
    }

    /// Whether the file at `below` in a directory is left out.
    pub fn excludes(&self, below: &Path) -> bool {
        outermost(&self.exclusions, below).is_some()
    }

    /// Whether the file at `below` in `directory` is left out, which is noted: for callers that list files themselves.
    pub fn leaves_out(&mut self, directory: &Path, below: &Path) -> bool {
        let outermost = outermost(&self.exclusions, below);
        self.manifests
            .excluded
            .extend(outermost.map(|part| directory.join(part)));
        outermost.is_some()
    }

    /// Notes that a step failed for the file at `path`, and why.
    pub fn unreadable(&mut self, step: &'static str, path: &Path, source: io::Error) {
        self.manifests.errors.push(ManifestError::Read {
            step,
            path: path.display().to_string(),
            source,
        });
    }
}

/// Whether a directory entry of this name is a manifest of a directory that is followed: no lock of Emacs (`.#a.yaml`),
/// and none of a ConfigMap volume's own links (`..data`).
pub fn is_manifest_name(name: &str) -> bool {
    !name.starts_with(".#") && !name.starts_with("..") && has_manifest_extension(Path::new(name))
}

/// Whether kubectl takes the file at `path` for a manifest when it reads a directory; `.yaml` is one.
pub fn has_manifest_extension(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let extensions: [&[u8]; 3] = [b".yaml", b".yml", b".json"];
    extensions.iter().any(|extension| name.ends_with(extension))
}

/// Opens a pipe for reading, and waits for a process that writes to it, but not forever, as opening would by itself.
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

/// The content of a directory.
#[derive(Default)]
struct Found {
    /// The manifests, each with whether it is a link that leads out of the directory.
    files: Vec<(PathBuf, bool)>,
    /// The subdirectories that cannot be listed.
    unlisted: Vec<(PathBuf, io::Error)>,
    excluded: Vec<PathBuf>,
}

/// Whether subdirectories have manifests that are not left out, or too many entries to look at.
fn has_manifests_below(path: &Path, exclusions: &[Exclusion]) -> bool {
    let (mut directories, mut entries) = (vec![path.to_owned()], 0);
    while let Some(directory) = directories.pop() {
        let is_below = directory != path;
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            entries += 1;
            let file = entry.path();
            let below = file.strip_prefix(path).unwrap_or(&file);
            if exclusions.iter().any(|one| one.matches(below)) {
                continue;
            }
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_directory && entry.file_name() != ".git" {
                directories.push(file);
            } else if is_below && !is_directory && has_manifest_extension(&file) {
                return true;
            }
        }
        if entries > MAX_ENTRIES {
            return true;
        }
    }
    false
}

/// The manifests of a directory, sorted, with those of its subdirectories if `recursive`; `None` if `path` is not a
/// directory. As kubectl 1.32 with `-f`, which takes hidden names also.
fn files(path: &Path, recursive: bool, exclusions: &[Exclusion]) -> io::Result<Option<Found>> {
    if !path.is_dir() {
        return Ok(None);
    }
    let root = path.canonicalize()?;
    let (mut found, mut directories) = (Found::default(), vec![path.to_owned()]);
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = entries.unwrap_or_else(|source| {
            found.unlisted.push((directory, source));
            Vec::new()
        });
        for entry in entries {
            let (file, kind) = (entry.path(), entry.file_type()?);
            // A link to a directory may lead back here; git's own files are no manifests.
            let is_directory = kind.is_dir() && recursive && entry.file_name() != ".git";
            let is_manifest = !kind.is_dir() && has_manifest_extension(&file);
            if !is_directory && !is_manifest {
                continue;
            }
            let below = file.strip_prefix(path).unwrap_or(&file);
            if exclusions.iter().any(|one| one.matches(below)) {
                found.excluded.push(file);
            } else if is_directory {
                directories.push(file);
            // A file that disappears, and everything that is not regular, is reported when it is read.
            } else {
                let target = kind.is_symlink().then(|| file.canonicalize());
                let leaves = target.is_some_and(|to| to.is_ok_and(|to| !to.starts_with(&root)));
                found.files.push((file, leaves));
            }
        }
    }
    found.files.sort();
    Ok(Some(found))
}
