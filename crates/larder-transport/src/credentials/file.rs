//! Credential files: bounded reads, and detection of changes.
//!
//! The path may come from a kubeconfig, so it may name a FIFO, a device or a huge file. Errors are those of the system
//! or constant texts; none quotes the content.

use std::{fs, io, path::Path, time::SystemTime};

use larder_files::regular_file::{read_regular_file, read_regular_text};
use zeroize::Zeroizing;

/// A credential file of this many bytes is rejected. A kubeconfig with the certificates of a hundred clusters takes
/// less.
const MAX_BYTES: u64 = 4 << 20;

/// Reads a file. The bytes are wiped when they are dropped.
///
/// # Errors
///
/// The system refuses it, it is no regular file, or it is too large.
pub(super) fn read(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    Ok(read_regular_file(path, MAX_BYTES)?)
}

/// Reads a file that holds UTF-8 text.
///
/// # Errors
///
/// As of [`read`], or it is not UTF-8.
pub(super) fn read_text(path: &Path) -> io::Result<Zeroizing<String>> {
    Ok(read_regular_text(path, MAX_BYTES)?)
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
