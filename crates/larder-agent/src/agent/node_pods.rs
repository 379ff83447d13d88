//! The pods of the node: turns the reports of the sources into the life of each pod.

use std::{mem, sync::Arc};

use larder_inputs::cluster_state::ClusterState;
use larder_objects::{ObjectKey, chain};
use larder_pods::deleter::PodDeleter;
use larder_pods::events::{EventSubject, PodReason};
use larder_pods::{
    DuplicatePod, Operation, PodManager, PodMerge, PodMetrics, PodSource, PodUid, PodUpdate,
    ResolvedPodUid, SourcePods, StoredPod,
    identity::{is_mirror_pod, is_static_pod},
    lifecycle::{HeldBecause, LifecycleAction, PodLife, PodLifecycle},
    mirror::MirrorScope,
    source::{SourceEvent, SourceReport},
};
use larder_projection::disk::{DiskError, PodOnDisk};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::{AgentHandle, handle::ApiPodState};
use crate::{
    checkpoint::{ApiContact, StaleNode, contact},
    reconcile::Reconciler,
};

/// The pods of the node, from the reports of the sources to the life of each pod.
pub(super) struct NodePods {
    pub(super) manager: PodManager,
    pub(super) merge: PodMerge,
    pub(super) lifecycle: PodLifecycle,
    pub(super) reconciler: Reconciler,
    pub(super) deleter: PodDeleter,
    pub(super) mirrors: watch::Sender<MirrorScope>,
    pub(super) metrics: PodMetrics,
    pub(super) handle: AgentHandle,
    /// All sources have reported.
    pub(super) ready: bool,
    /// Whether to look once more for volumes of an earlier agent.
    pub(super) rescan: bool,
    pub(super) known: ApiState,
    /// See [`MirrorScope::epoch`].
    pub(super) epoch: u64,
    pub(super) cluster_state: watch::Sender<ClusterState>,
    /// The API server's strongest answer about the pods.
    pub(super) contact: watch::Sender<ApiContact>,
    /// Changes whenever the pods may have changed.
    pub(super) changed: watch::Sender<()>,
}

/// The last known state of the API server.
#[derive(Clone, Copy, Debug)]
pub(super) struct ApiState {
    /// Whether it has the Node.
    pub(super) node: bool,
    /// Whether it may lack objects of an earlier run.
    pub(super) incomplete: bool,
}

impl NodePods {
    pub(super) fn report(&mut self, report: SourceReport) {
        if report.source == PodSource::Api {
            self.note_contact(contact(&report.event));
        }
        match report.event {
            SourceEvent::Pods(pods) => {
                self.merge_pods(report.source, pods);
                self.publish();
            }
            SourceEvent::Problems(problems) => {
                let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
                for problem in &problems {
                    warn!(source = %report.source, problem, "pod source is incomplete, keeping its last known pods");
                }
                let count = problems.len();
                let mut sources = self.handle.sources.lock();
                let before = sources.problems.insert(report.source, problems);
                drop(sources);
                let is_better = before.is_some_and(|before| before.len() > count);
                if is_better && report.source == PodSource::Api {
                    self.begin_epoch();
                }
            }
        }
    }

    /// Records an answer of the API server. Once it has reported pods, or denied them, no copies are served to new
    /// pods.
    fn note_contact(&self, contact: ApiContact) {
        let inputs = &self.handle.node.inputs;
        let is_news = self.contact.send_if_modified(|known| {
            let is_news = contact > *known;
            *known = contact.max(*known);
            is_news
        });
        if is_news && contact >= ApiContact::Denied {
            inputs.config_maps.end_stale();
            inputs.secrets.end_stale();
        }
    }

    fn merge_pods(&mut self, source: PodSource, pods: SourcePods) {
        let now = self.handle.node.now();
        let merged = self.merge.merge(source, pods, now);
        for duplicate in merged.duplicates {
            self.rejected(&duplicate);
        }
        self.take_updates(merged.updates);
    }

    fn take_updates(&mut self, updates: Vec<PodUpdate>) {
        self.handle.sources.lock().rejected =
            (self.merge.waiting().map(|pod| pod.to_string())).collect();
        for update in updates {
            for pod in update.pods {
                self.handle_pod(update.operation, &pod);
            }
        }
    }

    /// Reports a pod that another one keeps from being served.
    fn rejected(&mut self, duplicate: &DuplicatePod) {
        warn!(error = duplicate.to_string(), "pod rejected, not served");
        let metadata = &duplicate.pod.metadata;
        let subject = EventSubject::Pod(PodReason::Rejected);
        let node = &self.handle.node;
        node.post(&duplicate.pod, subject, &duplicate.to_string());
        if metadata.deletion_timestamp.is_some() {
            self.deleter.delete(metadata);
        }
    }

    /// Serves the pods of the checkpoint like pods of the API server, unless the server has answered by now. They are
    /// not a complete set, so nothing is removed before the API server has reported one.
    pub(super) fn serve_stale(&mut self, stale: StaleNode) {
        if *self.contact.borrow() >= ApiContact::Denied {
            return;
        }
        let inputs = &self.handle.node.inputs;
        let since = self.handle.constant.started;
        self.handle.checkpoint.serving(&stale, since);
        *inputs.expired.lock() = stale.expired;
        inputs.config_maps.serve_stale(stale.config_maps);
        inputs.secrets.serve_stale(stale.secrets);
        self.cluster_state.send_if_modified(|state| {
            let before = (state.node.is_some(), state.services.is_some());
            state.node = state.node.take().or(stale.node);
            state.services = state.services.take().or(stale.services);
            before != (state.node.is_some(), state.services.is_some())
        });
        for pod in stale.pods {
            self.merge_pods(PodSource::Api, SourcePods::One(Box::new(pod)));
        }
        self.publish();
    }

    pub(super) fn cluster_changed(&mut self) {
        self.reconciler.cluster_changed();
        let known = {
            let state = self.handle.node.inputs.cluster.borrow();
            ApiState {
                node: state.node.is_some(),
                incomplete: state.incomplete,
            }
        };
        let before = mem::replace(&mut self.known, known);
        if before.incomplete && !known.incomplete {
            info!("every manifest is readable or was removed, resuming removals");
            self.reconciler.any_object_changed();
            self.rescan = true;
        }
        if known.node && !before.node {
            self.begin_epoch();
        }
    }

    /// The API server or the Node has come back: mirror pods are created again.
    fn begin_epoch(&mut self) {
        self.epoch += 1;
        self.publish();
    }

    fn handle_pod(&mut self, operation: Operation, pod: &Arc<StoredPod>) {
        let uid = ResolvedPodUid::of(&pod.metadata);
        // A UID becomes the name of a directory, and the API server is not trusted.
        if !is_directory_name(uid.as_str()) {
            if operation == Operation::Remove {
                self.reconciler.forget(&uid);
            } else {
                self.reconciler.hold(pod, BAD_UID);
            }
            return;
        }
        let before = self.api_state(pod);
        if operation == Operation::Remove {
            self.manager.remove_pod(pod);
        } else {
            self.manager.update_pod(pod.clone());
        }
        let after = self.api_state(pod);
        if before != after {
            let changed = [before, after].into_iter().flatten().map(|(uid, _)| uid);
            changed.for_each(|uid| self.handle.node.reports.statuses.note_change(&uid));
        }
        if operation != Operation::Remove
            && !is_mirror_pod(&pod.metadata)
            && pod.metadata.deletion_timestamp.is_some()
        {
            self.deleter.delete(&pod.metadata);
        }
        let steps = self.lifecycle.handle(operation, pod);
        self.take(steps);
        if is_mirror_pod(&pod.metadata) && operation != Operation::Remove {
            self.mirror_changed(pod);
        }
        match self.lifecycle.life(&uid) {
            None => self.reconciler.forget(&uid),
            Some(PodLife::Held(because)) => self.reconciler.hold(pod, held(because)),
            Some(PodLife::Served | PodLife::Retiring { .. } | PodLife::Finished) => {}
        }
    }

    /// The state at the API server that status shows of `pod`, or of the pod whose mirror it is.
    fn api_state(&self, pod: &StoredPod) -> Option<(ResolvedPodUid, ApiPodState)> {
        let pods = &self.handle.pods;
        let pod = if is_mirror_pod(&pod.metadata) {
            pods.pod_by_mirror_pod(pod)
        } else {
            pods.pod_by_uid(&ResolvedPodUid::of(&pod.metadata))
        }?;
        Some((
            ResolvedPodUid::of(&pod.metadata),
            self.handle.api_state(&pod),
        ))
    }

    fn take(&mut self, steps: Vec<LifecycleAction>) {
        for step in steps {
            match step {
                LifecycleAction::Serve(pod) => {
                    let mirror = self.handle.pods.mirror_pod_by_pod(&pod);
                    let mirror = mirror.filter(|_| is_static_pod(&pod.metadata));
                    let with_addresses = mirror.and_then(|mirror| with_addresses_of(&mirror, &pod));
                    self.reconciler.serve(&with_addresses.unwrap_or(pod));
                }
                LifecycleAction::Retire(pod) => self.reconciler.retire(&pod),
                LifecycleAction::Unregister(uid) => self.reconciler.unregister(&uid),
            }
        }
    }

    /// Serves a static pod with the addresses that were reported for its mirror pod.
    fn mirror_changed(&mut self, mirror: &StoredPod) {
        let Some(pod) = self.handle.pods.pod_by_mirror_pod(mirror) else {
            return;
        };
        let life = self.lifecycle.life(&ResolvedPodUid::of(&pod.metadata));
        if matches!(life, Some(PodLife::Served))
            && let Some(pod) = with_addresses_of(mirror, &pod)
        {
            self.reconciler.serve(&pod);
        }
    }

    pub(super) fn volumes_gone(&mut self, uid: &ResolvedPodUid) {
        let steps = self.lifecycle.volumes_gone(uid);
        self.take(steps);
        if self.lifecycle.life(uid).is_none() {
            self.reconciler.forget(uid);
        }
        let now = self.handle.node.now();
        let admitted = self.merge.volumes_gone(&PodUid::new(uid.as_str()), now);
        self.take_updates(admitted);
        self.publish();
    }

    /// Publishes the state of sources and pods to status, metrics and mirror pods.
    pub(super) fn publish(&self) {
        {
            let mut sources = self.handle.sources.lock();
            sources.ready = self.ready;
            sources.silent = self.merge.silent_sources().collect();
        }
        self.changed.send_replace(());
        self.metrics
            .observe(self.lifecycle.working(), self.lifecycle.restarted());
        self.mirrors.send_replace(MirrorScope {
            all_sources_seen: self.ready,
            terminating: self.lifecycle.terminating_static_pods(),
            epoch: self.epoch,
        });
    }

    /// Whether all sources have reported, for the first time.
    pub(super) fn becomes_ready(&mut self) -> bool {
        if self.ready || !self.merge.all_sources_seen() {
            return false;
        }
        self.ready = true;
        let steps = self.lifecycle.all_sources_seen();
        self.take(steps);
        self.publish();
        true
    }

    /// Whether to look once more for volumes of an earlier agent: the API server is complete again.
    pub(super) fn may_rescan(&mut self) -> bool {
        self.ready && mem::take(&mut self.rescan)
    }

    /// Removes the volumes that an earlier agent left of pods that were removed or have terminated. While the API
    /// server is incomplete, such pods may still exist, and their volumes are kept.
    pub(super) fn sweep(&mut self, on_disk: Result<Vec<PodOnDisk>, DiskError>) {
        // Beside a kubelet the root directory holds no volumes.
        if self.handle.beside.is_some() {
            return;
        }
        let found = on_disk.inspect_err(|error| {
            let error = chain(error);
            error!(
                error,
                "failed to list volumes of an earlier agent, leaving them"
            );
        });
        for pod in found.unwrap_or_default() {
            let uid = ResolvedPodUid::new(pod.uid);
            let life = self.lifecycle.life(&uid);
            if matches!(life, Some(PodLife::Served | PodLife::Retiring { .. })) {
                continue;
            }
            let name = pod.name;
            let name = name.map(|(namespace, name)| ObjectKey::new(namespace, name));
            let shown = name.as_ref().map(tracing::field::display);
            if self.known.incomplete {
                warn!(pod = shown, pod.uid = %uid, "{KEPT}");
                self.reconciler.keep(&uid, name, KEPT);
            } else {
                info!(pod = shown, pod.uid = %uid, "pod was removed while no agent ran, removing its volumes");
                self.reconciler.clean_up(&uid, name);
            }
        }
    }
}

/// `pod` with the addresses of its mirror pod: the API server has no other place for them. `None` if the mirror pod has
/// none, or if the manifest of `pod` states one.
fn with_addresses_of(mirror: &StoredPod, pod: &StoredPod) -> Option<Arc<StoredPod>> {
    let reported = mirror.decode().status?;
    let mut pod = pod.decode();
    let status = pod.status.get_or_insert_default();
    if status.pod_ip.is_some() || reported.pod_ip.is_none() {
        return None;
    }
    status.host_ip = reported.host_ip;
    status.host_ips = reported.host_ips;
    status.pod_ip = reported.pod_ip;
    status.pod_ips = reported.pod_ips;
    StoredPod::new(pod).ok().map(Arc::new)
}

/// Why a pod of which only the volumes are known is kept, for the status.
const KEPT: &str =
    "no manifest has this pod, but not all can be read: its volumes stay as they are";

/// Why a pod whose UID is no directory name is not served, for the status.
const BAD_UID: &str = "its UID cannot be the name of a directory";

/// Longest UID: Kubernetes' own have 36 bytes, and those of static pods 32.
const MAX_UID: usize = 128;

/// Whether `uid` is the name of exactly one directory.
fn is_directory_name(uid: &str) -> bool {
    let fits = !uid.is_empty() && uid.len() <= MAX_UID;
    fits && uid != "." && uid != ".." && !uid.contains(|c: char| c == '/' || c.is_control())
}

/// Why a pod is not served, for the status.
fn held(because: &HeldBecause) -> &'static str {
    match because {
        HeldBecause::NetworkNotReady => "the network of the node is not ready",
        HeldBecause::NameInUse => "another static pod has its name",
        HeldBecause::EndedUnstarted => "it was deleted before it could start",
    }
}
