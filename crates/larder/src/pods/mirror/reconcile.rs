//! The loop that keeps the mirror pods in step with the static pods.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::client::{MirrorClient, MirrorError, NodeIdentity, is_current};
use crate::pods::{
    identity::{FullName, MirrorPodUid, PodUid},
    manager::{MirrorOverview, Pods},
};

/// First and longest delay after a failure; each is twice the last.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// How long the watch of the pods gets to show what was done before it is done again. Doing it again is harmless.
const SETTLE: Duration = Duration::from_millis(500);

/// Requests under way at the same time.
const CONCURRENCY: usize = 8;

/// What the mirror pods depend on beside the pods themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorScope {
    /// Every source has named all its pods. Before that a mirror pod without static pod may only seem to be one.
    pub all_sources_seen: bool,
    /// Static pods that have gone from their source but still end. Their mirror pods stay until they have ended.
    pub ending: BTreeSet<FullName>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum MirrorAction {
    /// The static pod has no mirror pod.
    Create(Arc<Pod>),
    /// The static pod's mirror pod is being deleted, or made from another manifest.
    Replace {
        /// The static pod.
        pod: Arc<Pod>,
        /// Its mirror pod.
        mirror: Arc<Pod>,
    },
    /// The mirror pod's static pod is gone.
    Delete(Arc<Pod>),
}

impl MirrorAction {
    fn full_name(&self) -> FullName {
        match self {
            Self::Create(pod) | Self::Replace { pod, .. } | Self::Delete(pod) => FullName::of(pod),
        }
    }

    fn creates(&self) -> bool {
        !matches!(self, Self::Delete(_))
    }
}

/// All that there is to do.
pub fn plan(overview: MirrorOverview, scope: &MirrorScope) -> Vec<MirrorAction> {
    let of_static = |(pod, mirror): (Arc<Pod>, Option<Arc<Pod>>)| match mirror {
        None => Some(MirrorAction::Create(pod)),
        Some(mirror) if !is_current(&mirror, &pod) => Some(MirrorAction::Replace { pod, mirror }),
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
    attempts: HashMap<FullName, Attempt>,
    /// Static pods and mirror pods that were found in step; compared again only when one of the two is another object.
    settled: HashMap<FullName, (Arc<Pod>, Arc<Pod>)>,
}

/// What was last tried for a pod.
#[derive(Debug)]
struct Attempt {
    /// Not again before this.
    not_before: Instant,
    /// The delay after the next failure; none after a success.
    next_delay: Duration,
}

impl MirrorReconciler {
    /// A loop over `pods`, which looks at them after every word through `scope`, also an unchanged one.
    pub fn new(client: MirrorClient, pods: Pods, scope: watch::Receiver<MirrorScope>) -> Self {
        Self {
            client,
            pods,
            scope,
            problems: watch::Sender::default(),
            attempts: HashMap::new(),
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

    /// What the mirror pods hang on, without the static pods whose mirror pod is as it should be.
    fn unsettled(&mut self) -> MirrorOverview {
        let mut overview = self.pods.mirror_overview();
        let mut settled = HashMap::with_capacity(self.settled.len());
        overview.static_pods.retain(|(pod, mirror)| {
            let Some(mirror) = mirror else { return true };
            let full_name = FullName::of(pod);
            let known = self.settled.get(&full_name);
            let same = known.is_some_and(|(known_pod, known_mirror)| {
                Arc::ptr_eq(known_pod, pod) && Arc::ptr_eq(known_mirror, mirror)
            });
            let in_step = same || is_current(mirror, pod);
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
        let actions = plan(self.unsettled(), scope);
        let open: BTreeSet<_> = actions.iter().map(MirrorAction::full_name).collect();
        self.attempts
            .retain(|full_name, _| open.contains(full_name));
        let now = Instant::now();
        let is_due = |action: &MirrorAction| {
            let attempt = self.attempts.get(&action.full_name());
            attempt.is_none_or(|attempt| attempt.not_before <= now)
        };
        let due: Vec<_> = actions.into_iter().filter(is_due).collect();
        let node = if due.iter().any(MirrorAction::creates) {
            Some(self.client.node().await)
        } else {
            None
        };
        let client = &self.client;
        let outcomes: Vec<_> = stream::iter(due)
            .map(|action| {
                let node = node.clone();
                async move {
                    let outcome = perform(client, &action, node).await;
                    (action, outcome)
                }
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        let now = Instant::now();
        let mut problems = self.problems.borrow().clone();
        problems.retain(|full_name, _| open.contains(full_name));
        for (action, outcome) in outcomes {
            let full_name = action.full_name();
            let failures = self.attempts.remove(&full_name);
            let attempt = match outcome {
                Ok(()) => {
                    problems.remove(&full_name);
                    Attempt {
                        not_before: now + SETTLE,
                        next_delay: RETRY.0,
                    }
                }
                Err(error) => {
                    let delay = failures.map_or(RETRY.0, |attempt| attempt.next_delay);
                    tracing::warn!(pod = %full_name, %error, retry_in = ?delay, "mirror pod is not as it should be");
                    problems.insert(full_name.clone(), error);
                    Attempt {
                        not_before: now + delay,
                        next_delay: (delay * 2).min(RETRY.1),
                    }
                }
            };
            self.attempts.insert(full_name, attempt);
        }
        self.problems.send_replace(problems);
        self.attempts
            .values()
            .map(|attempt| attempt.not_before)
            .min()
    }
}

async fn perform(
    client: &MirrorClient,
    action: &MirrorAction,
    node: Option<Result<NodeIdentity, MirrorError>>,
) -> Result<(), MirrorError> {
    let uid = |mirror: &Pod| MirrorPodUid::new(PodUid::of(mirror).as_str());
    let full_name = action.full_name();
    match action {
        MirrorAction::Delete(mirror) => {
            if client.delete(&full_name, &uid(mirror)).await? {
                tracing::info!(pod = %full_name, "deleted the mirror pod of a static pod that is gone");
            }
            return Ok(());
        }
        MirrorAction::Replace { mirror, .. } => {
            // Gone already, or another one is there: what is there now will be seen, and then decided upon.
            if !client.delete(&full_name, &uid(mirror)).await? {
                return Ok(());
            }
        }
        MirrorAction::Create(_) => {}
    }
    let (MirrorAction::Create(pod) | MirrorAction::Replace { pod, .. } | MirrorAction::Delete(pod)) =
        action;
    let node = node.expect("the node is read for every action that creates")?;
    client.create(pod, &node).await?;
    tracing::info!(pod = %full_name, "created mirror pod");
    Ok(())
}

#[cfg(test)]
mod tests;
