//! Lists and verifies the checkpoint of an agent, whether or not it runs.

use jiff::Timestamp;
use larder_checkpoint::{CheckpointDir, Contents, KeyError, KeySource, Keyring, Store, StoreError};

use super::{
    ClusterId,
    codec::{CopyContent, CopyKind},
    credentials,
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
    pub kind: String,
    /// Namespace; empty for the facts about the node.
    pub namespace: String,
    /// Name; empty for the facts about the node.
    pub name: String,
    /// Whether it is known not to exist.
    pub is_absent: bool,
    /// Time of its last freshness check.
    pub verified_at: Timestamp,
    /// Length of its file; 0 if it is absent.
    pub bytes: u64,
}

/// A checkpoint cannot be opened.
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

impl InspectError {
    /// The reason, as a label of metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Key(_) => "key",
            Self::Store(error) => error.label(),
        }
    }
}

/// Opens everything in the checkpoint at `place`, and changes nothing; `None` if there is none.
///
/// # Errors
///
/// A key or the directory cannot be used.
pub fn inspect(
    place: &CheckpointDir,
    keys: &[KeySource],
    cluster: ClusterId,
    node: &str,
) -> Result<Option<Inspection>, InspectError> {
    if !place.exists()? {
        return Ok(None);
    }
    let keys = Keyring::load_existing(keys, credentials().as_deref())?;
    let found = Store::inspect(place, &keys, &cluster.owner(node), CopyContent::decode)?;
    Ok(found.map(
        |Contents {
             mut copies,
             rejected,
         }| {
            // The store knows kinds as names.
            copies.sort_by(|a, b| (CopyKind::of(&a.id), &a.id).cmp(&(CopyKind::of(&b.id), &b.id)));
            let copies = copies.into_iter().map(|copy| CopyInfo {
                kind: copy.id.kind.into(),
                namespace: copy.id.namespace.into(),
                name: copy.id.name.into(),
                is_absent: copy.content.is_none(),
                verified_at: copy.verified_at,
                bytes: copy.bytes,
            });
            Inspection {
                copies: copies.collect(),
                rejected: rejected.iter().map(ToString::to_string).collect(),
            }
        },
    ))
}
