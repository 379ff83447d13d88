//! The checkpoint of an agent that need not run: what it holds, whether it opens, and how to remove it.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use jiff::Timestamp;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use super::{
    ClusterId, KeyError, KeySource, Store, StoreError, credentials, key::Keyring, store::Contents,
};

/// What a checkpoint holds, without any value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// The copies, by kind, namespace and name.
    pub copies: Vec<CopyInfo>,
    /// The files that do not open, each with the reason; also the directory, if other users can enter it.
    pub rejected: Vec<String>,
}

/// One copy in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyInfo {
    /// `Pod`, `ConfigMap`, `Secret`, `Node` or `Services`.
    pub kind: &'static str,
    /// Namespace; empty for the facts about the node.
    pub namespace: String,
    /// Name; empty for the facts about the node.
    pub name: String,
    /// Whether it is known not to exist.
    pub is_absent: bool,
    /// When it was last proven current.
    pub proven: Timestamp,
    /// Length of its file; 0 if it is absent.
    pub bytes: u64,
}

/// A checkpoint cannot be inspected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// A key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Opens everything in the checkpoint below the root directory `root`, and changes nothing; `None` if there is none.
///
/// # Errors
///
/// A key or the directory cannot be used.
pub fn inspect(
    root: &Path,
    keys: &[KeySource],
    cluster: ClusterId,
    node: &str,
) -> Result<Option<Inspection>, InspectError> {
    let Some(directory) = open(root)? else {
        return Ok(None);
    };
    let keys = Keyring::load_existing(keys, credentials().as_deref())?;
    let found = Store::inspect(directory.as_fd(), root, &keys, &cluster.owner(node))?;
    let inspection = found.map(|Contents { copies, rejected }| {
        let copies = copies.into_iter().map(|copy| CopyInfo {
            kind: copy.id.kind.as_str(),
            namespace: copy.id.namespace,
            name: copy.id.name,
            is_absent: copy.content.is_none(),
            proven: copy.proven,
            bytes: copy.bytes,
        });
        Inspection {
            copies: copies.collect(),
            rejected: rejected.iter().map(ToString::to_string).collect(),
        }
    });
    Ok(inspection)
}

/// Removes the checkpoint below the root directory `root`; returns the number of removed files. An agent that runs
/// there writes a new one at the next change.
///
/// # Errors
///
/// The directory cannot be used, or a file cannot be removed.
pub fn erase(root: &Path) -> Result<usize, StoreError> {
    match open(root)? {
        Some(directory) => Store::erase(directory.as_fd(), root),
        None => Ok(0),
    }
}

fn open(root: &Path) -> Result<Option<OwnedFd>, StoreError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(root, flags, Mode::empty()) {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(StoreError::Io {
            operation: "open",
            path: root.to_owned(),
            source: errno.into(),
        }),
    }
}
