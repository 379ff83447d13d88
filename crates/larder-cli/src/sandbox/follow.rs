//! Tells when manifests, or what an agent delivers, may have changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    pin::pin,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use futures::future::select_all;
use larder_pods::source::{DirectoryWatch, Signal};
use tokio::time::{Instant, timeout_at};

/// An editor writes a file in several steps. So long after the last one it counts as written.
const QUIET: Duration = Duration::from_millis(20);
/// A file that is written all the time is looked at nevertheless.
const PATIENCE: Duration = Duration::from_millis(200);

/// Follows files and directories.
#[derive(Debug)]
pub(crate) struct Follower {
    watches: BTreeMap<PathBuf, DirectoryWatch>,
    /// The names of the files; `None` when any name is news.
    files: Option<BTreeSet<OsString>>,
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
        let any = paths.iter().any(|path| path.is_dir());
        let names = paths.iter().filter_map(|path| path.file_name());
        let mut follower = Self {
            watches: BTreeMap::new(),
            files: (!any).then(|| names.map(ToOwned::to_owned).collect()),
            changed: false,
        };
        for path in directories(paths) {
            let watch = follower.watches.entry(path.clone()).or_default();
            let armed = watch.renew(&path);
            armed.with_context(|| format!("cannot follow {}", path.display()))?;
            if !watch.is_armed() {
                bail!(
                    "cannot follow {}: there is no such directory",
                    path.display()
                );
            }
        }
        follower.changed = Stamps::of(paths) != *seen;
        Ok(follower)
    }

    /// Follows the directories of `paths` from now on, also those that have been made anew. One that is not there is passed over.
    pub(crate) fn follow(&mut self, paths: &[PathBuf]) {
        for path in directories(paths) {
            let _ = self.watches.entry(path.clone()).or_default().renew(&path);
        }
    }

    /// Waits for a change and the quiet after it.
    ///
    /// # Cancel safety
    ///
    /// Safe: a change whose quiet was not waited for is told next time.
    pub(crate) async fn changed(&mut self) {
        if !self.changed {
            self.news().await;
        }
        self.changed = true;
        let end = Instant::now() + PATIENCE;
        while let Ok(()) = timeout_at(end.min(Instant::now() + QUIET), self.news()).await {}
        self.changed = false;
    }

    /// The next word of the system that matters. Cancel-safe.
    async fn news(&mut self) {
        loop {
            let signals = self.watches.values_mut();
            let signals = signals.map(|watch| Box::pin(watch.next()));
            // There is at least one: the paths are those of files or directories.
            let (signal, ..) = pin!(select_all(signals)).await;
            match signal {
                Signal::Touched(path, _) if !self.concerns(&path) => {}
                Signal::Touched(..) | Signal::Overflow | Signal::Ended => return,
            }
        }
    }

    fn concerns(&self, path: &Path) -> bool {
        let (Some(files), Some(name)) = (&self.files, path.file_name()) else {
            return true;
        };
        // Names that begin with `..` carry the content of a mounted ConfigMap.
        files.contains(name) || name.as_encoded_bytes().starts_with(b"..")
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
