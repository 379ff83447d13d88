//! Reads that a disk holds up: each is left alone until it ends, and no other waits for it.
//!
//! Invariant: a path is read once at a time. So a disk that never answers keeps one thread for each path on it.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use larder_files::stamp::Stamp;
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinHandle, JoinSet, spawn_blocking},
    time::timeout,
};

use super::files;

/// Time for one read. A disk that answers takes milliseconds.
const ANSWER: Duration = Duration::from_secs(1);

/// The time of day.
pub(crate) type WallClock = Box<dyn Fn() -> Timestamp + Send + Sync>;

/// The reads that go on.
pub(super) struct SlowReads {
    now: WallClock,
    /// When each of them began.
    since: BTreeMap<PathBuf, Timestamp>,
    ends: JoinSet<PathBuf>,
}

impl fmt::Debug for SlowReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SlowReads").field(&self.since).finish()
    }
}

impl SlowReads {
    pub(super) fn new(now: WallClock) -> Self {
        Self {
            now,
            since: BTreeMap::new(),
            ends: JoinSet::new(),
        }
    }

    /// The result of reading `path`; `None` if that goes on.
    ///
    /// # Errors
    ///
    /// It has panicked.
    pub(super) async fn read<T: Send + 'static>(
        &mut self,
        path: &Path,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Option<T>, JoinError> {
        if self.since.contains_key(path) {
            return Ok(None);
        }
        let began = (self.now)();
        let mut reading = spawn_blocking(read);
        if let Ok(done) = timeout(ANSWER, &mut reading).await {
            return done.map(Some);
        }
        self.leave(path.to_owned(), began, reading);
        Ok(None)
    }

    /// What the links lead to, of those that lead to a file and are not held up.
    ///
    /// # Errors
    ///
    /// It has panicked.
    pub(super) async fn follow(
        &mut self,
        links: Vec<PathBuf>,
    ) -> Result<BTreeMap<PathBuf, Stamp>, JoinError> {
        let mut found = BTreeMap::new();
        let mut left: VecDeque<_> = links
            .into_iter()
            .filter(|link| !self.since.contains_key(link))
            .collect();
        while !left.is_empty() {
            let began = (self.now)();
            // Not bounded: it takes one answer for each link.
            let (answers, mut answered) = mpsc::unbounded_channel();
            let links = left.clone();
            let mut following = spawn_blocking(move || {
                for link in links {
                    // Nothing waits for the others of a link that was held up.
                    if answers.send(files::follow(&link)).is_err() {
                        return;
                    }
                }
            });
            loop {
                match timeout(ANSWER, answered.recv()).await {
                    Ok(Some(stamp)) => {
                        let link = left.pop_front();
                        found.extend(link.zip(stamp));
                    }
                    Ok(None) => {
                        (&mut following).await?;
                        return Ok(found);
                    }
                    Err(_) => break,
                }
            }
            if let Some(link) = left.pop_front() {
                self.leave(link, began, following);
            }
        }
        Ok(found)
    }

    fn leave<T: Send + 'static>(&mut self, path: PathBuf, began: Timestamp, read: JoinHandle<T>) {
        self.since.insert(path.clone(), began);
        self.ends.spawn(async move {
            // However it ended, the path is read again.
            let _ = read.await;
            path
        });
    }

    /// The time of day.
    pub(super) fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Since when `path` is read.
    pub(super) fn since(&self, path: &Path) -> Option<Timestamp> {
        self.since.get(path).copied()
    }

    /// The reads that go on, each with its start.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Path, Timestamp)> {
        let reads = self.since.iter();
        reads.map(|(path, since)| (path.as_path(), *since))
    }

    /// Waits until one of the reads has ended; `None` if none goes on. Cancel-safe.
    pub(super) async fn next_end(&mut self) -> Option<PathBuf> {
        let path = self.ends.join_next().await?.ok()?;
        self.since.remove(&path);
        Some(path)
    }
}
