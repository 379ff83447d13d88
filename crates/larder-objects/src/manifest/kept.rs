//! Objects whose newest document was rejected, so that an earlier version of them is in use.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use smol_str::SmolStr;

use crate::ObjectKey;

/// The objects of which an earlier version is in use, by kind, namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptObjects(BTreeMap<SmolStr, BTreeMap<ObjectKey, KeptVersion>>);

/// An earlier version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptVersion {
    /// Since when it is not the newest.
    pub since: Timestamp,
    /// Why the newest was rejected; without values.
    pub why: String,
}

impl KeptObjects {
    /// Adds an object.
    pub fn insert(&mut self, kind: &str, key: ObjectKey, version: KeptVersion) {
        self.0.entry(kind.into()).or_default().insert(key, version);
    }

    /// The earlier version of this object, if one is in use.
    pub fn get(&self, kind: &str, key: &ObjectKey) -> Option<&KeptVersion> {
        self.0.get(kind)?.get(key)
    }

    /// Whether the newest version of every object is in use.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
