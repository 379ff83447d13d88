//! The sealed index: the copies, their files, and the time of the last freshness check of each.
//!
//! The root lists [`PAGES`] pages, a page lists the copies whose names hash to it. So one change writes a copy, a page
//! and the root, not a list of all copies.
//!
//! Invariants:
//! 1. A file counts only if the index lists its digest. An older or newer file is not served.
//! 2. The counter of the root grows with each write.
//! 3. A copy without a time of its own was fresh when the root was written. So recording the freshness of all watched
//!    objects writes the root alone.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    codec::{CopyId, Malformed, Source, encoded},
    seal::{Digest, FileName, digest},
};

/// Number of pages: at 600 copies, a page and the root take some 2 KiB each.
pub(super) const PAGES: usize = 32;

/// Identifies the content of a copy: equal versions, equal content.
pub(super) type Version = [u8; 16];

/// A file that the index lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileRef {
    pub(super) name: FileName,
    pub(super) digest: Digest,
}

/// A copy in the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexEntry {
    pub(super) kept: CopyState,
    /// Time of its last freshness check; `None`: when the root was written.
    pub(super) proven: Option<Timestamp>,
}

/// The kept state of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyState {
    /// It does not exist.
    Absent,
    /// A copy.
    File { file: FileRef, version: Version },
}

/// The copies, by name.
pub(super) type Entries = BTreeMap<CopyId, IndexEntry>;

/// The root of the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) counter: u64,
    /// When it was written.
    pub(super) proven: Timestamp,
    /// `None` for a page without copies.
    pub(super) pages: [Option<FileRef>; PAGES],
}

impl Default for Root {
    fn default() -> Self {
        Self {
            counter: 0,
            proven: Timestamp::UNIX_EPOCH,
            pages: [const { None }; PAGES],
        }
    }
}

/// The page that lists `id`.
pub(super) fn page_of(id: &CopyId) -> usize {
    let hash = digest(&encoded(|sink| sink.id(id)));
    usize::from(hash[0]) % PAGES
}

impl Root {
    pub(super) fn encode(&self) -> Vec<u8> {
        let bytes = encoded(|sink| {
            sink.put(&self.counter.to_le_bytes());
            sink.time(self.proven);
            for page in &self.pages {
                sink.flag(page.is_some());
                if let Some(file) = page {
                    put_file(sink, file);
                }
            }
        });
        bytes.to_vec()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut source = Source(bytes);
        let mut root = Self {
            counter: u64::from_le_bytes(source.array()?),
            proven: source.time()?,
            ..Self::default()
        };
        for page in &mut root.pages {
            if source.flag()? {
                *page = Some(take_file(&mut source)?);
            }
        }
        source.end()?;
        Ok(root)
    }
}

/// The page that lists these copies.
pub(super) fn encode_page<'a>(
    entries: impl Iterator<Item = (&'a CopyId, &'a IndexEntry)> + Clone,
) -> Vec<u8> {
    let bytes = encoded(|sink| {
        sink.number(entries.clone().count());
        for (id, entry) in entries.clone() {
            sink.id(id);
            sink.flag(entry.proven.is_some());
            if let Some(proven) = entry.proven {
                sink.time(proven);
            }
            let file = match &entry.kept {
                CopyState::Absent => None,
                CopyState::File { file, version } => Some((file, version)),
            };
            sink.flag(file.is_some());
            if let Some((file, version)) = file {
                put_file(sink, file);
                sink.put(version);
            }
        }
    });
    bytes.to_vec()
}

pub(super) fn decode_page(bytes: &[u8]) -> Result<Vec<(CopyId, IndexEntry)>, Malformed> {
    let mut source = Source(bytes);
    let entries = source.list(|source| {
        let id = source.id()?;
        let proven = source.flag()?.then(|| source.time()).transpose()?;
        let kept = if source.flag()? {
            CopyState::File {
                file: take_file(source)?,
                version: source.array()?,
            }
        } else {
            CopyState::Absent
        };
        Ok((id, IndexEntry { kept, proven }))
    })?;
    source.end()?;
    Ok(entries)
}

fn put_file(sink: &mut dyn super::codec::Sink, file: &FileRef) {
    sink.text(&file.name.to_string());
    sink.put(&file.digest);
}

fn take_file(source: &mut Source<'_>) -> Result<FileRef, Malformed> {
    Ok(FileRef {
        name: FileName::parse(source.text()?).ok_or(Malformed)?,
        digest: source.array()?,
    })
}
