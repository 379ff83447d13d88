//! The directory of the checkpoint: sealed files, and the index that lists them.
//!
//! ```text
//! index            the index
//! 3f2a…            a copy
//! rejected/        files that did not open, moved there by the write that replaced them
//! ```
//!
//! # A write
//!
//! 1. Open the directory again if it was replaced or removed, and lock it. If `index` is not the file of the last
//!    write, the checkpoint was erased, and everything is written again.
//! 2. Compare the requested copies with the index. If none differs, end here: nothing is written.
//! 3. Write each new copy to a file of a new name, and sync it.
//! 4. Write the index to `index.new`, sync it, and sync the directory.
//! 5. Rename `index.new` to `index`. **This is the commit**, and it is atomic. Sync the directory.
//! 6. Remove the files that the index no longer lists.
//!
//! # Failures and crashes
//!
//! Files that the index does not list are ignored, and removed by the next start that opens it, or by the next write. A
//! failure in 1 to 5 removes the new files as far as possible. So a crash at any instant leaves the old checkpoint or
//! the new one.
//!
//! Invariants:
//! 1. No link is followed. The directory belongs to this process's user, and no other user can enter it while an agent
//!    uses it.
//! 2. A file is read with bounded memory, whatever is in its place.
//! 3. A copy that does not open affects no other copy. One that the system fails to read is not served, and stays.
//! 4. The index always fits into a file. If there are too many copies, namespaces share the room: those with the most
//!    copies have some left out, and no other.
//! 5. A start replaces and moves nothing, whatever it finds: it may be one with the name of another node, or without the disk of the
//!    key. Files that do not open are moved to `rejected/` by the first write, when the API server has answered.
//! 6. The limit on the length of a file is the same for writing and reading. Content above the limit has no copy, not
//!    even an older one: an older copy would bring replaced content back.

mod directory;
mod load;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use larder_files::{lock::Lock, operation_error::failed, sys};
use rustix::io::Errno;
use zeroize::Zeroizing;

pub use self::{
    directory::{CheckpointDir, StoreError},
    load::{Contents, RejectedFile, Rejection, SavedCopy},
};
use self::{
    directory::{
        DIRECTORY_MODE, REJECTED, clear_rejected, create_directory, exists, expect_checkpoint, mode,
    },
    load::{FileIdentity, contents, load},
};
use crate::{
    index::{CopyId, FileRef, Index, IndexChanges, IndexEntry, Malformed, Version},
    key::Keyring,
    seal::{FileName, Owner, SealContext, digest, sealed_len},
};

const INDEX: &str = "index";
const ASIDE: &str = "index.new";
const FILE_MODE: u32 = 0o600;
/// Longest file, in bytes, that is written or read, the index included: an object of 1 MiB or a pod of 1.5 MiB (etcd's limit) as JSON, with a margin.
pub const MAX_FILE_BYTES: usize = 4 << 20;
/// Number of files that are synced together, and open meanwhile.
const SYNCED_TOGETHER: usize = 256;
/// From this number of files on, one sync of the file system takes less time than a sync of each file.
const MANY_FILES: usize = 16;
/// Room in the index for its entries.
const MAX_INDEX_BYTES: usize = MAX_FILE_BYTES - (4 << 10);
/// Times of freshness checks that differ by less count as equal: they are computed back from now.
const SAME_TIME: SignedDuration = SignedDuration::from_secs(5);

/// A copy that the checkpoint must contain.
#[expect(missing_debug_implementations, reason = "it holds a function")]
pub struct WantedCopy {
    /// Its name.
    pub id: CopyId,
    /// The state of its subject.
    pub state: WantedState,
    /// Time of its last freshness check; `None`: now.
    pub verified_at: Option<Timestamp>,
}

/// The known state of a subject.
#[expect(missing_debug_implementations, reason = "it holds a function")]
pub enum WantedState {
    /// It exists. It is encoded only if the checkpoint has another version.
    Present {
        /// Identifies the content.
        version: Version,
        /// Encodes it.
        content: Box<dyn Fn() -> Zeroizing<Vec<u8>> + Send>,
    },
    /// It does not exist.
    Absent,
    /// Unknown: the checkpoint keeps its copy.
    Unknown,
}

/// Why there is no copy of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// Its file would be longer than [`MAX_FILE_BYTES`].
    File {
        /// Identifies the content.
        version: Version,
        /// The length.
        bytes: usize,
    },
    /// The index has no room for it.
    Index,
}

/// When the index is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexWrite {
    /// If a copy differs.
    IfDifferent,
    /// If there is any copy.
    Always,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Number of files.
    pub files: u64,
    /// Their length.
    pub bytes: u64,
}

/// The sealed files of one agent.
#[derive(Debug)]
pub struct Store {
    parent: Arc<OwnedFd>,
    directory: OwnedFd,
    path: PathBuf,
    keys: Keyring,
    owner: Owner,
    index: Index,
    /// Copies that need sealing again with the first key.
    resealed: BTreeSet<CopyId>,
    too_large: BTreeMap<CopyId, Excess>,
    /// Whether the next write writes the index even if no copy differs.
    rewrite_index: bool,
    /// The file `index` that was read or written last.
    index_file: Option<FileIdentity>,
    /// Files that could not be removed.
    garbage: Vec<FileName>,
    /// Files that did not open at the start, by name, until the first write.
    rejected: Vec<String>,
    /// Length of all files that the index lists, and of the index.
    size: u64,
}

/// The result of [`Store::open`].
#[derive(Debug)]
pub struct Found {
    /// The checkpoint.
    pub store: Store,
    /// Files that did not open.
    pub rejected: Vec<RejectedFile>,
}

impl Store {
    /// Opens the checkpoint in `place`, and creates the directory if missing. Files that do not open, and copies that
    /// `decode` does not take, are reported; the first write moves them to `rejected/`. No content is kept: see
    /// [`contents`](Self::contents).
    ///
    /// # Errors
    ///
    /// The directory cannot be used, or is locked.
    pub fn open<T>(
        place: &CheckpointDir,
        keys: Keyring,
        owner: Owner,
        decode: impl Fn(&CopyId, &[u8]) -> Result<T, Malformed>,
    ) -> Result<Found, StoreError> {
        let path = place.path();
        let parent = place
            .open_parent()?
            .ok_or_else(|| failed("create", path)(Errno::NOENT))?;
        let directory = create_directory(parent.as_fd(), path)?;
        let _locked = Lock::try_dir(directory.as_fd()).map_err(failed("lock", path))?;
        let loaded = load(&directory, path, &keys, &owner, &decode, drop)?;
        let mut store = Self {
            parent,
            directory,
            path: path.to_owned(),
            keys,
            owner,
            index: loaded.index,
            resealed: loaded.resealed,
            too_large: BTreeMap::new(),
            rewrite_index: loaded.rewrite_index,
            index_file: loaded.index_file,
            garbage: loaded.leftovers,
            rejected: (loaded.rejected.iter().map(|file| file.file.clone())).collect(),
            size: 0,
        };
        // Only an index that opens says which files are of no use.
        if store.index_file.is_some() {
            store.remove_garbage();
        }
        store.size = store.measure();
        let mut rejected = loaded.rejected;
        rejected.extend(loaded.unread);
        Ok(Found { store, rejected })
    }

    /// Reads every copy. Files that do not open now are reported; the next start looks at them again.
    ///
    /// # Errors
    ///
    /// The directory cannot be listed, or is locked.
    pub fn contents<T>(
        &self,
        decode: impl Fn(&CopyId, &[u8]) -> Result<T, Malformed>,
    ) -> Result<Contents<T>, StoreError> {
        let directory = &self.directory;
        let _locked = Lock::try_dir(directory.as_fd()).map_err(failed("lock", &self.path))?;
        contents(directory, &self.path, &self.keys, &self.owner, &decode)
    }

    /// Reads the checkpoint in `place` without changing anything; `None` if there is none. Waits for other processes.
    ///
    /// # Errors
    ///
    /// The directory cannot be used.
    pub fn inspect<T>(
        place: &CheckpointDir,
        keys: &Keyring,
        owner: &Owner,
        decode: impl Fn(&CopyId, &[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<Contents<T>>, StoreError> {
        let path = place.path();
        let Some(directory) = place.open_existing()? else {
            return Ok(None);
        };
        let _locked = Lock::dir(directory.as_fd()).map_err(failed("lock", path))?;
        let mut contents = contents(&directory, path, keys, owner, &decode)?;
        let mode = mode(&directory, path)?;
        if mode & 0o077 != 0 {
            contents.rejected.push(RejectedFile {
                file: path.display().to_string(),
                id: None,
                reason: Rejection::Exposed(mode),
            });
        }
        Ok(Some(contents))
    }

    /// Removes the checkpoint in `place`; returns the number of removed files. An agent that uses it writes a new one at
    /// the next change.
    ///
    /// # Errors
    ///
    /// The directory cannot be used, or a file cannot be removed.
    pub fn erase(place: &CheckpointDir) -> Result<usize, StoreError> {
        let path = place.path();
        let Some(directory) = place.open_existing()? else {
            return Ok(0);
        };
        expect_checkpoint(&directory, path)?;
        let _locked = Lock::dir(directory.as_fd()).map_err(failed("lock", path))?;
        let mut removed = 0;
        // The index is removed first: without it, no file counts.
        for name in [INDEX, ASIDE] {
            removed += usize::from(exists(&directory, name));
            sys::may_be_missing(sys::remove_file(directory.as_fd(), name))
                .map_err(failed("remove", &path.join(name)))?;
        }
        let names = sys::names(&directory).map_err(failed("list", path))?;
        for name in names.iter().filter(|name| FileName::parse(name).is_some()) {
            sys::may_be_missing(sys::remove_file(directory.as_fd(), name.as_str()))
                .map_err(failed("remove", &path.join(name)))?;
            removed += 1;
        }
        removed += clear_rejected(&directory, path)?;
        sys::sync(&directory).map_err(failed("sync", path))?;
        Ok(removed)
    }

    /// Number of copies.
    #[expect(
        clippy::len_without_is_empty,
        reason = "no caller needs to know whether a checkpoint is empty"
    )]
    pub fn len(&self) -> usize {
        self.index.entries.len()
    }

    /// Length of its files, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What the last write did not copy because its file, or the index, would be too long.
    pub fn too_large(&self) -> impl ExactSizeIterator<Item = (&CopyId, &Excess)> {
        self.too_large.iter()
    }

    /// When the index was written; no freshness check is later.
    pub fn newest_verification(&self) -> Timestamp {
        self.index.written_at
    }

    /// Time of the oldest freshness check among all copies.
    pub fn oldest_verification(&self) -> Option<Timestamp> {
        self.index
            .entries
            .values()
            .map(|entry| self.verified_at(entry))
            .min()
    }

    fn verified_at(&self, entry: &IndexEntry) -> Timestamp {
        entry.verified_at.unwrap_or(self.index.written_at)
    }

    /// Makes the checkpoint hold exactly `wanted`, as the module describes it. With [`IndexWrite::Always`] the index is
    /// written even if no copy differs, to record the times of the freshness checks.
    ///
    /// # Errors
    ///
    /// The first step that failed. The old checkpoint stays, or the new one is there: the next write finds out.
    pub fn write(
        &mut self,
        wanted: &[WantedCopy],
        now: Timestamp,
        index: IndexWrite,
    ) -> Result<Written, StoreError> {
        // Step 1
        self.find_directory()?;
        let directory = self.directory.as_fd();
        let _locked = Lock::try_dir(directory).map_err(failed("lock", &self.path))?;
        self.set_aside()?;
        self.rejected.clear();
        let directory = self.directory.as_fd();
        let found = match sys::stat_entry(directory, INDEX) {
            Ok(stat) => Some(FileIdentity::of(&stat)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(failed("examine", &self.path.join(INDEX))(errno).into()),
        };
        if found != self.index_file {
            // The index of another program lists none of these files.
            self.garbage.extend(self.index.files());
            self.index.entries.clear();
            self.index.written_at = Timestamp::UNIX_EPOCH;
            self.resealed.clear();
            self.rewrite_index = false;
            self.index_file = None;
        }
        // Step 2
        let mut batch = Batch::default();
        let mut changes = IndexChanges::new();
        let mut unwanted: BTreeSet<&CopyId> = self.index.entries.keys().collect();
        let mut differs = self.rewrite_index || index == IndexWrite::Always && !unwanted.is_empty();
        let room = shared_room(wanted);
        for (copy, has_room) in wanted.iter().zip(room) {
            if !has_room {
                batch.too_large.insert(copy.id.clone(), Excess::Index);
                continue;
            }
            let known = self.index.entries.get(&copy.id);
            let entry = match self.entry(copy, known, &mut batch) {
                Ok(Some(entry)) => entry,
                Ok(None) => continue,
                Err(error) => {
                    self.discard(batch);
                    return Err(error);
                }
            };
            unwanted.remove(&copy.id);
            differs |= known.is_none_or(|known| known.file != entry.file);
            if known != Some(&entry) {
                changes.insert(copy.id.clone(), Some(entry));
            }
        }
        differs |= !unwanted.is_empty();
        changes.extend(unwanted.into_iter().map(|id| (id.clone(), None)));
        self.too_large = mem::take(&mut batch.too_large);
        if !differs {
            return Ok(Written::default());
        }
        let written = self.commit(changes, batch, now)?;
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
        let names = self.index.files().map(|name| name.to_string());
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
        let known_time = known.map(|known| self.verified_at(known));
        let is_same = |time: Timestamp| {
            known_time.filter(|known| time.duration_since(*known).abs() < SAME_TIME)
        };
        let verified_at = copy.verified_at.map(|time| is_same(time).unwrap_or(time));
        let file = match &copy.state {
            WantedState::Unknown => {
                return Ok(known.map(|known| IndexEntry {
                    file: known.file,
                    verified_at: known_time,
                }));
            }
            WantedState::Absent => None,
            WantedState::Present { version, content } => match known.and_then(|known| known.file) {
                Some(file) if file.version == *version && !self.resealed.contains(&copy.id) => {
                    Some(file)
                }
                _ => {
                    // The version says that it is too large, so it is not encoded again for each write.
                    let before = self.too_large.get(&copy.id).copied();
                    if let Some(excess @ Excess::File { version: known, .. }) = before
                        && known == *version
                    {
                        batch.too_large.insert(copy.id.clone(), excess);
                        return Ok(None);
                    }
                    let content = content();
                    let version = *version;
                    let bytes = sealed_len(content.len());
                    if bytes > MAX_FILE_BYTES {
                        let excess = Excess::File { version, bytes };
                        batch.too_large.insert(copy.id.clone(), excess);
                        return Ok(None);
                    }
                    Some(self.add_file(batch, &copy.id, version, &content)?)
                }
            },
        };
        Ok(Some(IndexEntry { file, verified_at }))
    }

    /// Steps 3 to 5. The files that the index no longer lists become garbage.
    fn commit(
        &mut self,
        mut changes: IndexChanges,
        mut batch: Batch,
        now: Timestamp,
    ) -> Result<Written, StoreError> {
        let before = (self.index.counter, self.index.written_at);
        self.index.exchange(&mut changes);
        self.index.counter = before.0.saturating_add(1);
        self.index.written_at = now;
        let replaced = self
            .sync_files(&mut batch)
            .and_then(|()| self.replace_index(&mut batch));
        let file = match replaced {
            Ok(file) => file,
            Err(error) => {
                self.index.exchange(&mut changes);
                (self.index.counter, self.index.written_at) = before;
                self.discard(batch);
                return Err(error);
            }
        };
        let unlisted = changes.iter().filter_map(|(id, old)| {
            let file = old.as_ref()?.file?;
            let listed = self.index.entries.get(id).and_then(|entry| entry.file);
            (listed != Some(file)).then_some(file.name)
        });
        self.garbage.extend(unlisted);
        self.resealed.clear();
        self.index_file = Some(file);
        // A power cut may still bring the old index back. Its files stay until a later write has been synced.
        self.rewrite_index = true;
        sys::sync(&self.directory).map_err(failed("sync", &self.path))?;
        self.rewrite_index = false;
        Ok(batch.written)
    }

    /// Steps 4 and 5, but for the last sync.
    fn replace_index(&self, batch: &mut Batch) -> Result<FileIdentity, StoreError> {
        let path = self.path.join(ASIDE);
        let content = self.index.encode();
        if sealed_len(content.len()) > MAX_FILE_BYTES {
            // An index that does not open would cost every copy.
            return Err(failed("write", &path)(Errno::FBIG).into());
        }
        let place = SealContext::index(&self.owner);
        let sealed = self.keys.sealing().seal(&place, &content);
        let directory = self.directory.as_fd();
        sys::may_be_missing(sys::remove_file(directory, ASIDE)).map_err(failed("remove", &path))?;
        let write = || {
            let file = sys::create_file(directory, ASIDE, FILE_MODE)?;
            sys::write(&file, &sealed.bytes)?;
            sys::sync(&file)?;
            sys::stat(&file)
        };
        let stat = write().map_err(failed("write", &path))?;
        sys::sync(directory).map_err(failed("sync", &self.path))?;
        sys::rename(directory, ASIDE, INDEX).map_err(failed("rename", &path))?;
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

    /// Step 3.
    fn add_file(
        &self,
        batch: &mut Batch,
        id: &CopyId,
        version: Version,
        content: &[u8],
    ) -> Result<FileRef, StoreError> {
        let place = SealContext::new(&self.owner, [&id.kind, &id.namespace, &id.name]);
        let sealed = self.keys.sealing().seal(&place, content);
        // The error names the directory only: a file's name is new each time, and a lasting failure must be reported
        // once.
        let file = sys::create_file(self.directory.as_fd(), sealed.name.to_string(), FILE_MODE)
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
            version,
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

    /// Step 6. A file that cannot be removed is tried again at the next write.
    fn remove_garbage(&mut self) {
        let directory = self.directory.as_fd();
        self.garbage.retain(|name| {
            sys::may_be_missing(sys::remove_file(directory, name.to_string())).is_err()
        });
    }

    /// Moves the rejected files of the start to `rejected/`, in place of those of an earlier one.
    fn set_aside(&self) -> Result<(), StoreError> {
        if self.rejected.is_empty() {
            return Ok(());
        }
        clear_rejected(&self.directory, &self.path)?;
        let path = self.path.join(REJECTED);
        match sys::make_dir(self.directory.as_fd(), REJECTED, DIRECTORY_MODE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed("create", &path)(errno).into()),
        }
        let aside =
            sys::open_dir(self.directory.as_fd(), REJECTED).map_err(failed("open", &path))?;
        for file in &self.rejected {
            let (from, to) = (self.directory.as_fd(), aside.as_fd());
            match sys::rename_to(from, file.as_str(), to, file.as_str()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed("move", &self.path.join(file))(errno).into()),
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
    too_large: BTreeMap<CopyId, Excess>,
    written: Written,
}

/// Whether the index has room for each of `wanted`. A namespace with more than its share keeps what comes first, and
/// copies of what exists rather than the knowledge that something does not.
fn shared_room(wanted: &[WantedCopy]) -> Vec<bool> {
    let mut needed: BTreeMap<&str, usize> = BTreeMap::new();
    for copy in wanted {
        *needed.entry(&copy.id.namespace).or_default() += Index::room_of(&copy.id);
    }
    let mut sizes: Vec<_> = needed.into_values().collect();
    sizes.sort_unstable();
    // Namespaces that need less than an equal share leave the rest of it to the others.
    let (mut left, mut share) = (MAX_INDEX_BYTES, usize::MAX);
    for (index, size) in sizes.iter().enumerate() {
        let equal = left / (sizes.len() - index);
        if *size > equal {
            share = equal;
            break;
        }
        left -= size;
    }
    let mut has_room = vec![false; wanted.len()];
    let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
    for is_absent in [false, true] {
        for (copy, has_room) in wanted.iter().zip(&mut has_room) {
            if matches!(copy.state, WantedState::Absent) == is_absent {
                let taken = taken.entry(&copy.id.namespace).or_default();
                let room = Index::room_of(&copy.id);
                *has_room = room <= share.saturating_sub(*taken);
                *taken += if *has_room { room } else { 0 };
            }
        }
    }
    has_room
}

#[cfg(test)]
mod tests;
