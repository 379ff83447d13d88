//! The error of an operation on a file or directory. It names the path, which no error of the system does.

use std::{
    io,
    path::{Path, PathBuf},
};

/// The system failed an operation.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}", path.display())]
pub struct OperationError {
    /// The operation, as a verb: `open`, `examine`.
    pub operation: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The system's reason.
    pub source: io::Error,
}

/// Makes an error of the system's reason why `operation` on `path` failed.
pub fn failed<E: Into<io::Error>>(
    operation: &'static str,
    path: &Path,
) -> impl Fn(E) -> OperationError {
    move |source| OperationError {
        operation,
        path: path.to_owned(),
        source: source.into(),
    }
}
