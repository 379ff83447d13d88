//! One search for the containers of a pod: looks at every process of the machine once.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    FoundContainer, FoundProcess, Namespace, Owner, PodMounts, Processes,
    mount_table::each_mount,
    namespaces::{MountPrefix, NewPrefixes},
    own_mounts::OwnMounts,
    pod_mounts::{Mounts, WantedMounts},
};

/// A search.
pub(super) struct ContainerSearch<'a> {
    processes: &'a Processes,
    mounts: &'a PodMounts,
    own: Arc<OwnMounts>,
    own_namespace: Option<Namespace>,
    wanted: WantedMounts,
    /// One of these is among the hashes of each namespace with a wanted mount.
    prefixes: Vec<MountPrefix>,
    now: Instant,
    /// Whether the tables of known namespaces are read again.
    reread: bool,
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
        let own_namespace = processes.namespace("self").ok();
        let own = processes
            .state
            .own_mounts
            .get(processes, own_namespace, now, reread)?;
        let wanted = WantedMounts::new(mounts, &own);
        Ok(Self {
            prefixes: wanted.prefixes(&processes.state.hasher),
            processes,
            mounts,
            own,
            own_namespace,
            wanted,
            now,
            reread,
            seen: HashMap::new(),
            found: BTreeMap::new(),
        })
    }

    /// The containers that run, in the order of their main processes' starts.
    pub(super) fn run(mut self) -> io::Result<Vec<FoundContainer>> {
        let processes = self.processes;
        processes.proc().pids(|pid| self.visit(pid))?;
        let state = &processes.state;
        state.namespaces.lock().retain(self.now, |inode| {
            self.seen.contains_key(&Namespace::Inode(inode))
        });
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

    /// Looks at one process. One that ends meanwhile is skipped.
    fn visit(&mut self, pid: i32) {
        let namespace = self.processes.namespace(pid).ok();
        if namespace.is_some() && namespace == self.own_namespace {
            return;
        }
        if let Some(namespace) = self.look(pid, namespace)
            && let Some(process) = self.processes.process(pid, Owner::Mounts(namespace))
        {
            self.found.entry(namespace).or_default().push(process);
        }
    }

    /// The namespace of a process, if volumes of the pod are mounted in it as a container mounts them.
    fn look(&mut self, pid: i32, namespace: Option<Namespace>) -> Option<Namespace> {
        if let Some(namespace) = namespace
            && let Some(known) = self.seen.get(&namespace)
        {
            return known.as_ref().map(|_| namespace);
        }
        if let Some(Namespace::Inode(inode)) = namespace
            && self.is_excluded(pid, inode)
        {
            self.seen.insert(Namespace::Inode(inode), None);
            return None;
        }
        self.read(pid, namespace)
    }

    /// Whether an earlier search has read the table of the namespace, and nothing that is wanted was in it.
    fn is_excluded(&self, pid: i32, namespace: u64) -> bool {
        let state = &self.processes.state;
        if self.reread {
            return false;
        }
        let Some(known) = state.namespaces.lock().get(namespace, self.now) else {
            return false;
        };
        let witness = known.witness.pid;
        !known.may_have(&self.prefixes)
            && (witness == pid || self.is_in(witness, namespace))
            && self.processes.witness(witness).as_ref() == Some(&known.witness)
    }

    /// Reads the mounts of a process, and keeps their hashes for later searches.
    fn read(&mut self, pid: i32, namespace: Option<Namespace>) -> Option<Namespace> {
        let processes = self.processes;
        // Before the table: what a program executes after that, is not what made it (invariant 2 of `namespaces`).
        let witness = namespace.and_then(|_| processes.witness(pid));
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
        if let Some(Namespace::Inode(inode)) = namespace {
            // The process may have left it meanwhile.
            let witness = witness.filter(|_| self.is_in(pid, inode));
            let mut namespaces = processes.state.namespaces.lock();
            namespaces.put(inode, witness, prefixes, self.now);
        }
        let namespace = namespace.or(first.map(Namespace::Mount))?;
        let known = (!mounts.is_empty()).then_some(mounts);
        let is_container = known.is_some();
        self.seen.insert(namespace, known);
        is_container.then_some(namespace)
    }

    fn is_in(&self, pid: i32, namespace: u64) -> bool {
        self.processes.namespace(pid).ok() == Some(Namespace::Inode(namespace))
    }
}
