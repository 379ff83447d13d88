//! Lists and verifies the checkpoint of an agent, whether or not it runs.

use larder_checkpoint::{
    CheckpointDir, Contents, CopyId, KeyError, KeySource, Keyring, Store, StoreError,
};

use super::{
    ClusterId,
    codec::{CopyContent, CopyKind},
    credentials,
};

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
/// The copies have no content, and are sorted by kind, namespace and name. The directory is among the rejected files if
/// other users can enter it.
///
/// # Errors
///
/// A key or the directory cannot be used.
pub fn inspect(
    place: &CheckpointDir,
    keys: &[KeySource],
    cluster: ClusterId,
    node: &str,
) -> Result<Option<Contents<()>>, InspectError> {
    if !place.exists()? {
        return Ok(None);
    }
    let keys = Keyring::load_existing(keys, credentials().as_deref())?;
    let decode = |id: &CopyId, bytes: &[u8]| CopyContent::decode(id, bytes).map(drop);
    let mut found = Store::inspect(place, &keys, &cluster.owner(node), decode)?;
    if let Some(Contents { copies, .. }) = &mut found {
        // The store knows kinds as names.
        copies.sort_by(|a, b| (CopyKind::of(&a.id), &a.id).cmp(&(CopyKind::of(&b.id), &b.id)));
    }
    Ok(found)
}
