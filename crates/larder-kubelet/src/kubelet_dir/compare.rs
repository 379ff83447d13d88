//! Compares a directory with the files that it must contain.
//!
//! 1. Each computed file, in order of its path: does it exist, and is it equal by its [`Rule`]?
//! 2. The directories of computed files: do they contain any other entry? The first one ends the search, so a directory
//!    of a hundred thousand files costs no more than the computed files.
//!
//! Both steps stop when their time is up, after a file or a whole directory, and continue with a newly opened directory.

use std::{
    collections::btree_map,
    ffi::CStr,
    fmt,
    ops::Bound,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::Duration,
};

use k8s_openapi::api::core::v1::Volume;
use larder_files::{beneath, operation_error::failed, sys};
use larder_objects::{Kind, SourceKind};
use larder_projection::{File, Origin, Projection, VolumePath};
use rustix::{
    fs::{FileType, Stat},
    io::Errno,
};
use tokio::time::Instant;

use super::{
    UnknownContent,
    content::{Buffer, Rule},
};

/// ConfigMaps that each namespace of a cluster has, and that most pods mount (beside-kubelet R7).
const CLUSTER_AUTHORITIES: [&str; 2] = ["kube-root-ca.crt", "openshift-service-ca.crt"];

/// Number of differences that are named; the others are only counted.
const MAX_NAMED: usize = 8;

// How one file differs.
/// It is not there, or is no regular file.
const MISSING: &str = "is missing";
/// It has other content.
const CHANGED: &str = "differs";
/// It exists, but was not computed.
const EXTRA: &str = "is left over";

/// Why a touch of the pod would repair a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TouchReason {
    /// Files differ that come from `kube-root-ca.crt` or `openshift-service-ca.crt` (R7), and no others.
    ClusterAuthority,
    /// A file differs that comes from a ConfigMap, a Secret or a trust bundle (R3).
    Object,
}

impl TouchReason {
    /// The reason to touch for a file from `origin`; `None` where the kubelet needs no touch to see a change.
    pub fn of(origin: &Origin<'_>) -> Option<Self> {
        match origin {
            Origin::Key { kind, name, .. } => Some(reason_of_object(*kind, name)),
            Origin::TrustBundle => Some(Self::Object),
            Origin::Value { .. }
            | Origin::Missing { .. }
            | Origin::Field(_)
            | Origin::Resource { .. }
            | Origin::EnvFile { .. }
            | Origin::Service { .. }
            | Origin::Token { .. }
            | Origin::PodCertificate { .. } => None,
        }
    }
}

/// How a directory differs from what was computed for it.
#[derive(Debug, Default)]
pub struct Differences {
    /// Each with its path and how it differs.
    pub(super) named: Vec<String>,
    /// Of entries that were not computed, only the first counts.
    pub(super) count: usize,
    reason: Option<TouchReason>,
}

impl Differences {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        self.count == 0
    }

    /// The reason to touch the pod; `None` if only downward content, tokens and certificates differ (R3).
    pub fn reason(&self) -> Option<TouchReason> {
        self.reason
    }

    fn add(&mut self, path: &str, how: &str, reason: Option<TouchReason>) {
        if self.named.len() < MAX_NAMED {
            self.named.push(format!("{path} {how}"));
        }
        self.count += 1;
        self.reason = self.reason.max(reason);
    }
}

/// Some of them, by path relative to the volume. Paths come from objects, or from the disk.
impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named.join(", "))?;
        match self.count - self.named.len() {
            0 => Ok(()),
            others => write!(f, ", {others} more"),
        }
    }
}

/// Compares one directory with the part of a projection that it must contain.
pub(super) struct Comparer<'a> {
    projection: &'a Projection<'a>,
    /// Path in the volume that the directory stands for: empty, or with a final slash.
    prefix: &'a str,
    /// Possible origins of an entry that was not computed.
    extra: Option<TouchReason>,
    files: btree_map::Range<'a, VolumePath, File<'a>>,
    /// Directories still to be listed, with a final slash; without [`Self::prefix`].
    directories: Vec<String>,
    differences: Differences,
    buffer: Buffer,
    /// For errors.
    path: PathBuf,
}

impl<'a> Comparer<'a> {
    pub(super) fn new(
        volume: &Volume,
        projection: &'a Projection<'a>,
        prefix: &'a str,
        path: PathBuf,
    ) -> Self {
        let from = Bound::Included(prefix);
        Self {
            projection,
            prefix,
            extra: reason_of_volume(volume),
            files: projection.payload.range::<str, _>((from, Bound::Unbounded)),
            directories: vec![String::new()],
            differences: Differences::default(),
            buffer: Buffer::default(),
            path,
        }
    }

    /// Continues the comparison for `budget`, and at least one step. Returns whether it is complete.
    ///
    /// # Errors
    ///
    /// The system refuses to show a file.
    pub(super) fn advance(
        &mut self,
        directory: &OwnedFd,
        budget: Duration,
    ) -> Result<bool, UnknownContent> {
        let end = Instant::now() + budget;
        let mut ancestors = OpenAncestors::default();
        loop {
            let more = match self.files.next() {
                Some((path, file)) if path.as_str().starts_with(self.prefix) => {
                    let relative = &path.as_str()[self.prefix.len()..];
                    let opened = open_file_beneath(directory, relative);
                    self.check(opened, path, file)?;
                    true
                }
                _ => {
                    // The rest of the payload is not of this directory.
                    self.files = btree_map::Range::default();
                    self.list_next(directory, &mut ancestors)?
                }
            };
            if !more {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
        }
    }

    /// Records that `path` exists, but was not computed.
    pub(super) fn not_computed(&mut self, path: &str) {
        self.differences.add(path, EXTRA, self.extra);
    }

    pub(super) fn finish(self) -> Differences {
        self.differences
    }

    /// Compares an opened file with `file`, which belongs at `path` of the volume.
    pub(super) fn check(
        &mut self,
        opened: rustix::io::Result<(OwnedFd, Stat)>,
        path: &VolumePath,
        file: &File<'_>,
    ) -> Result<(), UnknownContent> {
        let failed = |errno| failed("read", &self.path.join(path.as_str()))(errno);
        let origin = self.projection.origins.get(path);
        let how = match opened {
            Ok((found, stat)) => {
                let rule = origin.map_or(Rule::Bytes, Rule::of);
                let is_met = rule.is_met(&found, &stat, &file.data, &mut self.buffer);
                if is_met.map_err(failed)? {
                    return Ok(());
                }
                CHANGED
            }
            // The file, or a directory above it, is missing or of another type.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL | Errno::XDEV) => MISSING,
            Err(errno) => return Err(failed(errno).into()),
        };
        let reason = origin.and_then(TouchReason::of);
        self.differences.add(path.as_str(), how, reason);
        Ok(())
    }

    /// Lists the next directory. Returns whether there was one.
    fn list_next(
        &mut self,
        set: &OwnedFd,
        ancestors: &mut OpenAncestors,
    ) -> Result<bool, UnknownContent> {
        let Some(listed) = self.directories.pop() else {
            return Ok(false);
        };
        let directory = match ancestors.open(set.as_fd(), &listed) {
            Ok(directory) => directory,
            // Its files are missing, and are recorded as such.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(true),
            Err(errno) => return Err(failed("open", &self.path.join(&listed))(errno).into()),
        };
        let mut extra = None;
        let visit = |name: &CStr, kind| {
            match self.computed(&listed, name, kind) {
                ListedEntry::File => {}
                ListedEntry::Directory(path) => self.directories.push(path),
                ListedEntry::Extra(path) => extra = Some(path),
            }
            Ok(extra.is_none())
        };
        let found = sys::list_until(&directory, visit);
        match found {
            Ok(()) => {}
            // It was removed after it was opened: by the kubelet, which has then written another set, or by hand.
            Err(Errno::NOENT) => self.differences.add(&listed, MISSING, self.extra),
            Err(errno) => return Err(failed("list", &self.path.join(&listed))(errno).into()),
        }
        if let Some(path) = extra {
            self.not_computed(&format!("{}{path}", self.prefix));
            // One is enough: the kubelet rewrites all files.
            self.directories.clear();
        }
        Ok(true)
    }

    /// The role of the entry `name` of the directory `listed` in the projection.
    fn computed(&self, listed: &str, name: &CStr, kind: FileType) -> ListedEntry {
        let Ok(name) = name.to_str() else {
            return ListedEntry::Extra(format!("{listed}{}", name.to_string_lossy()));
        };
        let payload = &self.projection.payload;
        let mut path = format!("{}{listed}{name}", self.prefix);
        if payload.contains_key(path.as_str()) {
            return ListedEntry::File;
        }
        path.push('/');
        let from = Bound::Included(path.as_str());
        let mut below = payload.range::<str, _>((from, Bound::Unbounded));
        let holds_files = below
            .next()
            .is_some_and(|(file, _)| file.as_str().starts_with(&path));
        if holds_files {
            // If it is not a directory, the files below it are missing, and are recorded as such.
            return if kind == FileType::Directory {
                ListedEntry::Directory(path.split_off(self.prefix.len()))
            } else {
                ListedEntry::File
            };
        }
        ListedEntry::Extra(format!("{listed}{name}"))
    }
}

/// An entry of a listed directory.
enum ListedEntry {
    /// A computed file, compared before.
    File,
    /// A directory that holds computed files, with a final slash.
    Directory(String),
    /// Anything else.
    Extra(String),
}

/// Opens the file `path` beneath `set`.
fn open_file_beneath(set: &OwnedFd, path: &str) -> rustix::io::Result<(OwnedFd, Stat)> {
    match path.rsplit_once('/') {
        None => sys::open_regular(set.as_fd(), path),
        Some((parent, name)) => {
            let parent = beneath::open_place(set.as_fd(), parent.as_bytes())?;
            sys::open_regular(parent.as_fd(), name)
        }
    }
}

/// Open directories on the path to the directory that was listed last. So a deep path is resolved once, and not again
/// for each directory on it.
#[derive(Default)]
struct OpenAncestors(Vec<(String, OwnedFd)>);

impl OpenAncestors {
    /// Elements between two directories that stay open.
    const STRIDE: usize = 64;

    /// Opens the directory `path`, with a final slash, beneath `set`.
    fn open(&mut self, set: BorrowedFd<'_>, path: &str) -> rustix::io::Result<OwnedFd> {
        self.0.retain(|(reached, _)| path.starts_with(reached));
        let (parent, rest) = match self.0.last() {
            Some((reached, directory)) => (directory.as_fd(), &path[reached.len()..]),
            None => (set, path),
        };
        let rest = rest.trim_end_matches('/');
        if rest.is_empty() {
            return sys::open_place(parent, c".");
        }
        let directory = beneath::open_place(parent, rest.as_bytes())?;
        if rest.split('/').count() >= Self::STRIDE {
            let again = sys::open_place(directory.as_fd(), c".")?;
            self.0.push((path.to_owned(), again));
        }
        Ok(directory)
    }
}

fn reason_of_object(kind: Kind, name: &str) -> TouchReason {
    if kind == Kind::ConfigMap && CLUSTER_AUTHORITIES.contains(&name) {
        TouchReason::ClusterAuthority
    } else {
        TouchReason::Object
    }
}

/// The reason to touch for a file that was not computed: it may come from any object of the volume.
fn reason_of_volume(volume: &Volume) -> Option<TouchReason> {
    if let Some(source) = &volume.config_map {
        return Some(reason_of_object(Kind::ConfigMap, &source.name));
    }
    if volume.secret.is_some() {
        return Some(TouchReason::Object);
    }
    SourceKind::of_volume(volume)
        .filter_map(|(_, source)| match source {
            SourceKind::Secret(_) | SourceKind::TrustBundle(_) => Some(TouchReason::Object),
            SourceKind::ConfigMap(source) => Some(reason_of_object(Kind::ConfigMap, &source.name)),
            SourceKind::DownwardApi(_) | SourceKind::Token(_) | SourceKind::PodCertificate(_) => {
                None
            }
        })
        .max()
}
