//! One search for the containers of all pods: looks at every process of the machine once.
//!
//! Invariants:
//! 1. A namespace that shows the agent's directory, or files of several pods, is no container: it is the machine's, or
//!    one that receives the machine's mounts, so volumes appear in it without any request. Neither is one in which a
//!    volume is mounted at the place of the agent's directory.
//! 2. A process belongs to the namespace that it was in before and after its mounts were read.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    ops::ControlFlow,
    path::PathBuf,
};

use super::{
    Namespace, Processes,
    mount_table::{MountLine, each_mount_until},
    volume_places::{Shown, VolumePlaces},
};

/// Most mounts of files of its pod in a container. A namespace with more is none.
const MAX_MOUNTS: usize = 1024;

/// A mount namespace that may be a container of a pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PodNamespace {
    pub(super) namespace: Namespace,
    /// Files and directories of one pod, as this process sees them, with their mount points.
    pub(super) mounts: Vec<(PathBuf, PathBuf)>,
    /// In the order of their numbers.
    pub(super) pids: Vec<i32>,
}

impl Processes {
    /// The namespaces that may be containers of pods.
    pub(super) fn search(&self) -> io::Result<Vec<PodNamespace>> {
        let places = VolumePlaces::read(self.proc(), &self.state.root)?;
        // What each namespace is, if it was read.
        let mut seen: HashMap<Namespace, bool> = HashMap::new();
        let mut found: BTreeMap<Namespace, PodNamespace> = BTreeMap::new();
        if let Ok(own) = self.namespace("self") {
            seen.insert(own, false);
        }
        for pid in self.proc().list()? {
            let linked = self.namespace(pid).ok();
            let known = linked.and_then(|namespace| seen.get(&namespace));
            let namespace = match (known, linked) {
                (Some(false), _) => continue,
                (Some(true), Some(namespace)) => namespace,
                _ => {
                    // One that ends meanwhile is skipped, and another one shows the namespace.
                    let Some((first, mounts)) = self.read_mounts(pid, &places) else {
                        continue;
                    };
                    if self.namespace(pid).ok() != linked {
                        continue;
                    }
                    let namespace = linked.unwrap_or(Namespace::Mount(first));
                    seen.insert(namespace, !mounts.is_empty());
                    if mounts.is_empty() {
                        continue;
                    }
                    let pids = Vec::new();
                    found.entry(namespace).or_insert(PodNamespace {
                        namespace,
                        mounts,
                        pids,
                    });
                    namespace
                }
            };
            if let Some(container) = found.get_mut(&namespace) {
                container.pids.push(pid);
            }
        }
        Ok(found.into_values().collect())
    }

    /// The number of a mount, which no other namespace has, and the mounts of files of a pod: none unless the process may
    /// be in a container. `None` if they cannot be read.
    fn read_mounts(
        &self,
        pid: i32,
        places: &VolumePlaces,
    ) -> Option<(u64, Vec<(PathBuf, PathBuf)>)> {
        let mut mounts = NamespaceMounts::default();
        let table = self.proc().open(pid, "mountinfo").ok()?;
        each_mount_until(table, |line| mounts.add(line, places)).ok()?;
        Some((mounts.first?, mounts.of_container()))
    }
}

/// The mounts of a namespace, as they are read.
#[derive(Debug, Default)]
struct NamespaceMounts {
    first: Option<u64>,
    /// The mounts that have the agent's directory, where they would show it, and whether another one covers it.
    roots: Vec<(u64, PathBuf, bool)>,
    uid: String,
    mounts: Vec<(PathBuf, PathBuf)>,
    is_excluded: bool,
}

impl NamespaceMounts {
    fn add(&mut self, line: &MountLine<'_>, places: &VolumePlaces) -> ControlFlow<()> {
        self.first = Some(self.first.map_or(line.id, |first| first.min(line.id)));
        let mount_point = line.mount_point();
        for (id, path, is_covered) in &mut self.roots {
            *is_covered |= line.parent == *id && path.starts_with(&mount_point);
        }
        match places.shown(line) {
            Shown::Nothing => {}
            Shown::Root(path) => self.roots.push((line.id, path, false)),
            Shown::Pod { uid, path } => {
                self.is_excluded =
                    !self.mounts.is_empty() && self.uid != uid || self.mounts.len() == MAX_MOUNTS;
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

    fn of_container(self) -> Vec<(PathBuf, PathBuf)> {
        let Self {
            roots,
            mounts,
            is_excluded,
            ..
        } = self;
        let is_shown = roots.iter().any(|(_, path, is_covered)| {
            !is_covered
                || mounts
                    .iter()
                    .any(|(_, mount_point)| mount_point.starts_with(path))
        });
        if is_excluded || is_shown {
            Vec::new()
        } else {
            mounts
        }
    }
}
