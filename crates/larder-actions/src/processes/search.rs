//! One search for the containers of a pod: looks at every process of the machine once.
//!
//! Invariant: a process counts as one of a container only if its link says so in this search. What is known only
//! excludes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::Arc,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use super::{
    FoundContainer, FoundProcess, Namespace, Owner, PodMounts, Processes,
    known::Known,
    mount_hashes::{MountPrefix, MountPrefixes, NewPrefixes},
    mount_table::each_mount,
    own_mounts::OwnMounts,
    pod_mounts::{Mounts, WantedMounts},
    proc_directory::ListedProcess,
    since_boot,
};

/// A search.
pub(super) struct ContainerSearch<'a> {
    processes: &'a Processes,
    mounts: &'a PodMounts,
    own: Arc<OwnMounts>,
    wanted: WantedMounts,
    /// One of these is among the hashes of each namespace with a wanted mount.
    prefixes: Vec<MountPrefix>,
    now: Instant,
    /// A process that has started before is settled (invariant 3 of `known`).
    settled: Duration,
    /// What earlier searches have left, and what this one leaves.
    known: Arc<Known>,
    learned: Known,
    /// The namespaces that the search has met, with the wanted mounts in them.
    seen: HashMap<Namespace, Option<Mounts>>,
    found: BTreeMap<Namespace, Vec<FoundProcess>>,
}

impl<'a> ContainerSearch<'a> {
    /// Prepares a search at the time `now`. If `reread`, it uses nothing that earlier searches have read.
    pub(super) fn new(
        processes: &'a Processes,
        mounts: &'a PodMounts,
        now: Instant,
        reread: bool,
    ) -> io::Result<Self> {
        let state = &processes.state;
        let own_namespace = processes.namespace("self").ok();
        let own = state
            .own_mounts
            .get(processes, own_namespace, now, reread)?;
        let wanted = WantedMounts::new(mounts, &own);
        let known = if reread {
            Arc::default()
        } else {
            Arc::clone(&state.known.lock())
        };
        let uptime = Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default();
        let mut search = Self {
            prefixes: wanted.prefixes(&state.hasher),
            processes,
            mounts,
            own,
            wanted,
            now,
            settled: uptime.saturating_sub(state.settling),
            known,
            learned: Known::default(),
            seen: HashMap::new(),
            found: BTreeMap::new(),
        };
        if let Some(namespace) = own_namespace {
            search.exclude_own(namespace);
        }
        Ok(search)
    }

    /// The containers that run, in the order of their main processes' starts.
    pub(super) fn run(mut self) -> io::Result<Vec<FoundContainer>> {
        let listed = self.processes.proc().list()?;
        let listed = listed.into_iter().map(|process| {
            let known = self.known.namespace_of(process, self.now);
            (process, known)
        });
        // Known processes first: they show that their namespaces are the same.
        let (known, others): (Vec<_>, Vec<_>) = listed.partition(|(_, known)| known.is_some());
        for (process, known) in known.into_iter().chain(others) {
            self.visit(process, known);
        }
        *self.processes.state.known.lock() = self.learned.finish();
        let Self {
            mounts,
            mut seen,
            found,
            ..
        } = self;
        let containers = found.into_iter().filter_map(|(namespace, processes)| {
            let visible = seen.remove(&namespace)??;
            FoundContainer::new(mounts.fitting(&visible), visible, processes, |_| false)
        });
        let mut containers: Vec<_> = containers.collect();
        containers.sort_by_key(|container| (container.main.start, container.main.pid));
        Ok(containers)
    }

    /// Looks at one process, with the namespace that it is known to be in. One that ends meanwhile is skipped.
    fn visit(&mut self, process: ListedProcess, known: Option<u64>) {
        let pid = process.pid;
        // So most processes cost nothing.
        if let Some(inode) = known
            && let Some(None) = self.seen.get(&Namespace::Inode(inode))
        {
            self.learned.add_process(process, inode);
            return;
        }
        let namespace = self.processes.namespace(pid).ok();
        let mut is_witness = false;
        if let Some(Namespace::Inode(inode)) = namespace {
            let is_known = known == Some(inode);
            is_witness = is_known || self.is_settled(pid);
            if is_witness {
                self.learned.add_process(process, inode);
            }
            if is_known && !self.seen.contains_key(&Namespace::Inode(inode)) {
                self.exclude(inode);
            }
        }
        let container = match namespace.and_then(|namespace| self.seen.get_key_value(&namespace)) {
            Some((namespace, mounts)) => mounts.is_some().then_some(*namespace),
            None => self.read(pid, namespace, is_witness),
        };
        if let Some(namespace) = container
            && let Some(process) = self.processes.process(pid, Owner::Mounts(namespace))
        {
            self.found.entry(namespace).or_default().push(process);
        }
    }

    /// Excludes a namespace that a known process is in, if nothing that is wanted was in its table.
    fn exclude(&mut self, inode: u64) {
        if let Some(known) = self.known.namespace(inode, self.now)
            && !known.prefixes.may_have(&self.prefixes)
        {
            self.learned.add(inode, known);
            self.seen.insert(Namespace::Inode(inode), None);
        }
    }

    /// Excludes this process's own namespace, which is no container.
    fn exclude_own(&mut self, namespace: Namespace) {
        self.seen.insert(namespace, None);
        if let Namespace::Inode(inode) = namespace {
            match self.known.namespace(inode, self.now) {
                Some(known) => self.learned.add(inode, known),
                None => self
                    .learned
                    .add_read(inode, MountPrefixes::default(), self.now),
            }
        }
    }

    /// Whether the process has been running for long enough.
    fn is_settled(&self, pid: i32) -> bool {
        let stat = self.processes.stat(pid);
        stat.is_some_and(|stat| since_boot(stat.start) <= self.settled)
    }

    /// Reads the mounts of a process. Keeps their hashes for later searches if it is a witness: a process that later
    /// searches know. Returns the namespace, if volumes of the pod are mounted in it as a container mounts them.
    fn read(
        &mut self,
        pid: i32,
        namespace: Option<Namespace>,
        is_witness: bool,
    ) -> Option<Namespace> {
        let processes = self.processes;
        let mut prefixes = NewPrefixes::new();
        let mut first = None;
        let mut mounts = BTreeSet::new();
        let table = processes.proc().open(pid, "mountinfo").ok()?;
        let read = each_mount(table, |line| {
            prefixes.add(line, &processes.state.hasher);
            if !self.own.has(line.id)
                && let Some(mount) = self.wanted.volume(line)
            {
                first = Some(first.map_or(line.id, |first: u64| first.min(line.id)));
                mounts.insert(mount);
            }
        });
        read.ok()?;
        if let Some(Namespace::Inode(inode)) = namespace
            && is_witness
            // It may have left it meanwhile.
            && processes.namespace(pid).ok() == namespace
            && let Some(prefixes) = prefixes.finish()
        {
            self.learned.add_read(inode, prefixes, self.now);
        }
        let namespace = namespace.or(first.map(Namespace::Mount))?;
        let known = (!mounts.is_empty()).then_some(mounts);
        let is_container = known.is_some();
        self.seen.insert(namespace, known);
        is_container.then_some(namespace)
    }
}
