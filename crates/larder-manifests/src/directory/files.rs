//! Lists the files of a directory and reads them. Synchronous.
//!
//! Invariant: a link leads out of the directory only if no other user can have made it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _},
    os::{
        fd::AsFd as _,
        unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use larder_files::{beneath, ownership::Ownership, stamp::Stamp, sys};
use larder_objects::{
    chain, escaped,
    manifest::{
        Document, HiddenObjects, LEAVES, Loader, MAX_MANIFEST_BYTES, MadeObject, ManifestError,
        Manifests, Problem, Subject, Suggestion, is_manifest_name,
    },
};
use rustix::{fs::OFlags, io::Errno};

/// Namespace of objects that name none, as `kubectl`'s.
const DEFAULT_NAMESPACE: &str = "default";

/// A directory of manifests.
pub(super) struct Listing {
    /// Files, and what else is neither a link nor a directory.
    pub(super) files: BTreeMap<PathBuf, Stamp>,
    /// Links, which may lead to another disk.
    pub(super) links: Vec<PathBuf>,
    pub(super) ownership: Ownership,
}

/// The manifests of `directory`, by [`is_manifest_name`]. Subdirectories are skipped; reading reports what is not a
/// file, and a link that leads nowhere.
pub(super) fn list(directory: &Path) -> io::Result<Listing> {
    let ownership = Ownership::from(&fs::metadata(directory)?);
    let (mut files, mut links) = (BTreeMap::new(), Vec::new());
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        // Not one that was removed meanwhile.
        if name.is_some_and(is_manifest_name)
            && let Ok(metadata) = fs::symlink_metadata(&path)
            && !metadata.is_dir()
        {
            if metadata.is_symlink() {
                links.push(path);
            } else {
                files.insert(path, Stamp::from(&metadata));
            }
        }
    }
    Ok(Listing {
        files,
        links,
        ownership,
    })
}

/// The manifests of `directory`, in their order. This waits for every disk that a link leads to.
pub(super) fn paths(directory: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let Listing { files, links, .. } = list(directory)?;
    let links = links.into_iter().filter(|link| follow(link).is_some());
    Ok(files.into_keys().chain(links).collect())
}

/// What a link leads to, or the link where it leads nowhere; `None` for a directory.
pub(super) fn follow(link: &Path) -> Option<Stamp> {
    let found = fs::metadata(link)
        .or_else(|_| fs::symlink_metadata(link))
        .ok()?;
    (!found.is_dir()).then(|| Stamp::from(&found))
}

/// The content of one file.
pub(super) struct Reading {
    pub(super) path: PathBuf,
    pub(super) documents: Vec<Document>,
    pub(super) problems: Vec<String>,
    /// What could not be read may hold these.
    pub(super) hidden: HiddenObjects,
    pub(super) unknown_fields: Vec<UnknownField>,
    /// What else the API server would reject.
    pub(super) warnings: Vec<String>,
}

/// A field that is unknown.
pub(super) struct UnknownField {
    /// Kind, namespace and name of the object that it is in, or of the workload whose pods these are.
    pub(super) subject: SubjectKey,
    /// What it is where the object is taken without it.
    pub(super) ignored: String,
    /// And where the last good version of the object stays.
    pub(super) rejected: String,
}

/// Kind, namespace and name.
pub(super) type SubjectKey = (String, String, String);

impl UnknownField {
    fn of(warning: &ManifestError) -> Self {
        let subject = match warning {
            ManifestError::Document { subject, .. } => {
                let text = |text: &Option<String>| text.clone().unwrap_or_default();
                (
                    text(&subject.kind),
                    text(&subject.namespace),
                    text(&subject.name),
                )
            }
            _ => SubjectKey::default(),
        };
        Self {
            subject,
            ignored: chain(warning),
            rejected: warning.as_rejection(),
        }
    }
}

impl Reading {
    pub(super) fn new(path: PathBuf, mut manifests: Manifests) -> Self {
        // No pod gets ciphertext in place of a value.
        let encrypted = manifests.made.iter().filter_map(MadeObject::encrypted);
        manifests.errors.extend(encrypted);
        let (lists, warnings): (Vec<_>, Vec<_>) =
            manifests.warnings.into_iter().partition(may_be_items);
        manifests.errors.extend(lists);
        let (unknown_fields, warnings): (Vec<_>, Vec<_>) = warnings
            .iter()
            .partition(|warning| unknown(warning).is_some());
        let shown =
            |errors: Vec<&ManifestError>| errors.into_iter().map(|error| chain(error)).collect();
        Self {
            path,
            documents: manifests.documents,
            problems: shown(manifests.errors.iter().collect()),
            hidden: HiddenObjects::of_errors(&manifests.errors),
            unknown_fields: unknown_fields.into_iter().map(UnknownField::of).collect(),
            warnings: shown(warnings),
        }
    }
}

impl Reading {
    /// A file whose disk does not answer: it may hold anything.
    pub(super) fn unanswered(path: &Path, since: Timestamp) -> Self {
        let shown = escaped(&path.to_string_lossy()).into_owned();
        Self {
            path: path.to_owned(),
            documents: Vec::new(),
            problems: vec![format!(
                "{shown}: not read, its disk has not answered since {since:.0}"
            )],
            hidden: HiddenObjects::anything(),
            unknown_fields: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

/// The unknown field that a warning is about: what it is in, and what may be meant.
fn unknown(warning: &ManifestError) -> Option<(&Subject, Option<&Suggestion>)> {
    match warning {
        ManifestError::Document {
            subject,
            problem: Problem::UnknownField { suggestion, .. },
            ..
        } => Some((subject, suggestion.as_ref())),
        _ => None,
    }
}

/// Whether it is an unknown field of a list that may stand for `items`: what is in it was not read.
fn may_be_items(warning: &ManifestError) -> bool {
    let is_list = |subject: &Subject| {
        let kind = subject.kind.as_deref().unwrap_or_default();
        subject.name.is_none() && kind.ends_with("List")
    };
    let is_other = |meant: &Suggestion| *meant != Suggestion::Name("items");
    unknown(warning)
        .is_some_and(|(subject, meant)| is_list(subject) && !meant.is_some_and(is_other))
}

/// Brings the file into memory, for [`read`]: this waits for the disk, and that does not. Errors are left to it.
pub(super) fn fetch(path: &Path) {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let opened = File::options().read(true).custom_flags(flags).open(path);
    if let Ok(file) = opened
        && file.metadata().is_ok_and(|found| found.is_file())
    {
        let _ = io::copy(&mut file.take(MAX_MANIFEST_BYTES), &mut io::sink());
    }
}

/// Reads one file; an unreadable part is a problem.
pub(super) fn read(path: PathBuf) -> Reading {
    let mut loader = Loader::new(DEFAULT_NAMESPACE);
    load(&mut loader, &path);
    Reading::new(path, loader.finish())
}

fn load(loader: &mut Loader, path: &Path) {
    match open(path) {
        _ if leads_nowhere(path) => {
            loader.unreadable("follow the link", path, Errno::NOENT.into());
        }
        Ok(None) => loader.file(path),
        Ok(Some(file)) => loader.opened(path, file),
        Err(Errno::XDEV | Errno::LOOP) => loader.not_read(path, LEAVES),
        Err(errno) => loader.unreadable("open", path, errno.into()),
    }
}

fn leads_nowhere(path: &Path) -> bool {
    path.is_symlink() && !path.exists()
}

/// Opens the file where other users may write to its directory: links that they make there stay below it. `None`: they may
/// not, so a link may lead anywhere.
fn open(path: &Path) -> rustix::io::Result<Option<File>> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(None);
    };
    let directory = sys::open_root(directory)?;
    let ownership = Ownership::from(&sys::stat(&directory)?);
    if ownership.is_trusted() && !ownership.is_writable_by_others() {
        return Ok(None);
    }
    let opened = beneath::open_file(directory.as_fd(), name.as_bytes())?;
    Ok(Some(opened.into()))
}
