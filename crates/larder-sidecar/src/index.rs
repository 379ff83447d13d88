//! What is ours, across restarts (rules D2 to D4): paths with their objects, directories that we made, and the digest of
//! the last successful hook.
//!
//! A journal of one JSON object for each line, in a directory that only this user can write. It is appended to before a
//! file appears, and written anew when most of it is out of date. It has no byte that depends on a value, but for a
//! digest whose key is beside it (0600, as the files themselves may be).
//!
//! Invariants:
//! 1. A path is in the journal before its file is written. So nothing of ours is ever unknown.
//! 2. A line that was cut off says nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use larder_files::{ownership::Ownership, regular_file::read_regular_file, replace, sys};
use larder_objects::Kind;
use larder_on_change::{ContentDigest, DigestKey};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use tracing::warn;

use crate::selection::ObjectRef;

/// The longest journal that is read: some hundred thousand files.
const MAX_BYTES: u64 = 64 << 20;
/// Lines beyond those in use, from which on the journal is written anew.
const SLACK: usize = 1000;

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Entry<'a> {
    /// A file of an object.
    File {
        path: &'a str,
        secret: bool,
        namespace: &'a str,
        name: &'a str,
    },
    /// No longer ours.
    Gone(&'a str),
    /// A directory that we made.
    Directory(&'a str),
    /// The digest of a hook's last success; none while that is uncertain.
    Hook(&'a str, Option<String>),
}

/// What was found at the start.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) files: BTreeMap<Arc<str>, ObjectRef>,
    pub(crate) directories: BTreeSet<Arc<str>>,
    pub(crate) hooks: BTreeMap<String, Option<ContentDigest>>,
}

/// The journal; without a file if there is no directory for it.
#[derive(Debug)]
pub(crate) struct Index {
    journal: Option<Journal>,
    key: DigestKey,
}

#[derive(Debug)]
struct Journal {
    directory: OwnedFd,
    file: File,
    lines: usize,
}

impl Index {
    /// The index of the files in `folder`, in the directory `state`. Without one, a warning says so.
    pub(crate) fn open(state: &Path, folder: &Path) -> (Self, Known) {
        match Self::try_open(state, folder) {
            Ok(opened) => opened,
            Err(error) => {
                warn!(
                    %error, path = %state.display(),
                    "cannot use the state directory, files of an earlier start will not be removed"
                );
                let key = DigestKey::temporary().expect("the system has random numbers");
                (Self { journal: None, key }, Known::default())
            }
        }
    }

    fn try_open(state: &Path, folder: &Path) -> io::Result<(Self, Known)> {
        let own = state.join(directory_name(folder));
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&own)?;
        // The directory above may be a mount that is open to all.
        let found = Ownership::from(&fs::symlink_metadata(&own)?);
        if !found.is_own() || found.is_writable_by_others() {
            let text = "the directory belongs to another user, or others may write it";
            return Err(io::Error::other(text));
        }
        let directory = sys::open_dir(rustix::fs::CWD, &own)?;
        let key = key(&own)?;
        let path = own.join("index");
        let text = match read_regular_file(&path, MAX_BYTES) {
            Ok(text) => text.to_vec(),
            Err(error) if !path.exists() => {
                drop(error);
                Vec::new()
            }
            Err(error) => return Err(io::Error::other(error)),
        };
        let known = read(&text);
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&path)?;
        let journal = Journal {
            directory,
            file,
            lines: text.split(|byte| *byte == b'\n').count(),
        };
        let mut index = Self {
            journal: Some(journal),
            key,
        };
        // A line that was cut off must not swallow the next one.
        index.rewrite(&known);
        Ok((index, known))
    }

    /// The key of digests. It outlives the process if the index does.
    pub(crate) fn key(&self) -> &DigestKey {
        &self.key
    }

    pub(crate) fn add_file(&mut self, path: &str, object: &ObjectRef) {
        self.append(&file_entry(path, object));
    }

    pub(crate) fn remove(&mut self, path: &str) {
        self.append(&Entry::Gone(path));
    }

    pub(crate) fn add_directory(&mut self, path: &str) {
        self.append(&Entry::Directory(path));
    }

    /// Notes the content of a hook's last success; `None` from the first step of an attempt on.
    pub(crate) fn set_hook(&mut self, name: &str, digest: Option<ContentDigest>) {
        self.append(&Entry::Hook(name, digest.map(|digest| digest.to_hex())));
    }

    fn append(&mut self, entry: &Entry<'_>) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if let Err(error) = journal.append(entry) {
            warn!(%error, "cannot write the index, files of this start may stay after the next one");
            self.journal = None;
        }
    }

    /// Writes the journal anew if most of it is out of date.
    pub(crate) fn compact(&mut self, known: &Known) {
        let used = known.files.len() + known.directories.len() + known.hooks.len();
        let lines = self.journal.as_ref().map_or(0, |journal| journal.lines);
        if lines > 2 * used + SLACK {
            self.rewrite(known);
        }
    }

    fn rewrite(&mut self, known: &Known) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        if let Err(error) = journal.rewrite(known) {
            warn!(%error, "cannot write the index, files of this start may stay after the next one");
            self.journal = None;
        }
    }
}

impl Journal {
    fn append(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        self.lines += 1;
        self.file.write_all(&line(entry))
    }

    fn rewrite(&mut self, known: &Known) -> io::Result<()> {
        let mut text = Vec::new();
        for (path, object) in &known.files {
            text.extend(line(&file_entry(path, object)));
        }
        for path in &known.directories {
            text.extend(line(&Entry::Directory(path)));
        }
        for (name, digest) in &known.hooks {
            text.extend(line(&Entry::Hook(
                name,
                digest.map(|digest| digest.to_hex()),
            )));
        }
        let directory = self.directory.as_fd();
        replace::replace_file(directory, "index", "index.new", 0o600, &text)?;
        let file = rustix::fs::openat(
            directory,
            "index",
            rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::APPEND | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        self.file = file.into();
        self.lines = known.files.len() + known.directories.len() + known.hooks.len();
        Ok(())
    }
}

fn file_entry<'a>(path: &'a str, object: &'a ObjectRef) -> Entry<'a> {
    Entry::File {
        path,
        secret: object.kind == Kind::Secret,
        namespace: &object.namespace,
        name: &object.name,
    }
}

fn line(entry: &Entry<'_>) -> Vec<u8> {
    let mut line = serde_json::to_vec(entry).expect("text has a form in JSON");
    line.push(b'\n');
    line
}

fn read(text: &[u8]) -> Known {
    /// As [`Entry`], with text that may have escapes.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    enum Line {
        File {
            path: Arc<str>,
            secret: bool,
            namespace: SmolStr,
            name: SmolStr,
        },
        Gone(Arc<str>),
        Directory(Arc<str>),
        Hook(String, Option<String>),
    }
    let mut known = Known::default();
    for line in text.split(|byte| *byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(Line::File {
                path,
                secret,
                namespace,
                name,
            }) => {
                let kind = if secret {
                    Kind::Secret
                } else {
                    Kind::ConfigMap
                };
                let object = ObjectRef {
                    kind,
                    namespace,
                    name,
                };
                known.files.insert(path, object);
            }
            Ok(Line::Gone(path)) => {
                known.files.remove(&path);
                known.directories.remove(&path);
            }
            Ok(Line::Directory(path)) => {
                known.directories.insert(path);
            }
            Ok(Line::Hook(name, digest)) => {
                let digest = digest.and_then(|digest| ContentDigest::from_hex(&digest));
                known.hooks.insert(name, digest);
            }
            Err(_) => {}
        }
    }
    known
}

/// Each folder has an index of its own: several sidecars may share a state directory.
fn directory_name(folder: &Path) -> String {
    larder_on_change::Definition::of(&folder.as_os_str()).to_string()
}

/// The key in `directory`, which is made if it is missing.
fn key(directory: &Path) -> io::Result<DigestKey> {
    let path: PathBuf = directory.join("key");
    if let Ok(bytes) = read_regular_file(&path, DigestKey::BYTES as u64)
        && let Ok(bytes) = <&[u8; DigestKey::BYTES]>::try_from(bytes.as_slice())
    {
        return Ok(DigestKey::from_bytes(bytes));
    }
    let bytes = DigestKey::generate().map_err(io::Error::other)?;
    let mut file = File::create(&path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(&bytes)?;
    Ok(DigestKey::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> ObjectRef {
        ObjectRef {
            kind: Kind::Secret,
            namespace: "n".into(),
            name: name.into(),
        }
    }

    // sidecar 45
    #[test]
    fn index_is_read_back_and_a_line_that_was_cut_off_says_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (state, folder) = (root.path().join("s"), Path::new("/f"));
        let (mut index, known) = Index::open(&state, folder);
        assert!(known.files.is_empty() && index.journal.is_some());
        let digest = ContentDigest::from_hex(&"ab".repeat(32));
        index.add_file("/f/a", &object("a"));
        index.add_file("/f/\"b\n", &object("b"));
        index.remove("/f/a");
        index.add_directory("/f/d");
        index.set_hook("request", None);
        index.set_hook("request", digest);
        let path = state.join(directory_name(folder)).join("index");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(br#"{"file":{"path":"/f/c","sec"#).unwrap();
        let (mut index, known) = Index::open(&state, folder);
        assert_eq!(
            known.files,
            BTreeMap::from([("/f/\"b\n".into(), object("b"))])
        );
        assert_eq!(known.directories, BTreeSet::from(["/f/d".into()]));
        assert_eq!(
            known.hooks,
            BTreeMap::from([("request".to_owned(), digest)])
        );
        index.add_file("/f/e", &object("e"));
        let (_, known) = Index::open(&state, folder);
        assert_eq!(known.files.len(), 2);
        let (_, other) = Index::open(&state, Path::new("/g"));
        assert!(other.files.is_empty());
    }

    #[test]
    fn journal_does_not_grow_with_every_change() {
        let root = tempfile::tempdir().unwrap();
        let (mut index, mut known) = Index::open(root.path(), Path::new("/f"));
        known.files.insert("/f/a".into(), object("a"));
        for _ in 0..2 * SLACK {
            index.add_file("/f/a", &object("a"));
            index.compact(&known);
        }
        assert!(index.journal.as_ref().unwrap().lines <= SLACK + 2);
    }
}
