//! Detects changes to manifests, and to the files of an agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use anyhow::{Context as _, bail};
use futures::future::select_all;
use larder_files::stamp::Stamp;
use larder_pods::source::{DirectoryWatch, Signal};
use tokio::time::{Instant, timeout_at};

/// Time without events after which a file counts as written: editors write in several steps.
const QUIET: Duration = Duration::from_millis(20);
/// Longest wait for such a pause, for files that are written all the time.
const MAX_DELAY: Duration = Duration::from_millis(200);

/// Follows files and directories.
#[derive(Debug)]
pub(crate) struct Follower {
    watches: BTreeMap<PathBuf, DirectoryWatch>,
    /// The names of the files; `None` if every name matters.
    files: Option<BTreeSet<OsString>>,
    /// A change has not been reported yet.
    changed: bool,
}

impl Follower {
    /// Follows `paths`: directories, and files by their directories, because editors replace files. `seen` are their
    /// stamps from before they were first read; a difference is the first change.
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
            watch
                .renew(&path)
                .with_context(|| format!("cannot follow {}", path.display()))?;
            if !watch.is_armed() {
                bail!("cannot follow {}: directory not found", path.display());
            }
        }
        follower.changed = Stamps::of(paths) != *seen;
        Ok(follower)
    }

    /// Follows the directories of `paths` as well, also those that have been created again. A missing one is skipped.
    pub(crate) fn follow(&mut self, paths: &[PathBuf]) {
        for path in directories(paths) {
            let _ = self.watches.entry(path.clone()).or_default().renew(&path);
        }
    }

    /// Waits for a change, and the pause after it.
    ///
    /// # Cancel safety
    ///
    /// Safe: a change whose pause was cut short is reported by the next call.
    pub(crate) async fn changed(&mut self) {
        if !self.changed {
            self.next_event().await;
        }
        self.changed = true;
        let end = Instant::now() + MAX_DELAY;
        while let Ok(()) = timeout_at(end.min(Instant::now() + QUIET), self.next_event()).await {}
        self.changed = false;
    }

    /// The next event that matters. Cancel-safe.
    async fn next_event(&mut self) {
        loop {
            let signals = self
                .watches
                .values_mut()
                .map(|watch| Box::pin(watch.next()));
            // At least one exists: every path is a file or a directory.
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
        // Names that begin with `..` hold the content of a mounted ConfigMap.
        files.contains(name) || name.as_encoded_bytes().starts_with(b"..")
    }
}

/// The directories among `paths`, and those of its files, because files are followed by name.
fn directories(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    let directory = |path: &PathBuf| {
        if path.is_dir() {
            return path.clone();
        }
        path.parent()
            .filter(|parent| *parent != Path::new(""))
            .unwrap_or(Path::new("."))
            .to_owned()
    };
    paths.iter().map(directory).collect()
}

/// The stamps of files at some time, from which later writes can be seen. Empty by default.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Stamps(BTreeSet<(Option<Stamp>, PathBuf)>);

impl Stamps {
    /// The stamps of files, and of those in directories, now.
    pub fn of(paths: &[PathBuf]) -> Self {
        let files = paths.iter().flat_map(|path| match fs::read_dir(path) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(_) => vec![path.clone()],
        });
        Self(files.map(|path| (Stamp::of(&path), path)).collect())
    }
}
