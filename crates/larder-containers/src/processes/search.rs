//! One search for the containers of all pods: looks at every process of the machine once.
//!
//! Invariants:
//! 1. A namespace that shows the agent's directory, or files of several pods, is no container: it is the machine's, or
//!    one that receives the machine's mounts, so volumes appear in it without any request. Where another mount covers
//!    the agent's directory, what is mounted in it does not count.
//! 2. A process belongs to the namespace that it was in before and after its mounts were read.
//! 3. A namespace of which more would have to be read than the [allowance](super::allowance) permits is no container.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Read as _},
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use tokio::time::Instant;

use super::{
    Namespace, Processes,
    allowance::{Allowance, OF_PRIVILEGED, TIMED_LINES},
    mount_table::{MountLine, below, each_mount},
    volume_places::{Shown, VolumePlaces},
};

/// Most mounts of files of its pod in a container. A namespace with more is none.
const MAX_MOUNTS: usize = 1024;
/// Most bytes of their paths.
const MAX_PATH_BYTES: usize = 64 << 10;
/// Most namespaces of one pod. Of one with more, which of them are its containers is not known.
const MAX_NAMESPACES: usize = 64;
/// Most processes of a namespace whose mounts are read: a process that has changed its root shows only what is below.
const MAX_READS: usize = 16;

/// A mount namespace that may be a container of a pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PodNamespace {
    pub(super) namespace: Namespace,
    /// The UID of the pod.
    pub(super) uid: String,
    /// Files and directories of one pod, as this process sees them, with their mount points.
    pub(super) mounts: Vec<(PathBuf, PathBuf)>,
    /// In the order of their numbers.
    pub(super) pids: Vec<i32>,
}

impl Processes {
    /// The namespaces that may be containers of pods.
    pub(super) fn search(&self) -> io::Result<Vec<PodNamespace>> {
        let mut allowance = Allowance::default();
        let found = self.search_within(&mut allowance);
        if allowance.refused > 0 && self.state.refusals.may_be_logged(Instant::now()) {
            tracing::warn!(
                namespaces = allowance.refused,
                "mount namespaces are taken for no container: one has too many or too deep mounts, or those of one user have"
            );
        }
        found
    }

    pub(super) fn search_within(&self, allowance: &mut Allowance) -> io::Result<Vec<PodNamespace>> {
        let places = VolumePlaces::read(self.proc(), &self.state.root)?;
        // What each namespace is, if that is known.
        let mut seen: HashMap<Namespace, bool> = HashMap::new();
        // Processes that have changed their root.
        let mut partial: HashMap<Namespace, Vec<i32>> = HashMap::new();
        let mut found: BTreeMap<Namespace, PodNamespace> = BTreeMap::new();
        let mut namespaces: HashMap<String, usize> = HashMap::new();
        if let Ok(own) = self.namespace("self") {
            seen.insert(own, false);
        }
        for pid in self.proc().list()? {
            let linked = self.namespace(pid).ok();
            match linked.and_then(|namespace| seen.get(&namespace).map(|is| (namespace, *is))) {
                Some((_, false)) => continue,
                Some((namespace, true)) => {
                    if let Some(container) = found.get_mut(&namespace) {
                        container.pids.push(pid);
                    }
                    continue;
                }
                None => {}
            }
            // One that ends meanwhile is skipped, and another one shows the namespace.
            let Some(mut read) = self.read_mounts(pid, &places, allowance) else {
                continue;
            };
            if self.namespace(pid).ok() != linked {
                continue;
            }
            let Some(namespace) = linked.or(read.first.map(Namespace::Mount)) else {
                continue;
            };
            let mounts = read.of_container();
            let earlier = partial.entry(namespace).or_default();
            if mounts.is_empty() && !read.is_whole && !read.is_excluded && earlier.len() < MAX_READS
            {
                earlier.push(pid);
                continue;
            }
            let of_pod = namespaces.entry(read.uid.clone()).or_default();
            *of_pod += usize::from(!mounts.is_empty());
            let is_container = !mounts.is_empty() && *of_pod <= MAX_NAMESPACES;
            seen.insert(namespace, is_container);
            if is_container {
                let mut pids = std::mem::take(earlier);
                pids.push(pid);
                let uid = read.uid;
                let container = PodNamespace {
                    namespace,
                    uid,
                    mounts,
                    pids,
                };
                found.insert(namespace, container);
            }
        }
        found.retain(|_, found| namespaces[&found.uid] <= MAX_NAMESPACES);
        Ok(found.into_values().collect())
    }

    /// The mounts that a process shows; `None` if they cannot be read.
    fn read_mounts(
        &self,
        pid: i32,
        places: &VolumePlaces,
        allowance: &mut Allowance,
    ) -> Option<NamespaceMounts> {
        let table = self.proc().open(pid, "mountinfo").ok()?;
        // Afterwards: a process can enter another user namespace, but cannot come back.
        let user = self.mounting_user(pid);
        let limit = allowance.limit(&user);
        let mut mounts = NamespaceMounts {
            most_lines: limit.lines,
            ..NamespaceMounts::default()
        };
        if mounts.most_lines == 0 {
            mounts.is_refused = true;
        } else {
            let mut table = table.take(limit.bytes);
            let clock = allowance.clock;
            let began = (allowance.clock)();
            let took = || clock().saturating_sub(began);
            let read = each_mount(&mut table, |line| {
                if mounts.lines % TIMED_LINES == TIMED_LINES - 1 && took() > limit.time {
                    mounts.is_refused = true;
                    return ControlFlow::Break(());
                }
                mounts.add(line, places)
            });
            allowance.charge(user, mounts.lines, took());
            read.ok()?;
            mounts.is_refused |= table.limit() == 0;
        }
        if mounts.is_refused {
            mounts.is_excluded = true;
            allowance.refused += usize::from(!mounts.shows_root());
        }
        Some(mounts)
    }
}

/// The mounts of a namespace, as they are read.
#[derive(Debug, Default)]
pub(crate) struct NamespaceMounts {
    first: Option<u64>,
    /// The mounts that have the agent's directory, where they would show it, and whether another one covers it.
    roots: Vec<(u64, PathBuf, bool)>,
    uid: String,
    mounts: Vec<(PathBuf, PathBuf)>,
    bytes: usize,
    /// Whether the mount at the root of the namespace is among them.
    is_whole: bool,
    is_excluded: bool,
    lines: usize,
    /// Most lines that may be read.
    most_lines: usize,
    /// Whether there are more lines.
    is_refused: bool,
}

impl NamespaceMounts {
    /// Of a namespace of which as much may be read as of a copy of the machine's.
    pub(crate) fn new() -> Self {
        Self {
            most_lines: OF_PRIVILEGED.lines,
            ..Self::default()
        }
    }

    /// Takes in a line, unless no more of the table is to be read.
    pub(crate) fn add(&mut self, line: &MountLine<'_>, places: &VolumePlaces) -> ControlFlow<()> {
        if self.lines == self.most_lines {
            self.is_refused = true;
            return ControlFlow::Break(());
        }
        self.lines += 1;
        self.first = Some(self.first.map_or(line.id, |first| first.min(line.id)));
        let mount_point = line.mount_point();
        self.is_whole |= mount_point.as_os_str() == "/";
        for (id, path, is_covered) in &mut self.roots {
            *is_covered |= line.parent == *id && below(path, &mount_point).is_some();
        }
        match places.shown(line) {
            Shown::Nothing => {}
            Shown::Root(path) => self.roots.push((line.id, path, false)),
            // A copy of the machine's own mount, beneath the one that covers it.
            Shown::Pod { .. } if self.is_in_root(&mount_point) => {}
            Shown::Pod { uid, path } => {
                self.bytes += path.as_os_str().len() + mount_point.as_os_str().len();
                self.is_excluded = !self.mounts.is_empty() && self.uid != uid
                    || self.mounts.len() == MAX_MOUNTS
                    || self.bytes > MAX_PATH_BYTES;
                self.uid = uid;
                self.mounts.push((path, mount_point.into_owned()));
            }
        }
        if self.is_excluded || self.roots.len() > MAX_MOUNTS {
            self.is_excluded = true;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Whether the agent's directory is shown.
    fn shows_root(&self) -> bool {
        self.roots.iter().any(|(.., is_covered)| !is_covered)
    }

    /// Whether the agent's directory is or would be there.
    pub(crate) fn is_in_root(&self, mount_point: &Path) -> bool {
        let mut roots = self.roots.iter();
        roots.any(|(_, path, _)| below(mount_point, path).is_some())
    }

    /// Whether it is no container of one pod.
    pub(crate) fn is_foreign(&self) -> bool {
        self.is_excluded || self.is_refused || self.shows_root()
    }

    /// The mounts of a container; none if it is not one.
    fn of_container(&mut self) -> Vec<(PathBuf, PathBuf)> {
        if self.is_foreign() {
            return Vec::new();
        }
        let mounts = std::mem::take(&mut self.mounts).into_iter();
        mounts
            .filter(|(_, mount_point)| !self.is_in_root(mount_point))
            .collect()
    }
}
