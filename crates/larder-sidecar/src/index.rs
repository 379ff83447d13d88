//! What is ours, across restarts (rules D2 to D4): paths with their objects, directories that we made, and the record
//! of what hooks have notified the application of.
//!
//! A journal of one JSON value for each line, in a directory that only this user can write. It is appended to before a
//! file appears, and rewritten when most of it is out of date. It has no byte that depends on a value, but for
//! digests whose key is beside them (0600, as the files themselves may be).
//!
//! Invariants:
//! 1. A path is in the journal before its file is written. So nothing of ours is ever unknown.
//! 2. A line that was cut off says nothing.
//! 3. After a failed write, the journal is rewritten as a whole as soon as that is possible.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{DirBuilder, File},
    hash::Hash,
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::DirBuilderExt as _,
    },
    path::Path,
    sync::Arc,
    time::Duration,
};

use larder_files::{ownership::Ownership, regular_file::read_open, replace, sys};
use larder_on_change::{Definition, DigestKey, Record};
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::warn;

use crate::selection::{ObjectName, ObjectRef};

/// The longest journal that is read: some hundred thousand files.
const MAX_BYTES: usize = 64 << 20;
/// The journal is rewritten once it has doubled, and has this many bytes besides.
const SLACK: usize = 256 << 10;
/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(10);
/// The name of the journal.
const INDEX: &str = "index";

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Entry {
    /// The key of digests.
    Key([u8; DigestKey::BYTES]),
    /// A file of an object, as `NAMESPACE/KIND/NAME`.
    File(Arc<str>, String),
    /// A directory that we made.
    Directory(Arc<str>),
    /// No longer ours.
    Gone(Arc<str>),
    /// What the application was last notified of.
    Hooks(Record),
}

/// What is ours; without a journal if there is no directory for it.
#[derive(Debug)]
pub(crate) struct Index {
    files: BTreeMap<Arc<str>, ObjectRef>,
    directories: BTreeSet<Arc<str>>,
    hooks: Option<Record>,
    key: DigestKey,
    journal: Option<Journal>,
}

#[derive(Debug)]
struct Journal {
    directory: OwnedFd,
    key: [u8; DigestKey::BYTES],
    file: File,
    /// Its bytes, and those at the time it was rewritten.
    length: usize,
    rewritten: usize,
    /// After a failed write: when it is rewritten.
    due: Option<Instant>,
}

impl Index {
    /// The index of `owner`, in the directory `state`. Without one, a warning says so.
    pub(crate) fn open(state: &Path, owner: &(impl Hash + ?Sized)) -> Self {
        let mut index = Self {
            files: BTreeMap::new(),
            directories: BTreeSet::new(),
            hooks: None,
            key: DigestKey::temporary().expect("the system has random numbers"),
            journal: None,
        };
        // Several sidecars may share a state directory.
        let own = state.join(Definition::of(&owner).to_string());
        if let Err(error) = index.read(&own) {
            warn!(
                %error, path = %state.display(),
                "cannot use the state directory, files of an earlier start will not be removed"
            );
        }
        index
    }

    fn read(&mut self, own: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(own)?;
        // The directory above may be a mount that is open to all.
        let directory = sys::open_dir(CWD, own)?;
        let found = Ownership::from(&sys::stat(&directory)?);
        if !found.is_own() || found.is_writable_by_others() {
            let text = "the directory belongs to another user, or others may write it";
            return Err(io::Error::other(text));
        }
        let text = match sys::open_regular(directory.as_fd(), INDEX) {
            Ok((file, stat)) => Some(read_open(&file, &stat, MAX_BYTES)?),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        let mut key = None;
        for line in text
            .iter()
            .flat_map(|text| text.split(|byte| *byte == b'\n'))
        {
            match serde_json::from_slice(line) {
                Ok(Entry::Key(bytes)) => key = Some(bytes),
                Ok(entry) => self.apply(entry),
                Err(_) => {}
            }
        }
        let key = key
            .map_or_else(DigestKey::generate, Ok)
            .map_err(io::Error::other)?;
        self.key = DigestKey::from_bytes(&key);
        // A line that was cut off must not swallow the next one.
        self.journal = Some(self.rewritten(directory, key)?);
        Ok(())
    }

    fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Key(_) => {}
            Entry::File(path, object) => {
                let object = ObjectName::parse(&object).and_then(ObjectName::object);
                self.files.extend(object.map(|object| (path, object)));
            }
            Entry::Directory(path) => drop(self.directories.insert(path)),
            Entry::Gone(path) => {
                self.files.remove(&path);
                self.directories.remove(&path);
            }
            Entry::Hooks(record) => self.hooks = Some(record),
        }
    }

    /// The key of digests. It outlives the process if the index does.
    pub(crate) fn key(&self) -> &DigestKey {
        &self.key
    }

    /// The files with their objects.
    pub(crate) fn files(&self) -> &BTreeMap<Arc<str>, ObjectRef> {
        &self.files
    }

    /// Whether we have made the directory.
    pub(crate) fn has_made(&self, directory: &str) -> bool {
        self.directories.contains(directory)
    }

    /// The record of hooks of an earlier start, if there is one.
    pub(crate) fn hooks(&self) -> Option<&Record> {
        self.hooks.as_ref()
    }

    pub(crate) fn add_file(&mut self, path: &Arc<str>, object: &ObjectRef) {
        if self.files.get(path) != Some(object) {
            self.note(Entry::File(Arc::clone(path), object.text()));
        }
    }

    pub(crate) fn add_directory(&mut self, path: &str) {
        self.note(Entry::Directory(path.into()));
    }

    /// A file or directory is no longer ours.
    pub(crate) fn remove(&mut self, path: &str) {
        self.note(Entry::Gone(path.into()));
    }

    /// Notes what the application was last notified of.
    pub(crate) fn set_hooks(&mut self, record: Record) {
        self.note(Entry::Hooks(record));
    }

    fn note(&mut self, entry: Entry) {
        let line = line(&entry);
        self.apply(entry);
        let Some(journal) = &mut self.journal else {
            return;
        };
        let is_long = journal.length > 2 * journal.rewritten + SLACK;
        if journal.due.is_some() {
            self.mend();
        } else if is_long {
            self.rewrite();
        } else if let Err(error) = journal.file.write_all(&line) {
            journal.fail(&error);
        } else {
            journal.length += line.len();
        }
    }

    /// Rewrites the journal if a write has failed a while ago. Returns whether all is written.
    pub(crate) fn mend(&mut self) -> bool {
        let due = self.journal.as_ref().and_then(|journal| journal.due);
        if due.is_some_and(|due| due <= Instant::now()) {
            self.rewrite();
        }
        self.journal.iter().all(|journal| journal.due.is_none())
    }

    fn rewrite(&mut self) {
        let Some(journal) = &self.journal else {
            return;
        };
        let written = journal
            .directory
            .try_clone()
            .and_then(|directory| self.rewritten(directory, journal.key));
        match (written, &mut self.journal) {
            (Ok(written), journal) => *journal = Some(written),
            (Err(error), journal) => journal.iter_mut().for_each(|one| one.fail(&error)),
        }
    }

    /// A journal of what is in use.
    fn rewritten(&self, directory: OwnedFd, key: [u8; DigestKey::BYTES]) -> io::Result<Journal> {
        let file =
            |(path, object): (&Arc<str>, &ObjectRef)| Entry::File(Arc::clone(path), object.text());
        let mut entries = vec![Entry::Key(key)];
        entries.extend(self.files.iter().map(file));
        entries.extend(self.directories.iter().cloned().map(Entry::Directory));
        entries.extend(self.hooks.clone().map(Entry::Hooks));
        let text: Vec<u8> = entries.iter().flat_map(line).collect();
        replace::replace_file(directory.as_fd(), INDEX, "index.new", 0o600, &text)?;
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
        let file = openat(&directory, INDEX, flags, Mode::empty())?;
        Ok(Journal {
            directory,
            key,
            file: file.into(),
            length: text.len(),
            rewritten: text.len(),
            due: None,
        })
    }
}

impl Journal {
    fn fail(&mut self, error: &io::Error) {
        warn!(%error, "cannot write the index, will retry; until then, files of this start may stay after the next one");
        self.due = Some(Instant::now() + RETRY);
    }
}

fn line(entry: &Entry) -> Vec<u8> {
    let mut line = serde_json::to_vec(entry).expect("text has a form in JSON");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};

    use larder_objects::Kind;

    use super::*;

    fn object(name: &str) -> ObjectRef {
        ObjectRef::new(Kind::Secret, "n", name)
    }

    // sidecar 45
    #[test]
    fn index_is_read_back_and_a_line_that_was_cut_off_says_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (state, folder) = (root.path().join("s"), Path::new("/f"));
        let mut index = Index::open(&state, folder);
        assert!(index.files.is_empty() && index.journal.is_some());
        let tag = index.key().tag(b"a");
        let record = |hooks: &str| {
            let text = format!(r#"{{"version":1,"key":"","hooks":[{hooks}]}}"#);
            Record::read(text.as_bytes()).unwrap()
        };
        let hook = r#"{"place":"command line","name":"request","definition":"","uncertain":true}"#;
        index.add_file(&"/f/a".into(), &object("a"));
        index.add_file(&"/f/\"b\n".into(), &object("b"));
        index.remove("/f/a");
        index.add_directory("/f/d");
        index.set_hooks(record(""));
        index.set_hooks(record(hook));
        let directory = fs::read_dir(&state).unwrap().next().unwrap().unwrap();
        let path = directory.path().join(INDEX);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(br#"{"file":["/f/c",""#).unwrap();
        let mut index = Index::open(&state, folder);
        assert_eq!(
            index.files,
            BTreeMap::from([("/f/\"b\n".into(), object("b"))])
        );
        assert!(index.has_made("/f/d") && index.key().tag(b"a") == tag);
        assert_eq!(index.hooks(), Some(&record(hook)));
        index.add_file(&"/f/e".into(), &object("e"));
        assert_eq!(Index::open(&state, folder).files.len(), 2);
        assert!(Index::open(&state, Path::new("/g")).files.is_empty());
    }

    #[test]
    fn journal_does_not_grow_with_every_change() {
        let root = tempfile::tempdir().unwrap();
        let mut index = Index::open(root.path(), Path::new("/f"));
        let path: Arc<str> = format!("/f/{}", "a".repeat(4000)).into();
        for _ in 0..200 {
            index.add_file(&path, &object("a"));
            index.remove(&path);
        }
        assert!(index.journal.as_ref().unwrap().length <= SLACK + 10_000);
    }

    #[tokio::test(start_paused = true)]
    async fn journal_is_written_again_after_the_disk_was_full() {
        let root = tempfile::tempdir().unwrap();
        let folder = Path::new("/f");
        let mut index = Index::open(root.path(), folder);
        // Every write to it fails as on a full disk.
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        index.journal.as_mut().unwrap().file = full;
        index.add_file(&"/f/a".into(), &object("a"));
        assert!(!index.mend() && Index::open(root.path(), folder).files.is_empty());
        tokio::time::advance(RETRY).await;
        assert!(index.mend());
        index.add_file(&"/f/b".into(), &object("b"));
        assert_eq!(Index::open(root.path(), folder).files.len(), 2);
    }
}
