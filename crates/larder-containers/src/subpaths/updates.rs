//! Decides which mounts of a pod are looked at, when again, and what is said of each.
//!
//! Invariants:
//! 1. A container is looked at once for each change of a volume that it mounts by `subPath`, after a start, and after a
//!    failure that time may cure. For a pod without such mounts nothing is allocated.
//! 2. In doubt nothing is done, and the status has the reason.
//! 3. A mount is [live](MountState::Live) only from a look after the last change of its volume, and of the containers
//!    that run, on. Until then it [waits](MountState::Waiting).
//! 4. Where no status says which containers run, those that appear in the first minute after a change are searched for.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use larder_transport::Backoff;
use smol_str::SmolStr;
use tokio::time::{Instant, timeout};

use super::{
    find::WantedMount,
    look::{ContainerLook, Outcome},
    looks::{ABANDONED, NoResult, StartedLook},
    node::SubPathNode,
    reason::{FAILED, NOT_PERMITTED, NotReplaced, REPLACED},
};
use crate::{
    processes::FoundContainer,
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
const NO_THREAD: NotReplaced = NotReplaced::new(
    FAILED,
    "the thread that looks at the mounts of the container could not be started, or has failed",
);
/// A container that runs by the pod's status is not found.
const HIDDEN: NotReplaced = NotReplaced::new(
    NOT_PERMITTED,
    "the processes of the container are not visible: larder needs the PID namespace of the host",
);
/// After a change, where no status says which containers run: the first pause before the search for those that have
/// appeared since. Each is twice as long as the one before.
const APPEARING: Duration = Duration::from_secs(1);
/// The last one. A minute after the change, a container has what its runtime has mounted since.
const LAST_APPEARING: Duration = Duration::from_secs(32);

/// What a running container sees through a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MountState {
    /// Nothing is known: no container was found, or none was looked at.
    #[default]
    Unknown,
    /// The present content, as of the last change.
    Live,
    /// Not known any more since then: the volume or the running containers have changed, and the look after that has not
    /// ended.
    Waiting(Timestamp),
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
    /// The reason that was last reported. One is reported once.
    reported: Option<String>,
}

impl MountStatus {
    /// Whether the reason is to be reported, now that it was found so often. Each is reported once, until the mount is live.
    fn is_to_be_reported(&mut self) -> bool {
        match &self.state {
            MountState::Live => self.reported = None,
            MountState::Pinned(reason)
                if self.failures >= FAILURES && self.reported.as_ref() != Some(reason) =>
            {
                self.reported = Some(reason.clone());
                return true;
            }
            _ => {}
        }
        false
    }
}

/// The mounts with `subPath` of one pod that asks for updates, or, with a reason, of one that does not.
#[derive(Debug)]
pub struct PodSubPaths {
    /// The namespace of the pod.
    namespace: SmolStr,
    mounts: Vec<MountStatus>,
    /// Their volumes.
    volumes: BTreeMap<SmolStr, VolumeState>,
    /// The IDs of the containers that ran at the last look, where they are known.
    running: Vec<SmolStr>,
    /// The containers that earlier searches have found.
    known: Option<Arc<KnownContainers>>,
    /// A look that has not ended in time, and when it began: no other begins before it ends.
    hanging: Option<(StartedLook, Timestamp)>,
    appearing: Option<Appearing>,
    backoff: Backoff,
    retry_at: Option<Instant>,
}

/// The search for containers that have appeared since a change.
#[derive(Clone, Copy, Debug)]
struct Appearing {
    at: Instant,
    pause: Duration,
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
    /// Those of a pod in this namespace, without mounts. Failed attempts are repeated with these delays.
    pub fn new(namespace: &str, backoff: Backoff) -> Self {
        Self {
            namespace: namespace.into(),
            mounts: Vec::new(),
            volumes: BTreeMap::new(),
            running: Vec::new(),
            known: None,
            hanging: None,
            appearing: None,
            backoff,
            retry_at: None,
        }
    }

    /// Adds the mounts of a volume. One that is known stays as it was at the start of its container.
    pub fn add_mounts(&mut self, volume: &str, wanted: Vec<WantedMount>) {
        let key = |mount: &WantedMount| (mount.container.clone(), mount.mount_path.clone());
        let mut known: BTreeSet<_> = self
            .mounts
            .iter()
            .map(|status| key(&status.mount))
            .collect();
        for mount in wanted {
            if known.insert(key(&mount)) {
                self.volumes.entry(volume.into()).or_default().is_due = true;
                self.mounts.push(MountStatus {
                    mount,
                    state: MountState::Unknown,
                    replaced: None,
                    took: None,
                    failures: 0,
                    reported: None,
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
    /// write access to the volume can add one. `swapped`: when the content has changed, if it has.
    pub fn written(&mut self, volume: &str, set: Option<&str>, swapped: Option<Timestamp>) {
        let Some(state) = self.volumes.get_mut(volume) else {
            return;
        };
        state.set = set.map(SmolStr::new).or(state.set.take());
        if let Some(now) = swapped {
            state.is_due = true;
            self.wait(now, |mount| mount.volume == volume);
            self.appearing = Some(Appearing {
                at: Instant::now() + APPEARING,
                pause: APPEARING,
            });
        }
    }

    /// What was known of these mounts is not known any more.
    fn wait(&mut self, now: Timestamp, of: impl Fn(&WantedMount) -> bool) {
        for status in &mut self.mounts {
            if status.state == MountState::Live && of(&status.mount) {
                status.state = MountState::Waiting(now);
            }
        }
    }

    /// The IDs of the containers that run now.
    pub fn running(&mut self, ids: impl Iterator<Item = SmolStr>, now: Timestamp) {
        if self.mounts.is_empty() {
            return;
        }
        let running: Vec<_> = ids.collect();
        if self.running != running {
            self.running = running;
            self.wait(now, |_| true);
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

    /// When there is something to do without a change.
    pub fn retry_at(&self) -> Option<Instant> {
        let appearing = self.appearing.map(|appearing| appearing.at);
        self.retry_at.into_iter().chain(appearing).min()
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
        (self.retry_at, self.appearing) = (None, None);
        for status in &mut self.mounts {
            status.state = MountState::Pinned(reason.to_owned());
        }
    }

    /// Whether there is something to do now.
    pub fn is_due(&self) -> bool {
        let is_time = self.retry_at().is_some_and(|at| at <= Instant::now());
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
        self.appearing = self.appearing.filter(|_| !is_beside);
        self.search_anew();
        let due: BTreeSet<_> = self
            .volumes
            .iter()
            .filter(|(_, state)| state.is_due && (state.set.is_some() || !is_beside))
            .map(|(volume, _)| volume.clone())
            .collect();
        let mounts = self.mounts.iter().enumerate();
        let wanted: Vec<_> = mounts
            .filter(|(_, status)| due.contains(&status.mount.volume))
            .map(|(index, _)| index)
            .collect();
        let mut results = BTreeMap::new();
        if !wanted.is_empty() {
            query.volumes = Some(due);
            query.known = Arc::clone(self.known.get_or_insert_default());
            let looked = self.look(node, &query, &wanted, now).await;
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

    /// After a change, what earlier searches have found is forgotten from time to time.
    fn search_anew(&mut self) {
        let now = Instant::now();
        if let Some(appearing) = self.appearing.take_if(|appearing| appearing.at <= now) {
            self.known = None;
            self.all_due();
            let pause = 2 * appearing.pause;
            self.appearing = (pause <= LAST_APPEARING).then_some(Appearing {
                at: now + pause,
                pause,
            });
        }
    }

    /// What becomes of the mounts with these indices. Those of containers that do not run are left out.
    async fn look(
        &mut self,
        node: &Arc<SubPathNode>,
        query: &TargetQuery,
        wanted: &[usize],
        now: Timestamp,
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
            let names = &container.candidate_names;
            let is_own = |index: &&usize| names.contains(&self.mounts[**index].mount.container);
            let own: Vec<_> = wanted.iter().filter(is_own).copied().collect();
            let looked = self.look_at(node, query, container, &own, now).await;
            for (&index, result) in own.iter().zip(looked) {
                let slot = results.entry(index).or_insert(Ok(false));
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

    /// What becomes of the mounts of one container, in the order of their indices.
    async fn look_at(
        &mut self,
        node: &Arc<SubPathNode>,
        query: &TargetQuery,
        container: FoundContainer,
        own: &[usize],
        now: Timestamp,
    ) -> Vec<Outcome> {
        self.hanging.take_if(|(look, _)| look.has_ended());
        if let Some((_, since)) = &self.hanging {
            return vec![Err(hangs(*since)); own.len()];
        }
        let wanted = own.iter().map(|&index| self.mounts[index].mount.clone());
        let sets = self
            .volumes
            .iter()
            .filter_map(|(name, state)| Some((name.clone(), state.set.clone()?)));
        let look = ContainerLook {
            node: Arc::clone(node),
            pod: query.mounts.clone(),
            wanted: wanted.collect(),
            sets: sets.collect(),
            container,
        };
        let looked = node.looks.run(&self.namespace, LOOK, move || look.run());
        let reason = match looked.await {
            Ok(results) => return results,
            Err(NoResult::GoesOn(look)) => {
                self.hanging = Some((look, now));
                hangs(now)
            }
            Err(NoResult::NotBegun) => not_begun(),
            Err(NoResult::NoThread) => NO_THREAD,
        };
        vec![Err(reason); own.len()]
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
                    node.took(took);
                }
            }
            let state = match result {
                None => MountState::Unknown,
                Some(Ok(_)) => MountState::Live,
                Some(Err(kept)) => {
                    node.count(kept.kind);
                    if kept.may_pass() {
                        may_pass = true;
                        behind.insert(status.mount.volume.clone());
                    }
                    MountState::Pinned(kept.reason.into_owned())
                }
            };
            status.failures = match &state {
                MountState::Pinned(_) if status.state == state => status.failures + 1,
                MountState::Pinned(_) => 1,
                _ => 0,
            };
            status.state = state;
            if is_replaced || status.is_to_be_reported() {
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

/// A look that began then does not end.
fn hangs(since: Timestamp) -> NotReplaced {
    let reason = format!(
        "a look at the mounts of the container does not end, since {since:.0}: the kernel waits for something that the \
         container holds or has mounted"
    );
    NotReplaced {
        kind: FAILED,
        reason: reason.into(),
    }
}

/// Too many looks at earlier pods of the namespace go on.
fn not_begun() -> NotReplaced {
    let reason = format!(
        "not looked at: {ABANDONED} looks at earlier pods of this namespace do not end, because the kernel waits for \
         something that their containers held"
    );
    NotReplaced {
        kind: FAILED,
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn containers_that_appear_are_searched_for_in_the_minute_after_a_change() {
        let second = Duration::from_secs(1);
        let mut pod = PodSubPaths::new("n", Backoff::new(second, second));
        let wanted = WantedMount::new("web", "/a", "v", "key", false);
        pod.add_mounts("v", wanted.into_iter().collect());
        pod.set_due(false);
        assert_eq!(pod.retry_at(), None);
        let start = Instant::now();
        pod.written("v", None, Some(Timestamp::UNIX_EPOCH));
        pod.set_due(false);
        let mut searches = Vec::new();
        while let Some(at) = pod.retry_at() {
            assert!(!pod.is_due());
            advance(at - Instant::now()).await;
            assert!(pod.is_due());
            pod.known = Some(Arc::default());
            pod.search_anew();
            // What was found before does not hide what has appeared.
            assert!(pod.known.is_none() && pod.is_due());
            pod.set_due(false);
            searches.push((at - start).as_secs());
        }
        assert_eq!(searches, [1, 3, 7, 15, 31, 63]);
    }
}
