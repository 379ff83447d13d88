//! The sealed index: the copies, their files, and the time of the last freshness check of each.
//!
//! Invariants:
//! 1. A file counts only if the index lists its digest. An older or newer file is not served.
//! 2. The counter grows with each write.
//! 3. A copy without a time of its own was fresh when the index was written. So recording the freshness of all watched
//!    objects writes the index alone.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use smol_str::SmolStr;
use zeroize::Zeroizing;

use crate::{
    bytes::{Malformed, Sink, Source, encoded},
    seal::{Digest, FileName},
};

/// The name of a copy. The texts are the caller's; no two copies have the same three.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileRef {
    pub(crate) name: FileName,
    pub(crate) digest: Digest,
}

/// A copy in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) kept: CopyState,
    /// Time of its last freshness check; `None`: when the index was written.
    pub(crate) verified_at: Option<Timestamp>,
}

/// The kept state of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyState {
    /// It does not exist.
    Absent,
    /// A copy.
    File { file: FileRef, version: Version },
}

/// The copies, by name.
pub(crate) type Entries = BTreeMap<CopyId, IndexEntry>;

/// The list of the copies.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Index {
    pub(crate) counter: u64,
    /// When it was written.
    pub(crate) written_at: Timestamp,
    pub(crate) entries: Entries,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            counter: 0,
            written_at: Timestamp::UNIX_EPOCH,
            entries: Entries::new(),
        }
    }
}

impl Index {
    /// The files that it lists.
    pub(crate) fn files(&self) -> impl Iterator<Item = FileName> {
        self.entries.values().filter_map(|entry| match entry.kept {
            CopyState::Absent => None,
            CopyState::File { file, .. } => Some(file.name),
        })
    }

    /// The bytes that the entry of a copy takes at most.
    pub(crate) fn room_of(id: &CopyId) -> usize {
        let texts = [&id.kind, &id.namespace, &id.name];
        let texts = texts.map(|text| size_of::<u32>() + text.len());
        texts.iter().sum::<usize>() + size_of::<IndexEntry>()
    }

    pub(crate) fn encode(&self) -> Zeroizing<Vec<u8>> {
        encoded(|sink| {
            sink.put(&self.counter.to_le_bytes());
            sink.time(self.written_at);
            sink.number(self.entries.len());
            for (id, entry) in &self.entries {
                put_entry(sink, id, entry);
            }
        })
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut source = Source(bytes);
        let index = Self {
            counter: u64::from_le_bytes(source.array()?),
            written_at: source.time()?,
            entries: Entries::from_iter(source.list(take_entry)?),
        };
        source.end()?;
        Ok(index)
    }
}

fn put_entry(sink: &mut dyn Sink, id: &CopyId, entry: &IndexEntry) {
    for text in [&id.kind, &id.namespace, &id.name] {
        sink.text(text);
    }
    sink.flag(entry.verified_at.is_some());
    if let Some(time) = entry.verified_at {
        sink.time(time);
    }
    sink.flag(entry.kept != CopyState::Absent);
    if let CopyState::File { file, version } = &entry.kept {
        sink.put(&file.name.0);
        sink.put(&file.digest);
        sink.put(version);
    }
}

fn take_entry(source: &mut Source<'_>) -> Result<(CopyId, IndexEntry), Malformed> {
    let id = CopyId {
        kind: source.text()?.into(),
        namespace: source.text()?.into(),
        name: source.text()?.into(),
    };
    let verified_at = source.flag()?.then(|| source.time()).transpose()?;
    let kept = if source.flag()? {
        CopyState::File {
            file: FileRef {
                name: FileName(source.array()?),
                digest: source.array()?,
            },
            version: source.array()?,
        }
    } else {
        CopyState::Absent
    };
    Ok((id, IndexEntry { kept, verified_at }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claimed_lengths_allocate_nothing() {
        // A list of four thousand million entries in four bytes.
        let claims = [&[0; 16][..], &[0xff; 4]].concat();
        assert!(Index::decode(&claims).is_err());
    }
}
