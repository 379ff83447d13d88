//! The loop that keeps the mirror pods in step with the static pods.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use larder_objects::{ObjectKey, chain};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::client::{Created, MirrorClient, MirrorError, NodeIdentity, is_current};
use crate::{
    identity::{FullName, MirrorPodUid, PodUid},
    manager::{MirrorOverview, Pods},
    stored::StoredPod,
};

/// Delay after the first failure.
const RETRY: Duration = Duration::from_millis(200);

/// How long the watch of the pods gets to show what was done before more is done for the same pod.
const SETTLE: Duration = Duration::from_millis(250);

/// The longest delay. Each is twice the last as long as attempts fail, or what was done does not last.
const LONGEST: Duration = Duration::from_secs(30);

/// So often in a row what was done may not last before it is done more seldom: somebody tries out what happens.
const PATIENCE: u32 = 16;

/// Requests under way at the same time.
const CONCURRENCY: usize = 8;

/// What the mirror pods depend on beside the pods themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorScope {
    /// Every source has named all its pods. Before that a mirror pod without static pod may only seem to be one.
    pub all_sources_seen: bool,
    /// Static pods that have gone from their source but still end. Their mirror pods stay until they have ended.
    pub ending: BTreeSet<FullName>,
    /// Another number than before: the API server was away and is back, perhaps as another one, or the Node is. What has failed and
    /// what was learned until then counts no more.
    pub epoch: u64,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum MirrorAction {
    /// The static pod has no mirror pod.
    Create(Arc<StoredPod>),
    /// The static pod's mirror pod is being deleted, or made from another manifest.
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

    /// The static pod that is to have a mirror pod.
    fn pod(&self) -> Option<&Arc<StoredPod>> {
        match self {
            Self::Create(pod) | Self::Replace { pod, .. } => Some(pod),
            Self::Delete(_) => None,
        }
    }
}

/// All that there is to do.
pub fn plan(overview: MirrorOverview, scope: &MirrorScope) -> Vec<MirrorAction> {
    let of_static = |(pod, mirror): (Arc<StoredPod>, Option<Arc<StoredPod>>)| match mirror {
        None => Some(MirrorAction::Create(pod)),
        Some(mirror) if !is_current(&mirror.metadata, &pod) => {
            Some(MirrorAction::Replace { pod, mirror })
        }
        Some(_) => None,
    };
    let orphans = overview.orphaned_mirror_pods.into_iter();
    let orphans = orphans
        .filter(|_| scope.all_sources_seen)
        .map(MirrorAction::Delete);
    let of_static = overview.static_pods.into_iter().filter_map(of_static);
    let mut actions: Vec<_> = of_static.chain(orphans).collect();
    actions.retain(|action| !scope.ending.contains(&action.full_name()));
    actions
}

/// What is wrong with the mirror pods, by the full name of the pod.
pub type MirrorProblems = BTreeMap<FullName, MirrorError>;

/// Keeps the mirror pods of one node. Built first, then [run](Self::run) by whoever owns the task.
#[derive(Debug)]
pub struct MirrorReconciler {
    client: MirrorClient,
    pods: Pods,
    scope: watch::Receiver<MirrorScope>,
    problems: watch::Sender<MirrorProblems>,
    /// [`MirrorScope::epoch`] of the last pass.
    epoch: u64,
    attempts: HashMap<FullName, Attempt>,
    /// Mirror pods that are no more, or are about to go without any help, though the watch still shows them.
    gone: HashMap<MirrorPodUid, FullName>,
    /// Static pods and mirror pods that were found in step; compared again only when one of the two is another object.
    settled: HashMap<FullName, (Arc<StoredPod>, Arc<StoredPod>)>,
}

/// What was last tried for a pod.
#[derive(Debug)]
struct Attempt {
    /// When it ended.
    at: Instant,
    /// How long nothing more is tried.
    wait: Duration,
    /// How many attempts there were before it with the same outcome.
    streak: u32,
    failed: bool,
    /// The static pod that it was for; `None` for an orphan.
    pod: Option<Arc<StoredPod>>,
}

impl Attempt {
    fn next(&self) -> Instant {
        self.at + self.wait
    }

    /// Whether an attempt that began at `began` goes on with what this one was for.
    fn goes_on(&self, began: Instant) -> bool {
        self.failed || began <= self.at + 2 * self.wait
    }
}

/// How an attempt ended.
enum Outcome {
    /// All is done; the watch will show it.
    Done,
    /// There is more to do, and no reason to wait.
    Half,
}

impl MirrorReconciler {
    /// A loop over `pods`, which looks at them after every word through `scope`, also an unchanged one.
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

    /// What is wrong at any time.
    pub fn problems(&self) -> watch::Receiver<MirrorProblems> {
        self.problems.subscribe()
    }

    /// Keeps the mirror pods until nobody can speak through `scope` any more.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; a later run takes over where this one ended.
    pub async fn run(mut self) {
        loop {
            let scope = self.scope.borrow_and_update().clone();
            let due = self.pass(&scope).await;
            let wait = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Cancel-safe: a change not yet taken in stays to be seen.
                changed = self.scope.changed() => if changed.is_err() { return },
                () = wait => {}
            }
        }
    }

    /// What the mirror pods hang on, as it is for all that is known: without mirror pods that are gone, and without the static pods
    /// whose mirror pod is as it should be.
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
        // Those that the watch shows no more were perhaps in the way.
        for full_name in std::mem::replace(&mut self.gone, gone).into_values() {
            if self
                .attempts
                .get(&full_name)
                .is_some_and(|attempt| attempt.failed)
            {
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
            let in_step = same || is_current(&mirror.metadata, pod);
            if in_step {
                settled.insert(full_name, (Arc::clone(pod), Arc::clone(mirror)));
            }
            !in_step
        });
        self.settled = settled;
        overview
    }

    /// Does what is due; when something will be due without any change.
    async fn pass(&mut self, scope: &MirrorScope) -> Option<Instant> {
        if self.epoch != scope.epoch {
            self.epoch = scope.epoch;
            self.attempts.retain(|_, attempt| !attempt.failed);
            self.gone.clear();
        }
        let began = Instant::now();
        let actions = plan(self.unsettled(), scope);
        let open: BTreeSet<_> = actions.iter().map(MirrorAction::full_name).collect();
        self.attempts.retain(|full_name, attempt| {
            open.contains(full_name) || (!attempt.failed && attempt.goes_on(began))
        });
        let is_due = |action: &MirrorAction| {
            let Some(attempt) = self.attempts.get(&action.full_name()) else {
                return true;
            };
            // What has failed for one manifest says nothing of another.
            let same = attempt.pod.as_ref().map(Arc::as_ptr) == action.pod().map(Arc::as_ptr);
            attempt.next() <= began || (attempt.failed && !same)
        };
        let due: Vec<_> = actions.into_iter().filter(is_due).collect();
        let node = if due.iter().any(|action| action.pod().is_some()) {
            Some(self.client.node().await)
        } else {
            None
        };
        let (client, known) = (&self.client, &self.gone);
        let outcomes: Vec<_> = stream::iter(due)
            .map(|action| {
                let node = node.clone();
                async move {
                    let mut gone = Vec::new();
                    let outcome = perform(client, &action, node, known, &mut gone).await;
                    (action, outcome, gone)
                }
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        let mut problems = self.problems.borrow().clone();
        problems.retain(|full_name, _| open.contains(full_name));
        for (action, outcome, gone) in outcomes {
            let full_name = action.full_name();
            self.gone
                .extend(gone.into_iter().map(|uid| (uid, full_name.clone())));
            let failed = outcome.is_err();
            let before = self.attempts.remove(&full_name);
            let before = before.filter(|before| before.failed == failed && before.goes_on(began));
            let streak = before.map_or(0, |before| before.streak.saturating_add(1));
            let wait = match &outcome {
                Ok(Outcome::Half) => Duration::ZERO,
                Ok(Outcome::Done) => doubled(SETTLE, streak.saturating_sub(PATIENCE)),
                Err(_) => doubled(RETRY, streak),
            };
            match outcome {
                Ok(_) => drop(problems.remove(&full_name)),
                Err(error) => {
                    let text = chain(&error);
                    let before = problems.insert(full_name.clone(), error);
                    if before.is_none_or(|before| chain(&before) != text) {
                        tracing::warn!(pod = %shown(&full_name), error = text, retry_in = ?wait, "mirror pod is not as it should be");
                    } else {
                        tracing::debug!(pod = %shown(&full_name), error = text, retry_in = ?wait, "mirror pod is still not as it should be");
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
        self.problems.send_replace(problems);
        let open = self
            .attempts
            .iter()
            .filter(|(full_name, _)| open.contains(*full_name));
        open.map(|(_, attempt)| attempt.next()).min()
    }
}

/// `first`, doubled so many times.
fn doubled(first: Duration, times: u32) -> Duration {
    let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(LONGEST)
}

/// The pod as people write it.
fn shown(full_name: &FullName) -> ObjectKey {
    ObjectKey::new(full_name.namespace.clone(), full_name.name.clone())
}

fn uid(mirror: &StoredPod) -> MirrorPodUid {
    MirrorPodUid::new(PodUid::of(&mirror.metadata).as_str())
}

/// Does one thing. `known` are the mirror pods that are no more; those that prove to be none either come to `gone`.
async fn perform(
    client: &MirrorClient,
    action: &MirrorAction,
    node: Option<Result<NodeIdentity, MirrorError>>,
    known: &HashMap<MirrorPodUid, FullName>,
    gone: &mut Vec<MirrorPodUid>,
) -> Result<Outcome, MirrorError> {
    let full_name = action.full_name();
    let pod = match action {
        MirrorAction::Delete(mirror) => {
            if client.delete(&full_name, &uid(mirror)).await? {
                tracing::info!(pod = %shown(&full_name), "deleted the mirror pod of a static pod that is gone");
            }
            gone.push(uid(mirror));
            return Ok(Outcome::Done);
        }
        MirrorAction::Replace { pod, mirror } => {
            let deleted = client.delete(&full_name, &uid(mirror)).await?;
            gone.push(uid(mirror));
            // It was gone before, so what else has changed? That is for the next pass.
            if !deleted {
                return Ok(Outcome::Half);
            }
            pod
        }
        MirrorAction::Create(pod) => pod,
    };
    let node = node.expect("the node is read for every action that creates")?;
    // One that the watch has not shown may be there.
    for _ in 0..2 {
        match client.create(pod, &node).await? {
            Created::Now => {
                tracing::info!(pod = %shown(&full_name), "created mirror pod");
                return Ok(Outcome::Done);
            }
            Created::Before => return Ok(Outcome::Done),
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
