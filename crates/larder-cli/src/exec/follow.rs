//! Tells when manifests, or what an agent delivers, may have changed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::{Instant, timeout_at},
};

/// An editor writes a file in several steps. So long after the last one it counts as written.
const QUIET: Duration = Duration::from_millis(20);
/// A file that is written all the time is looked at nevertheless.
const PATIENCE: Duration = Duration::from_millis(200);

/// Follows files and directories.
#[derive(Debug)]
pub(crate) struct Follower {
    /// Ends the watches when dropped.
    watcher: RecommendedWatcher,
    events: UnboundedReceiver<()>,
    /// Something changed, and nobody was told yet.
    changed: bool,
}

impl Follower {
    /// Follows `paths`: directories, and files by the directories that they lie in, because editors replace files. `seen` is how they
    /// were before they were first read; what has changed since then is the first change.
    ///
    /// # Errors
    ///
    /// A directory cannot be watched.
    pub(crate) fn new(paths: &[PathBuf], seen: &Stamps) -> anyhow::Result<Self> {
        let (sender, events) = unbounded_channel();
        let files = paths.iter().filter(|path| !path.is_dir());
        let files: Vec<_> = files
            .filter_map(|path| path.file_name().map(ToOwned::to_owned))
            .collect();
        let any = files.len() < paths.len();
        let concerns = move |path: &PathBuf| {
            // Names that begin with `..` carry the content of a mounted ConfigMap.
            path.file_name().is_none_or(|name| {
                any || files.iter().any(|file| file == name)
                    || name.as_encoded_bytes().starts_with(b"..")
            })
        };
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                let is_news = event.map_or(true, |event| {
                    is_change(event.kind)
                        && (event.paths.is_empty() || event.paths.iter().any(&concerns))
                });
                if is_news {
                    // Nobody listens any more when the command is over.
                    let _ = sender.send(());
                }
            })
            .context("cannot follow files")?;
        for directory in directories(paths) {
            watcher
                .watch(&directory, RecursiveMode::NonRecursive)
                .with_context(|| format!("cannot follow {}", directory.display()))?;
        }
        Ok(Self {
            watcher,
            events,
            changed: Stamps::of(paths) != *seen,
        })
    }

    /// Follows the directories of `paths` from now on, also those that have been made anew. One that is not there is passed over.
    pub(crate) fn follow(&mut self, paths: &[PathBuf]) {
        for directory in directories(paths) {
            let _ = self.watcher.watch(&directory, RecursiveMode::NonRecursive);
        }
    }

    /// Waits for a change and the quiet after it.
    ///
    /// # Cancel safety
    ///
    /// Safe: a change whose quiet was not waited for is told next time.
    pub(crate) async fn changed(&mut self) {
        if !self.changed && self.events.recv().await.is_none() {
            // The watcher is gone: nothing will ever change.
            return std::future::pending().await;
        }
        self.changed = true;
        let end = Instant::now() + PATIENCE;
        while let Ok(Some(())) =
            timeout_at(end.min(Instant::now() + QUIET), self.events.recv()).await
        {}
        self.changed = false;
    }
}

/// The directories among `paths`, and those that its files lie in, because files are followed by name.
fn directories(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    let directory = |path: &PathBuf| {
        if path.is_dir() {
            return path.clone();
        }
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        parent.unwrap_or(Path::new(".")).to_owned()
    };
    paths.iter().map(directory).collect()
}

/// How files looked at some time: enough to see that one was written since. By default, they were not looked at.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamps(Vec<(PathBuf, Option<(SystemTime, u64)>)>);

impl Stamps {
    /// How files, and those in directories, look now.
    pub(crate) fn of(paths: &[PathBuf]) -> Self {
        let mut stamps = Vec::new();
        for path in paths {
            match fs::read_dir(path) {
                Ok(entries) => stamps.extend(entries.flatten().map(|entry| stamp(entry.path()))),
                Err(_) => stamps.push(stamp(path.clone())),
            }
        }
        stamps.sort();
        Self(stamps)
    }
}

fn stamp(path: PathBuf) -> (PathBuf, Option<(SystemTime, u64)>) {
    let metadata = fs::metadata(&path).ok();
    let seen = metadata.and_then(|metadata| Some((metadata.modified().ok()?, metadata.len())));
    (path, seen)
}

/// Reading is no change.
fn is_change(kind: EventKind) -> bool {
    match kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}
