//! One look at the path: what is there now, beside what was there before. Synchronous.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs, io, mem,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use larder_objects::{
    StableHash,
    manifest::{MAX_MANIFEST_BYTES, ManifestFileError, read_manifest},
};
use zeroize::Zeroizing;

use super::Touched;
use crate::{
    identity::FullName,
    source::{
        SourceProblem,
        last_good::{LastGood, Remembered},
    },
    static_pod::{StaticPodError, StaticPods},
    stored::StoredPod,
};

/// Why a file gives no pod, or not the one in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileSourceError {
    /// There is nothing at the path.
    #[error("path does not exist, ignoring")]
    Missing,
    /// A step of reading failed.
    #[error("cannot {step}")]
    Read {
        /// What was attempted: `stat`, `list`, `open`, `read`.
        step: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// It is neither a file nor a directory.
    #[error("is neither a file nor a directory")]
    NotAFile,
    /// It is a directory within the directory.
    #[error("directories within the directory are not read")]
    Nested,
    /// It is too long for a manifest.
    #[error("has {MAX_MANIFEST_BYTES} bytes or more")]
    TooLong,
    /// It is not text.
    #[error("is not UTF-8 text")]
    NotText,
    /// Its text is not that of a static pod.
    #[error("gives no static pod")]
    Manifest(#[from] StaticPodError),
    /// Another file has a pod of this name; the last one in the order of file names is taken, as the kubelet does.
    #[error("is ignored: its pod {full_name} is also in {taken}")]
    Duplicate {
        /// The pod.
        full_name: FullName,
        /// The file that counts.
        taken: PathBuf,
    },
    /// The system does not tell of changes, so they are noticed by looking from time to time.
    #[error("cannot be watched for changes")]
    Watch {
        /// The system's reason.
        source: io::Error,
    },
}

/// What a look found.
#[derive(Debug)]
pub(super) struct Looked {
    /// All pods; `None` when nothing can be said about them, so that what was said stays.
    pub(super) pods: Option<Vec<StoredPod>>,
    /// All that is wrong.
    pub(super) problems: Vec<SourceProblem>,
    /// There is nothing at the path.
    pub(super) missing: bool,
}

/// Looks at one path, again and again.
#[derive(Debug)]
pub(super) struct Scanner {
    path: PathBuf,
    static_pods: StaticPods,
    /// What each file had when it was last there.
    files: BTreeMap<PathBuf, Manifest>,
    /// Where that is kept for the next run.
    last_good: Option<LastGood>,
    /// Whether pods have been named, so that silence means those.
    told: bool,
}

/// What is known of one file.
#[derive(Debug, Default)]
struct Manifest {
    /// Hash of the text that was read last.
    text: Option<StableHash>,
    /// Whether `pod` was made of that text.
    is_good: bool,
    /// The last good pod.
    pod: Option<StoredPod>,
    /// What is wrong with the file now.
    problem: Option<Arc<FileSourceError>>,
}

impl Scanner {
    /// Of `path`. With a directory for copies of the last good manifests, those of an earlier run count as read before.
    pub(super) fn new(path: PathBuf, static_pods: StaticPods, copies: Option<PathBuf>) -> Self {
        let mut this = Self {
            path,
            static_pods,
            files: BTreeMap::new(),
            last_good: None,
            told: false,
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
        // What is no pod any more, by other settings or another version, is for its file to say.
        if let Ok((pod, more)) = self.static_pods.from_file(&path, &text) {
            let manifest = Manifest {
                text: Some(StableHash::EMPTY.with(&text)),
                is_good: true,
                pod: Some(pod),
                problem: more.map(|error| Arc::new(error.into())),
            };
            self.files.insert(path, manifest);
        }
    }

    /// Looks once. Comes back with its result, so that a blocking task can own it meanwhile.
    pub(super) fn look(mut self, touched: &Touched) -> (Self, Looked) {
        let mut looked = match fs::metadata(&self.path) {
            Ok(metadata) if metadata.is_dir() => self.look_at_directory(touched),
            Ok(metadata) if metadata.is_file() => self.look_at_file(),
            Ok(_) => self.silent(FileSourceError::NotAFile),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let looked = self.silent(FileSourceError::Missing);
                Looked {
                    // With nothing known there are no pods, which is worth saying: the source is there.
                    pods: looked.pods.or_else(|| (!self.told).then(Vec::new)),
                    missing: true,
                    ..looked
                }
            }
            Err(source) => self.silent(FileSourceError::Read {
                step: "stat",
                source,
            }),
        };
        self.told |= looked.pods.is_some();
        let copies = self.last_good.iter().flat_map(LastGood::problems);
        looked.problems.extend(copies);
        (self, looked)
    }

    /// Nothing new to say about pods but that something is wrong. What was named stays, and so does what an earlier run knew.
    fn silent(&self, error: FileSourceError) -> Looked {
        let known = || self.collect().pods.filter(|pods| !pods.is_empty());
        Looked {
            pods: if self.told { None } else { known() },
            problems: vec![SourceProblem {
                subject: self.path.display().to_string(),
                error: Arc::new(error),
            }],
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

    fn look_at_file(&mut self) -> Looked {
        let path = self.path.clone();
        self.retain(std::slice::from_ref(&path));
        self.read(&path);
        let looked = self.collect();
        // A file that never was good says nothing; one that was keeps its pod.
        let anything = looked.pods.as_ref().is_some_and(|pods| !pods.is_empty());
        Looked {
            pods: looked.pods.filter(|_| anything),
            ..looked
        }
    }

    fn look_at_directory(&mut self, touched: &Touched) -> Looked {
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
                return self.silent(FileSourceError::Read {
                    step: "list",
                    source,
                });
            }
        };
        self.retain(&paths);
        for path in paths {
            if self.files.contains_key(&path) && !touched.concerns(&path) {
                continue;
            }
            self.read(&path);
        }
        self.collect()
    }

    /// Reads the file at `path`, and decodes it unless its text is as it was.
    fn read(&mut self, path: &Path) {
        let known = self.files.entry(path.to_owned()).or_default();
        match read_text(path) {
            Ok(text) => {
                let hash = StableHash::EMPTY.with(text.as_str());
                if known.text.replace(hash) != Some(hash) {
                    let pod = self.static_pods.from_file(path, &text);
                    known.is_good = pod.is_ok();
                    match pod {
                        Ok((pod, more)) => {
                            known.pod = Some(pod);
                            known.problem = more.map(|error| Arc::new(error.into()));
                        }
                        Err(error) => known.problem = Some(Arc::new(error.into())),
                    }
                }
                if let Some(last_good) = &mut self.last_good
                    && known.is_good
                {
                    last_good.keep(path.as_os_str().as_bytes(), &text);
                }
            }
            Err(error) => {
                known.text = None;
                known.problem = Some(Arc::new(error));
            }
        }
    }

    /// What all files together give.
    fn collect(&self) -> Looked {
        let mut problems = Vec::new();
        let mut problem = |path: &Path, error: Arc<FileSourceError>| {
            problems.push(SourceProblem {
                subject: path.display().to_string(),
                error,
            });
        };
        let mut taken: BTreeMap<FullName, (&Path, &StoredPod)> = BTreeMap::new();
        for (path, file) in &self.files {
            if let Some(error) = &file.problem {
                problem(path, Arc::clone(error));
            }
            let Some(pod) = &file.pod else { continue };
            let full_name = FullName::of(&pod.metadata);
            if let Some((before, _)) = taken.insert(full_name.clone(), (path, pod)) {
                let duplicate = FileSourceError::Duplicate {
                    full_name,
                    taken: path.clone(),
                };
                problem(before, Arc::new(duplicate));
            }
        }
        let mut pods: Vec<_> = taken.into_values().collect();
        pods.sort_by_key(|(path, _)| *path);
        Looked {
            pods: Some(pods.into_iter().map(|(_, pod)| pod.clone()).collect()),
            problems,
            missing: false,
        }
    }
}

/// The text of the file at `path`.
fn read_text(path: &Path) -> Result<Zeroizing<String>, FileSourceError> {
    let mut bytes = read_manifest(path).map_err(|error| match error {
        ManifestFileError::Io { step, source } => FileSourceError::Read { step, source },
        ManifestFileError::Directory => FileSourceError::Nested,
        ManifestFileError::TooLong => FileSourceError::TooLong,
        _ => FileSourceError::NotAFile,
    })?;
    let text = String::from_utf8(mem::take(&mut *bytes));
    text.map(Zeroizing::new)
        .map_err(|_| FileSourceError::NotText)
}

/// Whether an entry of the directory is meant to be a manifest: any name that is neither hidden nor that of a backup.
fn is_manifest(path: &Path) -> bool {
    // What editors and package managers leave beside a file that they change.
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
