//! Reads that a disk holds up: each is left alone until it ends, and no other waits for it.
//!
//! Invariants:
//! 1. A path is read once at a time. So a disk that never answers keeps one thread for each path on it.
//! 2. While [`MOST_READS`] are held up, no other link is followed or read: each waits for the end of one. So a disk with
//!    many files leaves the process its threads. The directory and what is no link in it are always read.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
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
/// Most reads that are held up at once.
const MOST_READS: usize = 64;

/// The time of day.
pub(crate) type WallClock = Box<dyn Fn() -> Timestamp + Send + Sync>;

/// The reads that go on.
pub(super) struct SlowReads {
    now: WallClock,
    /// When each of them began.
    since: BTreeMap<PathBuf, Timestamp>,
    ends: JoinSet<PathBuf>,
    /// The links of the directory.
    links: BTreeSet<PathBuf>,
    /// Those that are not read until a read ends.
    waiting: Vec<PathBuf>,
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
            links: BTreeSet::new(),
            waiting: Vec::new(),
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
        if self.is_full() && self.links.contains(path) {
            self.wait(path.to_owned());
        }
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
        self.links = links.iter().cloned().collect();
        let mut found = BTreeMap::new();
        let mut left: VecDeque<_> = links
            .into_iter()
            .filter(|link| !self.since.contains_key(link))
            .collect();
        while !left.is_empty() {
            if self.is_full() {
                for link in left {
                    self.wait(link);
                }
                break;
            }
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

    fn is_full(&self) -> bool {
        self.ends.len() >= MOST_READS
    }

    /// Leaves a link alone until a read has ended, unless it is being read.
    fn wait(&mut self, path: PathBuf) {
        if !self.since.contains_key(&path) {
            let now = self.now();
            self.since.insert(path.clone(), now);
            self.waiting.push(path);
        }
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
        self.since
            .iter()
            .map(|(path, since)| (path.as_path(), *since))
    }

    /// Waits until one of the reads has ended, and returns the files to read now; `None` if none goes on. Cancel-safe.
    pub(super) async fn next_end(&mut self) -> Option<Vec<PathBuf>> {
        let mut paths = vec![self.ends.join_next().await?.ok()?];
        paths.append(&mut self.waiting);
        for path in &paths {
            self.since.remove(path);
        }
        Some(paths)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[tokio::test]
    async fn disk_with_many_files_leaves_the_process_its_threads() {
        let mut slow = SlowReads::new(Box::new(|| Timestamp::UNIX_EPOCH));
        let path = |index: usize| PathBuf::from(format!("/hung/{index:02}"));
        let blocked: Vec<_> = (0..MOST_READS).map(|_| channel::<()>()).collect();
        let (release, reads): (Vec<_>, Vec<_>) = blocked.into_iter().unzip();
        for (index, answer) in reads.into_iter().enumerate() {
            let read = spawn_blocking(move || answer.recv());
            slow.leave(path(index), Timestamp::UNIX_EPOCH, read);
        }
        let links = vec![path(97), path(98)];
        assert!(slow.follow(links).await.unwrap().is_empty());
        let link = slow.read(&path(98), || panic!("it is read")).await;
        assert_eq!(link.unwrap(), None::<()>);
        assert_eq!(slow.iter().count(), MOST_READS + 2);
        let file = slow.read(&path(99), || 1).await.unwrap();
        assert_eq!(file, Some(1), "what is no link is read");

        release[3].send(()).unwrap();
        let ended = slow.next_end().await.unwrap();
        assert_eq!(ended, [3, 97, 98].map(path));
        let link = slow.read(&path(98), || 2).await.unwrap();
        assert_eq!(link, Some(2));
    }
}
