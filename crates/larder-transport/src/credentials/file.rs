//! Bounded reads of credential files.
//!
//! The path may come from a kubeconfig, so it may name a FIFO, a device or a huge file. Errors are those of the system
//! or constant texts; none quotes the content.

use std::{io, path::Path};

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
