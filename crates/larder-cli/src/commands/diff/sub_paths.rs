//! Files that are mounted by `subPath`: whether a running container sees that they differ. larder replaces their mounts,
//! as long as it finds a file for a file and a directory for a directory, and nothing is mounted on it.

use std::collections::BTreeSet;

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
        let mounts = after.files.values().filter_map(|file| file.sub_mount);
        let mut paths: BTreeSet<_> = mounts.map(|mount| &*mount.mount_path).collect();
        let is_below = |path: &str, outer: &str| {
            let below = path.strip_prefix(outer.trim_end_matches('/'));
            below.is_some_and(|below| below.trim_end_matches('/').starts_with('/'))
        };
        paths.retain(|outer| {
            let mut all = after.mounts.iter();
            !all.any(|mount| is_below(&mount.mount_path, outer))
        });
        paths
    }

    /// Of files that differ, each with its path and what it is on both sides; those of mounts that differ are left out.
    /// `shown` is the result of [`Self::shown`]. The pod `asks` for updates.
    pub(super) fn of<'r>(
        files: impl Iterator<Item = (&'r str, (Option<MountedFile<'r>>, Option<MountedFile<'r>>))>,
        has_other_mount: impl Fn(&str) -> bool,
        shown: &BTreeSet<&str>,
        asks: bool,
    ) -> Self {
        let found = files.filter_map(|(path, (from, to))| {
            let mount = to.or(from)?.sub_mount?;
            if has_other_mount(&mount.mount_path) {
                return None;
            }
            let is_file = mount.mount_path.trim_end_matches('/') == path;
            // A file that comes or goes, and any part of a volume that may be mounted there.
            let is_whole = is_file || mount.unknown_sub_path.is_some();
            let is_kept =
                !shown.contains(&*mount.mount_path) || is_whole && (from.is_none() || to.is_none());
            Some(match is_kept {
                true => Self::Kept,
                false if asks => Self::Updated,
                false => Self::NotAsked,
            })
        });
        found.max().unwrap_or(Self::None)
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
