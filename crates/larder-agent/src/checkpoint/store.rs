//! The directory of the checkpoint: sealed files, and the index that lists them.
//!
//! ```text
//! index            root of the index
//! 3f2a…            a page of the index, or a copy
//! rejected/        files of the last start that found some that do not open
//! ```
//!
//! # A write
//!
//! 1. Open the directory again if it was replaced or removed, and lock it. If `index` is not the file that was written
//!    last, the checkpoint was erased, and everything is written again.
//! 2. Compare the wanted copies with the index. If none differs, end here: nothing is written.
//! 3. Write each new copy and each changed page to a file of a new name, and sync it.
//! 4. Write the root to `index.new`, sync it, and sync the directory.
//! 5. Rename `index.new` to `index`. **This is the commit**, and it is atomic. Sync the directory.
//! 6. Remove the files that the index does not list any more.
//!
//! # Failures and crashes
//!
//! Files that the index does not list are ignored, and removed at the next start. A failure in 1 to 5 removes the new
//! files as far as possible. So a crash at any instant leaves the old checkpoint or the new one.
//!
//! Invariants:
//! 1. No link is followed. The directory belongs to this process's user, and no other user can enter it while an agent
//!    uses it.
//! 2. A file is read with bounded memory, whatever is in its place.
//! 3. A file that does not open costs only its own copy, or the copies of its page.
//! 4. The limit on the length of a file is the same for writing and reading. Content above the limit has no copy, not
//!    even an older one: an older copy would bring replaced content back.

pub(super) mod directory;
mod load;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use jiff::{SignedDuration, Timestamp};
use rustix::io::Errno;
use zeroize::Zeroizing;

use self::{
    directory::{
        REJECTED, clear_rejected, create_directory, exists, expect_checkpoint, failed, lock, mode,
        open_directory, try_lock,
    },
    load::{FileIdentity, Rejection, load},
};
pub(super) use self::{
    directory::{StoreError, open_parent},
    load::{RejectedFile, SavedCopy},
};
use super::{
    codec::CopyId,
    index::{CopyState, Entries, FileRef, IndexEntry, PAGES, Root, Version, encode_page, page_of},
    key::Keyring,
    seal::{FileName, Owner, SealContext, digest, sealed_len},
    sys,
};

const INDEX: &str = "index";
const ASIDE: &str = "index.new";
/// Longest file that is written or read: an object of 1 MiB or a pod of 1.5 MiB (etcd's limit) as JSON, with a margin.
const MAX_FILE_BYTES: usize = 4 << 20;
/// Number of files that are synced together, and open meanwhile.
const SYNCED_TOGETHER: usize = 256;
/// From this number of files on, one sync of the file system takes less time than a sync of each file.
const MANY_FILES: usize = 16;
/// Times of freshness checks that differ by less count as equal: they are computed back from now.
const SAME_PROOF: SignedDuration = SignedDuration::from_secs(5);

/// A copy that the checkpoint must contain.
pub(crate) struct WantedCopy {
    pub(crate) id: CopyId,
    pub(crate) state: WantedState,
    /// Time of its last freshness check; `None`: now.
    pub(crate) proven: Option<Timestamp>,
}

/// The known state of a subject.
pub(crate) enum WantedState {
    /// It exists. It is encoded only if the checkpoint has another version.
    Present {
        version: Version,
        content: Box<dyn Fn() -> Zeroizing<Vec<u8>> + Send>,
    },
    /// It does not exist.
    Absent,
    /// Unknown: the checkpoint keeps its copy.
    Unknown,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Number of files.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// The sealed files of one agent.
#[derive(Debug)]
pub(crate) struct Store {
    /// The path of the directory.
    parent: OwnedFd,
    directory: OwnedFd,
    path: PathBuf,
    keys: Keyring,
    owner: Owner,
    root: Root,
    entries: Entries,
    /// Copies that need sealing again with the first key.
    resealed: BTreeSet<CopyId>,
    /// Content without a copy because its file would be too long, with its version.
    too_large: BTreeMap<CopyId, Version>,
    /// Whether the next write writes every page and the root even if no copy differs.
    rewrite_index: bool,
    /// The `index` that was read or written last.
    index: Option<FileIdentity>,
    /// Files that could not be removed.
    garbage: Vec<FileName>,
    /// Length of all files that the index lists, and of the index.
    size: u64,
}

/// The content of a checkpoint.
pub(crate) struct Contents {
    pub(crate) copies: Vec<SavedCopy>,
    pub(crate) rejected: Vec<RejectedFile>,
}

/// The result of [`Store::open`].
pub(crate) struct Found {
    pub(crate) store: Store,
    pub(crate) rejected: Vec<RejectedFile>,
    /// Why the rejected files could not be moved. They are not served either way.
    pub(crate) problem: Option<StoreError>,
}

impl Store {
    /// Opens the checkpoint in the directory `path`, whose parent is `parent`, and creates the directory if missing.
    /// Files that do not open are moved to `rejected/`. No content is kept: see [`contents`](Self::contents).
    pub(crate) fn open(
        parent: BorrowedFd<'_>,
        path: &Path,
        keys: Keyring,
        owner: Owner,
    ) -> Result<Found, StoreError> {
        let held = parent
            .try_clone_to_owned()
            .map_err(|source| StoreError::Io {
                operation: "hold the parent of",
                path: path.to_owned(),
                source,
            })?;
        let directory = create_directory(parent, path)?;
        let _locked = try_lock(&directory, path)?;
        let loaded = load(&directory, path, &keys, &owner, drop)?;
        let mut store = Self {
            parent: held,
            directory,
            path: path.to_owned(),
            keys,
            owner,
            root: loaded.root,
            entries: loaded.entries,
            resealed: loaded.resealed,
            too_large: BTreeMap::new(),
            rewrite_index: loaded.rewrite_index,
            index: loaded.index,
            garbage: loaded.leftovers,
            size: 0,
        };
        let problem = store.set_aside(&loaded.rejected).err();
        store.remove_garbage();
        store.size = store.measure();
        Ok(Found {
            store,
            rejected: loaded.rejected,
            problem,
        })
    }

    /// Reads every copy. Files that no longer open are reported, and moved at the next start.
    pub(crate) fn contents(&self) -> Result<Contents, StoreError> {
        let _locked = try_lock(&self.directory, &self.path)?;
        let mut copies = Vec::new();
        let loaded = load(
            &self.directory,
            &self.path,
            &self.keys,
            &self.owner,
            |copy| copies.push(copy),
        )?;
        Ok(Contents {
            copies,
            rejected: loaded.rejected,
        })
    }

    /// Reads the checkpoint in the directory `path` without changing anything; `None` if there is none.
    pub(crate) fn inspect(
        parent: BorrowedFd<'_>,
        path: &Path,
        keys: &Keyring,
        owner: &Owner,
    ) -> Result<Option<Contents>, StoreError> {
        let Some(directory) = open_directory(parent, path)? else {
            return Ok(None);
        };
        let _locked = lock(&directory, path)?;
        let mut copies = Vec::new();
        let mut loaded = load(&directory, path, keys, owner, |copy| copies.push(copy))?;
        let mode = mode(&directory, path)?;
        if mode & 0o077 != 0 {
            loaded.rejected.push(RejectedFile {
                file: path.display().to_string(),
                id: None,
                reason: Rejection::Exposed(mode),
            });
        }
        Ok(Some(Contents {
            copies,
            rejected: loaded.rejected,
        }))
    }

    /// Removes the checkpoint in the directory `path`. An agent that uses it writes a new one at the next change.
    pub(crate) fn erase(parent: BorrowedFd<'_>, path: &Path) -> Result<usize, StoreError> {
        let Some(directory) = open_directory(parent, path)? else {
            return Ok(0);
        };
        expect_checkpoint(&directory, path)?;
        let _locked = lock(&directory, path)?;
        let mut removed = 0;
        // The index is removed first: without it, no file counts.
        for name in [INDEX, ASIDE] {
            removed += usize::from(exists(&directory, name));
            sys::remove_file(directory.as_fd(), name)
                .map_err(failed("remove", &path.join(name)))?;
        }
        let names = sys::list(&directory).map_err(failed("list", path))?;
        for name in names.iter().filter(|name| FileName::parse(name).is_some()) {
            sys::remove_file(directory.as_fd(), name.as_str())
                .map_err(failed("remove", &path.join(name)))?;
            removed += 1;
        }
        removed += clear_rejected(&directory, path)?;
        sys::sync(&directory).map_err(failed("sync", path))?;
        Ok(removed)
    }

    /// Number of copies.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Length of its files.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// What the last write did not copy because its file would be too long.
    pub(crate) fn too_large(&self) -> impl ExactSizeIterator<Item = &CopyId> {
        self.too_large.keys()
    }

    /// When the index was written; no freshness check is later.
    pub(crate) fn newest_proof(&self) -> Timestamp {
        self.root.proven
    }

    /// Time of the oldest freshness check among all copies.
    pub(crate) fn oldest_proof(&self) -> Option<Timestamp> {
        let proofs = self.entries.values();
        proofs
            .map(|entry| entry.proven.unwrap_or(self.root.proven))
            .min()
    }

    /// Makes the checkpoint hold exactly `wanted`, as the module describes it. With `refresh` the index is written even
    /// if no copy differs, to record the times of the freshness checks.
    pub(crate) fn write(
        &mut self,
        wanted: &[WantedCopy],
        now: Timestamp,
        refresh: bool,
    ) -> Result<Written, StoreError> {
        // Step 1
        self.find_directory()?;
        let _locked = try_lock(&self.directory, &self.path)?;
        let found = match sys::stat_entry(self.directory.as_fd(), INDEX) {
            Ok(stat) => Some(FileIdentity::of(&stat)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(failed("examine", &self.path.join(INDEX))(errno)),
        };
        if found != self.index {
            // The index of another program lists none of these files.
            let old = files(&self.entries, &self.root);
            self.garbage.extend(old);
            let counter = self.root.counter;
            self.root = Root {
                counter,
                ..Root::default()
            };
            self.entries.clear();
            self.resealed.clear();
            self.rewrite_index = false;
            self.index = None;
        }
        // Step 2
        let mut batch = Batch::default();
        let mut entries = Entries::new();
        let mut differs = self.rewrite_index || refresh && !self.entries.is_empty();
        for copy in wanted {
            let known = self.entries.get(&copy.id);
            let entry = match self.entry(copy, known, &mut batch) {
                Ok(Some(entry)) => entry,
                Ok(None) => continue,
                Err(error) => {
                    self.discard(batch);
                    return Err(error);
                }
            };
            differs |= known.is_none_or(|known| known.kept != entry.kept);
            entries.insert(copy.id.clone(), entry);
        }
        differs |= self.entries.keys().any(|id| !entries.contains_key(id));
        self.too_large = mem::take(&mut batch.too_large);
        if !differs {
            return Ok(Written::default());
        }
        let written = self.commit(entries, batch, now)?;
        self.remove_garbage();
        self.size = self.measure();
        Ok(written)
    }

    /// Opens a directory that was replaced or removed again: files written to the old one would be lost.
    fn find_directory(&mut self) -> Result<(), StoreError> {
        let held = sys::stat(&self.directory).map_err(failed("examine", &self.path))?;
        let name = self.path.file_name().unwrap_or_default();
        let found = sys::stat_entry(self.parent.as_fd(), name);
        let is_held = |found| FileIdentity::of(&found) == FileIdentity::of(&held);
        if !found.is_ok_and(is_held) {
            self.directory = create_directory(self.parent.as_fd(), &self.path)?;
        }
        Ok(())
    }

    /// Total length of the index and of the files that it lists, as far as they can be examined.
    fn measure(&self) -> u64 {
        let names = files(&self.entries, &self.root).map(|name| name.to_string());
        let sizes = names.chain([INDEX.to_owned()]).filter_map(|name| {
            let stat = sys::stat_entry(self.directory.as_fd(), name).ok()?;
            u64::try_from(stat.st_size).ok()
        });
        sizes.sum()
    }

    /// The entry of `copy`; `None` if there is nothing to keep. A new file is added to `batch`.
    fn entry(
        &self,
        copy: &WantedCopy,
        known: Option<&IndexEntry>,
        batch: &mut Batch,
    ) -> Result<Option<IndexEntry>, StoreError> {
        let known_proof = known.map(|known| known.proven.unwrap_or(self.root.proven));
        let is_same = |time: Timestamp| {
            known_proof.filter(|known| time.duration_since(*known).abs() < SAME_PROOF)
        };
        let proven = copy.proven.map(|time| is_same(time).unwrap_or(time));
        let kept = match &copy.state {
            WantedState::Unknown => {
                return Ok(known.map(|known| IndexEntry {
                    kept: known.kept,
                    proven: known_proof,
                }));
            }
            WantedState::Absent => CopyState::Absent,
            WantedState::Present { version, content } => match known.map(|known| &known.kept) {
                Some(kept @ CopyState::File { version: known, .. })
                    if known == version && !self.resealed.contains(&copy.id) =>
                {
                    *kept
                }
                // The version says that it is too large, so it is not encoded again for each write.
                _ if self.too_large.get(&copy.id) == Some(version) => {
                    batch.too_large.insert(copy.id.clone(), *version);
                    return Ok(None);
                }
                _ => {
                    let (content, version) = (content(), *version);
                    if sealed_len(content.len()) > MAX_FILE_BYTES {
                        batch.too_large.insert(copy.id.clone(), version);
                        return Ok(None);
                    }
                    let file = self.add_file(batch, &copy.id, &content)?;
                    CopyState::File { file, version }
                }
            },
        };
        Ok(Some(IndexEntry { kept, proven }))
    }

    /// Steps 3 to 5. The files that the new index does not list become garbage.
    fn commit(
        &mut self,
        entries: Entries,
        mut batch: Batch,
        now: Timestamp,
    ) -> Result<Written, StoreError> {
        let (root, index) = match self.prepare(&entries, &mut batch, now) {
            Ok(prepared) => prepared,
            Err(error) => {
                self.discard(batch);
                return Err(error);
            }
        };
        let listed: BTreeSet<_> = files(&entries, &root).collect();
        let old = files(&self.entries, &self.root);
        self.garbage
            .extend(old.filter(|name| !listed.contains(name)));
        self.resealed.clear();
        self.root = root;
        self.entries = entries;
        self.index = Some(index);
        // A power cut may still bring the old index back. Its files stay until a later write has been synced.
        self.rewrite_index = true;
        sys::sync(&self.directory).map_err(failed("sync", &self.path))?;
        self.rewrite_index = false;
        Ok(batch.written)
    }

    /// Steps 3 to 5, but for the last sync.
    fn prepare(
        &self,
        entries: &Entries,
        batch: &mut Batch,
        now: Timestamp,
    ) -> Result<(Root, FileIdentity), StoreError> {
        let mut root = Root {
            counter: self.root.counter.saturating_add(1),
            proven: now,
            pages: self.root.pages,
        };
        let (before, after) = (by_page(&self.entries), by_page(entries));
        for (number, page) in root.pages.iter_mut().enumerate() {
            let entries = &after[number];
            if *entries == before[number] && !self.rewrite_index && self.resealed.is_empty() {
                continue;
            }
            *page = if entries.is_empty() {
                None
            } else {
                let content = encode_page(entries.iter().map(|(id, entry)| (*id, *entry)));
                let name = number.to_string();
                let place = self.place("Page", "", &name);
                Some(self.create(batch, place, &content)?)
            };
        }
        self.sync_files(batch)?;
        let index = self.replace_index(&root, batch)?;
        Ok((root, index))
    }

    /// Steps 4 and 5, but for the last sync.
    fn replace_index(&self, root: &Root, batch: &mut Batch) -> Result<FileIdentity, StoreError> {
        let place = self.place("Index", "", "root");
        let sealed = self.keys.sealing().seal(place, &root.encode());
        let path = self.path.join(ASIDE);
        let directory = self.directory.as_fd();
        sys::remove_file(directory, ASIDE).map_err(failed("remove", &path))?;
        let write = || {
            let file = sys::create_file(directory, ASIDE)?;
            sys::write(&file, &sealed.bytes)?;
            sys::sync(&file)?;
            sys::stat(&file)
        };
        let stat = write().map_err(failed("write", &path))?;
        sys::sync(&self.directory).map_err(failed("sync", &self.path))?;
        sys::rename(directory, ASIDE, directory, INDEX).map_err(failed("rename", &path))?;
        batch.written.files += 1;
        batch.written.bytes += sealed.bytes.len() as u64;
        Ok(FileIdentity::of(&stat))
    }

    /// Removes the files of a write that failed. A file that cannot be removed is tried again at the next write or
    /// start.
    fn discard(&mut self, batch: Batch) {
        self.garbage.extend(batch.created);
        self.remove_garbage();
    }

    fn add_file(
        &self,
        batch: &mut Batch,
        id: &CopyId,
        content: &[u8],
    ) -> Result<FileRef, StoreError> {
        let place = self.place(id.kind.as_str(), &id.namespace, &id.name);
        self.create(batch, place, content)
    }

    /// Step 3.
    fn create(
        &self,
        batch: &mut Batch,
        place: SealContext<'_>,
        content: &[u8],
    ) -> Result<FileRef, StoreError> {
        if sealed_len(content.len()) > MAX_FILE_BYTES {
            // A page: an index that does not open would cost every copy.
            return Err(failed("write a file of", &self.path)(Errno::FBIG));
        }
        let sealed = self.keys.sealing().seal(place, content);
        // The error names the directory only: a file's name is new each time, and a lasting failure must be reported
        // once.
        let file = sys::create_file(self.directory.as_fd(), sealed.name.to_string())
            .map_err(failed("create a file of", &self.path))?;
        batch.created.push(sealed.name);
        sys::write(&file, &sealed.bytes).map_err(failed("write a file of", &self.path))?;
        batch.unsynced.push(file);
        batch.written.files += 1;
        batch.written.bytes += sealed.bytes.len() as u64;
        if batch.unsynced.len() >= SYNCED_TOGETHER {
            self.sync_files(batch)?;
        }
        Ok(FileRef {
            digest: digest(&sealed.bytes),
            name: sealed.name,
        })
    }

    fn sync_files(&self, batch: &mut Batch) -> Result<(), StoreError> {
        if batch.unsynced.len() >= MANY_FILES {
            sys::sync_file_system(&self.directory)
                .map_err(failed("sync the files of", &self.path))?;
            batch.unsynced.clear();
        }
        for file in batch.unsynced.drain(..) {
            sys::sync(&file).map_err(failed("sync a file of", &self.path))?;
        }
        Ok(())
    }

    fn place<'a>(&'a self, kind: &'a str, namespace: &'a str, name: &'a str) -> SealContext<'a> {
        SealContext::new(&self.owner, kind, namespace, name)
    }

    /// Step 6. A file that cannot be removed is tried again at the next write.
    fn remove_garbage(&mut self) {
        let directory = self.directory.as_fd();
        self.garbage
            .retain(|name| sys::remove_file(directory, name.to_string()).is_err());
    }

    /// Moves files to `rejected/`, in place of those of an earlier start.
    fn set_aside(&self, rejected: &[RejectedFile]) -> Result<(), StoreError> {
        if rejected.is_empty() {
            return Ok(());
        }
        clear_rejected(&self.directory, &self.path)?;
        let path = self.path.join(REJECTED);
        match sys::make_dir(self.directory.as_fd(), REJECTED) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed("create", &path)(errno)),
        }
        let aside = sys::open_dir(self.directory.as_fd(), REJECTED);
        let aside = aside.map_err(failed("open", &path))?;
        for RejectedFile { file, .. } in rejected {
            let (from, to) = (self.directory.as_fd(), aside.as_fd());
            match sys::rename(from, file.as_str(), to, file.as_str()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed("move", &self.path.join(file))(errno)),
            }
        }
        Ok(())
    }
}

/// The files of one write.
#[derive(Default)]
struct Batch {
    created: Vec<FileName>,
    unsynced: Vec<OwnedFd>,
    /// What is not copied; see [`Store::too_large`].
    too_large: BTreeMap<CopyId, Version>,
    written: Written,
}

fn by_page(entries: &Entries) -> [BTreeMap<&CopyId, &IndexEntry>; PAGES] {
    let mut pages = [const { BTreeMap::new() }; PAGES];
    for (id, entry) in entries {
        pages[page_of(id)].insert(id, entry);
    }
    pages
}

/// The files that an index lists.
fn files<'a>(entries: &'a Entries, root: &'a Root) -> impl Iterator<Item = FileName> {
    let copies = entries.values().filter_map(|entry| match &entry.kept {
        CopyState::Absent => None,
        CopyState::File { file, .. } => Some(file),
    });
    let pages = root.pages.iter().flatten();
    copies.chain(pages).map(|file| file.name)
}

#[cfg(test)]
mod tests;
