//! What one search leaves to the next: the mount namespaces of processes, and the mounts of namespaces.
//!
//! Nothing of another namespace is held open, because that would keep the mounts of a container in use after its end.
//! So the kernel cannot report changes, and the number of a namespace may be given to another one. A process that was in
//! a namespace before shows that it is still the same one: while the process lives there, the namespace lives, and no
//! other one has its number.
//!
//! Invariants:
//! 1. A process is known by its number and its inode.
//! 2. What is known of a namespace counts in a search only once a process that is known to be in it is found there, by
//!    reading its link. Once the search has excluded a namespace, for this or any other reason, it reads no link of the
//!    processes that are known to be in it.
//! 3. A process is known only [`SETTLING`] after its start, and a namespace only if such a process was in it while its
//!    table was read. A runtime makes a container's mounts, and executes the container's program, within that time.
//! 4. All of it expires, since anyone with the permission may make mounts in a running container, and a process may move
//!    to another namespace. Such a change is noticed then at the latest. Before that, a search that lacks a container
//!    trusts nothing (invariant 3 of the parent).
//! 5. A search forgets what it has not found again. The rest takes at most 2.5 MiB; what there is no room for is read
//!    each time.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{EXPIRY, mount_hashes::MountPrefixes, proc_directory::ListedProcess};

/// How old a process must be to be known.
pub(super) const SETTLING: Duration = Duration::from_secs(10);
/// Most processes.
const MAX_PROCESSES: usize = 32 * 1024;
/// Most namespaces.
const MAX_NAMESPACES: usize = 4096;
/// Most hashes of all namespaces: 1 MiB.
const MAX_PREFIXES: usize = 256 * 1024;

/// What is known after a search.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Processes and the numbers of their namespaces. Sorted.
    processes: Vec<(ListedProcess, u64)>,
    namespaces: HashMap<u64, Arc<KnownNamespace>>,
    /// The number of all hashes.
    prefixes: usize,
}

/// A namespace whose table was read.
#[derive(Debug)]
pub(super) struct KnownNamespace {
    read_at: Instant,
    pub(super) prefixes: MountPrefixes,
}

impl Known {
    /// The namespace of a process, unless it has expired.
    pub(super) fn namespace_of(&self, process: ListedProcess, now: Instant) -> Option<u64> {
        let index = self
            .processes
            .binary_search_by_key(&process, |known| known.0);
        let (_, namespace) = self.processes[index.ok()?];
        self.namespace(namespace, now).map(|_| namespace)
    }

    /// What is known of a namespace, unless it has expired.
    pub(super) fn namespace(&self, namespace: u64, now: Instant) -> Option<&Arc<KnownNamespace>> {
        let known = self.namespaces.get(&namespace)?;
        (now < known.read_at + EXPIRY).then_some(known)
    }

    pub(super) fn add_process(&mut self, process: ListedProcess, namespace: u64) {
        if self.processes.len() < MAX_PROCESSES {
            self.processes.push((process, namespace));
        }
    }

    /// Adds a namespace whose table was read now.
    pub(super) fn add_read(&mut self, namespace: u64, prefixes: MountPrefixes, now: Instant) {
        let read_at = now;
        self.add(namespace, &Arc::new(KnownNamespace { read_at, prefixes }));
    }

    /// Adds a namespace, once.
    pub(super) fn add(&mut self, namespace: u64, known: &Arc<KnownNamespace>) {
        // Each takes some memory without any hash, too.
        if self.prefixes + known.prefixes.len() <= MAX_PREFIXES
            && self.namespaces.len() < MAX_NAMESPACES
        {
            self.prefixes += known.prefixes.len();
            self.namespaces.insert(namespace, Arc::clone(known));
        }
    }

    /// Ends the search.
    pub(super) fn finish(mut self) -> Arc<Self> {
        let namespaces = &self.namespaces;
        self.processes
            .retain(|(_, namespace)| namespaces.contains_key(namespace));
        self.processes.sort_unstable();
        self.processes.shrink_to_fit();
        Arc::new(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::mount_hashes::{MountHasher, NewPrefixes};
    use crate::processes::mount_table::each_mount;

    /// The hashes of that many mounts.
    fn prefixes(mounts: usize) -> MountPrefixes {
        let lines = (0..mounts).map(|number| format!("9 1 0:7 / /{number} rw\n"));
        let (table, hasher) = (lines.collect::<String>(), MountHasher::default());
        let mut prefixes = NewPrefixes::new();
        each_mount(table.as_bytes(), |line| prefixes.add(line, &hasher)).unwrap();
        prefixes.finish().unwrap()
    }

    #[test]
    fn remembered_processes_and_namespaces_are_limited() {
        let now = Instant::now();
        let mut known = Known::default();
        // Two mounts may have the same hash.
        let large = prefixes(4096);
        let room = (MAX_PREFIXES / large.len()) as u64;
        let large = Arc::new(KnownNamespace {
            read_at: now,
            prefixes: large,
        });
        for namespace in 0..=room {
            known.add(namespace, &large);
            assert_eq!(known.namespace(namespace, now).is_some(), namespace < room);
        }
        let mut known = Known::default();
        for namespace in 0..=MAX_NAMESPACES as u64 {
            known.add_read(namespace, MountPrefixes::default(), now);
        }
        assert_eq!(known.namespaces.len(), MAX_NAMESPACES);
        for pid in 0..=i32::try_from(MAX_PROCESSES).unwrap() {
            known.add_process(ListedProcess { pid, inode: 1 }, 0);
        }
        assert_eq!(known.processes.len(), MAX_PROCESSES);
    }

    #[test]
    fn process_with_another_inode_or_an_expired_namespace_is_unknown() {
        let now = Instant::now();
        let mut known = Known::default();
        let process = |pid, inode| ListedProcess { pid, inode };
        for pid in [5, 3, 4] {
            known.add_process(process(pid, 7), 1);
        }
        known.add_process(process(6, 7), 2);
        known.add_read(1, MountPrefixes::default(), now);
        let known = known.finish();
        let before_expiry = EXPIRY.checked_sub(Duration::from_millis(1)).unwrap();
        for pid in [3, 4, 5] {
            assert_eq!(
                known.namespace_of(process(pid, 7), now + before_expiry),
                Some(1)
            );
            assert_eq!(known.namespace_of(process(pid, 8), now), None);
            assert_eq!(known.namespace_of(process(pid, 7), now + EXPIRY), None);
        }
        assert_eq!(known.namespace_of(process(6, 7), now), None);
        assert_eq!(known.namespace_of(process(2, 7), now), None);
    }
}
