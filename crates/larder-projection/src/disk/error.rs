//! Errors of this half. One type, because every failure is an operation on a path.

use std::{io, path::Path};

use larder_files::operation_error::{OperationError, failed};

use crate::MountError;

/// A volume, or another file of a pod, could not be brought to its desired state. It never holds content of a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The operating system failed an operation.
    #[error(transparent)]
    Io(OperationError),
    /// The operating system failed an operation after the new content was in place: cleanup, an owner, or a link in the
    /// root of a volume. The next pass repeats it.
    #[error(transparent)]
    AfterCommit(OperationError),
    /// The payload has a file where another of its files needs a directory.
    #[error("path {directory:?} is a file, and also the directory of {file:?}")]
    Conflict {
        /// The path that is both.
        directory: String,
        /// The file below it.
        file: String,
    },
    /// The name of an object cannot be the name of a directory.
    #[error("invalid name {0:?}: expected one element of a path")]
    Name(String),
    /// A `subPath` is absolute, or has an element `..`.
    #[error(transparent)]
    SubPath(MountError),
}

impl DiskError {
    pub(crate) fn new<E: Into<io::Error>>(operation: &'static str, path: &Path, source: E) -> Self {
        Self::Io(failed(operation, path)(source))
    }

    /// Whether the new content is visible: only cleanup failed, and the next pass repeats it.
    pub fn is_after_commit(&self) -> bool {
        matches!(self, Self::AfterCommit(_))
    }
}
