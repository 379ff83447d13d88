//! Copies of the last good manifests of a source, so that after a restart a file that is broken by now, or a URL that does not
//! answer, still has the pods that it had.
//!
//! One file for each manifest, named by the hash of its place: `larder/last-good/1`, the place, the hash of the text, and the text,
//! with a NUL after each but the last. The text is kept as it was, rather than the pod made of it, so that a restart decides
//! by its own rules and settings whether it is a pod.
//!
//! Invariants:
//! 1. A copy is whole or not there: it is written aside and renamed. It is not synced; what a power cut tears is told by its hash,
//!    and the manifest itself is older than the kernel's patience or still at hand.
//! 2. Nobody else reads them: a manifest may have passwords among its variables. Directory 0700, files 0600, whatever the umask.
//! 3. A copy that cannot be written or read is a problem that is told, and costs nothing else.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use larder_objects::StableHash;

use super::SourceProblem;

/// First field of a copy: its form and version.
const FORM: &[u8] = b"larder/last-good/1";

/// Why there is no copy of the last good manifest, or none that can be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum LastGoodError {
    /// A step of keeping or reading it failed.
    #[error("cannot {step} the copy that a restart would need")]
    Io {
        /// `list`, `read`, `write`, `remove`.
        step: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// Somebody or something has changed it.
    #[error("the copy of a last good manifest is damaged, and not used")]
    Damaged,
}

/// A manifest as it was when it was last good.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Remembered {
    /// File or URL, as it was given to [`LastGood::keep`].
    pub(super) place: Vec<u8>,
    pub(super) text: String,
}

/// The copies of one source, in a directory of their own.
#[derive(Debug)]
pub(super) struct LastGood {
    directory: PathBuf,
    /// What is there, by file name: the hash of the text, if it is a copy at all.
    copies: BTreeMap<String, Option<StableHash>>,
    /// What went wrong, by path.
    problems: BTreeMap<PathBuf, Arc<LastGoodError>>,
}

impl LastGood {
    /// Opens the directory, which is made with the first copy, and reads the copies in it.
    pub(super) fn recall(directory: PathBuf) -> (Self, Vec<Remembered>) {
        let mut this = Self {
            directory,
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
            // What was being written is no copy, and neither is one under another's name: it was not made here.
            let copy = match read(&path) {
                Ok(copy) if file_name(&copy.place) != name => Err(LastGoodError::Damaged),
                copy => copy,
            };
            match copy {
                Ok(copy) => {
                    this.copies.insert(name, Some(hash(&copy.text)));
                    remembered.push(copy);
                }
                Err(error) => {
                    this.copies.insert(name, None);
                    this.problems.insert(path, Arc::new(error));
                }
            }
        }
        (this, remembered)
    }

    /// Keeps `text` as the last good one of `place`. Costs a comparison of hashes when it is kept already.
    pub(super) fn keep(&mut self, place: &[u8], text: &str) {
        let (name, hash) = (file_name(place), hash(text));
        if self.copies.get(&name) == Some(&Some(hash)) {
            return;
        }
        let path = self.directory.join(&name);
        match self.write(&path, place, text) {
            Ok(()) => {
                self.problems.remove(&path);
                self.copies.insert(name, Some(hash));
            }
            Err(source) => {
                let error = LastGoodError::Io {
                    step: "write",
                    source,
                };
                self.problems.insert(path, Arc::new(error));
            }
        }
    }

    /// Removes what is no copy of one of these places.
    pub(super) fn retain<'a>(&mut self, places: impl IntoIterator<Item = &'a [u8]>) {
        let wanted: BTreeSet<_> = places.into_iter().map(file_name).collect();
        let Self {
            directory,
            copies,
            problems,
        } = self;
        copies.retain(|name, _| {
            if wanted.contains(name) {
                return true;
            }
            let path = directory.join(name);
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    let error = LastGoodError::Io {
                        step: "remove",
                        source,
                    };
                    problems.insert(path, Arc::new(error));
                    true
                }
                Ok(()) | Err(_) => {
                    problems.remove(&path);
                    false
                }
            }
        });
    }

    /// What is wrong at present.
    pub(super) fn problems(&self) -> impl Iterator<Item = SourceProblem> {
        self.problems.iter().map(|(path, error)| SourceProblem {
            subject: path.display().to_string(),
            error: error.clone(),
        })
    }

    fn list(&self) -> Result<Vec<String>, LastGoodError> {
        let failed = |source| LastGoodError::Io {
            step: "list",
            source,
        };
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let name = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.map_err(failed)?;
            Ok(entry.file_name().to_string_lossy().into_owned())
        };
        entries.map(name).collect()
    }

    fn write(&self, path: &Path, place: &[u8], text: &str) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)?;
        fs::set_permissions(&self.directory, Permissions::from_mode(0o700))?;
        let aside = path.with_extension("aside");
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&aside)?;
        let copy = [
            FORM,
            place,
            hash(text).to_string().as_bytes(),
            text.as_bytes(),
        ]
        .join(&0);
        file.set_permissions(Permissions::from_mode(0o600))
            .and_then(|()| file.write_all(&copy))
            .and_then(|()| fs::rename(&aside, path))
            // Its remains would only be in the way.
            .inspect_err(|_| drop(fs::remove_file(&aside)))
    }
}

fn hash(text: &str) -> StableHash {
    StableHash::EMPTY.with(text)
}

fn file_name(place: &[u8]) -> String {
    StableHash::EMPTY.with(place).to_string()
}

fn read(path: &Path) -> Result<Remembered, LastGoodError> {
    let bytes = fs::read(path).map_err(|source| LastGoodError::Io {
        step: "read",
        source,
    })?;
    let fields: Vec<_> = bytes.splitn(4, |byte| *byte == 0).collect();
    let copy = || {
        let [FORM, place, digest, text] = fields[..] else {
            return None;
        };
        let text = str::from_utf8(text).ok()?;
        (hash(text).to_string().as_bytes() == digest).then(|| Remembered {
            place: place.to_owned(),
            text: text.to_owned(),
        })
    };
    copy().ok_or(LastGoodError::Damaged)
}

#[cfg(test)]
mod tests {
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
    fn the_last_text_kept_is_recalled_and_private() {
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
    fn what_is_no_longer_wanted_is_removed() {
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
    fn a_damaged_copy_is_told_until_it_is_made_again() {
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
        // Under another name it is somebody else's.
        fs::rename(&path, path.with_file_name("0")).unwrap();
        let (mut copies, remembered) = recall(&root);
        assert_eq!((remembered.len(), problems(&copies).len()), (0, 1));
        copies.retain([PLACE]);
        assert_eq!(problems(&copies), [""; 0]);
    }

    #[test]
    fn a_copy_that_cannot_be_written_is_told_and_tried_again() {
        let root = TempDir::new().unwrap();
        let (mut copies, _) = recall(&root);
        fs::write(root.path().join("copies"), "in the way").unwrap();
        copies.keep(PLACE, "1");
        let [problem] = &problems(&copies)[..] else {
            panic!("one problem");
        };
        assert!(
            problem.contains("cannot write the copy that a restart would need"),
            "{problem}"
        );
        fs::remove_file(root.path().join("copies")).unwrap();
        copies.keep(PLACE, "1");
        assert_eq!(problems(&copies), [""; 0]);
        assert_eq!(recall(&root).1.len(), 1);
    }
}
