//! What a revision has at a path, with links followed, and the manifests of a directory.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use larder_objects::manifest::{LEAVES, Loader, has_manifest_extension};

use super::revision::{Entry, EntryKind, Revision};

/// Most links that are followed one after the other, as in Linux.
const MAX_LINKS: usize = 40;
/// Why a further link is not read.
const TOO_MANY_LINKS: &str = "it is a link, and others have led through too many directories";
/// Why a submodule is not read.
const SUBMODULE: &str = "it is a submodule: its files are in another repository";

/// A file to read.
pub(super) struct ManifestBlob {
    /// The path in messages.
    pub(super) shown: PathBuf,
    /// Its path in the revision, without links.
    pub(super) place: PathBuf,
    pub(super) id: String,
}

/// What a revision has at a path.
pub(super) enum Found {
    Nothing,
    NotRead(&'static str),
    /// With its path in the revision, which has no links.
    Entry(Entry, PathBuf),
}

impl Revision {
    /// The entry at `path`, with links on the way followed.
    pub(super) fn find(&self, path: &Path) -> anyhow::Result<Found> {
        let mut rest: Vec<_> = path.iter().rev().map(OsStr::to_owned).collect();
        // The directories that were gone through, and their path.
        let (mut trees, mut place) = (vec![self.tree.clone()], PathBuf::new());
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name == "." {
                continue;
            }
            if name == ".." {
                trees.pop();
                if !place.pop() {
                    return Ok(Found::NotRead(LEAVES));
                }
                continue;
            }
            let Some(left) = self.lookups.get().checked_sub(1) else {
                return Ok(Found::NotRead(TOO_MANY_LINKS));
            };
            self.lookups.set(left);
            let tree = trees.last().context("the root is in it")?;
            let mut known = self.trees.borrow_mut();
            if !known.contains_key(tree) {
                known.insert(tree.clone(), self.list(tree, false)?);
            }
            let Some(entry) = known[tree].get(Path::new(&name)).cloned() else {
                return Ok(Found::Nothing);
            };
            match entry.kind {
                EntryKind::Tree => {
                    trees.push(entry.id);
                    place.push(name);
                }
                EntryKind::Submodule => return Ok(Found::NotRead(SUBMODULE)),
                EntryKind::File if rest.is_empty() => {
                    return Ok(Found::Entry(entry, place.join(name)));
                }
                EntryKind::File => return Ok(Found::Nothing),
                EntryKind::Link => {
                    links += 1;
                    let target = self.target(&entry.id)?;
                    if links > MAX_LINKS || target.is_absolute() {
                        return Ok(Found::NotRead(LEAVES));
                    }
                    rest.extend(target.iter().rev().map(OsStr::to_owned));
                }
            }
        }
        let (kind, id) = (EntryKind::Tree, trees.pop().context("the root is in it")?);
        Ok(Found::Entry(Entry { kind, id }, place))
    }

    /// The manifests of a directory, shown as `path`, sorted by name. `place` is its path in the revision, without links,
    /// and `id` its tree. `loader` learns of entries that are not read.
    pub(super) fn files(
        &self,
        loader: &mut Loader,
        path: &Path,
        place: &Path,
        id: &str,
        recursive: bool,
    ) -> anyhow::Result<Vec<ManifestBlob>> {
        if !recursive {
            self.note_unsearched(loader, path, id)?;
        }
        let mut files = Vec::new();
        let mut add = |shown, place, id| files.push(ManifestBlob { shown, place, id });
        for (below, entry) in self.list(id, recursive)? {
            let is_read = match entry.kind {
                EntryKind::Submodule => recursive,
                EntryKind::File | EntryKind::Link => has_manifest_extension(&below),
                EntryKind::Tree => false,
            };
            if !is_read || loader.leaves_out(path, &below) {
                continue;
            }
            let shown = path.join(&below);
            match entry.kind {
                EntryKind::Tree => {}
                EntryKind::Submodule => loader.not_read(&shown, SUBMODULE),
                EntryKind::File => add(shown, place.join(&below), entry.id),
                EntryKind::Link => match self.find(&place.join(&below))? {
                    Found::Entry(_, target) if !target.starts_with(place) => {
                        loader.not_read(&shown, LEAVES);
                    }
                    Found::Entry(entry, target) if entry.kind == EntryKind::File => {
                        add(shown, target, entry.id);
                    }
                    Found::NotRead(why) => loader.not_read(&shown, why),
                    Found::Entry(..) => loader.not_read(&shown, "it is a link to a directory"),
                    Found::Nothing => loader.not_read(&shown, "it is a link to nothing"),
                },
            }
        }
        Ok(files)
    }

    /// Notes whether subdirectories of the tree `id` have manifests that are not left out.
    fn note_unsearched(&self, loader: &mut Loader, path: &Path, id: &str) -> anyhow::Result<()> {
        let all = self.list(id, true)?;
        let is_below = |path: &PathBuf| path.components().nth(1).is_some();
        let is_manifest = |path: &PathBuf| has_manifest_extension(path) && !loader.excludes(path);
        if all.keys().any(|path| is_below(path) && is_manifest(path)) {
            loader.not_searched(path);
        }
        Ok(())
    }
}
