//! The pods of a node, from the reports of the sources to the actions of the caller.
//!
//! [`PodLoop`] joins [`PodMerge`], [`PodManager`], [`PodLifecycle`] and [`MirrorScope`]. It owns no task and waits for
//! nothing; `examples/static_pods.rs` shows it with its sources.
//!
//! Invariants:
//! 1. The pod manager has a pod, or has it no more, before an action names it.
//! 2. The scope of the mirror pods follows the lifecycle in every call, and has a static pod that terminates before the
//!    pod manager loses it. Its mirror pod would otherwise be deleted while it terminates, or stay after that.
//! 3. A UID that cannot name a directory reaches neither the pod manager nor the lifecycle: the API server is not
//!    trusted.

use std::{collections::BTreeSet, mem, sync::Arc};

use jiff::Timestamp;
use tokio::sync::watch;

use super::{
    identity::{MirrorPodUid, PodSource, PodUid, ResolvedPodUid, is_mirror_pod, is_static_pod},
    lifecycle::{HeldBecause, LifecycleAction, PodLife, PodLifecycle},
    manager::{PodManager, Pods},
    merge::{DuplicatePod, Operation, PodMerge, PodUpdate},
    mirror::{MirrorClient, MirrorReconciler, MirrorScope},
    source::{SourceEvent, SourceProblem, SourceReport},
    stored::StoredPod,
};

/// An action for the caller. Several are performed in the order given.
#[derive(Clone, Debug)]
pub enum PodAction {
    /// Register the pod with the managers, even if it is registered already, and bring its volumes up to date. A static
    /// pod has the addresses that its mirror pod reports.
    Serve(Arc<StoredPod>),
    /// Tear down the pod's volumes, then call [`PodLoop::volumes_gone`]. The pod stays registered meanwhile.
    Retire(Arc<StoredPod>),
    /// Unregister the pod from the managers.
    Unregister(ResolvedPodUid),
    /// Nothing of the pod is delivered, for this reason. Another action follows when the reason is gone.
    Hold(Arc<StoredPod>, HeldBecause),
    /// The pod is gone from its source, and nothing of it is left.
    Forget(ResolvedPodUid),
    /// The pod's deletion was requested. A node that no kubelet serves completes it once its containers have ended; see
    /// [`PodDeleter`](crate::deleter::PodDeleter).
    Delete(Arc<StoredPod>),
    /// Another pod keeps this one from being served.
    Reject(DuplicatePod),
    /// The pod's mirror pod or the deadline of its deletion has changed; for the status.
    ApiStateChanged(ResolvedPodUid),
    /// All current problems of the source, whose last known pods stay.
    Problems(PodSource, Vec<SourceProblem>),
}

/// The pods of one node: their merge, manager, lifecycle and mirror scope, kept in step.
#[derive(Debug)]
pub struct PodLoop {
    merge: PodMerge,
    manager: PodManager,
    lifecycle: PodLifecycle,
    mirrors: watch::Sender<MirrorScope>,
    /// See [`MirrorScope::epoch`].
    epoch: u64,
    /// The problems of the API server, as they are shown.
    api_problems: BTreeSet<String>,
}

impl PodLoop {
    /// No pods yet, and a network that is ready. `merge` has the sources to wait for.
    pub fn new(merge: PodMerge, manager: PodManager) -> Self {
        Self {
            merge,
            manager,
            lifecycle: PodLifecycle::new(true),
            mirrors: watch::Sender::default(),
            epoch: 0,
            api_problems: BTreeSet::new(),
        }
    }

    /// The pods, for readers.
    pub fn pods(&self) -> Pods {
        self.manager.reader()
    }

    /// The state of the sources.
    pub fn sources(&self) -> &PodMerge {
        &self.merge
    }

    /// The states of the pods.
    pub fn lifecycle(&self) -> &PodLifecycle {
        &self.lifecycle
    }

    /// The task that maintains the mirror pods until this loop is dropped.
    pub fn mirror_pods(&self, client: MirrorClient) -> MirrorReconciler {
        MirrorReconciler::new(client, self.pods(), self.mirrors.subscribe())
    }

    /// Handles a report of a source. `now` becomes the time when a new pod was first seen.
    pub fn report(&mut self, report: SourceReport, now: Timestamp) -> Vec<PodAction> {
        let mut actions = Vec::new();
        match report.event {
            SourceEvent::Pods(pods) => {
                let merged = self.merge.merge(report.source, pods, now);
                for duplicate in merged.duplicates {
                    let pod = Arc::clone(&duplicate.pod);
                    actions.push(PodAction::Reject(duplicate));
                    if pod.metadata.deletion_timestamp.is_some() {
                        actions.push(PodAction::Delete(pod));
                    }
                }
                self.take_updates(merged.updates, &mut actions);
                if self.merge.all_sources_seen() {
                    let steps = self.lifecycle.all_sources_seen();
                    self.take_steps(steps, &mut actions);
                }
                self.publish();
            }
            SourceEvent::Problems(problems) => {
                if report.source == PodSource::Api {
                    let present = problems.iter().map(ToString::to_string).collect();
                    let before = mem::replace(&mut self.api_problems, present);
                    if !before.is_subset(&self.api_problems) {
                        self.begin_epoch();
                    }
                }
                actions.push(PodAction::Problems(report.source, problems));
            }
        }
        actions
    }

    /// The volumes of the pod with `uid` are gone, after [`PodAction::Retire`] or those of an earlier run.
    pub fn volumes_gone(&mut self, uid: &ResolvedPodUid, now: Timestamp) -> Vec<PodAction> {
        let mut actions = Vec::new();
        let steps = self.lifecycle.volumes_gone(uid);
        self.take_steps(steps, &mut actions);
        if self.lifecycle.life(uid).is_none() {
            actions.push(PodAction::Forget(uid.clone()));
        }
        let admitted = self.merge.volumes_gone(&PodUid::new(uid.as_str()), now);
        self.take_updates(admitted, &mut actions);
        self.publish();
        actions
    }

    /// The network of the node became ready or not. Served pods stay served.
    pub fn network_ready(&mut self, ready: bool) -> Vec<PodAction> {
        let mut actions = Vec::new();
        let steps = self.lifecycle.network_ready(ready);
        self.take_steps(steps, &mut actions);
        actions
    }

    /// The API server or the Node has come back: mirror pods are created again. A solved problem of the API server
    /// has the same effect.
    pub fn begin_epoch(&mut self) {
        self.epoch += 1;
        self.publish();
    }

    fn publish(&self) {
        self.mirrors.send_replace(MirrorScope {
            all_sources_seen: self.merge.all_sources_seen(),
            terminating: self.lifecycle.terminating_static_pods(),
            epoch: self.epoch,
        });
    }

    fn take_updates(&mut self, updates: Vec<PodUpdate>, actions: &mut Vec<PodAction>) {
        for update in updates {
            for pod in &update.pods {
                self.take_pod(update.operation, pod, actions);
            }
        }
    }

    fn take_pod(
        &mut self,
        operation: Operation,
        pod: &Arc<StoredPod>,
        actions: &mut Vec<PodAction>,
    ) {
        let uid = ResolvedPodUid::of(&pod.metadata);
        let is_gone = operation == Operation::Remove;
        if !is_directory_name(uid.as_str()) {
            let held = || PodAction::Hold(Arc::clone(pod), HeldBecause::InvalidUid);
            actions.push(if is_gone {
                PodAction::Forget(uid)
            } else {
                held()
            });
            return;
        }
        let before = self.api_state(pod);
        let mirror_before = self.mirror_of_same_name(pod);
        // Invariant 2.
        let steps = if is_gone {
            let steps = self.lifecycle.handle(operation, pod);
            self.manager.remove_pod(pod);
            steps
        } else {
            self.manager.add_pod(Arc::clone(pod));
            self.lifecycle.handle(operation, pod)
        };
        let after = self.api_state(pod);
        if before != after {
            let changed = [before, after].into_iter().flatten();
            actions.extend(changed.map(|(uid, ..)| PodAction::ApiStateChanged(uid)));
        }
        if is_mirror_pod(&pod.metadata) {
            if !is_gone {
                actions.extend(self.mirror_changed(mirror_before.as_deref(), pod));
            }
            return;
        }
        if !is_gone && pod.metadata.deletion_timestamp.is_some() {
            actions.push(PodAction::Delete(Arc::clone(pod)));
        }
        self.take_steps(steps, actions);
        match self.lifecycle.life(&uid) {
            None => actions.push(PodAction::Forget(uid)),
            Some(PodLife::Held(because)) => {
                actions.push(PodAction::Hold(Arc::clone(pod), because.clone()));
            }
            Some(PodLife::Served | PodLife::Retiring { .. } | PodLife::Finished) => {}
        }
    }

    fn take_steps(&self, steps: Vec<LifecycleAction>, actions: &mut Vec<PodAction>) {
        actions.extend(steps.into_iter().map(|step| match step {
            LifecycleAction::Serve(pod) => {
                let is_static = is_static_pod(&pod.metadata);
                let with_addresses = is_static
                    .then(|| self.manager.mirror_pod_by_pod(&pod))
                    .flatten()
                    .and_then(|mirror| with_addresses_of(&mirror, &pod));
                PodAction::Serve(with_addresses.unwrap_or(pod))
            }
            LifecycleAction::Retire(pod) => PodAction::Retire(pod),
            LifecycleAction::Unregister(uid) => PodAction::Unregister(uid),
        }));
    }

    /// The mirror pod that `mirror` is a version of, as it is known before.
    fn mirror_of_same_name(&self, mirror: &StoredPod) -> Option<Arc<StoredPod>> {
        let is_mirror = is_mirror_pod(&mirror.metadata);
        let pod = is_mirror
            .then(|| self.manager.pod_by_mirror_pod(mirror))
            .flatten()?;
        self.manager.mirror_pod_by_pod(&pod)
    }

    /// Serves a static pod with the addresses that were reported for its mirror pod, if they are news.
    fn mirror_changed(&self, before: Option<&StoredPod>, mirror: &StoredPod) -> Option<PodAction> {
        let pod = self.manager.pod_by_mirror_pod(mirror)?;
        let life = self.lifecycle.life(&ResolvedPodUid::of(&pod.metadata));
        let is_served = matches!(life, Some(PodLife::Served));
        if !is_served || before.is_some_and(|before| before.addresses() == mirror.addresses()) {
            return None;
        }
        with_addresses_of(mirror, &pod).map(PodAction::Serve)
    }

    /// The state at the API server of `pod`, or of the pod whose mirror it is: its deadline, and the UID of its mirror.
    fn api_state(
        &self,
        pod: &StoredPod,
    ) -> Option<(ResolvedPodUid, Option<Timestamp>, Option<MirrorPodUid>)> {
        let pod = if is_mirror_pod(&pod.metadata) {
            self.manager.pod_by_mirror_pod(pod)
        } else {
            let uid = ResolvedPodUid::of(&pod.metadata);
            self.manager.pod_by_uid(&uid)
        }?;
        let deadline = pod.metadata.deletion_timestamp.as_ref();
        let is_static = is_static_pod(&pod.metadata);
        let mirror = is_static
            .then(|| self.manager.mirror_pod_by_pod(&pod))
            .flatten()
            .map(|mirror| PodUid::of(&mirror.metadata));
        Some((
            ResolvedPodUid::of(&pod.metadata),
            deadline.map(|time| time.0),
            mirror.map(|uid| MirrorPodUid::new(uid.as_str())),
        ))
    }
}

/// `pod` with the addresses of its mirror pod: the API server has no other place for them. `None` if the mirror pod has
/// none, or if the manifest of `pod` states one.
fn with_addresses_of(mirror: &StoredPod, pod: &StoredPod) -> Option<Arc<StoredPod>> {
    let reported = mirror.addresses();
    reported.pod_ip.as_ref()?;
    let mut pod = pod.decode();
    let status = pod.status.get_or_insert_default();
    if status.pod_ip.is_some() {
        return None;
    }
    status.host_ip = reported.host_ip;
    status.host_ips = reported.host_ips;
    status.pod_ip = reported.pod_ip;
    status.pod_ips = reported.pod_ips;
    StoredPod::new(pod).ok().map(Arc::new)
}

/// Longest UID: Kubernetes' own have 36 bytes, and those of static pods 32.
const MAX_UID: usize = 128;

/// Whether `uid` is the name of exactly one directory.
fn is_directory_name(uid: &str) -> bool {
    let fits = !uid.is_empty() && uid.len() <= MAX_UID;
    fits && uid != "." && uid != ".." && !uid.contains(|c: char| c == '/' || c.is_control())
}

#[cfg(test)]
mod tests;
