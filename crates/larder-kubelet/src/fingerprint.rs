//! Keyed fingerprints, kept in place of content.
//!
//! Invariant: the key exists in memory only, so a fingerprint reveals nothing about a short Secret. Only fingerprints
//! under the same key are compared. They never decide whether a file has the computed content: files are compared byte
//! by byte.

use std::hash::{BuildHasher as _, Hash, Hasher as _, RandomState};

/// The key of the fingerprints of a process. By default it is random.
#[derive(Clone, Debug, Default)]
pub struct FingerprintKey(RandomState);

/// Stands for some content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl FingerprintKey {
    /// The fingerprint of `items`, in their order.
    pub fn of(&self, items: impl IntoIterator<Item = impl Hash>) -> Fingerprint {
        let mut hasher = self.0.build_hasher();
        for item in items {
            item.hash(&mut hasher);
        }
        Fingerprint(hasher.finish())
    }
}
