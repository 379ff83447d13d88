//! Reads the directory: opens every file that the index lists, and compares it with its entry.
//!
//! Nothing is changed here. Files that do not open are reported with their reasons, and the rest is loaded. The caller
//! takes the contents one by one: if the API server answers, a start opens every file and keeps no content.
//!
//! A file that the system fails to read may be fine, and the next attempt may read it. So it is reported and keeps its
//! entry; if it is the index, nothing is loaded.

use std::{
    collections::BTreeSet,
    error::Error as _,
    fmt, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use jiff::Timestamp;
use larder_files::{operation_error::failed, ownership::Ownership, regular_file::read_open, sys};
use rustix::{fs::Stat, io::Errno};
use zeroize::Zeroizing;

use super::{INDEX, MAX_FILE_BYTES, directory::StoreError};
use crate::{
    index::{CopyId, FileRef, Index, Malformed},
    key::Keyring,
    seal::{FileName, KeyId, Owner, SealContext, SealError, digest, open},
};

/// Why a file is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    /// It is not sealed for its place with a known key.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// It is another file than the index lists.
    #[error("older or newer than the index says, or damaged")]
    OtherVersion,
    /// There is no such file.
    #[error("missing")]
    Missing,
    /// What was sealed cannot be decoded.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It is no regular file, or others may read it.
    #[error("not a file of the agent's user")]
    Foreign,
    /// Reading failed.
    #[error("cannot be read")]
    Io(#[source] io::Error),
    /// It is listed by an index that was rejected, if at all.
    #[error("its index cannot be read")]
    NoIndex,
    /// Of the directory.
    #[error("mode {0:04o} lets other users enter, expected 0700")]
    Exposed(u32),
}

/// A file that is not served.
#[derive(Debug)]
pub struct RejectedFile {
    /// Its name in the directory.
    pub file: String,
    /// The copy that it should contain, if the index lists it.
    pub id: Option<CopyId>,
    /// Why it is not served.
    pub reason: Rejection,
}

impl Rejection {
    /// The system failed to read the file, which says nothing about its content.
    fn failed_read(&self) -> Option<Errno> {
        match self {
            Self::Io(source) => Errno::from_io_error(source).filter(|errno| *errno != Errno::FBIG),
            _ => None,
        }
    }
}

impl fmt::Display for RejectedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(id) = &self.id {
            write!(f, " ({id})")?;
        }
        write!(f, ": {}", self.reason)?;
        match self.reason.source() {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

/// A copy that the checkpoint contains.
#[derive(Clone, Debug)]
pub struct SavedCopy<T> {
    /// Its name.
    pub id: CopyId,
    /// `None`: it is known not to exist.
    pub content: Option<T>,
    /// Time of its last freshness check.
    pub verified_at: Timestamp,
    /// Length of its file; 0 if it does not exist.
    pub bytes: u64,
}

/// The content of a checkpoint.
#[derive(Debug)]
pub struct Contents<T> {
    /// The copies that opened, by name.
    pub copies: Vec<SavedCopy<T>>,
    /// The files that did not.
    pub rejected: Vec<RejectedFile>,
}

/// The files found in the directory.
#[derive(Default)]
pub(super) struct Loaded {
    /// The index, without the copies that did not open.
    pub(super) index: Index,
    pub(super) rejected: Vec<RejectedFile>,
    /// Files that the system failed to read. The index keeps their copies.
    pub(super) unread: Vec<RejectedFile>,
    /// Files that the index does not list.
    pub(super) leftovers: Vec<FileName>,
    /// Copies sealed with another key than the present one, or in a file that the system failed to read.
    pub(super) resealed: BTreeSet<CopyId>,
    /// Whether something was rejected, or the index was sealed with another key.
    pub(super) rewrite_index: bool,
    pub(super) index_file: Option<FileIdentity>,
}

impl Loaded {
    /// Rejects an index that did not open, and with it all other files.
    fn reject_all(&mut self, reason: Rejection, files: BTreeSet<FileName>) {
        let rejected = |file, reason| RejectedFile {
            file,
            id: None,
            reason,
        };
        self.rejected.push(rejected(INDEX.to_owned(), reason));
        let files = files.into_iter();
        self.rejected
            .extend(files.map(|file| rejected(file.to_string(), Rejection::NoIndex)));
    }

    /// Whether the index keeps a copy that did not open: it does if the system failed to read its file.
    fn keep_unopened(&mut self, id: &CopyId, file: &FileRef, reason: Rejection) -> bool {
        let is_unread = reason.failed_read().is_some();
        let file = RejectedFile {
            file: file.name.to_string(),
            id: Some(id.clone()),
            reason,
        };
        if is_unread {
            self.resealed.insert(id.clone());
            self.unread.push(file);
        } else {
            self.rejected.push(file);
        }
        is_unread
    }
}

/// Reads everything that the index lists, and keeps it.
pub(super) fn contents<T>(
    directory: &OwnedFd,
    path: &Path,
    keys: &Keyring,
    owner: &Owner,
    decode: &impl Fn(&CopyId, &[u8]) -> Result<T, Malformed>,
) -> Result<Contents<T>, StoreError> {
    let mut copies = Vec::new();
    let take = |copy| copies.push(copy);
    let loaded = load(directory, path, keys, owner, decode, take)?;
    let mut rejected = loaded.rejected;
    rejected.extend(loaded.unread);
    Ok(Contents { copies, rejected })
}

/// Identifies the file while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }
}

/// Reads everything that the index lists, and hands each copy that `decode` takes to `take`.
pub(super) fn load<T>(
    directory: &OwnedFd,
    path: &Path,
    keys: &Keyring,
    owner: &Owner,
    decode: &impl Fn(&CopyId, &[u8]) -> Result<T, Malformed>,
    mut take: impl FnMut(SavedCopy<T>),
) -> Result<Loaded, StoreError> {
    let names = sys::names(directory).map_err(failed("list", path))?;
    let mut unlisted: BTreeSet<_> = names
        .into_iter()
        .filter_map(|name| FileName::parse(&name))
        .collect();
    let reader = Reader {
        directory: directory.as_fd(),
        keys,
        owner,
    };
    let mut loaded = Loaded::default();
    let sealing = keys.sealing().id();
    match reader.index() {
        Ok((index, key, identity)) => {
            loaded.index = index;
            loaded.rewrite_index = key != sealing;
            loaded.index_file = Some(identity);
        }
        // A crash before the first commit, or nothing at all.
        Err(Rejection::Missing) => {}
        Err(reason) => {
            if let Some(errno) = reason.failed_read() {
                return Err(failed("read", &path.join(INDEX))(errno).into());
            }
            loaded.reject_all(reason, std::mem::take(&mut unlisted));
        }
    }
    let mut entries = std::mem::take(&mut loaded.index.entries);
    entries.retain(|id, entry| {
        let mut saved = SavedCopy {
            id: id.clone(),
            content: None,
            verified_at: entry.verified_at.unwrap_or(loaded.index.written_at),
            bytes: 0,
        };
        if let Some(file) = &entry.file {
            unlisted.remove(&file.name);
            match reader.copy(id, file, decode) {
                Ok((content, key, bytes)) => {
                    if key != sealing {
                        loaded.resealed.insert(id.clone());
                    }
                    saved.bytes = bytes;
                    saved.content = Some(content);
                }
                Err(reason) => return loaded.keep_unopened(id, file, reason),
            }
        }
        take(saved);
        true
    });
    loaded.index.entries = entries;
    loaded.rewrite_index |= !loaded.rejected.is_empty();
    loaded.leftovers = unlisted.into_iter().collect();
    Ok(loaded)
}

/// Reads files of one directory.
struct Reader<'a> {
    directory: BorrowedFd<'a>,
    keys: &'a Keyring,
    owner: &'a Owner,
}

impl Reader<'_> {
    fn index(&self) -> Result<(Index, KeyId, FileIdentity), Rejection> {
        let (bytes, identity) = self.read(INDEX)?;
        let opened = open(self.keys.all(), &SealContext::index(self.owner), bytes)?;
        Ok((Index::decode(&opened.content)?, opened.key, identity))
    }

    /// The content of a copy, the key that sealed it, and the length of its file, if that is the one that the index
    /// lists.
    fn copy<T>(
        &self,
        id: &CopyId,
        file: &FileRef,
        decode: &impl Fn(&CopyId, &[u8]) -> Result<T, Malformed>,
    ) -> Result<(T, KeyId, u64), Rejection> {
        let (sealed, _) = self.read(&file.name.to_string())?;
        if digest(&sealed) != file.digest {
            return Err(Rejection::OtherVersion);
        }
        let bytes = sealed.len() as u64;
        let place = SealContext::new(self.owner, [&id.kind, &id.namespace, &id.name]);
        let opened = open(self.keys.all(), &place, sealed)?;
        Ok((decode(id, &opened.content)?, opened.key, bytes))
    }

    fn read(&self, name: &str) -> Result<(Zeroizing<Vec<u8>>, FileIdentity), Rejection> {
        let io = |errno: Errno| Rejection::Io(errno.into());
        let (file, stat) = match sys::open_regular(self.directory, name) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Err(Rejection::Missing),
            Err(Errno::LOOP | Errno::INVAL) => return Err(Rejection::Foreign),
            Err(errno) => return Err(io(errno)),
        };
        let ownership = Ownership::from(&stat);
        if !ownership.is_own() || ownership.is_open_to_others() {
            return Err(Rejection::Foreign);
        }
        let bytes = read_open(&file, &stat, MAX_FILE_BYTES).map_err(io)?;
        Ok((bytes, FileIdentity::of(&stat)))
    }
}
