//! The files of the label form: which object has which path, and writing and removing them (rules L5, L6, D1 to D6).
//!
//! [`Files::take`] writes an object's files as soon as it is read from a list or a watch, and forgets the bytes. So a
//! list is in memory one object at a time, whatever its length.
//!
//! Invariants:
//! 1. Nothing is removed before every list has succeeded once (rule A1), and nothing that the index does not have.
//! 2. Of several objects that claim a path, the last one in the order of [`ObjectRef`] has it. The file of a winner that
//!    leaves stays until the next one's content has come.
//! 3. A file that cannot be written keeps its old content. Its object is *stale*: it is read again.
//! 4. No version of an object goes backward, unless the API server was restored.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    mem,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
    sync::Arc,
};

use larder_files::{new_file::NewFile, sys};
use larder_objects::{ResourceVersion, chain};
use larder_on_change::{ContentDigest, ContentTag, Digester, Items, Start};
use rustix::io::Errno;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::{
    follow::Sink,
    index::{Index, Known},
    metrics::{Metrics, WriteOutcome},
    object::{DecodedObject, annotation},
    place::{ASIDE, Places},
    selection::{ObjectRef, Selection},
    settings::FileSettings,
};

/// The name that hooks see the files under, as if they were one volume.
pub(crate) const VOLUME: &str = "files";
/// The longest URL of a `*.url` key.
const MAX_URL: usize = 8 << 10;
/// The longest file that is read to learn what an earlier start wrote.
const MAX_READ: u64 = 16 << 20;

/// The files of all objects.
#[derive(Debug)]
pub(crate) struct Files {
    places: Places,
    index: Index,
    known: Known,
    tags: BTreeMap<Arc<str>, ContentTag>,
    objects: BTreeMap<ObjectRef, ObjectState>,
    /// The objects that want each path, in order.
    claims: BTreeMap<Arc<str>, Vec<ObjectRef>>,
    /// Whether every list has succeeded once.
    is_complete: bool,
    /// Objects to be read again; whether that is because of a failure.
    stale: BTreeMap<ObjectRef, bool>,
    /// Why a path was not written; whether an older content is there.
    errors: BTreeMap<Arc<str>, WriteFailure>,
    /// URL keys whose URL is new.
    fetches: Vec<UrlFile>,
    /// Files differ from what [`Files::take_change`] last saw.
    is_changed: bool,
    /// Paths that several objects want.
    collisions: usize,
    /// The mode of files, if none is set.
    default_mode: u32,
    random: fastrand::Rng,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct ObjectState {
    version: ResourceVersion,
    /// Its paths, sorted.
    paths: Box<[Arc<str>]>,
    /// The URL of paths whose content is fetched.
    urls: BTreeMap<Arc<str>, Arc<str>>,
}

/// Why a file was not written.
#[derive(Debug)]
struct WriteFailure {
    text: String,
    /// Whether older content is there.
    has_old: bool,
}

/// A file whose content is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UrlFile {
    pub(crate) path: Arc<str>,
    pub(crate) object: ObjectRef,
    pub(crate) url: Arc<str>,
}

/// Where a piece of content comes from.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    Bytes(&'a [u8]),
    Url(&'a str),
}

impl Files {
    pub(crate) fn new(settings: FileSettings, state_dir: &Path, metrics: Metrics) -> Self {
        let places = Places::new(settings);
        let (index, known) = Index::open(state_dir, places.folder());
        let mut directories: BTreeSet<_> = known
            .files
            .keys()
            .filter_map(|path| Path::new(&**path).parent())
            .collect();
        directories.insert(places.folder());
        for directory in directories {
            places.remove_leftovers(directory);
        }
        Self {
            places,
            index,
            known,
            tags: BTreeMap::new(),
            objects: BTreeMap::new(),
            claims: BTreeMap::new(),
            is_complete: false,
            stale: BTreeMap::new(),
            errors: BTreeMap::new(),
            fetches: Vec::new(),
            is_changed: false,
            collisions: 0,
            default_mode: default_mode(),
            random: fastrand::Rng::new(),
            metrics,
        }
    }

    /// How a hook starts that has a record of an earlier start.
    pub(crate) fn recorded(&self, name: &str) -> Option<Start> {
        let digest = self.known.hooks.get(name)?;
        Some(digest.map_or(Start::Uncertain, Start::Notified))
    }

    pub(crate) fn set_hook(&mut self, name: &str, digest: Option<ContentDigest>) {
        self.known.hooks.insert(name.to_owned(), digest);
        self.index.set_hook(name, digest);
        self.index.compact(&self.known);
    }

    /// Whether files differ from those at the last call.
    pub(crate) fn take_change(&mut self) -> bool {
        mem::take(&mut self.is_changed)
    }

    /// The `*.url` keys that are to be fetched now.
    pub(crate) fn take_fetches(&mut self) -> Vec<UrlFile> {
        mem::take(&mut self.fetches)
    }

    /// Whether this file is still to have the content of this URL.
    pub(crate) fn wants(&self, file: &UrlFile) -> bool {
        let claims = self.claims.get(&file.path);
        let state = self.objects.get(&file.object);
        claims.and_then(|claims| claims.last()) == Some(&file.object)
            && state.and_then(|state| state.urls.get(&file.path)) == Some(&file.url)
    }

    /// Why the first sync is not complete on disk: a path that was never written.
    pub(crate) fn unwritten(&self) -> Option<String> {
        let mut errors = self.errors.iter().filter(|(_, error)| !error.has_old);
        let (path, error) = errors.next()?;
        Some(format!("cannot write {path}: {}", error.text))
    }

    /// The digest of all files, and what changes are computed from.
    pub(crate) fn digest(&mut self) -> (ContentDigest, Items) {
        let mut digester = Digester::new(self.index.key());
        for path in self.known.files.keys() {
            if !self.tags.contains_key(path) {
                let read = larder_files::regular_file::read_regular_file;
                // An unreadable one counts as empty.
                let bytes = read(Path::new(&**path), MAX_READ).unwrap_or_default();
                self.tags
                    .insert(Arc::clone(path), self.index.key().tag(&bytes));
            }
            digester.file_tag(VOLUME, path, self.tags[path]);
        }
        digester.finish_with_items()
    }

    /// The paths and contents that an object wants.
    fn desired<'a>(
        &self,
        object: &ObjectRef,
        files: &[(&'a str, &'a [u8])],
        annotation: Option<&str>,
    ) -> BTreeMap<Arc<str>, Wanted<'a>> {
        let directory = match self.places.directory(annotation) {
            Ok(directory) => directory,
            Err(error) => {
                warn!(%object, %error, "object refused");
                self.metrics.wrote(WriteOutcome::Refused);
                return BTreeMap::new();
            }
        };
        let mut desired = BTreeMap::new();
        for &(key, bytes) in files {
            let file = match self.places.file_name(object, key) {
                Ok(file) => file,
                Err(error) => {
                    warn!(%object, %error, "key refused");
                    self.metrics.wrote(WriteOutcome::Refused);
                    continue;
                }
            };
            let path: Arc<str> = directory.join(file.name).to_string_lossy().into();
            let wanted = if file.is_url {
                let text = std::str::from_utf8(bytes).map(str::trim);
                match text.ok().filter(|text| text.len() <= MAX_URL) {
                    Some(url) => Wanted::Url(url),
                    None => continue,
                }
            } else {
                Wanted::Bytes(bytes)
            };
            desired.insert(path, wanted);
        }
        desired
    }

    fn claim(&mut self, path: &Arc<str>, object: &ObjectRef) {
        let claims = self.claims.entry(Arc::clone(path)).or_default();
        let Err(at) = claims.binary_search(object) else {
            return;
        };
        claims.insert(at, object.clone());
        if let [.., loser, winner] = claims.as_slice() {
            warn!(%path, %winner, %loser, "several objects have this path, the last one wins");
            self.collisions += usize::from(claims.len() == 2);
            self.metrics.collisions(self.collisions);
        }
    }

    /// Whether the object may write the path now.
    fn has(&self, path: &str, object: &ObjectRef) -> bool {
        let winner = self.claims.get(path).and_then(|claims| claims.last());
        // Of an earlier start, an object that was not listed yet may still be there.
        let before = self.known.files.get(path);
        let waits = !self.is_complete
            && before.is_some_and(|before| before > object && !self.objects.contains_key(before));
        winner == Some(object) && !waits
    }

    /// Drops an object's claim of a path.
    fn release(&mut self, path: &Arc<str>, object: &ObjectRef) {
        let Some(claims) = self.claims.get_mut(path) else {
            return;
        };
        let was_winner = claims.last() == Some(object);
        let before = claims.len();
        claims.retain(|claim| claim != object);
        self.collisions -= usize::from(before == 2 && claims.len() == 1);
        self.metrics.collisions(self.collisions);
        let next = claims.last().cloned();
        if next.is_none() {
            self.claims.remove(path);
        }
        if let (Some(next), true) = (next, was_winner) {
            self.reread(&next, false);
        } else if was_winner && self.is_complete {
            self.remove(path);
        }
    }

    fn reread(&mut self, object: &ObjectRef, failed: bool) {
        if let Some(state) = self.objects.get_mut(object) {
            state.version = ResourceVersion::default();
            state.urls.clear();
            *self.stale.entry(object.clone()).or_default() |= failed;
        }
    }

    /// Notes the outcome of a write.
    fn wrote(
        &mut self,
        path: &Arc<str>,
        object: &ObjectRef,
        result: Result<(bool, ContentTag), (String, bool)>,
    ) {
        match result {
            Ok((is_new, tag)) => {
                self.errors.remove(path);
                let before = self.tags.insert(Arc::clone(path), tag);
                self.is_changed |= is_new || before.is_some_and(|before| before != tag);
                if is_new {
                    info!(%path, %object, "file written");
                }
                let outcome = if is_new {
                    WriteOutcome::Written
                } else {
                    WriteOutcome::Unchanged
                };
                self.metrics.wrote(outcome);
            }
            Err((text, has_old)) => {
                warn!(%path, %object, error = text, "cannot write file, will retry");
                self.metrics.wrote(WriteOutcome::Failed);
                self.errors
                    .insert(Arc::clone(path), WriteFailure { text, has_old });
                self.reread(object, true);
            }
        }
    }

    /// Makes `path` the object's own in the index, before it is written.
    fn own(&mut self, path: &Arc<str>, object: &ObjectRef) {
        if self.known.files.get(path) != Some(object) {
            self.index.add_file(path, object);
            self.known.files.insert(Arc::clone(path), object.clone());
            self.metrics.files(self.known.files.len());
        }
    }

    fn write(&mut self, path: &Arc<str>, object: &ObjectRef, bytes: &[u8]) {
        self.own(path, object);
        let tag = self.index.key().tag(bytes);
        let written = self.try_write(path, |writer, name, mode| {
            if has_content(writer.dir, name, bytes, mode) {
                return Ok(false);
            }
            let mut file = NewFile::create(writer.dir, writer.aside)?;
            file.write(bytes)?;
            file.publish(name, mode.unwrap_or(writer.default_mode))?;
            Ok(true)
        });
        self.wrote(path, object, written.map(|is_new| (is_new, tag)));
    }

    /// Opens the directory of `path`, and has `write` write the file.
    fn try_write<T>(
        &mut self,
        path: &str,
        write: impl FnOnce(Writer<'_>, &str, Option<u32>) -> Result<T, Errno>,
    ) -> Result<T, (String, bool)> {
        let whole = Path::new(path);
        let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
            return Err(("not a path".to_owned(), false));
        };
        let (index, known) = (&mut self.index, &mut self.known);
        let mut note_made = |directory: &Path| {
            let directory: Arc<str> = directory.to_string_lossy().into();
            index.add_directory(&directory);
            known.directories.insert(directory);
        };
        let name = name.to_str().unwrap_or_default();
        let failed = |step: &'static str, has_old| {
            move |errno: Errno| (format!("cannot {step}: {errno}"), has_old)
        };
        let dir = self.places.open(parent, Some(&mut note_made));
        let dir = dir.map_err(failed("open the directory", false))?;
        let mut aside = ASIDE.to_owned();
        write!(aside, "{:016x}", self.random.u64(..)).expect("writing to a String does not fail");
        let writer = Writer {
            dir: dir.as_fd(),
            aside,
            default_mode: self.default_mode,
        };
        let mode = self.places.settings().mode;
        let is_file =
            |stat: &rustix::fs::Stat| sys::file_type(stat) == rustix::fs::FileType::RegularFile;
        write(writer, name, mode).map_err(|errno| {
            let has_old = sys::stat_entry(dir.as_fd(), name).is_ok_and(|stat| is_file(&stat));
            failed("write the file", has_old)(errno)
        })
    }

    /// Takes over the content that was fetched for `file`, if it is still wanted. `content` has it open.
    pub(crate) fn take_fetched(&mut self, file: &UrlFile, content: &[u8]) {
        if self.wants(file) && self.has(&file.path, &file.object) {
            self.write(&file.path, &file.object, content);
        }
    }

    /// Removes a file that is ours, and the directories above it that we made, if they are empty.
    fn remove(&mut self, path: &Arc<str>) {
        if !self.known.files.contains_key(path) {
            return;
        }
        let whole = Path::new(&**path);
        let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
            return;
        };
        let removed = match self.places.open(parent, None) {
            Ok(dir) => sys::may_be_missing(sys::remove_file(dir.as_fd(), name)),
            // The roots have changed, or somebody has removed the directory.
            Err(Errno::NOENT | Errno::XDEV | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(errno),
        };
        if let Err(error) = removed {
            warn!(%path, %error, "cannot remove file, will retry at the next change");
            return;
        }
        info!(%path, "file removed");
        self.metrics.wrote(WriteOutcome::Removed);
        self.index.remove(path);
        self.known.files.remove(path);
        self.tags.remove(path);
        self.errors.remove(path);
        self.metrics.files(self.known.files.len());
        self.is_changed = true;
        let mut directory = parent;
        while let Some(own) = directory.to_str()
            && self.known.directories.contains(own)
            && let (Some(above), Some(name)) = (directory.parent(), directory.file_name())
        {
            let removed = self.places.open(above, None);
            let removed = removed.and_then(|above| sys::remove_dir(above.as_fd(), name));
            if sys::may_be_missing(removed).is_err() {
                break;
            }
            self.index.remove(own);
            self.known.directories.remove(own);
            directory = above;
        }
    }
}

/// What a write needs.
struct Writer<'a> {
    dir: BorrowedFd<'a>,
    aside: String,
    default_mode: u32,
}

impl Sink for Files {
    fn take(&mut self, object: &ObjectRef, version: &ResourceVersion, json: &[u8]) {
        if let Some(state) = self.objects.get(object) {
            let seen = &state.version;
            if !version.is_empty() && (seen == version || version.is_older_than(seen)) {
                return;
            }
        }
        let began = Instant::now();
        let decoded = match DecodedObject::from_json(object.kind, json) {
            Ok(decoded) => decoded,
            Err(error) => {
                warn!(%object, error = chain(&error), "unreadable object, its files stay");
                self.keep(object);
                return;
            }
        };
        let annotation = annotation(json, &self.places.settings().annotation);
        let files = decoded.files();
        let desired = self.desired(object, &files, annotation.as_deref());
        if desired.is_empty() {
            debug!(%object, "object without files");
        }
        let mut state = ObjectState {
            version: version.clone(),
            paths: desired.keys().cloned().collect(),
            urls: BTreeMap::new(),
        };
        for (path, wanted) in &desired {
            if let Wanted::Url(url) = wanted {
                state.urls.insert(Arc::clone(path), Arc::from(*url));
            }
        }
        let before = self.objects.insert(object.clone(), state);
        self.metrics
            .objects(object.kind, i64::from(before.is_none()));
        let before = before.unwrap_or_default();
        self.stale.remove(object);
        for path in desired.keys() {
            self.claim(path, object);
        }
        // New and changed files first, then what is gone (rule L5).
        for (path, wanted) in &desired {
            if !self.has(path, object) {
                continue;
            }
            match wanted {
                Wanted::Bytes(bytes) => self.write(path, object, bytes),
                Wanted::Url(url) => {
                    let url: Arc<str> = Arc::from(*url);
                    if before.urls.get(path) != Some(&url) {
                        self.fetches.push(UrlFile {
                            path: Arc::clone(path),
                            object: object.clone(),
                            url,
                        });
                    }
                }
            }
        }
        self.metrics.delivered(began.elapsed());
        for path in &before.paths {
            if !desired.contains_key(path) {
                self.release(path, object);
            }
        }
        self.index.compact(&self.known);
    }

    fn keep(&mut self, object: &ObjectRef) {
        if self.objects.contains_key(object) {
            return;
        }
        // What an earlier start wrote for it stays.
        let files = self.known.files.iter();
        let paths = files.filter(|(_, owner)| *owner == object);
        let paths: Box<[_]> = paths.map(|(path, _)| Arc::clone(path)).collect();
        for path in &paths {
            self.claim(path, object);
        }
        let state = ObjectState {
            paths,
            ..ObjectState::default()
        };
        self.objects.insert(object.clone(), state);
        self.metrics.objects(object.kind, 1);
    }

    fn gone(&mut self, object: &ObjectRef) {
        let Some(state) = self.objects.remove(object) else {
            return;
        };
        self.stale.remove(object);
        for path in &state.paths {
            self.release(path, object);
        }
        self.metrics.objects(object.kind, -1);
    }

    fn listed(&mut self, selection: &Selection, present: &BTreeSet<ObjectRef>) {
        let known = self.objects.keys();
        let absent = known.filter(|object| selection.covers(object) && !present.contains(object));
        let absent: Vec<_> = absent.cloned().collect();
        for object in absent {
            self.gone(&object);
        }
    }

    fn complete(&mut self) {
        if mem::replace(&mut self.is_complete, true) {
            return;
        }
        let orphans: Vec<_> = self.known.files.keys().cloned().collect();
        for path in orphans {
            let Some(winner) = self.claims.get(&path).and_then(|claims| claims.last()) else {
                self.remove(&path);
                continue;
            };
            if self.known.files.get(&path) != Some(winner) {
                let winner = winner.clone();
                self.reread(&winner, false);
            }
        }
    }

    fn forget_versions(&mut self, selection: &Selection) {
        for (object, state) in &mut self.objects {
            if selection.covers(object) {
                state.version = ResourceVersion::default();
            }
        }
    }

    fn make_stale(&mut self, object: &ObjectRef) {
        self.reread(object, true);
    }

    fn is_stale(&self, object: &ObjectRef) -> bool {
        self.stale.contains_key(object)
    }

    fn take_stale(&mut self) -> BTreeMap<ObjectRef, bool> {
        mem::take(&mut self.stale)
    }
}

/// Whether the file has this content and mode.
fn has_content(dir: BorrowedFd<'_>, name: &str, bytes: &[u8], mode: Option<u32>) -> bool {
    let Ok((file, stat)) = sys::open_regular(dir, name) else {
        return false;
    };
    if mode.is_some_and(|mode| stat.st_mode & 0o7777 != mode)
        || u64::try_from(stat.st_size).ok() != u64::try_from(bytes.len()).ok()
    {
        return false;
    }
    let mut rest = bytes;
    let mut buffer = [0; 4096];
    loop {
        match sys::read(&file, &mut buffer) {
            Ok(0) => return rest.is_empty(),
            Ok(count) => match rest.strip_prefix(&buffer[..count]) {
                Some(after) => rest = after,
                None => return false,
            },
            Err(_) => return false,
        }
    }
}

/// The mode that the umask leaves of 0666.
fn default_mode() -> u32 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = text.lines().find_map(|line| line.strip_prefix("Umask:"));
    let mask = mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok());
    0o666 & !mask.unwrap_or(0o022)
}
