//! Decides which mounts of a pod are looked at, when again, and what is said of each.
//!
//! Invariants:
//! 1. A container is looked at once for each change of a volume that it mounts by `subPath`, after a start, and after a
//!    failure that time may cure. For a pod without such mounts nothing is allocated.
//! 2. In doubt nothing is done, and the status has the reason.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::{Arc, Weak},
    time::Duration,
};

use jiff::Timestamp;
use larder_transport::{
    Backoff,
    registrar::{Labels, Registrar, label},
};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use rustix::mount::MountFlags;
use smol_str::SmolStr;
use tokio::time::{Instant, timeout};

use super::{
    find::{LEFT_OVER, VolumeMount, WantedMount, pick, volume_mounts},
    reason::{
        CHANGED, FAILED, GONE, NOT_PERMITTED, NotReplaced, REPLACED, RESULTS, UNSUPPORTED, failed,
    },
    replace::{Inside, Stage, deadline, enforces_labels, leads_to},
    source::Source,
};
use crate::{
    namespaces::run_apart,
    processes::{FoundContainer, PodMounts, Processes},
    targets::{KnownContainers, TargetQuery},
};

/// Longest search for the containers of a pod.
const SEARCH: Duration = Duration::from_secs(10);
/// Longest look at a container. It reads for five seconds at most; the kernel may wait for the container.
const LOOK: Duration = Duration::from_secs(10);
/// Failures with the same reason after which an event says so.
const FAILURES: u32 = 3;
const LONG_SEARCH: NotReplaced = NotReplaced::new(
    FAILED,
    "the search for the processes of the container takes too long",
);
const HANGS: NotReplaced = NotReplaced::new(
    FAILED,
    "the look at the mounts of the container does not end",
);
/// A container that runs by the pod's status is not found.
const HIDDEN: NotReplaced = NotReplaced::new(
    NOT_PERMITTED,
    "the processes of the container are not visible: larder needs the PID namespace of the host",
);
/// Nothing is mounted in a user namespace.
const OWN_USERS: NotReplaced = NotReplaced::new(
    UNSUPPORTED,
    "the container has a user namespace of its own, in which it could make the mount writable",
);

/// What the pods of a node share.
#[derive(Debug)]
pub struct SubPathNode {
    processes: Processes,
    stage: Stage,
    /// Whether the machine enforces SELinux's rules.
    pub(super) enforces_labels: fn() -> bool,
    results: Family<Labels<1>, Counter>,
    delay: Histogram,
}

impl SubPathNode {
    /// With the processes of the node's containers.
    pub fn new(processes: Processes, registry: &mut Registry) -> Self {
        let mut registrar = Registrar(registry);
        Self {
            processes,
            stage: Stage::default(),
            enforces_labels,
            results: registrar.family(
                "subpath_replacements",
                "Attempts to show a running container the present content of a mount with subPath, by result",
                label("result", RESULTS),
            ),
            delay: registrar.seconds(
                "subpath_delay",
                "Time from the arrival of a change to the replacement of a mount with subPath",
                Histogram::new([0.003, 0.01, 0.03, 0.1, 0.2, 0.4, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0]),
            ),
        }
    }

    fn count(&self, result: &'static str) {
        self.results.get_or_create(&[("result", result)]).inc();
    }
}

/// What a running container sees through a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MountState {
    /// Nothing is known: no container was found, or none was looked at.
    #[default]
    Unknown,
    /// The present content.
    Live,
    /// Other content, for this reason.
    Pinned(String),
}

/// The status of a mount.
#[derive(Clone, Debug)]
pub struct MountStatus {
    /// The mount.
    pub mount: WantedMount,
    /// What the container sees.
    pub state: MountState,
    /// When it was last replaced.
    pub replaced: Option<Timestamp>,
    /// How long that took after the arrival of the change, if that is known.
    pub took: Option<Duration>,
    failures: u32,
}

/// The mounts with `subPath` of one pod that asks for updates, or, with a reason, of one that does not.
#[derive(Debug)]
pub struct PodSubPaths {
    mounts: Vec<MountStatus>,
    /// Their volumes.
    volumes: BTreeMap<SmolStr, VolumeState>,
    /// The IDs of the containers that ran at the last look, where they are known.
    running: Vec<SmolStr>,
    /// The containers that earlier searches have found.
    known: Option<Arc<KnownContainers>>,
    /// A look that has not ended in time: no other begins before it ends.
    hanging: Weak<()>,
    backoff: Backoff,
    retry_at: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
struct VolumeState {
    /// Whether it is to be looked at.
    is_due: bool,
    /// The set that was written or verified.
    set: Option<SmolStr>,
    /// The arrival of the oldest change that a container does not see yet.
    changed: Option<Instant>,
}

impl PodSubPaths {
    /// Without mounts. Failed attempts are repeated with these delays.
    pub fn new(backoff: Backoff) -> Self {
        Self {
            mounts: Vec::new(),
            volumes: BTreeMap::new(),
            running: Vec::new(),
            known: None,
            hanging: Weak::new(),
            backoff,
            retry_at: None,
        }
    }

    /// Adds the mounts of a volume. One that is known stays as it was at the start of its container.
    pub fn add_mounts(&mut self, volume: &str, wanted: Vec<WantedMount>) {
        let key = |mount: &WantedMount| (mount.container.clone(), mount.mount_path.clone());
        let known = self.mounts.iter().map(|status| key(&status.mount));
        let mut known: BTreeSet<_> = known.collect();
        for mount in wanted {
            if known.insert(key(&mount)) {
                self.volumes.entry(volume.into()).or_default().is_due = true;
                self.mounts.push(MountStatus {
                    mount,
                    state: MountState::Unknown,
                    replaced: None,
                    took: None,
                    failures: 0,
                });
            }
        }
    }

    /// An object of the volume has changed.
    pub fn changed(&mut self, volume: &str, at: Instant) {
        if let Some(state) = self.volumes.get_mut(volume) {
            state.changed.get_or_insert(at);
        }
    }

    /// Records the set that has the volume's content, if it is known. Containers get to see no other set: anyone with
    /// write access to the volume can add one. `swapped`: the content has changed.
    pub fn written(&mut self, volume: &str, set: Option<&str>, swapped: bool) {
        if let Some(state) = self.volumes.get_mut(volume) {
            state.is_due |= swapped;
            state.set = set.map(SmolStr::new).or(state.set.take());
        }
    }

    /// The IDs of the containers that run.
    pub fn running(&mut self, ids: impl Iterator<Item = SmolStr>) {
        if self.mounts.is_empty() {
            return;
        }
        let running: Vec<_> = ids.collect();
        if self.running != running {
            self.running = running;
            self.all_due();
        }
    }

    /// A container may have started: every mount is compared.
    pub fn all_due(&mut self) {
        self.set_due(true);
    }

    fn set_due(&mut self, is_due: bool) {
        for state in self.volumes.values_mut() {
            state.is_due = is_due;
        }
    }

    /// When an attempt is to be repeated.
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// The status of every mount.
    pub fn statuses(&self) -> &[MountStatus] {
        &self.mounts
    }

    /// Whether the container sees the present content through the mount.
    pub fn is_live(&self, container: &str, mount_path: &str) -> bool {
        self.mounts.iter().any(|status| {
            status.mount.container == container
                && status.mount.mount_path == mount_path
                && status.state == MountState::Live
        })
    }

    /// Nothing is updated, for this reason. Once there is none, every mount is compared.
    pub fn pin(&mut self, reason: &str) {
        self.all_due();
        self.retry_at = None;
        for status in &mut self.mounts {
            status.state = MountState::Pinned(reason.to_owned());
        }
    }

    /// Whether there is something to do now.
    pub fn is_due(&self) -> bool {
        let is_time = self.retry_at.is_some_and(|at| at <= Instant::now());
        is_time || self.volumes.values().any(|state| state.is_due)
    }

    /// Shows the containers that run the present content of the volumes that are due. Returns the mounts of which something
    /// is to be said: live ones were replaced; others were not, for the third time.
    ///
    /// # Cancel safety
    ///
    /// Mounts that were replaced stay so, and what was due is due again.
    pub async fn update(
        &mut self,
        node: &Arc<SubPathNode>,
        mut query: TargetQuery,
        now: Timestamp,
    ) -> Vec<MountStatus> {
        if self.retry_at.take_if(|at| *at <= Instant::now()).is_some() {
            self.all_due();
        }
        // Beside a kubelet, only what was verified is shown (S3).
        let is_beside = query.ids.is_some();
        let due = self.volumes.iter();
        let due = due.filter(|(_, state)| state.is_due && (state.set.is_some() || !is_beside));
        let due: BTreeSet<_> = due.map(|(volume, _)| volume.clone()).collect();
        let mounts = self.mounts.iter().enumerate();
        let wanted = mounts.filter(|(_, status)| due.contains(&status.mount.volume));
        let wanted: Vec<_> = wanted.map(|(index, _)| index).collect();
        let mut results = BTreeMap::new();
        if !wanted.is_empty() {
            query.volumes = Some(due);
            query.known = Arc::clone(self.known.get_or_insert_default());
            let looked = self.look(node, &query, &wanted).await;
            let all = |kept: NotReplaced| {
                wanted
                    .iter()
                    .map(|&index| (index, Err(kept.clone())))
                    .collect()
            };
            results = looked.unwrap_or_else(all);
        }
        self.take_in(node, &wanted, results, now)
    }

    /// What becomes of the mounts with these indices. Those of containers that do not run are left out.
    async fn look(
        &mut self,
        node: &Arc<SubPathNode>,
        query: &TargetQuery,
        wanted: &[usize],
    ) -> Result<BTreeMap<usize, Outcome>, NotReplaced> {
        let found = timeout(SEARCH, query.find(&node.processes, false)).await;
        let containers = found.map_err(|_| LONG_SEARCH)?.map_err(|error| {
            let reason = error.to_string().into();
            NotReplaced {
                kind: FAILED,
                reason,
            }
        })?;
        let mut results: BTreeMap<usize, Outcome> = BTreeMap::new();
        for container in containers {
            let own = |&index: &usize| {
                let mount = &self.mounts[index].mount;
                let names = &container.candidate_names;
                names
                    .contains(&mount.container)
                    .then(|| (index, mount.clone()))
            };
            let (indices, own): (Vec<_>, Vec<_>) = wanted.iter().filter_map(own).unzip();
            let mut looked = None;
            if self.hanging.strong_count() == 0 {
                let job = Job {
                    is_running: Arc::new(()),
                    node: Arc::clone(node),
                    pod: query.mounts.clone(),
                    wanted: own,
                    volumes: self.volumes.clone(),
                    container,
                };
                let is_running = Arc::downgrade(&job.is_running);
                looked = run_apart(LOOK, move || job.run()).await;
                if looked.is_none() {
                    self.hanging = is_running;
                }
            }
            let hangs = || vec![Err(HANGS); indices.len()];
            for (index, result) in indices.iter().zip(looked.unwrap_or_else(hangs)) {
                let slot = results.entry(*index).or_insert(Ok(false));
                // Of containers with the same mounts, one that fails counts.
                if let (Ok(done), Ok(more)) = (&mut *slot, &result) {
                    *done |= *more;
                } else if slot.is_ok() {
                    *slot = result;
                }
            }
        }
        let runs = |name| query.ids.as_ref().is_some_and(|ids| ids.contains_key(name));
        for &index in wanted {
            if runs(&self.mounts[index].mount.container) {
                results.entry(index).or_insert(Err(HIDDEN));
            }
        }
        Ok(results)
    }

    fn take_in(
        &mut self,
        node: &SubPathNode,
        wanted: &[usize],
        mut results: BTreeMap<usize, Outcome>,
        now: Timestamp,
    ) -> Vec<MountStatus> {
        self.set_due(false);
        let (mut reported, mut may_pass) = (Vec::new(), false);
        let mut behind = BTreeSet::new();
        for &index in wanted {
            let status = &mut self.mounts[index];
            let result = results.remove(&index);
            let is_replaced = matches!(result, Some(Ok(true)));
            if is_replaced {
                node.count(REPLACED);
                status.replaced = Some(now);
                let changed = self.volumes[&status.mount.volume].changed;
                status.took = changed.map(|changed| changed.elapsed());
                if let Some(took) = status.took {
                    node.delay.observe(took.as_secs_f64());
                }
            }
            let state = match result {
                None => MountState::Unknown,
                Some(Ok(_)) => MountState::Live,
                Some(Err(kept)) => {
                    node.count(kept.kind);
                    may_pass |= kept.may_pass();
                    behind.insert(status.mount.volume.clone());
                    MountState::Pinned(kept.reason.into_owned())
                }
            };
            status.failures = match &state {
                MountState::Pinned(_) if status.state == state => status.failures + 1,
                MountState::Pinned(_) => 1,
                _ => 0,
            };
            status.state = state;
            if is_replaced || status.failures == FAILURES {
                reported.push(status.clone());
            }
        }
        for &index in wanted {
            let volume = &self.mounts[index].mount.volume;
            if let Some(state) = self.volumes.get_mut(volume)
                && !behind.contains(volume)
            {
                state.changed = None;
            }
        }
        if may_pass {
            self.retry_at = Some(Instant::now() + self.backoff.next_delay());
        } else {
            self.backoff.reset();
        }
        reported
    }
}

/// What became of a mount: whether it was replaced.
type Outcome = Result<bool, NotReplaced>;

/// The look at one container.
struct Job {
    /// Goes when the look has ended.
    is_running: Arc<()>,
    node: Arc<SubPathNode>,
    pod: PodMounts,
    wanted: Vec<WantedMount>,
    volumes: BTreeMap<SmolStr, VolumeState>,
    container: FoundContainer,
}

impl Job {
    /// What became of each mount, in their order.
    fn run(self) -> Vec<Outcome> {
        let until = deadline();
        let (namespace, picked) = match self.look(until) {
            Ok(looked) => looked,
            Err(kept) => return vec![Err(kept); self.wanted.len()],
        };
        // In serve mode, containers with the same mounts may be the same one.
        let mut done: BTreeMap<_, Outcome> = BTreeMap::new();
        let results = self.wanted.iter().zip(picked).map(|(mount, found)| {
            let place = (&mount.mount_path, &mount.volume, &mount.path);
            let update = || self.update(&namespace, until, &found?, mount);
            done.entry(place).or_insert_with(update).clone()
        });
        results.collect()
    }

    /// The mount namespace of the container, and what each mount is in it.
    fn look(
        &self,
        until: Instant,
    ) -> Result<(OwnedFd, Vec<Result<VolumeMount, NotReplaced>>), NotReplaced> {
        let processes = &self.node.processes;
        let namespace = processes.mount_namespace(&self.container.main);
        let namespace = namespace.map_err(failed("open the container's mount namespace"))?;
        // Checked after opening, so that the answer is about the namespace that is open. Root in a user namespace can make
        // a mount writable, unless the mount was copied into it from outside.
        if !processes.shares_users(self.container.main.pid) {
            return Err(OWN_USERS);
        }
        let places = processes.places();
        let places = places.map_err(failed::<io::Error>("read the mounts of this process"))?;
        let picked = Inside::run(namespace.as_fd(), until, |inside| {
            let look = || {
                let found = volume_mounts(|| inside.table(), &places, &self.pod);
                found.map_err(failed("read the mounts of the container"))
            };
            let mut found = look()?;
            let mut uncovered = false;
            for mount in found.iter().flatten() {
                if mount.obstacle == Some(LEFT_OVER)
                    && self.wanted.iter().any(|wanted| mount.is_alike(wanted))
                {
                    // One that stays hinders this mount only.
                    uncovered |= inside.uncover(&mount.record).is_ok();
                }
            }
            if uncovered {
                found = look()?;
            }
            Ok(found.map(|mounts| {
                let wanted = self.wanted.iter();
                let wanted = wanted.map(|mount| (mount, leads_to(&mount.mount_path)));
                pick(&mounts, &wanted.collect::<Vec<_>>())
            }))
        })?;
        Ok((namespace, picked?))
    }

    /// Replaces the mount, if it does not show the present content; returns whether it was.
    fn update(
        &self,
        namespace: &OwnedFd,
        until: Instant,
        found: &VolumeMount,
        wanted: &WantedMount,
    ) -> Outcome {
        let directory = self.pod.volumes.get(&wanted.volume);
        let directory = directory.ok_or_else(|| NotReplaced::new(GONE, "the volume is gone"))?;
        let source = Source::of(directory, &wanted.path).map_err(failed("open the volume"))?;
        let verified = self.volumes[&wanted.volume].set.as_ref();
        if verified.is_some_and(|set| *set != source.set) {
            return Err(NotReplaced::new(
                CHANGED,
                "the volume has changed meanwhile",
            ));
        }
        let Some(file) = source.file else {
            let reason = match wanted.path.display() {
                _ if wanted.is_secret => "its key is gone".into(),
                path => format!("key {path} is gone").into(),
            };
            return Err(NotReplaced { kind: GONE, reason });
        };
        if found.set == Some(source.set) && !found.is_deleted {
            return Ok(false);
        }
        // It is never writable, whatever the old one is.
        let flags = found.record.flags | MountFlags::RDONLY;
        let new = self.node.stage.mount_of(&file, flags)?;
        if !self.node.processes.is_same(&self.container.main) {
            return Err(NotReplaced::new(CHANGED, "the container has ended"));
        }
        let enforces = (self.node.enforces_labels)();
        let replace = |inside: &Inside| inside.replace(&found.record, &new, enforces);
        Inside::run(namespace.as_fd(), until, replace)
    }
}
