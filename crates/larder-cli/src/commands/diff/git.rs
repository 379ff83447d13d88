//! The manifests of a git revision, read by `git`.
//!
//! Invariants:
//! 1. What the user names as a revision is never taken as an option: it follows `--end-of-options`, and only the object
//!    IDs that git answers are used later.
//! 2. Names in the repository are data: git gets object IDs only.
//! 3. The repository is the one whose `.git` is nearest above the path. Files of a tree cannot be taken for another:
//!    git runs in that directory, and looks no further.
//! 4. git neither asks the network for objects, nor takes locks, nor runs a command of a configuration.
//! 5. A file that a checkout would have with other bytes, by its attributes, is not read: it is named.
//!
//! | module | purpose |
//! | --- | --- |
//! | `revision` | the repository of a path, and its objects |
//! | `paths` | what a revision has at a path, and the manifests of a directory |
//! | `checkout` | what a checkout would make of files |
//!
//! The author of a revision may be a stranger, whose pull request is looked at. A tree of some kilobytes can have a file
//! under millions of names, and links that lead through all of them; so there are limits.

mod checkout;
mod paths;
mod revision;

use std::{
    collections::BTreeSet,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, bail};
use larder_objects::manifest::{Loader, Manifests};
use zeroize::Zeroizing;

use self::{
    checkout::Checkout,
    paths::{Found, ManifestBlob},
    revision::{Entry, EntryKind, Revision},
};
use crate::{input, outcome::Failure};

/// Most manifests of a path, and most bytes in them: a revision may have one file under any number of names.
const MAX_FILES: usize = 50_000;
const MAX_BYTES: u64 = 256 << 20;
/// What `ident` replaces.
const IDENT: &[u8] = b"$Id";
/// Number of digits that are shown of an ID.
const SHORT_ID: usize = 10;

/// One side of a comparison.
pub(super) struct GitSide {
    pub(super) manifests: Manifests,
    /// The paths at which it has nothing.
    pub(super) absent: BTreeSet<PathBuf>,
    /// What it is: `main (1a2b3c4d5e)`.
    pub(super) name: String,
}

/// The manifests at `paths` in `revision`.
///
/// # Errors
///
/// There is no such revision, or git fails.
pub(super) fn load(
    mut loader: Loader,
    paths: &[PathBuf],
    revision: &str,
    recursive: bool,
) -> Result<GitSide, Failure> {
    let (mut absent, mut name) = (BTreeSet::new(), revision.to_owned());
    for path in paths {
        let read = read(&mut loader, path, revision, recursive).with_context(|| {
            let path = path.display();
            format!("cannot read revision {revision:?} of {path}")
        })?;
        absent.extend((!read.is_there).then(|| path.clone()));
        name = format!(
            "{revision} ({})",
            &read.commit[..read.commit.len().min(SHORT_ID)]
        );
    }
    Ok(GitSide {
        manifests: loader.finish(),
        absent,
        name,
    })
}

/// The same of the working tree.
pub(super) fn load_working_tree(loader: Loader, paths: &[PathBuf]) -> GitSide {
    let is_absent = |path: &PathBuf| {
        let nothing = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
        path.symlink_metadata()
            .is_err_and(|error| nothing.contains(&error.kind()))
    };
    let (absent, there): (Vec<_>, Vec<_>) = paths.iter().cloned().partition(is_absent);
    GitSide {
        manifests: input::load(loader, &there),
        absent: absent.into_iter().collect(),
        name: "the working tree".to_owned(),
    }
}

/// What was read of a path.
struct PathRead {
    /// Whether the revision has something there.
    is_there: bool,
    commit: String,
}

fn read(
    loader: &mut Loader,
    path: &Path,
    revision: &str,
    recursive: bool,
) -> anyhow::Result<PathRead> {
    let (revision, below) = Revision::of(path, revision)?;
    let found = revision.find(&below)?;
    let is_there = !matches!(found, Found::Nothing);
    let files = match found {
        Found::Nothing => Vec::new(),
        Found::NotRead(why) => {
            loader.not_read(path, why);
            Vec::new()
        }
        Found::Entry(entry, place) if entry.kind == EntryKind::Tree => {
            revision.files(loader, path, &place, &entry.id, recursive)?
        }
        Found::Entry(Entry { id, .. }, place) => {
            let shown = path.to_owned();
            vec![ManifestBlob { shown, place, id }]
        }
    };
    revision.read(loader, &files)?;
    Ok(PathRead {
        is_there,
        commit: revision.commit,
    })
}

impl Revision {
    /// Reads the objects of `files`.
    fn read(&self, loader: &mut Loader, files: &[ManifestBlob]) -> anyhow::Result<()> {
        if files.len() > MAX_FILES {
            bail!("more than {MAX_FILES} manifests");
        }
        let checkouts = self.checkouts(files)?;
        let mut left = MAX_BYTES;
        let mut git = self.git();
        git.args(["cat-file", "--batch"]).stdin(Stdio::piped());
        let mut child = git.spawn().context("cannot run git")?;
        let mut stdin = child.stdin.take().context("no input of git")?;
        let mut stdout = BufReader::new(child.stdout.take().context("no output of git")?);
        for ManifestBlob {
            shown: path,
            place,
            id,
        } in files
        {
            // One at a time, so that neither side waits for the other to read.
            writeln!(stdin, "{id}")?;
            let mut head = String::new();
            stdout.read_line(&mut head)?;
            // `ID blob BYTES`, then the bytes and a line feed.
            let bytes = head
                .trim_end()
                .rsplit_once(" blob ")
                .and_then(|(_, bytes)| bytes.parse::<u64>().ok())
                .with_context(|| format!("cannot read {}", path.display()))?;
            left = left
                .checked_sub(bytes)
                .context("more than 256 MiB of manifests")?;
            // One that is too long is an error of that file; the rest of it is passed over.
            let mut content = stdout.by_ref().take(bytes);
            match checkouts.get(place) {
                None => loader.input(path, &mut content),
                Some(Checkout::Changed(why)) => loader.not_read(path, why),
                Some(Checkout::Ident) => {
                    let mut bytes = Zeroizing::new(Vec::new());
                    content.read_to_end(&mut bytes)?;
                    if bytes.windows(IDENT.len()).any(|part| part == IDENT) {
                        loader.not_read(path, "its attribute ident replaces $Id$ at a checkout");
                    } else {
                        loader.input(path, &mut &**bytes);
                    }
                }
            }
            io::copy(&mut content, &mut io::sink())?;
            stdout.read_exact(&mut [0])?;
        }
        drop(stdin);
        let _ = child.wait();
        Ok(())
    }
}
