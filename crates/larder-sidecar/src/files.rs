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
    fs, mem,
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
    sync::Arc,
};

use larder_files::{
    new_file::NewFile,
    regular_file::{read_open, read_regular_file},
    sys,
};
use larder_objects::{ConfigMap, Kind, Secret, chain};
use larder_on_change::{ContentTag, PodHooks};
use larder_projection::Keyed;
use rustix::io::Errno;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{
    content::{DeliveredPart, delivered},
    index::Index,
    intake::{Settled, Sink, UrlFile},
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
    paths: BTreeMap<Arc<str>, PathState>,
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

#[derive(Debug, Default)]
struct PathState {
    /// The objects that want it, in order.
    claims: Vec<ObjectRef>,
    /// The winner, and the URL of its content, once that is to be fetched. Boxed, since few paths have one.
    url: Option<Box<(ObjectRef, Arc<str>)>>,
    /// What is in the file, as far as that is known.
    tag: Option<ContentTag>,
    /// Why it was not written, unless an older content is there.
    error: Option<String>,
}

/// Most bytes of the paths of an object: it has up to a million keys, and each may be in a directory with a long name.
const MAX_PATHS: usize = 4 << 20;

/// What an object wants of its paths: this content, or that of this URL.
type Desired<'a> = BTreeMap<Arc<str>, (&'a [u8], Option<Arc<str>>)>;

impl Files {
    pub(crate) fn new(places: Places, index: Index, metrics: Metrics) -> Self {
        let known = index.files().keys();
        let known = known.filter_map(|path| Path::new(&**path).parent());
        for directory in known.chain([places.folder()]).collect::<BTreeSet<_>>() {
            places.remove_leftovers(directory);
        }
        Self {
            places,
            index,
            objects: BTreeMap::new(),
            paths: BTreeMap::new(),
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
        let mut length = 0;
        for (key, bytes) in decoded.files() {
            let named = self.places.file_name(object, key, bytes).map_err(refused);
            if let Ok((name, url)) = named {
                let path: Arc<str> = directory.join(name).to_string_lossy().into();
                length += path.len();
                if length > MAX_PATHS {
                    refused("the paths of its files are longer than 4 MiB".to_owned());
                    break;
                }
                desired.insert(path, (bytes, url));
            }
        }
        desired
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
            Some(next) if was_winner => self.read_again(&next, false),
            None if self.is_complete => self.remove(path),
            _ => {}
        }
    }

    fn read_again(&mut self, object: &ObjectRef, has_failed: bool) {
        *self.settled.stale.entry(object.clone()).or_default() |= has_failed;
    }

    fn write(&mut self, path: &Arc<str>, object: &ObjectRef, bytes: &[u8]) {
        let was_ours = self.index.files().contains_key(path);
        self.index.add_file(path, object);
        let tag = self.index.key().tag(bytes);
        let written = self.try_write(Path::new(&**path), bytes);
        let state = self.paths.entry(Arc::clone(path)).or_default();
        match written {
            Ok(is_new) => {
                state.error = None;
                let before = state.tag.replace(tag);
                self.settled.is_changed |= is_new || before.is_some_and(|before| before != tag);
                if is_new {
                    info!(%path, %object, "file written");
                }
                self.metrics
                    .wrote(if is_new { "written" } else { "unchanged" });
            }
            Err((step, errno)) => {
                let error = format!("cannot {step}: {errno}");
                warn!(%path, %object, error, "cannot write file, will retry");
                self.metrics.wrote("failed");
                let found = fs::symlink_metadata(&**path);
                if !was_ours && found.is_ok() {
                    // It is another's still.
                    self.index.remove(path);
                }
                let has_old = found.is_ok_and(|found| found.is_file());
                let waits = !has_old && !self.places.is_own_fault(Path::new(&**path), errno);
                state.url = None;
                state.error = waits.then(|| format!("cannot write {path}: {error}"));
                self.read_again(object, true);
            }
        }
    }

    /// Makes the file have this content, and returns whether it had other content before.
    fn try_write(&mut self, path: &Path, bytes: &[u8]) -> Result<bool, (&'static str, Errno)> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(("write the file", Errno::INVAL));
        };
        let failed = |step| move |errno| (step, errno);
        let name = name.to_str().unwrap_or_default();
        let dir = self.places.make(parent, &mut self.index);
        let dir = dir.map_err(failed("open the directory"))?;
        let mode = self.places.mode.map(|mode| mode & 0o777);
        if has_content(dir.as_fd(), name, bytes, mode) {
            return Ok(false);
        }
        let aside = format!("{ASIDE}{:016x}", fastrand::u64(..));
        let written = NewFile::create(dir.as_fd(), aside).and_then(|mut file| {
            file.write(bytes)?;
            file.publish(name, mode.unwrap_or(self.default_mode))
        });
        written.map_err(failed("write the file")).map(|()| true)
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
                    self.read_again(&winner, false);
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
        let files = self.index.files().iter();
        let own = files.filter(|(_, owner)| *owner == object);
        let paths: Vec<_> = own.map(|(path, _)| Arc::clone(path)).collect();
        for path in &paths {
            self.claim(path, object);
        }
        self.objects.insert(object.clone(), paths);
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
        let annotation = annotation(json, &self.places.annotation);
        let desired = self.desired(object, &decoded, annotation.as_deref());
        let paths = desired.keys().cloned().collect();
        let before = self.objects.insert(object.clone(), paths);
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
        let delivery = &self.metrics.delivery;
        delivery.observe(began.elapsed().as_secs_f64());
        for path in before.into_iter().flatten() {
            if !desired.contains_key(&path) {
                self.release(&path, object);
            }
        }
    }

    /// The content of a path comes from this URL from now on, or from none.
    fn set_url(&mut self, path: &Arc<str>, object: &ObjectRef, url: Option<&Arc<str>>) {
        let state = self.paths.entry(Arc::clone(path)).or_default();
        let wanted = url.map(|url| Box::new((object.clone(), Arc::clone(url))));
        if state.url != wanted {
            state.url = wanted;
            self.settled.fetches.extend(url.map(|url| UrlFile {
                path: Arc::clone(path),
                object: object.clone(),
                url: Arc::clone(url),
            }));
        }
    }
}

impl Sink for Files {
    fn take(&mut self, object: &ObjectRef, json: Option<&[u8]>) {
        match (json, object.kind()) {
            (Some(json), Kind::ConfigMap) => self.take_as::<ConfigMap>(object, json),
            (Some(json), Kind::Secret) => self.take_as::<Secret>(object, json),
            (None, _) => {
                for path in self.objects.remove(object).unwrap_or_default() {
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
        self.settled.retries |= !self.index.mend(false);
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
        let files = self.index.files().keys().map(|path| {
            let state = self.paths.entry(Arc::clone(path)).or_default();
            let tag = *state.tag.get_or_insert_with(|| {
                // An unreadable one counts as empty.
                let bytes = read_regular_file(Path::new(&**path), MAX_READ).unwrap_or_default();
                key.tag(&bytes)
            });
            let inside = Path::new(&**path).strip_prefix(self.places.folder());
            let name = inside.map_or_else(|_| (**path).into(), Path::to_string_lossy);
            (name, tag)
        });
        delivered(VOLUME, hooks, files).into_iter().collect()
    }

    fn wants(&self, file: &UrlFile) -> bool {
        let state = self.paths.get(&file.path);
        let wanted = state.and_then(|state| state.url.as_deref());
        wanted.is_some_and(|(object, url)| (object, url) == (&file.object, &file.url))
            && self.winner(&file.path) == Some(&file.object)
    }

    fn take_fetched(&mut self, file: &UrlFile, content: &[u8]) {
        if self.wants(file) && self.has(&file.path, &file.object) {
            self.write(&file.path, &file.object, content);
        }
    }
}

/// Whether the file has this content and mode.
fn has_content(dir: BorrowedFd<'_>, name: &str, bytes: &[u8], mode: Option<u32>) -> bool {
    sys::open_regular(dir, name).is_ok_and(|(file, stat)| {
        mode.is_none_or(|mode| stat.st_mode & 0o7777 == mode)
            && u64::try_from(stat.st_size).ok() == u64::try_from(bytes.len()).ok()
            && read_open(&file, &stat, bytes.len() + 1).is_ok_and(|found| **found == *bytes)
    })
}

/// The mode that the umask leaves of 0666.
fn default_mode() -> u32 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = text.lines().find_map(|line| line.strip_prefix("Umask:"));
    let mask = mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok());
    0o666 & !mask.unwrap_or(0o022)
}

#[cfg(test)]
mod tests {
    use larder_files::faults::{Fault, during};
    use prometheus_client::registry::Registry;
    use tempfile::TempDir;

    use super::*;

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
