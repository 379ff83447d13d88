//! What an object is called.

use std::fmt;

use larder_objects::{ObjectKey, manifest::RawObject};
use smol_str::SmolStr;

/// Kind, namespace and name of an object. Displays as `ConfigMap prod/app`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectId {
    /// `kind`, as in the manifest.
    pub(crate) kind: SmolStr,
    /// Namespace and name.
    pub(crate) key: ObjectKey,
}

impl ObjectId {
    pub(crate) fn of(object: &RawObject) -> Self {
        Self {
            kind: object.text("/kind").into(),
            key: object.key(),
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.key.name)
        } else {
            write!(f, "{} {}", self.kind, self.key)
        }
    }
}
