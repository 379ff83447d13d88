//! The pods of the node: turns the reports of the sources into the life of each pod.

use std::{mem, sync::Arc};

use larder_inputs::cluster_state::ClusterState;
use larder_objects::{Kind, ObjectKey, chain, manifest::HiddenObjects};
use larder_pods::deleter::PodDeleter;
use larder_pods::events::{EventSubject, PodReason};
use larder_pods::{
    DuplicatePod, PodAction, PodLoop, PodMetrics, PodSource, ResolvedPodUid, SourcePods,
    lifecycle::{HeldBecause, PodLife},
    source::{ApiSourceError, HttpSourceError, SourceEvent, SourceProblem, SourceReport},
};
use larder_projection::disk::{DiskError, PodOnDisk};
use tokio::sync::{Notify, watch};
use tracing::{error, info, warn};

use super::AgentHandle;
use crate::{
    checkpoint::{ApiContact, StaleNode, contact},
    freshness::Now,
    reconcile::Reconciler,
    status::ProblemKind,
};

/// The pods of the node, from the reports of the sources to the life of each pod.
pub(super) struct NodePods {
    pub(super) pods: PodLoop,
    pub(super) reconciler: Reconciler,
    pub(super) deleter: PodDeleter,
    pub(super) metrics: PodMetrics,
    pub(super) handle: AgentHandle,
    /// Notified when an object may have become stale, or fresh again.
    pub(super) freshness: Arc<Notify>,
    /// Whether to look for volumes of an earlier agent as soon as all sources have reported.
    pub(super) scan_due: bool,
    /// Whether the API server has the Node, as far as is known.
    pub(super) has_node: bool,
    /// The objects that the API server may lack although an earlier run had them.
    pub(super) hidden: Arc<HiddenObjects>,
    pub(super) cluster_state: watch::Sender<ClusterState>,
    /// The API server's strongest answer about the pods.
    pub(super) contact: watch::Sender<ApiContact>,
    /// Changes whenever the pods may have changed.
    pub(super) changed: watch::Sender<()>,
}

impl NodePods {
    pub(super) fn report(&mut self, report: SourceReport) {
        if report.source == PodSource::Api {
            self.note_contact(contact(&report.event));
        }
        let actions = self.pods.report(report, self.handle.node.now());
        self.take(actions);
        self.publish();
    }

    /// Reports what keeps a source from seeing all its pods.
    fn has_problems(&self, source: PodSource, problems: &[SourceProblem]) {
        for problem in problems {
            let problem = problem.to_string();
            warn!(%source, problem, "pod source is incomplete, keeping its last known pods");
        }
        let inputs = &self.handle.node.inputs;
        let now = Now::of(&inputs.clock);
        inputs
            .kept_pods
            .lock()
            .replace(source, problems, |then| now.wall_at(then));
        let problems = problems
            .iter()
            .map(|problem| (kind_of(problem), problem.to_string()))
            .collect();
        self.handle.sources.lock().problems.insert(source, problems);
        self.freshness.notify_one();
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

    /// Reports a pod that another one keeps from being served.
    fn rejected(&self, duplicate: &DuplicatePod) {
        warn!(error = duplicate.to_string(), "pod rejected, not served");
        let subject = EventSubject::Pod(PodReason::Rejected);
        self.handle
            .node
            .post(&duplicate.pod, subject, &duplicate.to_string());
    }

    /// Serves the pods of the checkpoint like pods of the API server, unless the server has answered by now. They are
    /// not a complete set, so nothing is removed before the API server has reported one.
    pub(super) fn serve_stale(&mut self, stale: StaleNode) {
        if *self.contact.borrow() >= ApiContact::Denied {
            return;
        }
        let inputs = &self.handle.node.inputs;
        let since = self.handle.constant.started;
        let as_of = stale.as_of;
        self.handle.checkpoint.serving(&stale, since);
        *inputs.max_ages.lock() = stale.max_ages;
        inputs.config_maps.serve_stale(stale.config_maps);
        inputs.secrets.serve_stale(stale.secrets);
        self.cluster_state.send_if_modified(|state| {
            let before = (state.node.is_some(), state.services.is_some());
            state.node = state.node.take().or(stale.node);
            state.services = state.services.take().or(stale.services);
            state.copied_as_of = Some(as_of);
            before != (state.node.is_some(), state.services.is_some())
        });
        for pod in stale.pods {
            let event = SourceEvent::Pods(SourcePods::One(Box::new(pod)));
            let source = PodSource::Api;
            let report = SourceReport { source, event };
            let actions = self.pods.report(report, self.handle.node.now());
            self.take(actions);
        }
        self.publish();
    }

    /// An object was created, changed or deleted, or cannot be read.
    pub(super) fn object_changed(&self, kind: Kind, key: &ObjectKey) {
        self.reconciler.object_changed(kind, key);
        self.freshness.notify_one();
    }

    pub(super) fn cluster_changed(&mut self) {
        self.reconciler.cluster_changed();
        self.freshness.notify_one();
        let (has_node, hidden) = {
            let state = self.handle.node.inputs.cluster.borrow();
            (state.node.is_some(), Arc::clone(&state.hidden))
        };
        if self.hidden != hidden {
            if hidden.is_empty() {
                info!("every manifest is readable or was removed, resuming removals");
            }
            self.hidden = hidden;
            self.reconciler.any_object_changed();
            self.scan_due = true;
        }
        if !mem::replace(&mut self.has_node, has_node) && has_node {
            self.pods.begin_epoch();
        }
    }

    /// Carries out the actions for pods.
    fn take(&mut self, actions: Vec<PodAction>) {
        for action in actions {
            match action {
                PodAction::Serve(pod) => self.reconciler.serve(&pod),
                PodAction::Retire(pod) => self.reconciler.retire(&pod),
                PodAction::Unregister(uid) => self.reconciler.unregister(&uid),
                PodAction::Hold(pod, because) => self.reconciler.hold(&pod, held(&because)),
                PodAction::Forget(uid) => self.reconciler.forget(&uid),
                PodAction::Delete(pod) => self.deleter.delete(&pod.metadata),
                PodAction::Reject(duplicate) => self.rejected(&duplicate),
                PodAction::ApiStateChanged(uid) => {
                    self.handle.node.statuses.note_change(&uid);
                }
                PodAction::Problems(source, problems) => self.has_problems(source, &problems),
            }
        }
    }

    pub(super) fn volumes_gone(&mut self, uid: &ResolvedPodUid) {
        let actions = self.pods.volumes_gone(uid, self.handle.node.now());
        self.take(actions);
        self.publish();
    }

    /// Publishes the state of sources and pods to status and metrics.
    pub(super) fn publish(&self) {
        let merge = self.pods.sources();
        {
            let mut sources = self.handle.sources.lock();
            sources.silent = merge.silent_sources().collect();
            sources.rejected = merge.waiting().map(|pod| pod.to_string()).collect();
        }
        self.changed.send_replace(());
        let lifecycle = self.pods.lifecycle();
        self.metrics
            .observe(lifecycle.working(), lifecycle.restarted());
    }

    /// Whether to look for volumes of an earlier agent now: all sources have reported for the first time, or fewer
    /// objects are hidden.
    pub(super) fn may_scan(&mut self) -> bool {
        if !self.handle.sources.lock().ready {
            if !self.pods.sources().all_sources_seen() {
                return false;
            }
            self.handle.sources.lock().ready = true;
            self.publish();
        }
        mem::take(&mut self.scan_due)
    }

    /// Removes the volumes that an earlier agent left of pods that were removed or have terminated. A pod that a rejected
    /// manifest may hold may still exist, and its volumes are kept.
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
            let life = self.pods.lifecycle().life(&uid);
            if matches!(life, Some(PodLife::Served | PodLife::Retiring { .. })) {
                continue;
            }
            let name = pod
                .name
                .map(|(namespace, name)| ObjectKey::new(namespace, name));
            let shown = name.as_ref().map(tracing::field::display);
            let may_exist = match &name {
                Some(name) => self.hidden.may_hold("Pod", name),
                None => self.hidden.may_hold_any("Pod"),
            };
            if may_exist {
                warn!(pod = shown, pod.uid = %uid, "{KEPT}");
                self.reconciler.keep(&uid, name, KEPT);
            } else {
                info!(pod = shown, pod.uid = %uid, "pod was removed while no agent ran, removing its volumes");
                self.reconciler.clean_up(&uid, name);
            }
        }
    }
}

/// A server that does not answer keeps nothing back that is known.
fn kind_of(problem: &SourceProblem) -> ProblemKind {
    let is_silent = match problem.error.downcast_ref() {
        Some(ApiSourceError::Follow { .. }) => true,
        Some(_) => false,
        None => {
            let of_url = problem.error.downcast_ref();
            of_url.is_some_and(HttpSourceError::is_without_answer)
        }
    };
    if is_silent {
        ProblemKind::Stale
    } else {
        ProblemKind::Undone
    }
}

/// Why a pod of which only the volumes are known is kept, for the status.
const KEPT: &str =
    "no manifest has this pod, but not all can be read: its volumes stay as they are";

/// Why a pod is not served, for the status.
fn held(because: &HeldBecause) -> &'static str {
    match because {
        HeldBecause::NetworkNotReady => "the network of the node is not ready",
        HeldBecause::NameInUse => "another static pod has its name",
        HeldBecause::EndedUnstarted => "it was deleted before it could start",
        HeldBecause::InvalidUid => "its UID cannot be the name of a directory",
    }
}
