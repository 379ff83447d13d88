//! Lists, verifies and removes the checkpoint of an agent, which need not run.

use std::{os::fd::AsFd as _, path::Path};

use jiff::Timestamp;

use super::{
    ClusterId, KeyError, KeySource, Store, StoreError, credentials,
    key::Keyring,
    store::{Contents, open_parent},
};

/// The content of a checkpoint, without values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// The copies, by kind, namespace and name.
    pub copies: Vec<CopyInfo>,
    /// The files that do not open, with their reasons; also the directory, if other users can enter it.
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
    /// Time of its last freshness check.
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

/// Opens everything in the checkpoint in `directory`, and changes nothing; `None` if there is none.
///
/// # Errors
///
/// A key or the directory cannot be used.
pub fn inspect(
    directory: &Path,
    keys: &[KeySource],
    cluster: ClusterId,
    node: &str,
) -> Result<Option<Inspection>, InspectError> {
    let Some(parent) = open_parent(directory)? else {
        return Ok(None);
    };
    let keys = Keyring::load_existing(keys, credentials().as_deref())?;
    let found = Store::inspect(parent.as_fd(), directory, &keys, &cluster.owner(node))?;
    let inspection = found.map(|Contents { copies, rejected }| {
        let copies = copies.into_iter().map(|copy| CopyInfo {
            kind: copy.id.kind.as_str(),
            namespace: copy.id.namespace.into(),
            name: copy.id.name.into(),
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

/// Removes the checkpoint in `directory`; returns the number of removed files. An agent that uses it writes a new one at
/// the next change.
///
/// # Errors
///
/// The directory cannot be used, or a file cannot be removed.
pub fn erase(directory: &Path) -> Result<usize, StoreError> {
    match open_parent(directory)? {
        Some(parent) => Store::erase(parent.as_fd(), directory),
        None => Ok(0),
    }
}
