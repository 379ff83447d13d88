//! Files that are mounted by `subPath`: whether a running container sees that they differ. larder replaces their mounts,
//! as long as it finds a file for a file and a directory for a directory, and nothing is mounted on it.

use std::{collections::BTreeSet, ops::Bound};

use larder_containers::subpaths::ANNOTATION;

use crate::rendered::{ContainerContent, MountedFile};

/// What becomes of the differences of a container's files that are mounted by `subPath`: the worst of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SubPathDiff {
    /// There are none.
    None,
    /// The mounts are replaced, since the pod asks for it.
    Updated,
    /// They would be, if the pod asked.
    NotAsked,
    /// They cannot be.
    Kept,
}

impl SubPathDiff {
    /// The paths of mounts by `subPath` that have files, and on which nothing else is mounted.
    pub(super) fn shown<'r>(after: &ContainerContent<'r>) -> BTreeSet<&'r str> {
        let paths = after.paths();
        let is_or_is_below = |path: &str, outer: &str| {
            path.strip_prefix(outer.trim_end_matches('/'))
                .is_some_and(|below| below.is_empty() || below.starts_with('/'))
        };
        let mounts = after.mounts.iter().filter(|mount| mount.sub_path.is_some());
        let mut shown: BTreeSet<_> = mounts.map(|mount| &*mount.mount_path).collect();
        shown.retain(|outer| {
            let has_files = paths
                .range::<str, _>((Bound::Included(*outer), Bound::Unbounded))
                .take(1)
                .any(|path| is_or_is_below(path, outer));
            let mut all = after.mounts.iter();
            has_files && !all.any(|mount| is_below(&mount.mount_path, outer))
        });
        shown
    }

    /// Of a file that differs, with its path and what it is on both sides; nothing for one of a mount that differs. `shown`
    /// is the result of [`Self::shown`]. The pod `asks` for updates.
    pub(super) fn of_file<'r>(
        path: &str,
        (from, to): &(Option<MountedFile<'r>>, Option<MountedFile<'r>>),
        has_other_mount: impl Fn(&str) -> bool,
        shown: &BTreeSet<&str>,
        asks: bool,
    ) -> Self {
        let file = to.as_ref().or(from.as_ref());
        let Some(mount) = file.and_then(|file| file.sub_mount) else {
            return Self::None;
        };
        if has_other_mount(&mount.mount_path) {
            return Self::None;
        }
        let is_file = mount.mount_path.trim_end_matches('/') == path;
        // A file that comes or goes.
        let is_whole = is_file && (from.is_none() || to.is_none());
        if !shown.contains(&*mount.mount_path) || is_whole {
            Self::Kept
        } else if asks {
            Self::Updated
        } else {
            Self::NotAsked
        }
    }

    /// Whether only a new start shows the differences.
    pub(super) fn is_fixed(self) -> bool {
        self >= Self::NotAsked
    }

    /// A reason for a restart, or how it is avoided.
    pub(super) fn words(self) -> String {
        match self {
            Self::None => String::new(),
            Self::Updated => format!("by {ANNOTATION}"),
            Self::NotAsked => {
                format!(
                    "files mounted by subPath (the annotation {ANNOTATION}: \"true\" updates them)"
                )
            }
            Self::Kept => "files mounted by subPath, which cannot be replaced".to_owned(),
        }
    }
}

/// Whether a path is in the directory `outer`.
pub(super) fn is_below(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer.trim_end_matches('/'))
        .is_some_and(|below| below.trim_end_matches('/').starts_with('/'))
}
