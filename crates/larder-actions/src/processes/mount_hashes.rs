//! Hashes of the mounts of a namespace, which later searches compare instead of reading its table again.
//!
//! A search looks for a few mounts in the tables of hundreds of namespaces, and the kernel takes up to a millisecond to
//! format one. So a search keeps hashes of the mounts that it has read. If they exclude the mounts that a later search
//! looks for, it need not read the table. Otherwise it reads the table itself: hashes never prove that a mount is
//! there. [`known`](super::known) decides how long they count.
//!
//! Invariants:
//! 1. The hashes of a table exclude no mount that was in it when it was read.
//! 2. The hashes have a random key, so a container cannot choose mounts whose hashes collide with those of others.

use std::{
    hash::{BuildHasher as _, DefaultHasher, Hasher as _, RandomState},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use super::mount_table::MountLine;

/// Most hashes of one namespace. A container of 30 mounts has about a hundred.
const MAX_HASHES: usize = 4096;

/// A hash of device, mount point, and the root of a mount or a directory above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MountPrefix(u32);

/// Hashes mounts.
#[derive(Debug, Default)]
pub(super) struct MountHasher(RandomState);

impl MountHasher {
    /// The hash of a directory that is mounted, or in which one is that is mounted.
    pub(super) fn prefix(&self, device: &[u8], mount_point: &Path, root: &Path) -> MountPrefix {
        let mut prefix = MountPrefix(0);
        self.prefixes(device, mount_point, root, |longer| prefix = longer);
        prefix
    }

    /// The hashes of a mounted directory and of those above it, the longest last. Takes time in proportion to the
    /// lengths.
    fn prefixes(
        &self,
        device: &[u8],
        mount_point: &Path,
        root: &Path,
        mut each: impl FnMut(MountPrefix),
    ) {
        fn add(hasher: &mut DefaultHasher, part: &[u8]) {
            hasher.write(part);
            hasher.write_u8(0);
        }
        let mut hasher = self.0.build_hasher();
        add(&mut hasher, device);
        // By components, as paths are compared.
        for component in mount_point.components() {
            add(&mut hasher, component.as_os_str().as_bytes());
        }
        add(&mut hasher, b"");
        for component in root.components() {
            add(&mut hasher, component.as_os_str().as_bytes());
            #[expect(clippy::cast_possible_truncation, reason = "32 bits are enough")]
            each(MountPrefix(hasher.finish() as u32));
        }
    }
}

/// The hashes of a table that is being read; `None` once there are too many.
#[derive(Debug)]
pub(super) struct NewPrefixes(Option<Vec<MountPrefix>>);

impl NewPrefixes {
    pub(super) fn new() -> Self {
        Self(Some(Vec::new()))
    }

    /// Ends the table; `None` if there were too many.
    pub(super) fn finish(self) -> Option<MountPrefixes> {
        let mut prefixes = self.0?;
        prefixes.sort_unstable();
        prefixes.dedup();
        Some(MountPrefixes(prefixes.into()))
    }

    pub(super) fn add(&mut self, line: &MountLine<'_>, hasher: &MountHasher) {
        let Some(prefixes) = &mut self.0 else {
            return;
        };
        hasher.prefixes(line.device, &line.mount_point(), &line.root(), |prefix| {
            prefixes.push(prefix);
        });
        if prefixes.len() > MAX_HASHES {
            self.0 = None;
        }
    }
}

/// The hashes of a table, sorted.
#[derive(Debug, Default)]
pub(super) struct MountPrefixes(Box<[MountPrefix]>);

impl MountPrefixes {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the table may have had one of these.
    pub(super) fn may_have(&self, wanted: &[MountPrefix]) -> bool {
        wanted
            .iter()
            .any(|prefix| self.0.binary_search(prefix).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;
    use crate::processes::mount_table::each_mount;

    /// What is kept of a table.
    fn prefixes(hasher: &MountHasher, table: &[u8]) -> Option<MountPrefixes> {
        let mut prefixes = NewPrefixes::new();
        each_mount(table, |line| prefixes.add(line, hasher)).unwrap();
        prefixes.finish()
    }

    fn path() -> impl Strategy<Value = String> {
        let component = prop_oneof!["[ab]{1,2}", "a b", ".", "..", "", "a\\\\b", "é"];
        let components = prop::collection::vec(component, 0..5);
        components.prop_map(|components| format!("/{}", components.join("/")))
    }

    proptest! {
        #[test]
        fn hashes_exclude_no_mount_of_their_table(
            lines in prop::collection::vec((path(), path()), 0..6),
            (root, mount_point) in (path(), path()),
            chosen in any::<prop::sample::Index>(),
            cut in 1..4_usize,
        ) {
            let escaped = |path: &str| path.replace('\\', "\\134").replace(' ', "\\040");
            let lines_of_table = lines.iter().map(|(root, mount_point)| {
                let (root, mount_point) = (escaped(root), escaped(mount_point));
                format!("9 1 0:7 {root} {mount_point} rw - tmpfs none rw\n")
            });
            let table = lines_of_table.collect::<Vec<_>>().concat();
            let hasher = MountHasher::default();
            let prefixes = prefixes(&hasher, table.as_bytes()).unwrap();
            // Any mount, and one that is in the table.
            let mut wanted = vec![(PathBuf::from(root), PathBuf::from(mount_point))];
            if let Some((root, mount_point)) = (!lines.is_empty()).then(|| chosen.get(&lines)) {
                let root: PathBuf = Path::new(root).components().take(cut).collect();
                wanted.push((root, mount_point.into()));
            }
            for (root, mount_point) in wanted {
                let mut lines = lines.iter();
                let is_there = lines.any(|(line_root, line_point)| {
                    Path::new(line_root).starts_with(&root) && Path::new(line_point) == mount_point
                });
                let prefix = hasher.prefix(b"0:7", &mount_point, &root);
                prop_assert!(!is_there || prefixes.may_have(&[prefix]));
                prop_assert!(!prefixes.may_have(&[hasher.prefix(b"0:8", &mount_point, &root)]));
            }
        }
    }

    #[test]
    fn namespace_with_too_many_mounts_is_not_kept() {
        let hasher = MountHasher::default();
        let table = |mounts: usize| -> String {
            let lines = (0..mounts).map(|number| format!("9 1 0:7 / /{number} rw\n"));
            lines.collect()
        };
        assert!(prefixes(&hasher, table(MAX_HASHES).as_bytes()).is_some());
        assert!(prefixes(&hasher, table(MAX_HASHES + 1).as_bytes()).is_none());
        // A path can be as long as all of them.
        let deep = format!("9 1 0:7 {} / rw\n", "/a".repeat(MAX_HASHES + 1));
        assert!(prefixes(&hasher, deep.as_bytes()).is_none());
    }
}
