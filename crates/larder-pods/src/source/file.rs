//! The pods of a manifest file, or of a directory of them.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/config/{file,file_linux}.go`: one pod per file, names with a leading dot are skipped, no
//! recursion, symlinks are followed. We differ where the kubelet loses pods:
//! - A file that cannot be read or decoded keeps the pod that it had (the kubelet drops it at the next full read), also over a
//!   restart if [`FileSource::remembering`] says where.
//! - A path that disappears keeps its pods; one that was never there has none. (The kubelet drops them all.)
//! - A directory that is deleted and made again is watched again.
//! - Backup files of editors and package managers are no pods, and of two files with one pod the ignored one is named.
//!
//! Invariants:
//! 1. A look without a notice reads what is there as a whole; notices of changes only say when to look sooner, and at what. So
//!    polling alone gives the same, later.
//! 2. A file is decoded once per text, and read whenever a notice names it: times of files are too coarse to tell two quick edits
//!    apart.

mod scan;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::mpsc, time};

use self::scan::Scanner;
use super::{
    Closed, Reporter, SourceProblem, SourceReport,
    directory::{DirectoryWatch, Signal},
    off_runtime,
};
use crate::{identity::PodSource, merge::SourcePods, static_pod::StaticPods};

pub use scan::FileSourceError;

/// After a notice, how long nothing must happen before the files are read: whoever writes them shall be done.
const QUIET: Duration = Duration::from_millis(50);

/// Longest wait for that quiet.
const RESTLESS: Duration = Duration::from_millis(500);

/// How often a missing path, or one that cannot be watched, is looked for. kubelet 1.36, `file_linux.go`: every second.
const RETRY: Duration = Duration::from_secs(1);

/// A file or directory of static pods: `staticPodPath`.
#[derive(Debug)]
pub struct FileSource {
    path: PathBuf,
    check_frequency: Duration,
    static_pods: StaticPods,
    copies: Option<PathBuf>,
}

impl FileSource {
    /// The pods at `path`, as `static_pods` makes them.
    ///
    /// `check_frequency` is `fileCheckFrequency`, 20 s by default in the kubelet: how often to look without a notice, for file
    /// systems that give none and for the targets of symlinks. Must be positive.
    pub fn new(path: &Path, check_frequency: Duration, static_pods: StaticPods) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self {
            // Slashes at the end have no meaning, but the path is part of what UIDs are made of.
            path: path.components().collect(),
            check_frequency,
            static_pods,
            copies: None,
        }
    }

    /// Keeps copies of the last good manifests in `directory`, which is the source's own: private to the user, since a manifest may
    /// hold a password. So a manifest that is broken, or a path that is missing, when the next source starts keeps its pods
    /// then too.
    #[must_use]
    pub fn remembering(mut self, directory: PathBuf) -> Self {
        self.copies = Some(directory);
        self
    }

    /// Reports the pods until nobody receives.
    pub async fn run(self, reports: mpsc::Sender<SourceReport>) {
        let mut reporter = Reporter::new(PodSource::File, reports.clone());
        tokio::select! {
            _ = self.follow(&mut reporter) => {}
            () = reports.closed() => {}
        }
    }

    async fn follow(self, reporter: &mut Reporter) -> Result<(), Closed> {
        let mut watch = DirectoryWatch::default();
        let mut touched = Touched::All;
        let (path, static_pods, copies) = (self.path.clone(), self.static_pods, self.copies);
        let mut scanner = off_runtime(move || Scanner::new(path, static_pods, copies)).await;
        loop {
            let path = self.path.clone();
            let (looked, unwatched);
            (watch, scanner, looked, unwatched) = off_runtime(move || {
                let directory = if path.is_file() {
                    path.parent()
                } else {
                    Some(path.as_path())
                };
                let unwatched = directory.and_then(|directory| watch.renew(directory).err());
                let (scanner, looked) = scanner.look(&touched);
                (watch, scanner, looked, unwatched)
            })
            .await;
            let missing = looked.missing;
            let mut problems = looked.problems;
            problems.extend(unwatched.map(|source| SourceProblem {
                subject: self.path.display().to_string(),
                error: Arc::new(FileSourceError::Watch { source }),
            }));
            if let Some(pods) = looked.pods {
                reporter.pods(SourcePods::All(pods)).await?;
            }
            reporter.problems(problems).await?;
            let patience = if missing || !watch.is_armed() {
                self.check_frequency.min(RETRY)
            } else {
                self.check_frequency
            };
            touched = match time::timeout(patience, watch.next()).await {
                Err(_) => Touched::All,
                Ok(signal) => {
                    let mut touched = Touched::These(BTreeSet::new());
                    touched.add(signal);
                    let quiet = async {
                        while let Ok(signal) = time::timeout(QUIET, watch.next()).await {
                            touched.add(signal);
                        }
                    };
                    // Either way it is time to look.
                    let _ = time::timeout(RESTLESS, quiet).await;
                    touched
                }
            };
        }
    }
}

/// What there is to read.
#[derive(Debug)]
enum Touched {
    /// Everything.
    All,
    /// These files, and those that are new.
    These(BTreeSet<PathBuf>),
}

impl Touched {
    fn add(&mut self, signal: Signal) {
        match (signal, self) {
            (Signal::Touched(path, _), Self::These(paths)) => {
                paths.insert(path);
            }
            (Signal::Touched(..), Self::All) => {}
            (Signal::Overflow | Signal::Ended, touched) => *touched = Self::All,
        }
    }

    /// Whether the file at `path` is to be read though it is known.
    fn concerns(&self, path: &Path) -> bool {
        match self {
            Self::All => true,
            Self::These(paths) => paths.contains(path),
        }
    }
}

#[cfg(test)]
mod tests;
