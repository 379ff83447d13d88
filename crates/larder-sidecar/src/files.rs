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

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _},
    mem,
    ops::Bound,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use larder_files::{new_file::NewFile, regular_file::read_regular_file, sys};
use larder_objects::{ConfigMap, Kind, Reactions, Secret, chain};
use larder_on_change::{ContentTag, PodHooks};
use larder_projection::Keyed;
use rustix::io::{Errno, Result as SystemResult};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{
    index::Index,
    intake::{DeliveredPart, FetchedFile, Reread, Settled, Sink, UrlFile, delivered},
    metrics::{Metrics, set},
    place::{ASIDE, Places, annotation},
    selection::ObjectRef,
};

/// The name that hooks see the files under, as if they were one volume.
pub(crate) const VOLUME: &str = "files";
/// The longest file that is read to learn what an earlier start wrote.
const MAX_READ: u64 = 16 << 20;

/// The files of all objects.
#[derive(Debug)]
pub(crate) struct Files {
    places: Places,
    index: Index,
    /// The paths that objects want.
    objects: BTreeMap<ObjectRef, Vec<Arc<str>>>,
    /// The objects that hooks do not react to.
    left_out: BTreeSet<ObjectRef>,
    paths: BTreeMap<Arc<str>, PathState>,
    /// The bytes of the paths of objects, as the index has them.
    length: usize,
    /// Whether every list has succeeded once.
    is_complete: bool,
    /// Files of an earlier start may be left, or one could not be removed.
    has_orphans: bool,
    /// What came of objects since the last [`Sink::settle`].
    settled: Settled,
    /// The mode of files, if none is set.
    default_mode: u32,
    metrics: Metrics,
}

/// What tells one content from others.
#[derive(Clone, Copy)]
struct ContentId {
    tag: ContentTag,
    length: usize,
}

#[derive(Debug, Default)]
struct PathState {
    /// The objects that want it, in order.
    claims: Vec<ObjectRef>,
    /// The winner, and the URL of its content, once that is to be fetched. Boxed, since few paths have one.
    url: Option<Box<UrlFile>>,
    /// What is in the file, as far as that is known.
    tag: Option<ContentTag>,
    /// Why it was not written, unless an older content is there.
    error: Option<String>,
}

/// Most bytes of the paths of an object: it has up to a million keys, and each may be in a directory with a long name.
const MAX_PATHS: usize = 256 << 10;
/// Most bytes of the paths of all objects, as the index has them: it is read at the next start, and may grow until it is
/// rewritten.
const MAX_ALL_PATHS: usize = 12 << 20;

/// What an object wants of its paths: this content, or that of this URL.
type Desired<'a> = BTreeMap<Arc<str>, (&'a [u8], Option<Arc<str>>)>;

impl Files {
    pub(crate) fn new(places: Places, index: Index, metrics: Metrics) -> Self {
        let known = index
            .files()
            .keys()
            .filter_map(|path| Path::new(&**path).parent());
        for directory in known.chain([places.folder()]).collect::<BTreeSet<_>>() {
            places.remove_leftovers(directory);
        }
        Self {
            places,
            index,
            objects: BTreeMap::new(),
            left_out: BTreeSet::new(),
            paths: BTreeMap::new(),
            length: 0,
            is_complete: false,
            has_orphans: true,
            settled: Settled::default(),
            default_mode: default_mode(),
            metrics,
        }
    }

    fn desired<'a>(
        &self,
        object: &ObjectRef,
        decoded: &'a impl Keyed,
        annotation: Option<&str>,
    ) -> Desired<'a> {
        let mut desired = Desired::new();
        let refused = |error: String| {
            warn!(%object, error, "not made a file");
            self.metrics.wrote("refused");
        };
        let directory = self.places.directory(annotation).map_err(refused);
        let Ok(directory) = directory else {
            return desired;
        };
        // The directories above are in the index, too.
        let above = directory.ancestors().map(|above| above.as_os_str().len());
        let mut length: usize = above.sum();
        let others = self.length - length_of(self.objects.get(object));
        for (key, bytes) in decoded.files() {
            let named = self.places.file_name(object, key, bytes).map_err(refused);
            if let Ok((name, url)) = named {
                let path: Arc<str> = directory.join(name).to_string_lossy().into();
                length += indexed_length(&path);
                if length > MAX_PATHS {
                    refused("the paths of its files are longer than 256 KiB".to_owned());
                    break;
                }
                if others + length > MAX_ALL_PATHS {
                    refused("the paths of all files are longer than 12 MiB".to_owned());
                    break;
                }
                desired.insert(path, (bytes, url));
            }
        }
        desired
    }

    /// The object's paths from now on; returns those until now.
    fn set_paths(&mut self, object: &ObjectRef, paths: Option<Vec<Arc<str>>>) -> Vec<Arc<str>> {
        self.length += length_of(paths.as_ref());
        let before = match paths {
            Some(paths) => self.objects.insert(object.clone(), paths),
            None => self.objects.remove(object),
        };
        self.length -= length_of(before.as_ref());
        before.unwrap_or_default()
    }

    fn winner(&self, path: &str) -> Option<&ObjectRef> {
        self.paths.get(path)?.claims.last()
    }

    /// Whether the object may write the path now.
    fn has(&self, path: &str, object: &ObjectRef) -> bool {
        // Of an earlier start, an object that was not listed yet may still be there.
        let before = self.index.files().get(path);
        let waits = !self.is_complete
            && before.is_some_and(|before| before > object && !self.objects.contains_key(before));
        self.winner(path) == Some(object) && !waits
    }

    fn claim(&mut self, path: &Arc<str>, object: &ObjectRef) {
        let claims = &mut self.paths.entry(Arc::clone(path)).or_default().claims;
        if let Err(at) = claims.binary_search(object) {
            // Nearly always the only one.
            claims.reserve_exact(1);
            claims.insert(at, object.clone());
            if let [.., loser, winner] = claims.as_slice() {
                warn!(%path, %winner, %loser, "several objects have this path, the last one wins");
            }
        }
    }

    /// Drops an object's claim of a path.
    fn release(&mut self, path: &Arc<str>, object: &ObjectRef) {
        let Some(state) = self.paths.get_mut(path) else {
            return;
        };
        let was_winner = state.claims.last() == Some(object);
        state.claims.retain(|claim| claim != object);
        if was_winner {
            state.url = None;
        }
        match state.claims.last().cloned() {
            Some(next) if was_winner => self.read_again(&next, Reread::AtOnce),
            None if self.is_complete => self.remove(path),
            _ => {}
        }
    }

    fn read_again(&mut self, object: &ObjectRef, when: Reread) {
        let stale = self.settled.stale.entry(object.clone()).or_insert(when);
        *stale = when.max(*stale);
    }

    fn write(&mut self, path: &Arc<str>, object: &ObjectRef, bytes: &[u8]) {
        let content = ContentId {
            tag: self.index.key().tag(bytes),
            length: bytes.len(),
        };
        self.put(path, object, content, |directory| {
            let mut new = NewFile::create(directory, aside())?;
            new.write(bytes)?;
            Ok(new)
        });
    }

    /// Puts content of this tag and length in place: what `make` writes aside in the directory, unless it is there.
    fn put(
        &mut self,
        path: &Arc<str>,
        object: &ObjectRef,
        content: ContentId,
        make: impl FnOnce(OwnedFd) -> SystemResult<NewFile<OwnedFd>>,
    ) {
        let was_ours = self.index.files().contains_key(path);
        self.index.add_file(path, object);
        let written = self.try_put(Path::new(&**path), content, make);
        let in_the_way = || self.in_the_way(path).unwrap_or_default();
        let written = written
            .map_err(|(step, errno)| (format!("cannot {step}: {errno}{}", in_the_way()), errno));
        let state = self.paths.entry(Arc::clone(path)).or_default();
        match written {
            Ok(is_new) => {
                state.error = None;
                let before = state.tag.replace(content.tag);
                self.settled.is_changed |=
                    is_new || before.is_some_and(|before| before != content.tag);
                if is_new {
                    info!(%path, %object, "file written");
                }
                self.metrics
                    .wrote(if is_new { "written" } else { "unchanged" });
            }
            Err((error, errno)) => {
                warn!(%path, %object, error, "cannot write file, will retry");
                self.metrics.wrote("failed");
                let found = fs::symlink_metadata(&**path);
                if !was_ours && found.is_ok() {
                    // It is another's still, or a directory of ours.
                    let is_made = self.index.has_made(path);
                    self.index.remove(path);
                    if is_made {
                        self.index.add_directory(path);
                    }
                }
                let has_old = found.is_ok_and(|found| found.is_file());
                let waits = !has_old && !self.places.is_own_fault(Path::new(&**path), errno);
                state.url = None;
                state.error = waits.then(|| format!("cannot write {path}: {error}"));
                self.read_again(object, Reread::AfterPause);
            }
        }
    }

    /// The file of another object where this path needs a directory, or below it.
    fn in_the_way(&self, path: &str) -> Option<String> {
        let files = self.index.files();
        let mut above = Path::new(path)
            .ancestors()
            .skip(1)
            .filter_map(|above| files.get_key_value(above.to_str()?));
        let directory = format!("{path}/");
        let mut below = files
            .range::<str, _>((Bound::Included(&*directory), Bound::Unbounded))
            .take_while(|(path, _)| path.starts_with(&directory));
        let (path, owner) = above.next().or_else(|| below.next())?;
        Some(format!("; {path} is a file of {owner}"))
    }

    /// Makes the file have this content, and returns whether it had other content before.
    fn try_put(
        &mut self,
        path: &Path,
        content: ContentId,
        make: impl FnOnce(OwnedFd) -> SystemResult<NewFile<OwnedFd>>,
    ) -> Result<bool, (&'static str, Errno)> {
        let failed = |step| move |errno| (step, errno);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(("write the file", Errno::INVAL));
        };
        let name = name.to_str().unwrap_or_default();
        let directory = self
            .places
            .make(parent, &mut self.index)
            .map_err(failed("open the directory"))?;
        let mode = self.places.mode.map(|mode| mode & 0o777);
        if self.has_content(directory.as_fd(), name, content, mode) {
            return Ok(false);
        }
        let new = make(directory);
        let published = new.and_then(|new| new.publish(name, mode.unwrap_or(self.default_mode)));
        published.map_err(failed("write the file")).map(|()| true)
    }

    /// Whether the file has content of this tag and length, and this mode.
    fn has_content(
        &self,
        dir: BorrowedFd<'_>,
        name: &str,
        content: ContentId,
        mode: Option<u32>,
    ) -> bool {
        let Ok((file, stat)) = sys::open_regular(dir, name) else {
            return false;
        };
        let fits = mode.is_none_or(|mode| stat.st_mode & 0o7777 == mode)
            && usize::try_from(stat.st_size).ok() == Some(content.length);
        let (mut file, mut tagger) = (File::from(file), self.index.key().tagger());
        let mut buffer = [0; 8 << 10];
        fits && loop {
            match file.read(&mut buffer) {
                Ok(0) => break tagger.finish() == content.tag,
                Ok(count) => tagger.update(&buffer[..count]),
                Err(_) => break false,
            }
        }
    }

    /// Removes a file, if it is ours.
    fn remove(&mut self, path: &Arc<str>) {
        if self.index.files().contains_key(path) {
            let removed = self.places.remove(Path::new(&**path), &mut self.index);
            if let Err(error) = removed {
                warn!(%path, %error, "cannot remove file, will retry at the next change");
                self.has_orphans = true;
                return;
            }
            info!(%path, "file removed");
            self.metrics.wrote("removed");
            self.settled.is_changed = true;
        }
        self.paths.remove(path);
    }

    /// Removes the files that no object wants. If another object has taken one over, that object writes it.
    fn remove_orphans(&mut self) {
        self.has_orphans = false;
        let known: Vec<_> = self.index.files().keys().cloned().collect();
        for path in known {
            match self.winner(&path).cloned() {
                None => self.remove(&path),
                Some(winner) if self.index.files().get(&path) != Some(&winner) => {
                    self.paths.entry(path).or_default().url = None;
                    self.read_again(&winner, Reread::AtOnce);
                }
                Some(_) => {}
            }
        }
    }

    /// An unreadable object exists. What an earlier start wrote for it stays.
    fn keep(&mut self, object: &ObjectRef) {
        if self.objects.contains_key(object) {
            return;
        }
        let paths: Vec<_> = self
            .index
            .files()
            .iter()
            .filter(|(_, owner)| *owner == object)
            .map(|(path, _)| Arc::clone(path))
            .collect();
        for path in &paths {
            self.claim(path, object);
        }
        self.set_paths(object, Some(paths));
    }

    fn take_as<K: Keyed>(&mut self, object: &ObjectRef, json: &[u8]) {
        let began = Instant::now();
        let decoded = match K::from_json(json) {
            Ok(decoded) => decoded,
            Err(error) => {
                warn!(%object, error = chain(&error), "unreadable object, its files stay");
                return self.keep(object);
            }
        };
        self.leave_out(object, decoded.metadata().on_change == Reactions::LeftOut);
        let annotation = annotation(json, &self.places.annotation);
        let desired = self.desired(object, &decoded, annotation.as_deref());
        let paths = desired.keys().cloned().collect();
        let before = self.set_paths(object, Some(paths));
        // New and changed files first, then what is gone (rule L5).
        for (path, (bytes, url)) in &desired {
            self.claim(path, object);
            if self.has(path, object) {
                self.set_url(path, object, url.as_ref());
                if url.is_none() {
                    self.write(path, object, bytes);
                }
            }
        }
        self.metrics.delivery.observe(began.elapsed().as_secs_f64());
        for path in before {
            if !desired.contains_key(&path) {
                self.release(&path, object);
            }
        }
    }

    /// Hooks do not react to the object from now on, or do so again.
    fn leave_out(&mut self, object: &ObjectRef, is_left_out: bool) {
        self.settled.is_changed |= if is_left_out {
            self.left_out.insert(object.clone())
        } else {
            self.left_out.remove(object)
        };
    }

    /// The content of a path comes from this URL from now on, or from none.
    fn set_url(&mut self, path: &Arc<str>, object: &ObjectRef, url: Option<&Arc<str>>) {
        let state = self.paths.entry(Arc::clone(path)).or_default();
        let wanted = url.map(|url| UrlFile {
            path: Arc::clone(path),
            object: object.clone(),
            url: Arc::clone(url),
        });
        if state.url.as_deref() != wanted.as_ref() {
            self.settled.fetches.extend(wanted.clone());
            state.url = wanted.map(Box::new);
        }
    }
}

impl Sink for Files {
    fn take(&mut self, object: &ObjectRef, json: Option<&[u8]>) {
        match (json, object.kind()) {
            (Some(json), Kind::ConfigMap) => self.take_as::<ConfigMap>(object, json),
            (Some(json), Kind::Secret) => self.take_as::<Secret>(object, json),
            (None, _) => {
                self.leave_out(object, false);
                for path in self.set_paths(object, None) {
                    self.release(&path, object);
                }
            }
        }
    }

    fn settle(&mut self, is_listed: bool) -> Settled {
        self.is_complete = is_listed;
        if is_listed && self.has_orphans {
            self.remove_orphans();
        }
        let paths = || self.paths.values();
        let collisions = paths().filter(|state| state.claims.len() > 1).count();
        set(&self.metrics.collisions, collisions);
        set(&self.metrics.files, self.index.files().len());
        let unwritten = paths().find_map(|state| state.error.clone());
        self.settled.retries |= !self.index.mend();
        Settled {
            unwritten,
            ..mem::take(&mut self.settled)
        }
    }

    fn index(&mut self) -> &mut Index {
        &mut self.index
    }

    fn content(&mut self, hooks: &PodHooks) -> Vec<DeliveredPart> {
        let key = self.index.key().clone();
        let files = self.index.files().iter().map(|(path, object)| {
            let state = self.paths.entry(Arc::clone(path)).or_default();
            let tag = *state.tag.get_or_insert_with(|| {
                // An unreadable one counts as empty.
                let bytes = read_regular_file(Path::new(&**path), MAX_READ).unwrap_or_default();
                key.tag(&bytes)
            });
            let inside = Path::new(&**path).strip_prefix(self.places.folder());
            let name = inside.map_or_else(|_| (**path).into(), Path::to_string_lossy);
            (name, (tag, Some(object.tag())))
        });
        let left_out = self.left_out.iter().map(ObjectRef::tag).collect();
        delivered(VOLUME, hooks, files, &left_out)
            .into_iter()
            .collect()
    }

    fn wants(&self, file: &UrlFile) -> bool {
        let wanted = self
            .paths
            .get(&file.path)
            .and_then(|state| state.url.as_deref());
        wanted == Some(file) && self.winner(&file.path) == Some(&file.object)
    }

    fn begin_fetched(&mut self, file: &UrlFile) -> io::Result<FetchedFile> {
        let directory = Path::new(&*file.path).parent().unwrap_or(Path::new("/"));
        let directory = self.places.make(directory, &mut self.index)?;
        Ok(FetchedFile::create(directory, aside(), self.index.key())?)
    }

    fn take_fetched(&mut self, file: &UrlFile, content: FetchedFile) {
        if self.wants(file) && self.has(&file.path, &file.object) {
            let length = content.length;
            let (new, tag) = content.finish();
            let content = ContentId { tag, length };
            self.put(&file.path, &file.object, content, |_| Ok(new));
        }
    }

    fn look(&mut self) {
        let is_missing = |path: &str| {
            fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let mut gone = Vec::new();
        for (path, state) in &mut self.paths {
            if let Some(winner) = state.claims.last().filter(|_| state.tag.is_some())
                && is_missing(path)
            {
                info!(%path, %winner, "file was removed, writing it again");
                state.url = None;
                gone.push(winner.clone());
            }
        }
        for object in gone {
            self.read_again(&object, Reread::AtOnce);
        }
    }
}

/// A name of a file that is being written.
fn aside() -> String {
    format!("{ASIDE}{:016x}", fastrand::u64(..))
}

fn length_of(paths: Option<&Vec<Arc<str>>>) -> usize {
    paths
        .into_iter()
        .flatten()
        .map(|path| indexed_length(path))
        .sum()
}

/// The bytes of a line of the index with this path, at least.
fn indexed_length(path: &str) -> usize {
    // The longest escape of a byte is `\u0000`.
    let escapes = path
        .bytes()
        .filter(|byte| byte.is_ascii_control() || matches!(byte, b'"' | b'\\'));
    path.len() + 5 * escapes.count() + 64
}

/// The mode that the umask leaves of 0666.
fn default_mode() -> u32 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = text
        .lines()
        .find_map(|line| line.strip_prefix("Umask:"))
        .and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok());
    0o666 & !mask.unwrap_or(0o022)
}

#[cfg(test)]
mod tests {
    use larder_files::faults::{Fault, during};
    use prometheus_client::registry::Registry;
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn removed_file_of_a_url_is_fetched_again() {
        let root = TempDir::new().unwrap();
        let folder = root.path().join("f");
        let places = Places::new(&folder, &[]).unwrap();
        let metrics = Metrics::register(&mut Registry::default());
        let index = Index::open(&root.path().join("state"), &folder);
        let mut files = Files::new(places, index, metrics);
        let object = ObjectRef::new(Kind::ConfigMap, "n", "a");
        let json = br#"{"metadata": {"name": "a"}, "data": {"k.url": "http://h/", "x": "1"}}"#;
        for _ in 0..2 {
            files.take(&object, Some(json));
            let fetch = files.settle(true).fetches.remove(0);
            let mut content = files.begin_fetched(&fetch).unwrap();
            content.write(b"one ").unwrap();
            content.write(b"two").unwrap();
            files.take_fetched(&fetch, content);
            let text = fs::read_to_string(folder.join("k")).unwrap();
            assert_eq!(text, "one two");
            files.look();
            assert!(files.settle(true).stale.is_empty());
            fs::remove_file(folder.join("k")).unwrap();
            files.look();
            assert!(files.settle(true).stale.contains_key(&object));
        }
    }

    #[test]
    fn file_in_the_way_is_named_with_its_owner() {
        let root = TempDir::new().unwrap();
        let folder = root.path().join("f");
        let places = Places::new(&folder, &[]).unwrap();
        let metrics = Metrics::register(&mut Registry::default());
        let index = Index::open(&root.path().join("state"), &folder);
        let mut files = Files::new(places, index, metrics);
        let path = |name: &str| Arc::from(folder.join(name).to_string_lossy());
        let object = ObjectRef::new(Kind::ConfigMap, "n", "a");
        files.write(&path("k"), &object, b"1");
        files.write(&path("d/x"), &object, b"1");
        for (name, file) in [("k/x", "k"), ("d", "d/x")] {
            let words = files.in_the_way(&path(name)).unwrap();
            let file: Arc<str> = path(file);
            assert_eq!(words, format!("; {file} is a file of {object}"));
        }
        assert_eq!(files.in_the_way(&path("other")), None);
    }

    #[test]
    fn file_of_the_application_stays_that_was_never_replaced() {
        let root = TempDir::new().unwrap();
        let (folder, state) = (root.path().join("f"), root.path().join("state"));
        fs::create_dir(&folder).unwrap();
        fs::create_dir(&state).unwrap();
        let places = Places::new(&folder, &[]).unwrap();
        let metrics = Metrics::register(&mut Registry::default());
        let index = Index::open(&state, &folder);
        let mut files = Files::new(places, index, metrics);
        let path: Arc<str> = folder.join("k").to_string_lossy().into();
        fs::write(&*path, "app").unwrap();
        let object = ObjectRef::new(Kind::ConfigMap, "n", "a");
        files.claim(&path, &object);
        let full = Fault::FromNowOn(Errno::NOSPC);
        let ((), has_failed) = during(0, full, || files.write(&path, &object, b"1"));
        assert!(has_failed);
        files.remove(&path);
        assert_eq!(fs::read_to_string(&*path).unwrap(), "app");
        files.claim(&path, &object);
        files.write(&path, &object, b"1");
        files.remove(&path);
        assert!(!fs::exists(&*path).unwrap());
    }
}
