//! The pods of a manifest file, or of a directory of them.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/config/{file,file_linux}.go`: one pod per file, names with a leading dot are
//! skipped, no recursion, symlinks are followed. Different where the kubelet loses pods:
//! - A file that cannot be read or decoded keeps its last pod (the kubelet drops it at the next full read), also over a
//!   restart if [`FileSource::remembering`] names a directory for copies.
//! - A pod with a field that does not exist never replaces one without, and the field is reported. (The kubelet ignores
//!   it: a misspelled field restarts the pod without what it meant.)
//! - A path that disappears keeps its pods; a path that never existed has none. (The kubelet drops all of them.)
//! - A directory that is deleted and created again is watched again.
//! - A swap of the `..data` link of a ConfigMap volume is noticed at once. (The kubelet finds it by polling.)
//! - Backup files of editors and package managers are skipped, and of two files with one pod the ignored file is
//!   reported.
//!
//! Invariants:
//! 1. A scan without a notice reads everything. Notices only say when to scan sooner, and which files to read. So
//!    polling alone gives the same result, later.
//! 2. A file is decoded once per text, good or bad, and read whenever a notice names it: file times are too coarse to
//!    tell two quick edits apart.
//! 3. Files are read and decoded on a blocking thread; the runtime only waits.

mod scan;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use larder_transport::blocking::blocking;
use tokio::{sync::mpsc, time};

use self::scan::Scanner;
use super::{
    Closed, Reporter, SourceProblem, SourceReport,
    directory::{DirectoryWatch, Signal},
    until_closed,
};
use crate::{
    identity::PodSource,
    merge::SourcePods,
    static_pod::{StaticPods, shown_path},
    stored::StoredPod,
};

pub use scan::FileSourceError;

/// Time without notices before the files are read, so that their writer can finish.
const QUIET: Duration = Duration::from_millis(50);

/// Longest wait for such a quiet time.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// Time between scans of a path that is missing or cannot be watched. kubelet 1.36, `pkg/kubelet/config/file_linux.go`:
/// every second.
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
    /// `check_frequency` is `fileCheckFrequency`, 20 s by default in the kubelet: the time between scans without a
    /// notice, for file systems that send none and for the targets of symlinks. Must be positive.
    pub fn new(path: &Path, check_frequency: Duration, static_pods: StaticPods) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self {
            // Trailing slashes mean nothing, and the path is part of the hash that makes UIDs.
            path: path.components().collect(),
            check_frequency,
            static_pods,
            copies: None,
        }
    }

    /// Keeps copies of the last good manifests in `directory`, which belongs to the source alone and is private to the
    /// user: a manifest may hold a password. So a manifest that is broken, or a path that is missing, keeps its pods
    /// over a restart.
    #[must_use]
    pub fn remembering(mut self, directory: PathBuf) -> Self {
        self.copies = Some(directory);
        self
    }

    /// Reads the path once, without copies of an earlier run: its pods, and the problems of its files. Blocks.
    pub fn read(self) -> (Vec<StoredPod>, Vec<SourceProblem>) {
        let (_, scan) = Scanner::new(self.path, self.static_pods, None).scan(None);
        (scan.pods.unwrap_or_default(), scan.problems)
    }

    /// Reports the pods until the receiver is dropped.
    pub async fn run(self, reports: mpsc::Sender<SourceReport>) {
        let mut reporter = Reporter::new(PodSource::File, reports.clone());
        until_closed(&reports, self.follow(&mut reporter)).await;
    }

    async fn follow(self, reporter: &mut Reporter) -> Result<(), Closed> {
        let mut watch = DirectoryWatch::default();
        // The files to read besides new ones; without it, all of them.
        let mut touched = None;
        let path = self.path.clone();
        let static_pods = self.static_pods;
        let copies = self.copies;
        let mut scanner = blocking(move || Scanner::new(path, static_pods, copies)).await;
        loop {
            let path = self.path.clone();
            let (scan, unwatched);
            (watch, scanner, scan, unwatched) = blocking(move || {
                let directory = if path.is_file() {
                    path.parent()
                } else {
                    Some(path.as_path())
                };
                let unwatched = directory.and_then(|directory| watch.renew(directory).err());
                let (scanner, scan) = scanner.scan(touched.as_ref());
                (watch, scanner, scan, unwatched)
            })
            .await;
            let missing = scan.missing;
            let mut problems = scan.problems;
            problems.extend(unwatched.map(|source| {
                let error = FileSourceError::Watch { source };
                SourceProblem::new(shown_path(&self.path), Arc::new(error))
            }));
            if let Some(pods) = scan.pods {
                reporter.pods(SourcePods::All(pods)).await?;
            }
            reporter.problems(problems).await?;
            let wait = if missing || !watch.is_armed() {
                self.check_frequency.min(RETRY)
            } else {
                self.check_frequency
            };
            touched = match time::timeout(wait, watch.next()).await {
                Err(_) => None,
                Ok(signal) => {
                    let mut touched = Some(BTreeSet::new());
                    touch(&mut touched, signal);
                    let quiet = async {
                        while let Ok(signal) = time::timeout(QUIET, watch.next()).await {
                            touch(&mut touched, signal);
                        }
                    };
                    // Either way it is time to scan.
                    let _ = time::timeout(MAX_WAIT, quiet).await;
                    touched
                }
            };
        }
    }
}

/// Adds the file that a notice is about to the `touched` ones, which become `None` if that may be any.
fn touch(touched: &mut Option<BTreeSet<PathBuf>>, signal: Signal) {
    match signal {
        Signal::Touched(path, _) if !is_atomic_writers(&path) => {
            if let Some(paths) = touched {
                paths.insert(path);
            }
        }
        Signal::Touched(..) | Signal::Overflow | Signal::Ended => *touched = None,
    }
}

/// Whether the path belongs to the kubelet's atomic writer. Links to all files of the directory may lead through it.
fn is_atomic_writers(path: &Path) -> bool {
    path.file_name()
        .map(OsStr::as_encoded_bytes)
        .is_some_and(|name| name.starts_with(b".."))
}

#[cfg(test)]
mod tests;
