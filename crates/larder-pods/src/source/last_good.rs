//! Copies of the last good manifests of a source. They let a broken file, or a URL that does not respond, keep its pods
//! over a restart.
//!
//! Each manifest has one file, named after the hash of its place. It holds `larder/last-good/1`, the place, the hash of
//! the text, and the text, with a NUL after each but the last. The file has the text rather than the pod, so that the
//! next run applies its own rules and settings to it.
//!
//! Invariants:
//! 1. A copy is complete or absent: it is written aside and renamed. It is not synced. A copy torn by a power cut is
//!    detected by its hash; the manifest itself is usually still available.
//! 2. Only the user can read the copies: a manifest may have passwords among its variables. The directory has mode
//!    0700, files have 0600, whatever the umask.
//! 3. No link is followed: files are reached from the open directory, whose own path must be free of links.
//! 4. A copy that cannot be written or read is a reported problem, and has no other effect.
//! 5. Reading a copy takes bounded memory and never waits, whatever is in its place.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use larder_files::{regular_file::read_open, replace::replace_file, sys};
use larder_objects::StableHash;
use rustix::{fs::CWD, io::Errno};

use super::SourceProblem;

/// First field of a copy: its format and version.
const FORM: &[u8] = b"larder/last-good/1";
/// Longest copy that is read, in bytes: the longest manifest and room for the other fields.
const MAX_COPY_BYTES: usize = 11 << 20;
/// A copy that is being written. Copies have hashes for names.
const ASIDE: &str = "aside";

/// Why a copy is missing or unusable.
#[derive(Debug, thiserror::Error)]
pub(super) enum LastGoodError {
    /// A step of writing or reading it failed.
    #[error("cannot {step} the copy of the last good manifest")]
    Io {
        /// `list`, `read`, `write`, `remove`.
        step: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// It was changed.
    #[error("the copy of a last good manifest is damaged, ignoring")]
    Damaged,
}

/// The copy of a manifest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Remembered {
    /// File or URL, as passed to [`LastGood::keep`].
    pub(super) place: Vec<u8>,
    pub(super) text: String,
}

/// The copies of one source, in their own directory.
#[derive(Debug)]
pub(super) struct LastGood {
    directory: PathBuf,
    /// The directory, once it is there.
    handle: Option<OwnedFd>,
    /// Hash of the text by file name; `None` for a file that is not a copy.
    copies: BTreeMap<String, Option<StableHash>>,
    /// Problems by path.
    problems: BTreeMap<PathBuf, Arc<LastGoodError>>,
}

impl LastGood {
    /// Reads the copies in `directory`, which the first copy creates. Its path must have no links.
    pub(super) fn recall(directory: PathBuf) -> (Self, Vec<Remembered>) {
        let mut this = Self {
            directory,
            handle: None,
            copies: BTreeMap::new(),
            problems: BTreeMap::new(),
        };
        let names = this.list().unwrap_or_else(|error| {
            this.problems
                .insert(this.directory.clone(), Arc::new(error));
            Vec::new()
        });
        let mut remembered = Vec::new();
        for name in names {
            let path = this.directory.join(&name);
            // An unfinished copy, or one under another's name, is not used.
            let copy = match this.read(&name) {
                Ok(copy) if file_name(&copy.place) != name => Err(LastGoodError::Damaged),
                copy => copy,
            };
            let known = copy.as_ref().ok().map(|copy| hash(&copy.text));
            this.copies.insert(name, known);
            match copy {
                Ok(copy) => remembered.push(copy),
                Err(error) => drop(this.problems.insert(path, Arc::new(error))),
            }
        }
        (this, remembered)
    }

    /// Keeps `text` as the copy of `place`. Compares hashes only if it is kept already.
    pub(super) fn keep(&mut self, place: &[u8], text: &str) {
        let (name, hash) = (file_name(place), hash(text));
        if self.copies.get(&name) == Some(&Some(hash)) {
            return;
        }
        let path = self.directory.join(&name);
        match self.write(&name, place, text) {
            Ok(()) => {
                self.problems.remove(&path);
                self.copies.insert(name, Some(hash));
            }
            Err(source) => {
                // It may have been removed, and is opened again next time.
                self.handle = None;
                self.problems
                    .insert(path, Arc::new(failed("write")(source)));
            }
        }
    }

    /// Removes every file that is not the copy of one of these places.
    pub(super) fn retain<'a>(&mut self, places: impl IntoIterator<Item = &'a [u8]>) {
        let wanted: BTreeSet<_> = places.into_iter().map(file_name).collect();
        let Self {
            directory,
            handle,
            copies,
            problems,
        } = self;
        copies.retain(|name, _| {
            if wanted.contains(name) {
                return true;
            }
            let path = directory.join(name);
            let removed = match handle {
                Some(handle) => sys::remove_file(handle.as_fd(), name.as_str()),
                None => Ok(()),
            };
            match sys::may_be_missing(removed) {
                Ok(()) => {
                    problems.remove(&path);
                    false
                }
                Err(errno) => {
                    problems.insert(path, Arc::new(failed("remove")(errno)));
                    true
                }
            }
        });
    }

    /// The current problems.
    pub(super) fn problems(&self) -> impl Iterator<Item = SourceProblem> {
        let problems = self.problems.iter();
        problems.map(|(path, error)| {
            let error: Arc<LastGoodError> = Arc::clone(error);
            SourceProblem::new(path.display().to_string(), error)
        })
    }

    fn list(&mut self) -> Result<Vec<String>, LastGoodError> {
        let handle = match open_directory(&self.directory, false) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            handle => handle.map_err(failed("list"))?,
        };
        let mut names = Vec::new();
        sys::list(&handle, |name, _| {
            names.push(name.to_string_lossy().into_owned());
        })
        .map_err(failed("list"))?;
        self.handle = Some(handle);
        Ok(names)
    }

    fn read(&self, name: &str) -> Result<Remembered, LastGoodError> {
        let read = self
            .handle
            .as_ref()
            .ok_or(Errno::NOENT)
            .and_then(|handle| sys::open_regular(handle.as_fd(), name))
            .and_then(|(file, stat)| read_open(&file, &stat, MAX_COPY_BYTES));
        match read {
            Ok(bytes) => parse(&bytes).ok_or(LastGoodError::Damaged),
            Err(Errno::INVAL | Errno::FBIG) => Err(LastGoodError::Damaged),
            Err(errno) => Err(failed("read")(errno)),
        }
    }

    fn write(&mut self, name: &str, place: &[u8], text: &str) -> io::Result<()> {
        let handle = match self.handle.take() {
            Some(handle) => handle,
            None => open_directory(&self.directory, true)?,
        };
        let handle = self.handle.insert(handle);
        sys::set_mode(&*handle, 0o700)?;
        let copy = [
            FORM,
            place,
            hash(text).to_string().as_bytes(),
            text.as_bytes(),
        ]
        .join(&0);
        Ok(replace_file(handle.as_fd(), name, ASIDE, 0o600, &copy)?)
    }
}

/// Opens the directory `path` without following a link; with `create`, missing components are created with mode 0700.
fn open_directory(path: &Path, create: bool) -> rustix::io::Result<OwnedFd> {
    let start = if path.is_absolute() { "/" } else { "." };
    let mut reached = sys::open_place(CWD, start)?;
    for element in path.components() {
        if !matches!(element, Component::Normal(_) | Component::ParentDir) {
            continue;
        }
        let name = element.as_os_str();
        reached = match sys::open_place(reached.as_fd(), name) {
            Err(Errno::NOENT) if create => {
                match sys::make_dir(reached.as_fd(), name, 0o700) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                sys::open_place(reached.as_fd(), name)?
            }
            opened => opened?,
        };
    }
    sys::open_dir(reached.as_fd(), ".")
}

fn failed<E: Into<io::Error>>(step: &'static str) -> impl Fn(E) -> LastGoodError {
    move |error| LastGoodError::Io {
        step,
        source: error.into(),
    }
}

fn hash(text: &str) -> StableHash {
    StableHash::EMPTY.with(text)
}

fn file_name(place: &[u8]) -> String {
    StableHash::EMPTY.with(place).to_string()
}

fn parse(bytes: &[u8]) -> Option<Remembered> {
    let fields: Vec<_> = bytes.splitn(4, |byte| *byte == 0).collect();
    let [FORM, place, digest, text] = fields[..] else {
        return None;
    };
    let text = str::from_utf8(text).ok()?;
    (hash(text).to_string().as_bytes() == digest).then(|| Remembered {
        place: place.to_owned(),
        text: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use tempfile::TempDir;

    use super::*;

    const PLACE: &[u8] = b"/m/web.yaml";

    fn recall(root: &TempDir) -> (LastGood, Vec<Remembered>) {
        LastGood::recall(root.path().join("copies"))
    }

    /// The only copy there is.
    fn copy(root: &TempDir) -> PathBuf {
        let paths: Vec<_> = fs::read_dir(root.path().join("copies"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert_eq!(paths.len(), 1, "{paths:?}");
        paths.into_iter().next().unwrap()
    }

    fn problems(copies: &LastGood) -> Vec<String> {
        copies
            .problems()
            .map(|problem| problem.to_string())
            .collect()
    }

    #[test]
    fn the_last_kept_text_is_recalled_and_private() {
        let root = TempDir::new().unwrap();
        let (mut copies, before) = recall(&root);
        assert_eq!(before, []);
        copies.keep(PLACE, "1");
        copies.keep(PLACE, "a\0b");
        let remembered = Remembered {
            place: PLACE.to_owned(),
            text: "a\0b".to_owned(),
        };
        assert_eq!(recall(&root).1, [remembered]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&copy(&root)), 0o600);
        assert_eq!(mode(&root.path().join("copies")), 0o700);
        assert_eq!(problems(&copies), [""; 0]);
    }

    #[test]
    fn unwanted_copies_are_removed() {
        let root = TempDir::new().unwrap();
        let (mut copies, _) = recall(&root);
        copies.keep(PLACE, "1");
        copies.keep(b"/m/other.yaml", "1");
        let (mut copies, _) = recall(&root);
        copies.retain([PLACE]);
        assert_eq!(recall(&root).1.len(), 1);
        copies.keep(b"/m/other.yaml", "1");
        assert_eq!(recall(&root).1.len(), 2);
    }

    #[test]
    fn a_damaged_copy_is_reported_until_rewritten() {
        let root = TempDir::new().unwrap();
        recall(&root).0.keep(PLACE, "text");
        let path = copy(&root);
        let whole = fs::read(&path).unwrap();
        let torn = [&whole[..whole.len() - 4], &[0; 4]].concat();
        for damaged in [&b""[..], &whole[..30], &torn, b"larder/last-good/2\0\0\0"] {
            fs::write(&path, damaged).unwrap();
            let (copies, remembered) = recall(&root);
            assert_eq!(remembered, []);
            let text = format!("{}: {}", path.display(), LastGoodError::Damaged);
            assert_eq!(problems(&copies), [text]);
        }
        let (mut copies, _) = recall(&root);
        copies.keep(PLACE, "text");
        assert_eq!(problems(&copies), [""; 0]);
        assert_eq!(recall(&root).1.len(), 1);
        // Under another name it is not used.
        fs::rename(&path, path.with_file_name("0")).unwrap();
        let (mut copies, remembered) = recall(&root);
        assert_eq!((remembered.len(), problems(&copies).len()), (0, 1));
        copies.retain([PLACE]);
        assert_eq!(problems(&copies), [""; 0]);
    }

    #[test]
    fn pipes_and_huge_files_among_the_copies_are_ignored() {
        let root = TempDir::new().unwrap();
        let directory = root.path().join("copies");
        fs::create_dir(&directory).unwrap();
        let pipe = directory.join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, pipe, 0o600.into()).unwrap();
        let sparse = fs::File::create(directory.join("sparse")).unwrap();
        sparse.set_len(1_500_000_000).unwrap();
        std::os::unix::fs::symlink("/dev/zero", directory.join("zero")).unwrap();
        let (copies, remembered) = recall(&root);
        assert_eq!((remembered.len(), problems(&copies).len()), (0, 3));
    }

    #[test]
    fn a_failed_write_of_a_copy_is_reported_and_retried() {
        let root = TempDir::new().unwrap();
        let (mut copies, _) = recall(&root);
        fs::write(root.path().join("copies"), "in the way").unwrap();
        copies.keep(PLACE, "1");
        let [problem] = &problems(&copies)[..] else {
            panic!("one problem");
        };
        assert!(
            problem.contains("cannot write the copy of the last good manifest"),
            "{problem}"
        );
        fs::remove_file(root.path().join("copies")).unwrap();
        copies.keep(PLACE, "1");
        assert_eq!(problems(&copies), [""; 0]);
        assert_eq!(recall(&root).1.len(), 1);
    }

    #[test]
    fn links_are_neither_followed_nor_their_targets_changed() {
        let root = TempDir::new().unwrap();
        let victim = root.path().join("victim");
        fs::create_dir(&victim).unwrap();
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(victim.join("precious"), "1").unwrap();
        // The directory itself.
        symlink("victim", root.path().join("copies")).unwrap();
        let (mut copies, _) = recall(&root);
        copies.retain([PLACE]);
        copies.keep(PLACE, "1");
        assert_eq!(problems(&copies).len(), 2);
        // What is above it.
        let (mut copies, _) = LastGood::recall(root.path().join("copies/below"));
        copies.keep(PLACE, "1");
        assert_eq!(problems(&copies).len(), 2);
        // A file in it.
        fs::remove_file(root.path().join("copies")).unwrap();
        fs::create_dir(root.path().join("copies")).unwrap();
        let precious = victim.join("precious");
        symlink(&precious, root.path().join("copies").join(file_name(PLACE))).unwrap();
        symlink(&precious, root.path().join("copies").join(ASIDE)).unwrap();
        let (mut copies, remembered) = recall(&root);
        assert_eq!((remembered.len(), problems(&copies).len()), (0, 2));
        copies.keep(PLACE, "2");
        copies.retain([PLACE]);
        assert_eq!(recall(&root).1.len(), 1);

        let mode = fs::metadata(&victim).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        let names: Vec<_> = fs::read_dir(&victim).unwrap().collect();
        assert_eq!(names.len(), 1);
        assert_eq!(fs::read_to_string(&precious).unwrap(), "1");
    }
}
