//! One scan of the path: its pods now, or the last good ones. Synchronous.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs, io,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use larder_files::regular_file::{RegularFileError, read_regular_text};
use larder_objects::{StableHash, manifest::MAX_MANIFEST_BYTES};
use zeroize::Zeroizing;

use crate::{
    identity::FullName,
    source::{
        SourceProblem,
        known_pod::{Counts, KnownPod},
        last_good::{LastGood, Remembered},
    },
    static_pod::{FilePod, StaticPodError, StaticPods, shown_path},
    stored::StoredPod,
};

/// Why a file gives no pod, or only its last good one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileSourceError {
    /// The path does not exist.
    #[error("path does not exist, ignoring")]
    Missing,
    /// A step of reading failed.
    #[error("cannot {step}")]
    Read {
        /// `stat`, `list`, `open` or `read`.
        step: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// It is neither a file nor a directory.
    #[error("expected a regular file or a directory")]
    NotAFile,
    /// It is a directory in the directory.
    #[error("subdirectories are not read")]
    Nested,
    /// It is too long for a manifest.
    #[error("has {MAX_MANIFEST_BYTES} bytes or more")]
    TooLong,
    /// It is not text.
    #[error("is not UTF-8 text")]
    NotText,
    /// Its text is not that of a static pod.
    #[error("invalid static pod")]
    Manifest(#[from] StaticPodError),
    /// The pod has a field that does not exist, and there is no better version of it.
    #[error("the API server would reject it")]
    UnknownField(#[source] StaticPodError),
    /// The pod has a field that does not exist; its last version without one stays.
    #[error("keeping its last good version")]
    Kept(#[source] StaticPodError),
    /// Another file has a pod of this name. The last file by name is used, as in the kubelet.
    #[error("ignored: its pod {full_name} is also in {}", shown_path(used))]
    Duplicate {
        /// The pod.
        full_name: FullName,
        /// The file that is used.
        used: PathBuf,
    },
    /// The system sends no change notices, so changes are found by polling.
    #[error("cannot watch for changes, polling")]
    Watch {
        /// The system's reason.
        source: io::Error,
    },
}

/// The result of a scan.
#[derive(Debug)]
pub(super) struct Scan {
    /// All pods; `None` if they are unknown, so that those reported last stay.
    pub(super) pods: Option<Vec<StoredPod>>,
    /// All current problems.
    pub(super) problems: Vec<SourceProblem>,
    /// The path does not exist.
    pub(super) missing: bool,
}

/// Scans one path repeatedly.
#[derive(Debug)]
pub(super) struct Scanner {
    path: PathBuf,
    static_pods: StaticPods,
    /// Each file's content when it was last present.
    files: BTreeMap<PathBuf, ManifestFile>,
    /// Copies for the next run.
    last_good: Option<LastGood>,
    /// Whether a scan has returned pods, so that `None` means those.
    reported: bool,
}

/// The state of one file.
#[derive(Debug, Default)]
struct ManifestFile {
    /// Hash of the text that was read last.
    text: Option<StableHash>,
    /// Whether `pod` is that of the file as it is now.
    is_good: bool,
    /// The last good pod.
    pod: Option<KnownPod>,
    /// The file's current problems.
    problems: Vec<Arc<FileSourceError>>,
}

impl ManifestFile {
    /// Decodes `text`, unless it is the same as before.
    fn decode(&mut self, static_pods: &StaticPods, path: &Path, text: &str) {
        let hash = StableHash::EMPTY.with(text);
        if self.text.replace(hash) == Some(hash) {
            return;
        }
        let problems = match static_pods.from_file(path, text) {
            Ok(read) => self.take(read),
            Err(error) => {
                self.is_good = false;
                vec![FileSourceError::Manifest(error)]
            }
        };
        self.problems = problems.into_iter().map(Arc::new).collect();
    }

    /// Takes the pod of the file, unless it has an unknown field and the known one has none. Returns the problems.
    fn take(&mut self, read: FilePod) -> Vec<FileSourceError> {
        let has_unknown_field = read.unknown_field.is_some();
        let counts = KnownPod::renew(&mut self.pod, read.pod, has_unknown_field);
        self.is_good = counts == Counts::Read;
        let problem = match counts {
            Counts::Read => FileSourceError::UnknownField,
            Counts::Known => FileSourceError::Kept,
        };
        let unknown_field = read.unknown_field.map(problem);
        let more = read.more.map(FileSourceError::Manifest);
        unknown_field.into_iter().chain(more).collect()
    }
}

impl Scanner {
    /// Scans `path`. With a directory for copies of the last good manifests, those of an earlier run count as read
    /// before.
    pub(super) fn new(path: PathBuf, static_pods: StaticPods, copies: Option<PathBuf>) -> Self {
        let mut this = Self {
            path,
            static_pods,
            files: BTreeMap::new(),
            last_good: None,
            reported: false,
        };
        if let Some(copies) = copies {
            let (last_good, remembered) = LastGood::recall(copies);
            this.last_good = Some(last_good);
            for copy in remembered {
                this.recall(copy);
            }
        }
        this
    }

    fn recall(&mut self, Remembered { place, text }: Remembered) {
        let path = PathBuf::from(OsString::from_vec(place));
        let is_here =
            path == self.path || (path.parent() == Some(self.path.as_path()) && is_manifest(&path));
        if !is_here {
            return;
        }
        let mut manifest = ManifestFile::default();
        manifest.decode(&self.static_pods, &path, &text);
        // A copy that is not a valid pod by today's settings or version is left to its file's error.
        if manifest.is_good {
            self.files.insert(path, manifest);
        }
    }

    /// Scans once: new files and the `touched` ones, or all of them. Takes and returns the scanner, so that a blocking task can own it meanwhile.
    pub(super) fn scan(mut self, touched: Option<&BTreeSet<PathBuf>>) -> (Self, Scan) {
        let mut scan = match fs::metadata(&self.path) {
            Ok(metadata) if metadata.is_dir() => self.scan_directory(touched),
            Ok(metadata) if metadata.is_file() => self.scan_file(),
            Ok(_) => self.unchanged(FileSourceError::NotAFile),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let scan = self.unchanged(FileSourceError::Missing);
                Scan {
                    // Without last good pods there are none. Reporting that marks the source as seen.
                    pods: scan.pods.or_else(|| (!self.reported).then(Vec::new)),
                    missing: true,
                    ..scan
                }
            }
            Err(source) => self.unchanged(FileSourceError::Read {
                step: "stat",
                source,
            }),
        };
        self.reported |= scan.pods.is_some();
        let copies = self.last_good.iter().flat_map(LastGood::problems);
        scan.problems.extend(copies);
        (self, scan)
    }

    /// A problem, and no new pods: those reported before stay, or else those of an earlier run.
    fn unchanged(&self, error: FileSourceError) -> Scan {
        let known = self.collect().pods.unwrap_or_default();
        let kept = known.iter().map(|pod| FullName::of(&pod.metadata));
        let problem = SourceProblem::new(shown_path(&self.path), Arc::new(error)).keeping(kept);
        Scan {
            pods: (!self.reported && !known.is_empty()).then_some(known),
            problems: vec![problem],
            missing: false,
        }
    }

    /// Forgets all files but these.
    fn retain(&mut self, paths: &[PathBuf]) {
        let present: BTreeSet<_> = paths.iter().collect();
        self.files.retain(|known, _| present.contains(known));
        if let Some(last_good) = &mut self.last_good {
            last_good.retain(paths.iter().map(|path| path.as_os_str().as_bytes()));
        }
    }

    fn scan_file(&mut self) -> Scan {
        let path = self.path.clone();
        self.read(&path);
        // A bad file in place of a directory keeps the directory's pods.
        if self.files.get(&path).is_some_and(|file| file.is_good) {
            self.retain(std::slice::from_ref(&path));
        }
        let scan = self.collect();
        // A file that never was good reports no pods; one that was keeps its pod.
        let anything = scan.pods.as_ref().is_some_and(|pods| !pods.is_empty());
        Scan {
            pods: scan.pods.filter(|_| anything),
            ..scan
        }
    }

    fn scan_directory(&mut self, touched: Option<&BTreeSet<PathBuf>>) -> Scan {
        let listed = fs::read_dir(&self.path).and_then(|entries| {
            let path = |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.path());
            entries.map(path).collect::<io::Result<Vec<_>>>()
        });
        let paths = match listed {
            Ok(mut paths) => {
                paths.retain(|path| is_manifest(path));
                paths
            }
            Err(source) => {
                return self.unchanged(FileSourceError::Read {
                    step: "list",
                    source,
                });
            }
        };
        self.retain(&paths);
        for path in paths {
            let is_touched = touched.is_none_or(|paths| paths.contains(&path));
            if is_touched || !self.files.contains_key(&path) {
                self.read(&path);
            }
        }
        self.collect()
    }

    /// Reads the file at `path`, and decodes it unless its text is the same as before.
    fn read(&mut self, path: &Path) {
        let known = self.files.entry(path.to_owned()).or_default();
        match read_text(path) {
            Ok(text) => {
                known.decode(&self.static_pods, path, &text);
                if let Some(last_good) = &mut self.last_good
                    && known.is_good
                {
                    last_good.keep(path.as_os_str().as_bytes(), &text);
                }
            }
            Err(error) => {
                known.text = None;
                known.is_good = false;
                known.problems = vec![Arc::new(error)];
            }
        }
    }

    /// The pods and problems of all files.
    fn collect(&self) -> Scan {
        let mut used: BTreeMap<FullName, &Path> = BTreeMap::new();
        let mut pods = BTreeMap::new();
        let mut duplicates = Vec::new();
        for (path, file) in &self.files {
            let Some(KnownPod { pod, .. }) = &file.pod else {
                continue;
            };
            let full_name = FullName::of(&pod.metadata);
            if let Some(before) = used.insert(full_name.clone(), path) {
                pods.remove(before);
                let used = path.clone();
                let duplicate = FileSourceError::Duplicate { full_name, used };
                let problem = SourceProblem::new(shown_path(before), Arc::new(duplicate));
                duplicates.push(problem);
            }
            pods.insert(&**path, pod);
        }
        let of_files = self.files.iter().flat_map(|(path, file)| {
            // The first one is why the pod of the file is an earlier one.
            let mut kept = pods.get(&**path).filter(|_| !file.is_good);
            file.problems.iter().map(move |error| {
                let error: Arc<FileSourceError> = Arc::clone(error);
                let kept = kept.take().map(|pod| FullName::of(&pod.metadata));
                SourceProblem::new(shown_path(path), error).keeping(kept)
            })
        });
        Scan {
            problems: of_files.chain(duplicates).collect(),
            pods: Some(pods.into_values().cloned().collect()),
            missing: false,
        }
    }
}

/// The text of the file at `path`.
fn read_text(path: &Path) -> Result<Zeroizing<String>, FileSourceError> {
    read_regular_text(path, MAX_MANIFEST_BYTES).map_err(|error| match error {
        RegularFileError::Io { step, source } => FileSourceError::Read { step, source },
        RegularFileError::Directory => FileSourceError::Nested,
        RegularFileError::TooLong { .. } => FileSourceError::TooLong,
        RegularFileError::NotText => FileSourceError::NotText,
        _ => FileSourceError::NotAFile,
    })
}

/// Whether a directory entry is meant to be a manifest: any name that is neither hidden nor that of a backup.
fn is_manifest(path: &Path) -> bool {
    // Editors and package managers leave these beside a file that they change.
    const BACKUPS: [&str; 14] = [
        "~",
        ".bak",
        ".swp",
        ".swo",
        ".swx",
        ".swpx",
        ".orig",
        ".rej",
        ".old",
        ".tmp",
        ".rpmsave",
        ".rpmnew",
        ".rpmorig",
        ".ucf-dist",
    ];
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let hidden = name.starts_with('.');
    let emacs = name.starts_with('#') && name.ends_with('#');
    let backup = BACKUPS.iter().any(|suffix| name.ends_with(suffix)) || name.contains(".dpkg-");
    !(hidden || emacs || backup)
}
