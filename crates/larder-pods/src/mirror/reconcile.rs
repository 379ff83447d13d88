//! The loop that keeps the mirror pods in sync with the static pods.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, future::OptionFuture, stream};
use larder_objects::{ObjectKey, chain};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::client::{Created, MirrorClient, MirrorError, NodeIdentity, is_current};
use crate::{
    identity::{FullName, MirrorPodUid, PodUid},
    lifecycle::TerminatingPods,
    manager::{MirrorOverview, Pods},
    stored::StoredPod,
};

/// Delay after the first failure.
const RETRY: Duration = Duration::from_millis(200);

/// Time for the watch of the pods to show an action before the next action for the same pod.
const SETTLE: Duration = Duration::from_millis(250);

/// The longest delay. It doubles while attempts fail, or while another client undoes them.
const MAX_DELAY: Duration = Duration::from_secs(30);

/// Number of undone actions in a row before delays grow: a user may be experimenting.
const UNDELAYED: u32 = 16;

/// Limit of requests in flight.
const CONCURRENCY: usize = 8;

/// The conditions on which mirror pods depend, besides the pods themselves.
#[derive(Clone, Debug, Default)]
pub struct MirrorScope {
    /// Every source has reported all its pods. Before that, the static pod of an orphan may just be unreported.
    pub all_sources_seen: bool,
    /// Static pods that are gone from their source and still terminate. Their mirror pods stay until that is done.
    pub terminating: TerminatingPods,
    /// Changes when the API server, possibly another one, or the Node is back. Earlier failures and findings are then
    /// dropped.
    pub epoch: u64,
}

/// An action for one mirror pod.
#[derive(Clone, Debug, PartialEq)]
pub enum MirrorAction {
    /// The static pod has no mirror pod.
    Create(Arc<StoredPod>),
    /// The static pod's mirror pod is being deleted, or was made from another manifest.
    Replace {
        /// The static pod.
        pod: Arc<StoredPod>,
        /// Its mirror pod.
        mirror: Arc<StoredPod>,
    },
    /// The mirror pod's static pod is gone.
    Delete(Arc<StoredPod>),
}

impl MirrorAction {
    fn full_name(&self) -> FullName {
        match self {
            Self::Create(pod) | Self::Replace { pod, .. } | Self::Delete(pod) => {
                FullName::of(&pod.metadata)
            }
        }
    }

    /// The static pod that needs a mirror pod.
    fn pod(&self) -> Option<&Arc<StoredPod>> {
        match self {
            Self::Create(pod) | Self::Replace { pod, .. } => Some(pod),
            Self::Delete(_) => None,
        }
    }
}

/// All pending actions.
pub fn plan(overview: MirrorOverview, scope: &MirrorScope) -> Vec<MirrorAction> {
    let of_static = |(pod, mirror): (Arc<StoredPod>, Option<Arc<StoredPod>>)| match mirror {
        None => Some(MirrorAction::Create(pod)),
        Some(mirror) if !is_current(&mirror.metadata, &pod) => {
            Some(MirrorAction::Replace { pod, mirror })
        }
        Some(_) => None,
    };
    let orphans = overview
        .orphaned_mirror_pods
        .into_iter()
        .filter(|_| scope.all_sources_seen)
        .map(MirrorAction::Delete);
    let of_static = overview.static_pods.into_iter().filter_map(of_static);
    let mut actions: Vec<_> = of_static.chain(orphans).collect();
    actions.retain(|action| !scope.terminating.contains(&action.full_name()));
    actions
}

/// Problems of mirror pods, by the full name of the pod.
pub type MirrorProblems = BTreeMap<FullName, MirrorError>;

/// Maintains the mirror pods of one node. Built first; the owner of the task then calls [`run`](Self::run).
#[derive(Debug)]
pub struct MirrorReconciler {
    client: MirrorClient,
    pods: Pods,
    scope: watch::Receiver<MirrorScope>,
    problems: watch::Sender<MirrorProblems>,
    /// [`MirrorScope::epoch`] of the last pass.
    epoch: u64,
    attempts: HashMap<FullName, Attempt>,
    /// Mirror pods that are deleted or about to disappear, although the watch still shows them.
    gone: HashMap<MirrorPodUid, FullName>,
    /// Static pods with current mirror pods. Compared again only when either of the two is replaced.
    settled: HashMap<FullName, (Arc<StoredPod>, Arc<StoredPod>)>,
}

/// The last attempt for a pod.
#[derive(Debug)]
struct Attempt {
    /// End of the attempt.
    at: Instant,
    /// Delay until the next one.
    wait: Duration,
    /// Number of attempts before it with the same result.
    streak: u32,
    failed: bool,
    /// The static pod of the attempt; `None` for an orphan.
    pod: Option<Arc<StoredPod>>,
}

impl Attempt {
    fn next(&self) -> Instant {
        self.at + self.wait
    }

    /// Whether an attempt that began at `began` continues the same streak.
    fn continues(&self, began: Instant) -> bool {
        self.failed || began <= self.at + 2 * self.wait
    }
}

/// The progress that an attempt made.
enum MirrorProgress {
    /// The action is complete; the watch will show it.
    Done,
    /// The next part can follow at once.
    Half,
}

/// An action that was tried.
struct Performed {
    action: MirrorAction,
    result: Result<MirrorProgress, MirrorError>,
    /// Mirror pods that it has deleted, or that it did not find.
    gone: Vec<MirrorPodUid>,
}

impl MirrorReconciler {
    /// A reconciler of `pods`. It runs a pass after every value sent to `scope`, changed or not.
    pub fn new(client: MirrorClient, pods: Pods, scope: watch::Receiver<MirrorScope>) -> Self {
        Self {
            client,
            pods,
            scope,
            problems: watch::Sender::default(),
            epoch: 0,
            attempts: HashMap::new(),
            gone: HashMap::new(),
            settled: HashMap::new(),
        }
    }

    /// The current problems.
    pub fn problems(&self) -> watch::Receiver<MirrorProblems> {
        self.problems.subscribe()
    }

    /// Maintains the mirror pods until the sender of `scope` is dropped.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; a later run takes over where this one ended.
    pub async fn run(mut self) {
        loop {
            let scope = self.scope.borrow_and_update().clone();
            let due = self.pass(&scope).await;
            let wait = OptionFuture::from(due.map(sleep_until));
            tokio::select! {
                biased;
                // Cancel-safe: an unseen change stays unseen.
                changed = self.scope.changed() => if changed.is_err() { return },
                Some(()) = wait => {}
            }
        }
    }

    /// The pods that may need an action: without mirror pods that are gone, and without static pods whose mirror pod is
    /// current.
    fn unsettled(&mut self) -> MirrorOverview {
        let mut overview = self.pods.mirror_overview();
        let mut gone = HashMap::new();
        let mut is_gone = |mirror: &Arc<StoredPod>| {
            let known = self.gone.remove_entry(&uid(mirror));
            let is_gone = known.is_some();
            gone.extend(known);
            is_gone
        };
        for (_, mirror) in &mut overview.static_pods {
            mirror.take_if(|mirror| is_gone(mirror));
        }
        overview
            .orphaned_mirror_pods
            .retain(|mirror| !is_gone(mirror));
        // A mirror pod that the watch no longer shows may have caused a failure.
        for full_name in std::mem::replace(&mut self.gone, gone).into_values() {
            let attempt = self.attempts.get(&full_name);
            if attempt.is_some_and(|attempt| attempt.failed) {
                self.attempts.remove(&full_name);
            }
        }
        let mut settled = HashMap::with_capacity(self.settled.len());
        overview.static_pods.retain(|(pod, mirror)| {
            let Some(mirror) = mirror else { return true };
            let full_name = FullName::of(&pod.metadata);
            let known = self.settled.get(&full_name);
            let same = known.is_some_and(|(known_pod, known_mirror)| {
                Arc::ptr_eq(known_pod, pod) && Arc::ptr_eq(known_mirror, mirror)
            });
            let is_current_pair = same || is_current(&mirror.metadata, pod);
            if is_current_pair {
                settled.insert(full_name, (Arc::clone(pod), Arc::clone(mirror)));
            }
            !is_current_pair
        });
        self.settled = settled;
        overview
    }

    /// Performs the due actions. Returns when the next one is due without any change.
    async fn pass(&mut self, scope: &MirrorScope) -> Option<Instant> {
        if self.epoch != scope.epoch {
            self.epoch = scope.epoch;
            self.attempts.retain(|_, attempt| !attempt.failed);
            self.gone.clear();
        }
        let began = Instant::now();
        let mut actions = plan(self.unsettled(), scope);
        let open: BTreeSet<_> = actions.iter().map(MirrorAction::full_name).collect();
        self.attempts.retain(|full_name, attempt| {
            open.contains(full_name) || (!attempt.failed && attempt.continues(began))
        });
        actions.retain(|action| self.is_due(action, began));
        let mut problems = self.problems.borrow().clone();
        problems.retain(|full_name, _| open.contains(full_name));
        for performed in self.perform_all(actions).await {
            self.note(performed, began, &mut problems);
        }
        self.problems.send_replace(problems);
        self.attempts
            .iter()
            .filter(|(full_name, _)| open.contains(*full_name))
            .map(|(_, attempt)| attempt.next())
            .min()
    }

    fn is_due(&self, action: &MirrorAction, now: Instant) -> bool {
        let Some(attempt) = self.attempts.get(&action.full_name()) else {
            return true;
        };
        // A failure of one manifest does not delay another.
        let same = attempt.pod.as_ref().map(Arc::as_ptr) == action.pod().map(Arc::as_ptr);
        attempt.next() <= now || (attempt.failed && !same)
    }

    /// Performs the actions, some at the same time.
    async fn perform_all(&self, due: Vec<MirrorAction>) -> Vec<Performed> {
        let node = if due.iter().any(|action| action.pod().is_some()) {
            Some(self.client.node().await)
        } else {
            None
        };
        let client = &self.client;
        let known = &self.gone;
        let performed = stream::iter(due).map(|action| {
            let node = node.clone();
            async move {
                let mut gone = Vec::new();
                let result = perform(client, &action, node, known, &mut gone).await;
                Performed {
                    action,
                    result,
                    gone,
                }
            }
        });
        performed.buffer_unordered(CONCURRENCY).collect().await
    }

    /// Records the result of an action of the pass that began then, and when the next one may follow.
    fn note(&mut self, performed: Performed, began: Instant, problems: &mut MirrorProblems) {
        let Performed {
            action,
            result,
            gone,
        } = performed;
        let full_name = action.full_name();
        self.gone
            .extend(gone.into_iter().map(|uid| (uid, full_name.clone())));
        let failed = result.is_err();
        let streak = self
            .attempts
            .remove(&full_name)
            .filter(|before| before.failed == failed && before.continues(began))
            .map_or(0, |before| before.streak.saturating_add(1));
        let wait = match &result {
            Ok(MirrorProgress::Half) => Duration::ZERO,
            Ok(MirrorProgress::Done) => doubled(SETTLE, streak.saturating_sub(UNDELAYED)),
            Err(_) => doubled(RETRY, streak),
        };
        match result {
            Ok(_) => drop(problems.remove(&full_name)),
            Err(error) => {
                let text = chain(&error);
                let before = problems.insert(full_name.clone(), error);
                if before.is_none_or(|before| chain(&before) != text) {
                    tracing::warn!(pod = %shown(&full_name), error = text, retry_in = ?wait, "failed to reconcile mirror pod, will retry");
                } else {
                    tracing::debug!(pod = %shown(&full_name), error = text, retry_in = ?wait, "failed to reconcile mirror pod again, will retry");
                }
            }
        }
        let attempt = Attempt {
            at: Instant::now(),
            wait,
            streak,
            failed,
            pod: action.pod().cloned(),
        };
        self.attempts.insert(full_name, attempt);
    }
}

/// `first`, doubled `times` times.
fn doubled(first: Duration, times: u32) -> Duration {
    let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(MAX_DELAY)
}

/// The pod as `namespace/name`.
fn shown(full_name: &FullName) -> ObjectKey {
    ObjectKey::new(full_name.namespace.clone(), full_name.name.clone())
}

fn uid(mirror: &StoredPod) -> MirrorPodUid {
    MirrorPodUid::new(PodUid::of(&mirror.metadata).as_str())
}

/// Performs one action. `known` are mirror pods known to be gone; those found to be gone are added to `gone`.
async fn perform(
    client: &MirrorClient,
    action: &MirrorAction,
    node: Option<Result<NodeIdentity, MirrorError>>,
    known: &HashMap<MirrorPodUid, FullName>,
    gone: &mut Vec<MirrorPodUid>,
) -> Result<MirrorProgress, MirrorError> {
    let full_name = action.full_name();
    let pod = match action {
        MirrorAction::Delete(mirror) => {
            if client.delete(&full_name, &uid(mirror)).await? {
                tracing::info!(pod = %shown(&full_name), "deleted orphaned mirror pod");
            }
            gone.push(uid(mirror));
            return Ok(MirrorProgress::Done);
        }
        MirrorAction::Replace { pod, mirror } => {
            let deleted = client.delete(&full_name, &uid(mirror)).await?;
            gone.push(uid(mirror));
            // It was gone already, so the state is outdated: the next pass decides.
            if !deleted {
                return Ok(MirrorProgress::Half);
            }
            pod
        }
        MirrorAction::Create(pod) => pod,
    };
    let node = node.expect("the node is read for every action that creates")?;
    // A mirror pod that the watch has not shown may exist.
    for _ in 0..2 {
        match client.create(pod, &node).await? {
            Created::Now => {
                tracing::info!(pod = %shown(&full_name), "created mirror pod");
                return Ok(MirrorProgress::Done);
            }
            Created::Before => return Ok(MirrorProgress::Done),
            Created::Outdated(uid) if known.contains_key(&uid) || gone.contains(&uid) => break,
            Created::Outdated(uid) => {
                client.delete(&full_name, &uid).await?;
                gone.push(uid);
            }
        }
    }
    Err(MirrorError::InTheWay { full_name })
}

#[cfg(test)]
mod tests;
