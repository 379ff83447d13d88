//! What earlier searches have read of other mount namespaces.
//!
//! A search looks for a few mounts in the tables of hundreds of namespaces, and the kernel takes up to a millisecond to
//! format one. So for each namespace a search keeps hashes of its mounts. If they exclude the mounts that a later
//! search looks for, it need not read the table. Otherwise it reads the table itself: hashes never prove that a mount
//! is there.
//!
//! Nothing of another namespace is held open, because that would keep the mounts of a container in use after its end.
//! So the kernel cannot report changes, and the number of a namespace may be given to another one. A *witness* takes
//! the place of both: a process that was in the namespace before its table was read.
//!
//! Invariants:
//! 1. The hashes of a table exclude no mount that was in it when it was read.
//! 2. Hashes count only while their witness is in the namespace, with the same number, start and executable. While it
//!    lives, its namespace does, and no other one has its number. A runtime makes a container's mounts before it
//!    executes the container's program. So a table that was read before that is not trusted after it.
//! 3. Hashes expire, since anyone with the permission may make mounts in a running container. A mount that is made
//!    later is noticed then at the latest. Before that, a search that lacks a container trusts no hashes.
//! 4. Hashes whose witness has left or ended are dropped by the next search. They take at most [`MOST_PREFIXES`] in
//!    all; a namespace for which there is no room is read each time.
//! 5. The hashes have a random key, so nobody can choose mounts whose hashes collide with those of others.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, DefaultHasher, Hasher as _, RandomState},
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::Arc,
};

use tokio::time::Instant;

use super::{EXPIRY, mount_table::MountLine};

/// Most hashes of one namespace. A container of 30 mounts has about a hundred.
const MOST_OF_NAMESPACE: usize = 4096;
/// Most namespaces.
const MOST: usize = 4096;
/// Most hashes of all namespaces: 1 MiB.
const MOST_PREFIXES: usize = 256 * 1024;

/// A hash of device, mount point, and the root of a mount or a directory above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MountPrefix(u32);

/// Hashes mounts.
#[derive(Debug, Default)]
pub(super) struct MountHasher(RandomState);

impl MountHasher {
    /// A hash of any bytes.
    pub(super) fn of(&self, bytes: &[u8]) -> u64 {
        self.0.hash_one(bytes)
    }

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

    pub(super) fn add(&mut self, line: &MountLine<'_>, hasher: &MountHasher) {
        let Some(prefixes) = &mut self.0 else {
            return;
        };
        hasher.prefixes(line.device, &line.mount_point(), &line.root(), |prefix| {
            prefixes.push(prefix);
        });
        if prefixes.len() > MOST_OF_NAMESPACE {
            self.0 = None;
        }
    }
}

/// Shows that a namespace is still the one whose table was read (invariant 2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Witness {
    pub(super) pid: i32,
    pub(super) start: u64,
    /// Hash of the path of its executable.
    pub(super) executable: u64,
}

/// A namespace whose table was read.
#[derive(Debug)]
pub(super) struct KnownNamespace {
    pub(super) witness: Witness,
    read_at: Instant,
    /// Sorted.
    prefixes: Box<[MountPrefix]>,
}

impl KnownNamespace {
    /// Whether the table may have had one of these.
    pub(super) fn may_have(&self, prefixes: &[MountPrefix]) -> bool {
        let mut prefixes = prefixes.iter();
        prefixes.any(|prefix| self.prefixes.binary_search(prefix).is_ok())
    }
}

/// The namespaces whose tables were read, by their numbers.
#[derive(Debug, Default)]
pub(super) struct KnownNamespaces {
    namespaces: HashMap<u64, Arc<KnownNamespace>>,
    /// The number of all hashes.
    prefixes: usize,
}

impl KnownNamespaces {
    /// The namespace, if its table has not expired.
    pub(super) fn get(&self, namespace: u64, now: Instant) -> Option<Arc<KnownNamespace>> {
        let known = self.namespaces.get(&namespace)?;
        (now < known.read_at + EXPIRY).then(|| Arc::clone(known))
    }

    /// Keeps what was read of a namespace, in place of what was known. Without a witness it is only forgotten.
    pub(super) fn put(
        &mut self,
        namespace: u64,
        witness: Option<Witness>,
        new: NewPrefixes,
        now: Instant,
    ) {
        if let Some(old) = self.namespaces.remove(&namespace) {
            self.prefixes -= old.prefixes.len();
        }
        let (Some(witness), Some(mut prefixes)) = (witness, new.0) else {
            return;
        };
        prefixes.sort_unstable();
        prefixes.dedup();
        // Each takes some memory without any mount, too.
        if self.prefixes + prefixes.len() > MOST_PREFIXES || self.namespaces.len() >= MOST {
            return;
        }
        self.prefixes += prefixes.len();
        let known = KnownNamespace {
            witness,
            read_at: now,
            prefixes: prefixes.into(),
        };
        self.namespaces.insert(namespace, Arc::new(known));
    }

    /// Drops the namespaces that a search since `began` has not met, but for those that were read meanwhile.
    pub(super) fn retain(&mut self, began: Instant, was_met: impl Fn(u64) -> bool) {
        self.namespaces
            .retain(|namespace, known| known.read_at >= began || was_met(*namespace));
        let known = self.namespaces.values();
        self.prefixes = known.map(|known| known.prefixes.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, time::Duration};

    use proptest::prelude::*;

    use super::*;
    use crate::action::processes::mount_table::each_mount;

    /// What is kept of a table.
    fn prefixes(hasher: &MountHasher, table: &[u8]) -> NewPrefixes {
        let mut prefixes = NewPrefixes::new();
        each_mount(table, |line| prefixes.add(line, hasher)).unwrap();
        prefixes
    }

    fn witness(pid: i32) -> Witness {
        Witness {
            pid,
            start: 5,
            executable: 6,
        }
    }

    /// What is known of a namespace after its table was read.
    fn known(hasher: &MountHasher, table: &[u8]) -> Option<Arc<KnownNamespace>> {
        let (mut namespaces, now) = (KnownNamespaces::default(), Instant::now());
        namespaces.put(1, Some(witness(2)), prefixes(hasher, table), now);
        namespaces.get(1, now)
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
            let known = known(&hasher, table.as_bytes()).unwrap();
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
                prop_assert!(!is_there || known.may_have(&[prefix]));
                prop_assert!(!known.may_have(&[hasher.prefix(b"0:8", &mount_point, &root)]));
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
        assert!(known(&hasher, table(MOST_OF_NAMESPACE).as_bytes()).is_some());
        assert!(known(&hasher, table(MOST_OF_NAMESPACE + 1).as_bytes()).is_none());
        // A path can be as long as all of them.
        let deep = format!("9 1 0:7 {} / rw\n", "/a".repeat(MOST_OF_NAMESPACE + 1));
        assert!(known(&hasher, deep.as_bytes()).is_none());
    }

    #[test]
    fn kept_namespaces_are_limited_and_make_room_when_they_end() {
        let hasher = MountHasher::default();
        let lines = (0..MOST_OF_NAMESPACE).map(|number| format!("9 1 0:7 / /{number} rw\n"));
        let table: String = lines.collect();
        let (mut namespaces, now) = (KnownNamespaces::default(), Instant::now());
        let put = |namespaces: &mut KnownNamespaces, namespace| {
            let new = prefixes(&hasher, table.as_bytes());
            namespaces.put(namespace, Some(witness(2)), new, now);
            namespaces.get(namespace, now).is_some()
        };
        let room = (MOST_PREFIXES / MOST_OF_NAMESPACE) as u64;
        assert!((0..room).all(|namespace| put(&mut namespaces, namespace)));
        assert!(!put(&mut namespaces, room));
        // One that is read again takes its own place.
        assert!(put(&mut namespaces, 0));
        let later = now + Duration::from_secs(1);
        namespaces.retain(later, |namespace| namespace != 3);
        assert!(namespaces.get(3, now).is_none());
        assert!(put(&mut namespaces, room));
        // Without a witness it is forgotten, and without mounts each still counts.
        namespaces.put(room, None, NewPrefixes::new(), now);
        assert!(namespaces.get(room, now).is_none());
        namespaces.retain(later, |_| false);
        for namespace in 0..=MOST as u64 {
            namespaces.put(namespace, Some(witness(2)), NewPrefixes::new(), now);
        }
        assert_eq!(namespaces.namespaces.len(), MOST);
    }
}
