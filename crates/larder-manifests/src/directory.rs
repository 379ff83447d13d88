//! A directory of manifests whose edits are followed: the source of the embedded API server.
//!
//! ```text
//! kernel ─► watch ─► schedule ─► files ─► catalogue ─► ManifestDiff
//!           touched  whole by now? read    differs from what is served?
//! ```
//!
//! Invariants:
//! 1. A file that is invalid or read in the middle of an edit removes no object: its last good content stays. An object
//!    is removed when its file is deleted, or has others for a while: a file that is being rewritten lacks some for as long
//!    as its writer takes. A file without any object counts as invalid, for a command that fails leaves one.
//! 2. An object is in [`ManifestDiff`] only if it differs from what was handed out before.
//! 3. A pass every 20 s finds changes without events (a network file system, the target of a link).
//! 4. While the directory is missing, everything stays served; when it returns, it is followed again.
//! 5. A file that is invalid from the start has no last good content. What its rejected documents may hold is in
//!    [`ManifestDir::hidden_objects`]: an object in no other file may be in that one. A later reading only narrows it. (No
//!    copies are kept: they would put Secrets on a disk that the user did not choose.) So is what an earlier run has
//!    accepted, while its present document is not taken.
//! 6. A link to a disk that does not answer holds up no other file. It is a problem, and keeps its last good content.
//! 7. Looking at the directory takes a fifth of the time at most, however large it is and however often it changes.

mod catalogue;
mod check;
mod files;
mod schedule;
mod slow_reads;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    io, mem,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use larder_files::{ownership::Ownership, stamp::Stamp};
use larder_objects::{
    escaped,
    manifest::{HiddenObjects, KeptObjects, RawObject},
};
use larder_pods::source::{DirectoryWatch, Signal, Touch};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep_until},
};
use tracing::{debug, info, warn};

pub use self::check::{Checked, check};
pub(crate) use self::slow_reads::WallClock;
use self::{
    catalogue::{Catalogue, FileObjects},
    files::{Listing, Reading},
    schedule::{PATIENCE, ReadSchedule},
    slow_reads::SlowReads,
};
use crate::{
    object_id::ObjectId,
    record::{Accepted, Record},
};

/// Time between two passes over all files. The kubelet's `fileCheckFrequency`.
const PASS: Duration = Duration::from_secs(20);
/// Time between two passes over a directory that cannot be watched.
const POLL: Duration = Duration::from_millis(500);
/// Longest wait for a writer to close a file that lacks objects.
const WRITER_PATIENCE: Duration = Duration::from_mins(1);
/// Time without a look, as a multiple of what the last one took.
const REST: u32 = 4;

/// The changes that make the embedded API server match the directory.
#[derive(Debug, Default)]
pub(crate) struct ManifestDiff {
    /// New and changed objects. Pods come last, so that the objects that they reference exist.
    pub(crate) upserts: Vec<RawObject>,
    /// Objects that are no longer in any file. Pods come first.
    pub(crate) deletes: Vec<ObjectId>,
}

impl ManifestDiff {
    /// Whether there are no changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.upserts.is_empty() && self.deletes.is_empty()
    }
}

/// The directory cannot be read at all.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the manifests of {}", path.display())]
pub struct OpenError {
    path: PathBuf,
    source: io::Error,
}

/// A directory that is followed.
#[derive(Debug)]
pub(crate) struct ManifestDir {
    path: PathBuf,
    catalogue: Catalogue,
    stamps: BTreeMap<PathBuf, Stamp>,
    /// Files that have lost an object, with their state and the time of the loss.
    doubts: BTreeMap<PathBuf, (Stamp, Instant)>,
    /// Files that, by the kernel's notices, are still open for writing.
    being_written: BTreeSet<PathBuf>,
    schedule: ReadSchedule,
    slow: SlowReads,
    watch: DirectoryWatch,
    next_pass: Instant,
    /// No look before.
    rest_until: Instant,
    problems: Vec<String>,
    /// That every user may write to the directory.
    open_to_all: Option<String>,
    /// What the files may hold that have been invalid since the start.
    hidden: BTreeMap<PathBuf, HiddenObjects>,
    /// Problems, the warning or hidden objects have changed since [`Self::next`] returned last.
    has_news: bool,
}

impl ManifestDir {
    /// Starts to follow the directory `path`, and reads it once. An earlier run has accepted what is in `record`.
    ///
    /// # Errors
    ///
    /// `path` cannot be listed. Problems of single files are in [`Self::problems`].
    pub(crate) async fn open(
        path: &Path,
        now: WallClock,
        record: &Record,
    ) -> Result<(Self, ManifestDiff), OpenError> {
        let mut this = Self {
            path: path.to_owned(),
            catalogue: Catalogue::after(record, path),
            stamps: BTreeMap::new(),
            doubts: BTreeMap::new(),
            being_written: BTreeSet::new(),
            schedule: ReadSchedule::default(),
            slow: SlowReads::new(now),
            watch: DirectoryWatch::default(),
            next_pass: Instant::now(),
            rest_until: Instant::now(),
            problems: Vec::new(),
            open_to_all: None,
            hidden: BTreeMap::new(),
            has_news: false,
        };
        // Watched before it is read: a file that changes in between is read twice, rather than never.
        this.rearm();
        let changes = loop {
            let looked = this.look(BTreeSet::new()).await;
            // Nothing is served before the directory was listed.
            if looked.is_err() && this.slow.since(path).is_some() {
                this.slow.next_end().await;
                continue;
            }
            break looked.map_err(|source| OpenError {
                path: path.to_owned(),
                source,
            })?;
        };
        let hidden = this.catalogue.hidden_objects();
        this.hidden = hidden
            .map(|(file, hidden)| (file.to_owned(), hidden.clone()))
            .collect();
        Ok((this, changes))
    }

    /// The present problems of the files, each with its place.
    pub(crate) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The objects that are served although their newest document is rejected.
    pub(crate) fn kept(&self) -> KeptObjects {
        self.catalogue.kept()
    }

    /// What has been accepted so far, in this run or an earlier one.
    pub(crate) fn accepted(&self) -> BTreeMap<ObjectId, Accepted> {
        self.catalogue.accepted()
    }

    /// The files whose disks do not answer, each with the time since then.
    pub(crate) fn waits(&self) -> impl Iterator<Item = String> {
        self.slow.iter().map(|(path, since)| {
            let path = path.to_string_lossy();
            let path = escaped(&path);
            format!("manifests {path}: waiting for the disk since {since:.0}")
        })
    }

    /// The file that an object which is served comes from.
    pub(crate) fn file_of(&self, id: &ObjectId) -> Option<&Path> {
        self.catalogue.file_of(id)
    }

    /// A warning if every user may write to the directory.
    pub(crate) fn open_to_all(&self) -> Option<&String> {
        self.open_to_all.as_ref()
    }

    /// The objects that may be in a file that was invalid at the start and still is.
    pub(crate) fn hidden_objects(&self) -> HiddenObjects {
        let mut all = HiddenObjects::default();
        for hidden in self.hidden.values() {
            all.extend(hidden);
        }
        all
    }

    /// Waits for the next edit that changes something: objects, [problems](Self::problems), or
    /// [hidden objects](Self::hidden_objects).
    ///
    /// # Cancel safety
    ///
    /// Not cancel-safe: changes that a dropped future has read may be missing later.
    pub(crate) async fn next(&mut self) -> ManifestDiff {
        loop {
            let due = self.schedule.next();
            let wake = due.map_or(self.next_pass, |due| {
                due.max(self.rest_until).min(self.next_pass)
            });
            // Every arm is cancel-safe. Signals first, as they may put off what is due.
            let touched = tokio::select! {
                biased;
                signal = self.watch.next() => match signal {
                    Signal::Touched(path, touch) => {
                        match touch {
                            Touch::Other => {}
                            Touch::Writing => {
                                self.being_written.insert(path.clone());
                            }
                            Touch::Settled | Touch::Gone => {
                                self.being_written.remove(&path);
                            }
                        }
                        self.schedule.touch(path, touch, Instant::now());
                        continue;
                    }
                    Signal::Ended | Signal::Overflow => {
                        self.being_written.clear();
                        BTreeSet::new()
                    }
                },
                Some(paths) = self.slow.next_end() => {
                    for path in paths {
                        self.schedule.touch(path, Touch::Settled, Instant::now());
                    }
                    continue;
                }
                // None at a pass.
                () = sleep_until(wake) => self.schedule.take_due(Instant::now()),
            };
            self.rearm();
            let start = Instant::now();
            let changes = self.look(touched).await.unwrap_or_else(|error| {
                self.report(vec![format!(
                    "{}: cannot be read, keeping its last good content: {error}",
                    self.path.display()
                )]);
                ManifestDiff::default()
            });
            self.rest_until = Instant::now() + start.elapsed() * REST;
            if mem::take(&mut self.has_news) || !changes.is_empty() {
                return changes;
            }
        }
    }

    /// Watches the directory (again), if its path no longer leads to the one that is watched.
    fn rearm(&mut self) {
        if let Err(error) = self.watch.renew(&self.path) {
            debug!(%error, path = %self.path.display(), "cannot watch the manifests, polling");
        }
    }

    /// Reads the files of `touched` and all whose stamp differs, except those in the middle of a change.
    async fn look(&mut self, touched: BTreeSet<PathBuf>) -> io::Result<ManifestDiff> {
        self.next_pass = Instant::now() + if self.watch.is_armed() { PASS } else { POLL };
        let directory = self.path.clone();
        let listing = self.slow.read(&self.path, move || files::list(&directory));
        let Some(listed) = listing.await? else {
            return Err(io::ErrorKind::TimedOut.into());
        };
        let Listing {
            files: mut present,
            links,
            ownership,
        } = listed?;
        let followed = self.slow.follow(links.clone()).await?;
        present.extend(followed);
        self.warn_if_open(ownership);

        let slow: BTreeMap<_, _> = links
            .into_iter()
            .filter_map(|link| Some((self.slow.since(&link)?, link)))
            .map(|(since, link)| (link, since))
            .collect();
        let (gone, stale) = self.outdated(&present, &slow, &touched);
        for path in &gone {
            self.catalogue.removed(path);
            self.stamps.remove(path);
            self.doubts.remove(path);
        }
        let mut read: BTreeMap<PathBuf, FileObjects> = BTreeMap::new();
        for (path, since) in &slow {
            self.take(Reading::unanswered(path, *since));
        }
        for (path, stamp) in stale {
            let reading = self.read(&path).await?;
            if self.is_doubtful(&reading, stamp) {
                self.schedule.touch(path, Touch::Writing, Instant::now());
                continue;
            }
            self.doubts.remove(&path);
            self.stamps.insert(path.clone(), stamp);
            read.insert(path, self.take(reading));
        }
        let changes = self.changes(read).await?;
        self.report(self.catalogue.problems());
        self.narrow_hidden();
        Ok(changes)
    }

    /// The files that are gone, and those to be read.
    fn outdated(
        &self,
        present: &BTreeMap<PathBuf, Stamp>,
        slow: &BTreeMap<PathBuf, Timestamp>,
        touched: &BTreeSet<PathBuf>,
    ) -> (Vec<PathBuf>, Vec<(PathBuf, Stamp)>) {
        let settled = |path: &Path| !self.schedule.is_pending(path);
        let is_there = |path: &Path| present.contains_key(path) || slow.contains_key(path);
        let gone = self
            .catalogue
            .files()
            .filter(|path| !is_there(path) && settled(path))
            .map(Path::to_owned);
        let stale = present
            .iter()
            .filter(|(path, stamp)| {
                settled(path) && (touched.contains(*path) || self.stamps.get(*path) != Some(stamp))
            })
            .map(|(path, stamp)| (path.clone(), *stamp));
        (gone.collect(), stale.collect())
    }

    /// What differs in the objects of all files, given the objects of those that were read.
    async fn changes(
        &mut self,
        mut read: BTreeMap<PathBuf, FileObjects>,
    ) -> io::Result<ManifestDiff> {
        let (files, deletes) = self.catalogue.plan();
        let mut changes = ManifestDiff {
            upserts: Vec::new(),
            deletes,
        };
        for (id, path) in files {
            // An object may come from a file that did not change: when the file that had it first was removed.
            if !read.contains_key(&path) {
                let reading = self.read(&path).await?;
                read.insert(path.clone(), self.take(reading));
            }
            changes
                .upserts
                .extend(read.get_mut(&path).and_then(|objects| objects.remove(&id)));
        }
        changes
            .upserts
            .sort_by_key(|object| rank(object["kind"].as_str().unwrap_or_default()));
        changes
            .deletes
            .sort_by_key(|id| std::cmp::Reverse(rank(&id.kind)));
        Ok(changes)
    }

    /// Reads one file, or finds that its disk does not answer.
    async fn read(&mut self, path: &Path) -> io::Result<Reading> {
        let file = path.to_owned();
        let fetched = file.clone();
        let fetched = self.slow.read(path, move || files::fetch(&fetched)).await?;
        if fetched.is_none() {
            let since = self.slow.since(path).unwrap_or_default();
            return Ok(Reading::unanswered(path, since));
        }
        Ok(spawn_blocking(move || files::read(file)).await?)
    }

    /// Warns if every user may write to the directory, and so decide what this agent serves.
    fn warn_if_open(&mut self, ownership: Ownership) {
        let warning = ownership.is_writable_by_everybody().then(|| {
            format!(
                "every user may write to the directory of manifests {} (mode {:04o}), and so decide what is served: run \
                 `chmod o-w` on it",
                self.path.display(),
                ownership.mode
            )
        });
        if self.open_to_all == warning {
            return;
        }
        if let Some(warning) = &warning {
            warn!("{warning}");
        }
        self.open_to_all = warning;
        self.has_news = true;
    }

    /// Invariant 5.
    fn narrow_hidden(&mut self) {
        let mut has_news = false;
        self.hidden.retain(|file, known| {
            let found = self.catalogue.hidden_in(file);
            if let Some(found) = found.filter(|found| known.contains_all(found)) {
                has_news |= found != known;
                known.clone_from(found);
            }
            has_news |= found.is_none();
            found.is_some()
        });
        self.has_news |= has_news;
    }

    /// Whether an object is missing from a file that has not been stable since then, or that its writer has not closed. A
    /// file truncated for a rewrite reads as a valid one with fewer objects.
    fn is_doubtful(&mut self, reading: &Reading, stamp: Stamp) -> bool {
        // At the start, it is what it is.
        let is_known = self.stamps.contains_key(&reading.path);
        if !is_known || !self.catalogue.would_lose(reading) {
            return false;
        }
        let now = Instant::now();
        let doubt = self
            .doubts
            .entry(reading.path.clone())
            .or_insert((stamp, now));
        if doubt.0 != stamp {
            *doubt = (stamp, now);
        }
        let patience = if self.being_written.contains(&reading.path) {
            WRITER_PATIENCE
        } else {
            PATIENCE
        };
        now < doubt.1 + patience
    }

    fn take(&mut self, reading: Reading) -> FileObjects {
        for warning in &reading.warnings {
            warn!(
                problem = warning,
                "manifest has something that the API server would reject"
            );
        }
        let now = self.slow.now();
        self.catalogue.read(reading, now)
    }

    /// Logs new problems, and those that are resolved.
    fn report(&mut self, problems: Vec<String>) {
        let before = mem::replace(&mut self.problems, problems);
        let problems = &self.problems;
        if before == *problems {
            return;
        }
        self.has_news = true;
        let known: HashSet<_> = before.iter().collect();
        let of_kept: HashSet<_> = self.catalogue.problems_of_kept().collect();
        let unknown_fields: HashSet<_> = self.catalogue.unknown_fields().collect();
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            if of_kept.contains(problem) {
                warn!(problem, "manifest rejected, keeping its last good content");
            } else if unknown_fields.contains(problem) {
                warn!(
                    problem,
                    "manifest has something that the API server would reject"
                );
            } else {
                warn!(problem, "manifest rejected");
            }
        }
        let current: HashSet<_> = problems.iter().collect();
        for problem in before.iter().filter(|problem| !current.contains(problem)) {
            info!(problem = problem.as_str(), "manifest problem resolved");
        }
    }
}

/// Place of a kind in the order of creation.
fn rank(kind: &str) -> u8 {
    match kind {
        "Namespace" => 0,
        "Node" => 1,
        "Pod" => 3,
        _ => 2,
    }
}

#[cfg(test)]
mod tests;
