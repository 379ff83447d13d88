//! The processes of a pod's containers, found by their mounts (rules G1 to G4).
//!
//! A container has a mount namespace of its own, in which the volumes of its pod are mounted at the paths in its
//! specification. So `/proc/PID/mountinfo` shows the container of a process, whatever runtime has started it.
//!
//! | module | one sentence |
//! | --- | --- |
//! | `pod_mounts` | the mounts in the pod's specification, and how they are recognized |
//! | `search` | one search, over all processes of the machine |
//! | `known`, `own_mounts` | what later searches need not read again: other namespaces, and the mounts of this one |
//! | `mount_hashes` | the mounts of a namespace as hashes |
//! | `open` | an open process, which is signaled |
//! | `mount_table`, `proc_directory` | reading a `mountinfo`, and `/proc` |
//!
//! Invariants:
//! 1. A process belongs to a container only if a volume's directory (device and root) is mounted at a mount point that
//!    the pod gives to this container. A namespace that has the directory elsewhere, such as a copy of the machine's
//!    own mounts, is not a container.
//! 2. A signal goes to the process that was found, never to another one with a reused PID: it is sent through a pidfd,
//!    after a second check of start time, and of mount namespace or control groups.
//! 3. What earlier searches have read only spares reading: it excludes namespaces, and makes none a container. A search
//!    that lacks a wanted container trusts nothing of it. So a container can be missed only if another one passes for
//!    it, such as its predecessor that is about to end, and only if its mounts were made more than ten seconds after
//!    the start of its process. Likewise, a process that enters a container that late may be missed. Both are found
//!    when what is known expires, after ten minutes.

mod known;
mod mount_hashes;
mod mount_table;
mod open;
mod own_mounts;
mod pod_mounts;
mod proc_directory;
mod search;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fmt, io,
    mem::MaybeUninit,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::time::Instant;

pub(super) use self::proc_directory::ListedProcess;
use self::{
    known::{Known, SETTLING},
    mount_hashes::MountHasher,
    own_mounts::KeptOwnMounts,
    pod_mounts::Mounts,
    proc_directory::{LinkBuffer, PAGE, ProcDirectory, number},
    search::ContainerSearch,
};
pub use self::{
    open::{OpenProcess, SignalProcessError},
    pod_mounts::{ContainerMounts, PodMounts},
};
use crate::cgroups::ContainerId;

/// How long a search may rely on what an earlier one has read.
const EXPIRY: Duration = Duration::from_mins(10);

/// A mount namespace in which volumes of the pod are mounted as one of its containers mounts them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundContainer {
    /// Names of the containers that have exactly these mounts; several if they mount the same.
    pub fits: Vec<SmolStr>,
    /// The mounts that were found: volume and mount point.
    pub mounts: BTreeSet<(SmolStr, PathBuf)>,
    /// Its main process: the oldest whose parent is outside.
    pub main: FoundProcess,
    /// All its processes, the oldest first.
    pub processes: Vec<FoundProcess>,
}

impl FoundContainer {
    /// The container of these processes. Its main process is the first that `is_main` picks, or the oldest whose parent
    /// is outside.
    pub(super) fn new(
        fits: Vec<SmolStr>,
        mounts: Mounts,
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
            fits,
            mounts,
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
    pub(super) start: u64,
    pub(super) owner: Owner,
    parent: i32,
}

/// What makes a process one of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Its mount namespace.
    Mounts(Namespace),
    /// Its control groups.
    Container(ContainerId),
}

/// Identifies a mount namespace: by its inode, or, where that may not be read, by one of its mounts, which no other
/// namespace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Namespace {
    Inode(u64),
    Mount(u64),
}

impl FoundProcess {
    /// When it started, since boot. It may have been up to one clock tick (10 ms) later.
    pub fn started(&self) -> Duration {
        since_boot(self.start)
    }
}

/// The time of a number of clock ticks.
fn since_boot(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second())
}

/// The processes of this machine. Clones share what searches have read.
#[derive(Clone, Debug)]
pub struct Processes {
    state: Arc<ProcessesState>,
}

#[derive(Debug)]
struct ProcessesState {
    proc: ProcDirectory,
    own_mounts: KeptOwnMounts,
    /// Replaced by each search.
    known: Mutex<Arc<Known>>,
    hasher: MountHasher,
    /// How old a process must be to be known.
    settling: Duration,
}

impl Default for Processes {
    fn default() -> Self {
        Self::new("/proc")
    }
}

impl Processes {
    /// The processes that the directory `proc` shows.
    pub fn new(proc: impl Into<PathBuf>) -> Self {
        Self::with_settling(proc.into(), SETTLING)
    }

    fn with_settling(proc: PathBuf, settling: Duration) -> Self {
        let state = ProcessesState {
            proc: ProcDirectory::new(proc),
            own_mounts: KeptOwnMounts::default(),
            known: Mutex::default(),
            hasher: MountHasher::default(),
            settling,
        };
        Self {
            state: Arc::new(state),
        }
    }

    pub(super) fn proc(&self) -> &ProcDirectory {
        &self.state.proc
    }

    /// The containers of a pod that run, in the order of their main processes' starts.
    ///
    /// # Errors
    ///
    /// The directory of processes or the mounts of this one cannot be read.
    pub fn containers(&self, mounts: &PodMounts) -> io::Result<Vec<FoundContainer>> {
        let names = mounts.containers.iter();
        let names: Vec<_> = names.map(|container| container.name.clone()).collect();
        self.targets(mounts, &names, Instant::now())
    }

    /// The same for `targets` of the pod: others may be missing.
    pub(super) fn targets(
        &self,
        mounts: &PodMounts,
        targets: &[SmolStr],
        now: Instant,
    ) -> io::Result<Vec<FoundContainer>> {
        let found = self.search(mounts, now, false)?;
        let is_target = |name: &SmolStr| targets.contains(name);
        let wanted = mounts.containers.iter().filter(|container| {
            is_target(&container.name) && !container.delivered(&mounts.volumes).is_empty()
        });
        let wanted: Vec<_> = wanted.map(|container| &container.name).collect();
        let fits = || found.iter().map(|container| &container.fits);
        let running = fits().filter(|fits| fits.iter().any(is_target)).count();
        let is_found = |name: &&SmolStr| fits().any(|fits| fits.contains(name));
        if running < wanted.len() || !wanted.iter().all(is_found) {
            // It does not run, or its mounts are newer than what earlier searches have read (invariant 3).
            return self.search(mounts, now, true);
        }
        Ok(found)
    }

    /// Runs one search. If `reread`, it uses nothing that earlier searches have read.
    fn search(
        &self,
        mounts: &PodMounts,
        now: Instant,
        reread: bool,
    ) -> io::Result<Vec<FoundContainer>> {
        ContainerSearch::new(self, mounts, now, reread)?.run()
    }

    fn namespace(&self, process: impl fmt::Display) -> io::Result<Namespace> {
        let mut buffer = [MaybeUninit::uninit(); 64];
        let link = self.proc().link(process, "ns/mnt", &mut buffer)?;
        let inode = link.strip_prefix(b"mnt:[");
        let inode = inode.and_then(|rest| number(rest.strip_suffix(b"]")?));
        inode
            .map(Namespace::Inode)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn stat(&self, pid: i32) -> Option<Stat> {
        let mut buffer = [0; Stat::LENGTH];
        Stat::parse(self.proc().read_start(pid, "stat", &mut buffer).ok()?)
    }

    pub(super) fn process(&self, pid: i32, owner: Owner) -> Option<FoundProcess> {
        let stat = self.stat(pid)?;
        Some(FoundProcess {
            pid,
            user: self.proc().user(pid)?,
            start: stat.start,
            owner,
            parent: stat.parent,
        })
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
        };
        (stat.start == process.start && !moved()).then_some(stat)
    }

    /// The name of the process's executable.
    pub fn executable(&self, process: &FoundProcess) -> Option<String> {
        let mut buffer: LinkBuffer = [MaybeUninit::uninit(); PAGE];
        if let Ok(path) = self.proc().link(process.pid, "exe", &mut buffer) {
            let name = Path::new(OsStr::from_bytes(path)).file_name()?.to_str()?;
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
    parent: i32,
    /// In clock ticks since boot.
    start: u64,
    /// The signals 1 to 31 that the process blocks or catches, as bits from the lowest one on.
    handled: u64,
}

impl Stat {
    /// The signals are among the first 800 bytes: after a name of at most 64, and thirty numbers.
    const LENGTH: usize = 1024;

    /// The command's name may hold anything, parentheses as well.
    fn parse(text: &[u8]) -> Option<Self> {
        let end = text.iter().rposition(|&byte| byte == b')')?;
        let rest = text.get(end + 1..)?;
        let fields = rest.split(u8::is_ascii_whitespace);
        let mut fields = fields.filter(|field| !field.is_empty());
        let parent = number(fields.nth(1)?)?;
        let start = number(fields.nth(17)?)?;
        let blocked: u64 = number(fields.nth(9)?)?;
        let caught: u64 = number(fields.nth(1)?)?;
        let handled = blocked | caught;
        Some(Self {
            parent,
            start,
            handled,
        })
    }
}
