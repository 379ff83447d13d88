//! Credential files: bounded reads, and how to notice that one has changed.
//!
//! The path may come from a kubeconfig, so it may name a FIFO, a device or a huge file. Only regular files are read,
//! and only up to a limit. Errors are those of the system or constant texts; none quotes the content.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
    time::SystemTime,
};

use rustix::fs::{Mode, OFlags};
use zeroize::Zeroizing;

/// Longest credential file that is read, in bytes. A kubeconfig with the certificates of a hundred clusters takes less.
const MAX_BYTES: u64 = 4 << 20;

/// Reads a file of at most [`MAX_BYTES`]. The bytes are wiped when they are dropped.
///
/// # Errors
///
/// The system refuses it, it is no regular file, or it is too large.
pub(super) fn read(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    // Without NONBLOCK, opening a FIFO waits for its writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(unusable("not a regular file"));
    }
    // One allocation, so that no copy stays behind unwiped. The file may still grow while it is read.
    let length = usize::try_from(metadata.len().min(MAX_BYTES)).unwrap_or_default();
    let mut content = Zeroizing::new(vec![0; length + 1]);
    let mut filled = 0;
    while filled < content.len() {
        match (&file).read(&mut content[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if filled > length {
        return Err(unusable(if metadata.len() > MAX_BYTES {
            "larger than 4 MiB"
        } else {
            "changed while it was read"
        }));
    }
    content.truncate(filled);
    Ok(content)
}

/// Reads a file that holds UTF-8 text.
///
/// # Errors
///
/// As of [`read`], or it is not UTF-8.
pub(super) fn read_text(path: &Path) -> io::Result<Zeroizing<String>> {
    let mut content = read(path)?;
    String::from_utf8(std::mem::take(&mut *content))
        .map(Zeroizing::new)
        .map_err(|error| {
            drop(Zeroizing::new(error.into_bytes()));
            unusable("not UTF-8")
        })
}

fn unusable(problem: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

/// Identifies one content of a file, also when a link is flipped or the file is replaced within one clock tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
}

impl Stamp {
    /// The stamp of the file at `path`; `None` if it cannot be found.
    pub(super) fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            modified: metadata.modified().ok(),
            length: metadata.len(),
            inode: metadata.ino(),
        })
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType};

    use super::*;

    #[test]
    fn only_small_regular_files_are_read() {
        let directory = tempfile::TempDir::new().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("token"), "text").unwrap();
        assert_eq!(**read(&at("token")).unwrap(), *b"text");
        assert_eq!(**read_text(&at("token")).unwrap(), *"text");

        rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        fs::write(at("large"), "").unwrap();
        File::options()
            .write(true)
            .open(at("large"))
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        for (path, problem) in [
            (at("fifo"), "not a regular file"),
            (at("."), "not a regular file"),
            ("/dev/zero".into(), "not a regular file"),
            (at("large"), "larger than 4 MiB"),
        ] {
            assert_eq!(read(&path).unwrap_err().to_string(), problem);
        }
        assert_eq!(
            read(&at("none")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        fs::write(at("binary"), [0xff]).unwrap();
        assert_eq!(
            read_text(&at("binary")).unwrap_err().to_string(),
            "not UTF-8"
        );
    }
}
