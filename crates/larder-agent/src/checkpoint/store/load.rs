//! Reads the directory: opens every file that the index lists, and compares it with its entry.
//!
//! Nothing is changed here. Files that do not open are reported with their reasons, and the rest is loaded. The caller
//! takes the contents one by one: a start whose API server answers opens every file and keeps no content.

use std::{
    collections::BTreeSet,
    fmt, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use jiff::Timestamp;
use rustix::{
    fs::{FileType, Stat},
    io::Errno,
};
use zeroize::Zeroizing;

use super::{INDEX, MAX_FILE_BYTES, StoreError, directory::failed};
use crate::checkpoint::{
    codec::{CopyContent, CopyId},
    index::{CopyState, Entries, FileRef, IndexEntry, PAGES, Root, decode_page},
    key::Keyring,
    seal::{FileName, KeyId, Owner, SealContext, SealError, digest, open},
    sys,
};

/// Why a file is not served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Rejection {
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error("older or newer than the index says, or damaged")]
    OtherVersion,
    #[error("missing")]
    Missing,
    #[error("content is malformed")]
    Malformed,
    #[error("not a file of the agent's user")]
    Foreign,
    #[error("cannot be read")]
    Io(#[source] io::Error),
    #[error("its index cannot be read")]
    NoIndex,
    #[error("mode {0:04o} lets other users enter, expected 0700")]
    Exposed(u32),
}

/// A file that is not served.
#[derive(Debug)]
pub(crate) struct RejectedFile {
    /// Its name in the directory.
    pub(crate) file: String,
    /// The copy that it should contain, if the index lists it.
    pub(crate) id: Option<CopyId>,
    pub(crate) reason: Rejection,
}

impl fmt::Display for RejectedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(id) = &self.id {
            write!(f, " ({id})")?;
        }
        write!(f, ": {}", larder_objects::chain(&self.reason))
    }
}

/// A copy that the checkpoint contains.
#[derive(Clone, Debug)]
pub(crate) struct SavedCopy {
    pub(crate) id: CopyId,
    /// `None`: it is known not to exist.
    pub(crate) content: Option<CopyContent>,
    /// Time of its last freshness check.
    pub(crate) proven: Timestamp,
    /// Length of its file.
    pub(crate) bytes: u64,
}

/// The files found in the directory.
pub(super) struct Loaded {
    pub(super) root: Root,
    pub(super) entries: Entries,
    pub(super) rejected: Vec<RejectedFile>,
    /// Files that the index does not list.
    pub(super) leftovers: Vec<FileName>,
    /// Copies sealed with another key than the present one.
    pub(super) resealed: BTreeSet<CopyId>,
    /// Whether part of the index was rejected, or sealed with another key.
    pub(super) rewrite_index: bool,
    pub(super) index: Option<FileIdentity>,
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

/// Reads everything that the index lists, and hands each copy that opens to `take`.
pub(super) fn load(
    directory: &OwnedFd,
    path: &Path,
    keys: &Keyring,
    owner: &Owner,
    take: impl FnMut(SavedCopy),
) -> Result<Loaded, StoreError> {
    let names = sys::list(directory).map_err(failed("list", path))?;
    let mut unlisted: BTreeSet<_> = names
        .into_iter()
        .filter_map(|name| FileName::parse(&name))
        .collect();
    let reader = Reader {
        directory: directory.as_fd(),
        keys,
        owner,
    };
    let mut loaded = Loaded {
        root: Root::default(),
        entries: Entries::new(),
        rejected: Vec::new(),
        leftovers: Vec::new(),
        resealed: BTreeSet::new(),
        rewrite_index: false,
        index: None,
    };
    let sealing = keys.sealing().id();
    match reader.root() {
        Ok((root, key, identity)) => {
            loaded.root = root;
            loaded.rewrite_index = key != sealing;
            loaded.index = Some(identity);
        }
        // A crash before the first commit, or nothing at all.
        Err(Rejection::Missing) => {}
        Err(reason) => {
            let index = RejectedFile {
                file: INDEX.to_owned(),
                id: None,
                reason,
            };
            loaded.rejected.push(index);
            let files = std::mem::take(&mut unlisted).into_iter();
            loaded.rejected.extend(files.map(|file| RejectedFile {
                file: file.to_string(),
                id: None,
                reason: Rejection::NoIndex,
            }));
        }
    }
    for number in 0..PAGES {
        let Some(file) = loaded.root.pages[number] else {
            continue;
        };
        unlisted.remove(&file.name);
        match reader.page(number, &file) {
            Ok((entries, key)) => {
                loaded.entries.extend(entries);
                loaded.rewrite_index |= key != sealing;
            }
            Err(reason) => {
                loaded.root.pages[number] = None;
                loaded.rejected.push(RejectedFile {
                    file: file.name.to_string(),
                    id: None,
                    reason,
                });
            }
        }
    }
    reader.copies(&mut loaded, &mut unlisted, take);
    loaded.rewrite_index |= !loaded.rejected.is_empty();
    loaded.leftovers = unlisted.into_iter().collect();
    Ok(loaded)
}

/// A copy that opened.
struct OpenedCopy {
    content: CopyContent,
    key: KeyId,
    bytes: u64,
}

/// Reads files of one directory.
struct Reader<'a> {
    directory: BorrowedFd<'a>,
    keys: &'a Keyring,
    owner: &'a Owner,
}

impl Reader<'_> {
    fn root(&self) -> Result<(Root, KeyId, FileIdentity), Rejection> {
        let (bytes, identity) = self.read(INDEX)?;
        let place = SealContext::new(self.owner, "Index", "", "root");
        let opened = open(self.keys.all(), place, bytes)?;
        let root = Root::decode(&opened.content).map_err(|_| Rejection::Malformed)?;
        Ok((root, opened.key, identity))
    }

    fn page(
        &self,
        number: usize,
        file: &FileRef,
    ) -> Result<(Vec<(CopyId, IndexEntry)>, KeyId), Rejection> {
        let bytes = self.listed(file)?;
        let name = number.to_string();
        let place = SealContext::new(self.owner, "Page", "", &name);
        let opened = open(self.keys.all(), place, bytes)?;
        let entries = decode_page(&opened.content).map_err(|_| Rejection::Malformed)?;
        Ok((entries, opened.key))
    }

    /// Reads the copies that the pages of `loaded` list.
    fn copies(
        &self,
        loaded: &mut Loaded,
        unlisted: &mut BTreeSet<FileName>,
        mut take: impl FnMut(SavedCopy),
    ) {
        let (root, sealing) = (&loaded.root, self.keys.sealing().id());
        let Loaded {
            rejected, resealed, ..
        } = loaded;
        loaded.entries.retain(|id, entry| {
            let mut saved = SavedCopy {
                id: id.clone(),
                content: None,
                proven: entry.proven.unwrap_or(root.proven),
                bytes: 0,
            };
            if let CopyState::File { file, .. } = &entry.kept {
                unlisted.remove(&file.name);
                match self.copy(id, file) {
                    Ok(found) => {
                        if found.key != sealing {
                            resealed.insert(id.clone());
                        }
                        saved.bytes = found.bytes;
                        saved.content = Some(found.content);
                    }
                    Err(reason) => {
                        rejected.push(RejectedFile {
                            file: file.name.to_string(),
                            id: Some(id.clone()),
                            reason,
                        });
                        return false;
                    }
                }
            }
            take(saved);
            true
        });
    }

    fn copy(&self, id: &CopyId, file: &FileRef) -> Result<OpenedCopy, Rejection> {
        let sealed = self.listed(file)?;
        let bytes = sealed.len() as u64;
        let place = SealContext::new(self.owner, id.kind.as_str(), &id.namespace, &id.name);
        let opened = open(self.keys.all(), place, sealed)?;
        let content = CopyContent::decode(id, &opened.content).map_err(|_| Rejection::Malformed)?;
        Ok(OpenedCopy {
            content,
            key: opened.key,
            bytes,
        })
    }

    /// The bytes of a file, if they are those that the index lists.
    fn listed(&self, file: &FileRef) -> Result<Zeroizing<Vec<u8>>, Rejection> {
        let (bytes, _) = self.read(&file.name.to_string())?;
        if digest(&bytes) == file.digest {
            Ok(bytes)
        } else {
            Err(Rejection::OtherVersion)
        }
    }

    fn read(&self, name: &str) -> Result<(Zeroizing<Vec<u8>>, FileIdentity), Rejection> {
        let io = |errno: Errno| Rejection::Io(errno.into());
        let file = match sys::open_file(self.directory, name) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Err(Rejection::Missing),
            Err(Errno::LOOP) => return Err(Rejection::Foreign),
            Err(errno) => return Err(io(errno)),
        };
        let stat = sys::stat(&file).map_err(io)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let user = rustix::process::geteuid().as_raw();
        if !is_file || stat.st_uid != user || stat.st_mode & 0o077 != 0 {
            return Err(Rejection::Foreign);
        }
        let bytes = sys::read(&file, MAX_FILE_BYTES).map_err(io)?;
        Ok((bytes, FileIdentity::of(&stat)))
    }
}
