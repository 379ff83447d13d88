//! The processes of a pod's containers (rules G1 to G4).
//!
//! A container has a mount namespace of its own, in which the volumes of its pod are mounted at the paths in its
//! specification. So `/proc/PID/mountinfo` shows the container of a process, regardless of the runtime. Beside a
//! kubelet, the status of the pod has the IDs of its containers, which are part of the names of their control groups.
//!
//! | module | purpose |
//! | --- | --- |
//! | `cgroups` | the search by the IDs of containers |
//! | `search` | the search by mounts, for the containers of all pods at once |
//! | `allowance` | how many mounts that search reads |
//! | `shared_search` | one search at a time, whose result all waiting rounds share |
//! | `pod_mounts` | the mounts in a pod's specification, and the container that has those of a namespace |
//! | `volume_places` | recognizes volumes among the mounts of a namespace |
//! | `open` | an open process, to be signaled |
//! | `mount_table`, `proc_directory` | reading a `mountinfo`, and `/proc` |
//!
//! Invariants:
//! 1. A process belongs to a container by its mounts, its control groups or its PID namespace. By mounts: a volume's
//!    directory (device and root) is mounted at a mount point that the pod gives to this container, in a namespace that
//!    shows neither the agent's directory nor files of other pods. Beside a kubelet: its control groups are named after
//!    the container's ID. In `larder exec` and a sidecar: it is in the given PID namespace.
//! 2. A signal goes to the process that was found, never to another one with a reused PID: it is sent through a pidfd,
//!    after a second check of start time, and of control groups, PID namespace or, if readable, mount namespace.
//! 3. Process 1, this process and its ancestors get no signal.
//! 4. A search uses nothing that an earlier search has read.

mod allowance;
mod cgroups;
mod mount_table;
mod open;
mod pod_mounts;
mod proc_directory;
mod search;
mod shared_search;
#[cfg(test)]
mod tests;
mod volume_places;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fmt, io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use smol_str::SmolStr;
use tokio::task::spawn_blocking;

use self::{
    allowance::Refusals,
    proc_directory::{ProcDirectory, number},
    search::PodNamespace,
    shared_search::SharedSearch,
    volume_places::KnownPlaces,
};
pub use self::{
    cgroups::ContainerId,
    mount_table::unescaped,
    open::{OpenProcess, SignalProcessError},
    pod_mounts::{ContainerMounts, PodMounts},
};
pub(crate) use self::{
    mount_table::{MountLine, below, each_mount},
    pod_mounts::normalized,
    search::NamespaceMounts,
    volume_places::{Shown, VolumePlaces},
};

/// A running container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundContainer {
    /// The names of the containers that it may be; several if they have identical mounts.
    pub candidate_names: Vec<SmolStr>,
    /// Its main process: the oldest whose parent is outside.
    pub main: FoundProcess,
    /// All its processes, the oldest first.
    pub processes: Vec<FoundProcess>,
}

impl FoundContainer {
    /// The container of these processes. Its main process is the first that `is_main` picks, or the oldest whose parent
    /// is outside.
    fn new(
        candidate_names: Vec<SmolStr>,
        mut processes: Vec<FoundProcess>,
        is_main: impl Fn(&FoundProcess) -> bool,
    ) -> Option<Self> {
        processes.sort_by_key(|process| (process.start, process.pid));
        let inside: BTreeSet<i32> = processes.iter().map(|process| process.pid).collect();
        let mut all = processes.iter();
        let main = all
            .clone()
            .find(|process| is_main(process))
            .or_else(|| all.find(|process| !inside.contains(&process.parent)))
            .or(processes.first())?;
        Some(Self {
            candidate_names,
            main: main.clone(),
            processes,
        })
    }
}

/// A process that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundProcess {
    /// Its number.
    pub pid: i32,
    /// Its user.
    pub user: u32,
    /// When it started, in clock ticks since boot.
    start: u64,
    owner: Owner,
    parent: i32,
}

/// What makes a process one of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    /// Its mount namespace.
    Mounts(Namespace),
    /// Its control groups.
    Container(ContainerId),
    /// Its PID namespace.
    Pids(u64),
}

/// Identifies a mount namespace: by its inode, or, where that may not be read, by one of its mounts, which no other
/// namespace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Namespace {
    Inode(u64),
    Mount(u64),
}

impl FoundProcess {
    /// When it started, since boot. It may have been up to one clock tick (10 ms) later.
    pub fn started(&self) -> Duration {
        Duration::from_millis(
            self.start.saturating_mul(1000) / rustix::param::clock_ticks_per_second(),
        )
    }

    /// Whether it is in the container that has one of these IDs, or, without any, was found by its mounts.
    pub(crate) fn is_of(&self, ids: Option<&BTreeMap<SmolStr, ContainerId>>) -> bool {
        match (ids, &self.owner) {
            (Some(ids), Owner::Container(id)) => ids.values().any(|current| current == id),
            (None, Owner::Mounts(_)) => true,
            _ => false,
        }
    }
}

/// The processes of this machine. Clones share their searches.
#[derive(Clone, Debug)]
pub struct Processes {
    state: Arc<ProcessesState>,
}

#[derive(Debug)]
struct ProcessesState {
    proc: ProcDirectory,
    root: PathBuf,
    by_mounts: SharedSearch<Vec<PodNamespace>>,
    by_id: SharedSearch<BTreeMap<ContainerId, Vec<i32>>>,
    refusals: Refusals,
    places: KnownPlaces,
}

impl Processes {
    /// The processes that the directory `proc` shows, usually `/proc`. `root` is the directory that has the volumes of
    /// pods, absolute and without links, as in [`PodMounts`].
    pub fn new(proc: impl Into<PathBuf>, root: impl Into<PathBuf>) -> Self {
        let state = ProcessesState {
            proc: ProcDirectory(proc.into()),
            root: root.into(),
            by_mounts: SharedSearch::default(),
            by_id: SharedSearch::default(),
            refusals: Refusals::default(),
            places: KnownPlaces::default(),
        };
        Self {
            state: Arc::new(state),
        }
    }

    fn proc(&self) -> &ProcDirectory {
        &self.state.proc
    }

    /// The directory that has the volumes of pods.
    pub(crate) fn root(&self) -> &Path {
        &self.state.root
    }

    /// The containers of a pod that run, in the order of their main processes' starts: those with the IDs `ids`, or
    /// without any, those with its mounts.
    ///
    /// # Errors
    ///
    /// The directory of processes or the mounts of this one cannot be read.
    ///
    /// # Cancel safety
    ///
    /// A search that is dropped is made again by the next call.
    pub async fn containers(
        &self,
        mounts: &PodMounts,
        ids: Option<&BTreeMap<SmolStr, ContainerId>>,
    ) -> io::Result<Vec<FoundContainer>> {
        let (searcher, reader) = (self.clone(), self.clone());
        let found = if let Some(ids) = ids {
            let by_id = &self.state.by_id;
            let all = by_id.run(move || searcher.search_by_id()).await?;
            let ids = ids.clone();
            spawn_blocking(move || reader.containers_with(&all, &ids)).await
        } else {
            let by_mounts = &self.state.by_mounts;
            let all = by_mounts.run(move || searcher.search()).await?;
            let mounts = mounts.clone();
            spawn_blocking(move || reader.containers_mounting(&all, &mounts)).await
        };
        let mut found = found.map_err(io::Error::other)?;
        found.sort_by_key(|container| (container.main.start, container.main.pid));
        Ok(found)
    }

    fn containers_mounting(&self, all: &[PodNamespace], mounts: &PodMounts) -> Vec<FoundContainer> {
        let pods = self.state.root.join("pods");
        let volume = mounts.volumes.values().next();
        let uid = volume.and_then(|path| path.strip_prefix(pods).ok()?.iter().next());
        let own = all
            .iter()
            .filter(|found| Some(OsStr::new(&found.uid)) == uid);
        let containers = own.filter_map(|found| {
            let names = mounts.candidate_names(&found.mounts);
            if names.is_empty() {
                return None;
            }
            let owner = Owner::Mounts(found.namespace);
            FoundContainer::new(names, self.processes(&found.pids, &owner), |_| false)
        });
        containers.collect()
    }

    /// The processes in the PID namespace with this number, as a container with this name and this main process. `None` if
    /// that has ended. Without `all_processes` it has this process only.
    ///
    /// # Errors
    ///
    /// The directory of processes cannot be read.
    pub fn in_pid_namespace(
        &self,
        name: SmolStr,
        main: i32,
        namespace: u64,
        all_processes: bool,
    ) -> io::Result<Option<FoundContainer>> {
        let pids = if all_processes {
            self.proc().list()?
        } else {
            vec![main]
        };
        let processes = self.processes(&pids, &Owner::Pids(namespace));
        let has_main = processes.iter().any(|process| process.pid == main);
        let container = FoundContainer::new(vec![name], processes, |process| process.pid == main);
        Ok(container.filter(|_| has_main))
    }

    /// The mount namespace of the process, if it is still the one that was found, and neither process 1's nor this one's.
    ///
    /// # Errors
    ///
    /// It has ended, or is protected; or the system's.
    pub(crate) fn mount_namespace(&self, process: &FoundProcess) -> io::Result<OwnedFd> {
        let namespace = self.proc().open(process.pid, "ns/mnt")?;
        let inode = Namespace::Inode(namespace.metadata()?.ino());
        let is_own = |pid: &str| self.namespace(pid).is_ok_and(|own| own == inode);
        if is_own("self") || is_own("1") {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // What was opened is the namespace of this process, if it has been the same all the time.
        if self.is_same(process) {
            Ok(namespace.into())
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    /// The places where this process sees volumes.
    pub(crate) fn places(&self) -> io::Result<Arc<VolumePlaces>> {
        self.state.places.get(self.proc(), &self.state.root)
    }

    fn namespace(&self, process: impl fmt::Display) -> io::Result<Namespace> {
        self.link_number(process, "ns/mnt").map(Namespace::Inode)
    }

    /// Whether the process is in larder's own user namespace, so that its root has no rights over its mounts that it lacks
    /// here. A kernel without user namespaces has no such files.
    pub(crate) fn shares_users(&self, pid: i32) -> bool {
        let of = |process: &dyn fmt::Display| self.link_number(process, "ns/user").ok();
        of(&pid) == of(&"self")
    }

    /// The number in the target of a link: that of a namespace in `mnt:[4026531841]`.
    fn link_number(&self, process: impl fmt::Display, link: &str) -> io::Result<u64> {
        let target = self.proc().link(process, link)?;
        let inode = target
            .split(|&byte| byte == b'[')
            .nth(1)
            .and_then(|rest| number(rest.strip_suffix(b"]")?));
        inode.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn stat(&self, process: impl fmt::Display) -> Option<Stat> {
        Stat::parse(&self.proc().read(process, "stat").ok()?)
    }

    /// Those of these processes that are the owner's now.
    fn processes(&self, pids: &[i32], owner: &Owner) -> Vec<FoundProcess> {
        let found = pids.iter().filter_map(|&pid| {
            let stat = self.stat(pid)?;
            let process = FoundProcess {
                pid,
                user: self.proc().user(pid)?,
                start: stat.start,
                owner: owner.clone(),
                parent: stat.parent,
            };
            self.is_same(&process).then_some(process)
        });
        found.collect()
    }

    /// Whether the process is still the one that was found.
    pub fn is_same(&self, process: &FoundProcess) -> bool {
        self.look_again(process).is_some()
    }

    /// Looks at the process; `None` if it is not the one that was found.
    fn look_again(&self, process: &FoundProcess) -> Option<Stat> {
        let pid = process.pid;
        let stat = self.stat(pid)?;
        let moved = || match &process.owner {
            Owner::Mounts(namespace) => matches!(
                (self.namespace(pid), namespace),
                (Ok(Namespace::Inode(now)), Namespace::Inode(then)) if now != *then
            ),
            Owner::Container(id) => self.container_of(pid).as_ref() != Some(id),
            Owner::Pids(namespace) => self.link_number(pid, "ns/pid").ok() != Some(*namespace),
        };
        (stat.start == process.start && !moved()).then_some(stat)
    }

    /// The name of the process's executable.
    pub fn executable(&self, process: &FoundProcess) -> Option<String> {
        if let Ok(path) = self.proc().link(process.pid, "exe") {
            let name = Path::new(OsStr::from_bytes(&path)).file_name()?.to_str()?;
            return Some(name.trim_end_matches(" (deleted)").to_owned());
        }
        // Another user's executable cannot be read, but its first 15 bytes.
        let name = self.proc().read(process.pid, "comm").ok()?;
        Some(String::from_utf8(name).ok()?.trim_end().to_owned())
    }
}

/// What is used of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    pid: i32,
    parent: i32,
    /// In clock ticks since boot.
    start: u64,
    /// The signals 1 to 31 that the process blocks or catches, as bits from the lowest one on.
    handled: u64,
}

impl Stat {
    /// The command's name may hold anything, parentheses as well.
    fn parse(text: &[u8]) -> Option<Self> {
        let pid = number(text.split(u8::is_ascii_whitespace).next()?)?;
        let end = text.iter().rposition(|&byte| byte == b')')?;
        let rest = text.get(end + 1..)?;
        let mut fields = rest
            .split(u8::is_ascii_whitespace)
            .filter(|field| !field.is_empty());
        let state = fields.next()?;
        let parent = number(fields.next()?)?;
        let threads: u32 = number(fields.nth(15)?)?;
        let start = number(fields.nth(1)?)?;
        // It has ended, with all its threads, and waits for its parent.
        if state == b"Z" && threads < 2 {
            return None;
        }
        let blocked: u64 = number(fields.nth(9)?)?;
        let caught: u64 = number(fields.nth(1)?)?;
        let handled = blocked | caught;
        Some(Self {
            pid,
            parent,
            start,
            handled,
        })
    }
}
