//! The sealed index: the copies, their files, and the time of the last freshness check of each.
//!
//! Invariants:
//! 1. A file counts only if the index lists its digest. An older or newer file is not served.
//! 2. The counter grows with each write.
//! 3. A copy without a time of its own was fresh when the index was written. So recording the freshness of all watched
//!    objects writes the index alone.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::seal::{Digest, FileName};

/// Malformed content. It occurs only if a program with the key has sealed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("content is malformed")]
pub struct Malformed;

/// The name of a copy. The texts are the caller's; no two copies have the same three.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CopyId {
    /// What kind of thing it is a copy of.
    pub kind: SmolStr,
    /// Its namespace; may be empty.
    pub namespace: SmolStr,
    /// Its name; may be empty.
    pub name: SmolStr,
}

impl fmt::Display for CopyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        for (text, before) in [(&self.namespace, " "), (&self.name, "/")] {
            if !text.is_empty() {
                write!(f, "{before}{text}")?;
            }
        }
        Ok(())
    }
}

/// Identifies the content of a copy: equal versions, equal content.
pub type Version = [u8; 16];

/// A file that the index lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileRef {
    pub(crate) name: FileName,
    pub(crate) digest: Digest,
    /// Of the copy in it.
    pub(crate) version: Version,
}

/// A copy in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IndexEntry {
    /// Its file; `None`: the subject is known not to exist.
    pub(crate) file: Option<FileRef>,
    /// Time of its last freshness check; `None`: when the index was written.
    #[serde(with = "jiff::fmt::serde::timestamp::millisecond::optional")]
    pub(crate) verified_at: Option<Timestamp>,
}

/// The copies, by name.
pub(crate) type Entries = BTreeMap<CopyId, IndexEntry>;

/// The entries that copies get; `None`: the copy goes.
pub(crate) type IndexChanges = BTreeMap<CopyId, Option<IndexEntry>>;

/// The list of the copies.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Index {
    pub(crate) counter: u64,
    /// When it was written.
    #[serde(with = "jiff::fmt::serde::timestamp::millisecond::required")]
    pub(crate) written_at: Timestamp,
    pub(crate) entries: Entries,
}

impl Index {
    /// The files that it lists.
    pub(crate) fn files(&self) -> impl Iterator<Item = FileName> {
        self.entries
            .values()
            .filter_map(|entry| entry.file)
            .map(|file| file.name)
    }

    /// Exchanges the entries of `changes` for those of the same copies. A second time it takes that back.
    pub(crate) fn exchange(&mut self, changes: &mut IndexChanges) {
        for (id, entry) in changes {
            *entry = match entry.take() {
                Some(new) => self.entries.insert(id.clone(), new),
                None => self.entries.remove(id),
            };
        }
    }

    /// The bytes that the entry of a copy takes at most.
    pub(crate) fn room_of(id: &CopyId) -> usize {
        let texts = [&id.kind, &id.namespace, &id.name].map(|text| size_of::<u32>() + text.len());
        texts.iter().sum::<usize>() + size_of::<IndexEntry>()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("the length of every list is known")
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        postcard::from_bytes(bytes).map_err(|_| Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claimed_lengths_allocate_nothing() {
        // A list of four thousand million entries in five bytes.
        let claims = [&[0; 2][..], &[0xff; 4], &[0x0f]].concat();
        assert!(Index::decode(&claims).is_err());
    }
}
