//! Everything that wakes the agent.

use futures::future::{BoxFuture, OptionFuture};
use larder::{Changes, ObjectChange};
use larder_hooks::OnChange;
use larder_inputs::{certificates::SourceId, cluster_state::ClusterState};
use larder_objects::{Kind, ObjectKey};
use larder_pods::{ResolvedPodUid, source::SourceReport};
use larder_projection::disk::{DiskError, PodOnDisk};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::node_pods::NodePods;
use crate::{
    checkpoint::StaleNode,
    tasks::{TaskError, Tasks},
};

/// What woke the agent.
pub(super) enum AgentEvent {
    ShutDown,
    /// A task or worker has ended, which none may.
    Failed(TaskError),
    /// A source of pods reports.
    Report(SourceReport),
    /// An object was created, changed or deleted, or cannot be read.
    Object(Kind, ObjectKey),
    /// The Node, the Services, the trust bundles or the hidden objects have changed.
    Cluster,
    /// The certificate of a source was issued or denied.
    Certificate(SourceId),
    /// The wall clock was set, or the machine has slept.
    ClockJump,
    /// The hooks of the configuration have changed.
    HooksReloaded,
    /// The checkpoint has copies for the time without API server.
    Stale(Box<StaleNode>),
    /// Volumes of an earlier agent were looked for.
    Scanned(Result<Vec<PodOnDisk>, DiskError>),
    /// The worker of a pod has ended, because the pod's volumes are gone.
    VolumesGone(ResolvedPodUid),
}

/// Where the events come from, besides the workers and deletions of [`NodePods`].
pub(super) struct AgentEvents {
    pub(super) shutdown: CancellationToken,
    pub(super) tasks: Tasks,
    pub(super) reports: mpsc::Receiver<SourceReport>,
    pub(super) config_maps: Changes,
    pub(super) secrets: Changes,
    pub(super) cluster: watch::Receiver<ClusterState>,
    pub(super) certificates: mpsc::UnboundedReceiver<SourceId>,
    pub(super) clock_jumps: watch::Receiver<()>,
    pub(super) on_change: OnChange,
    pub(super) checkpoint: mpsc::Receiver<StaleNode>,
    /// The look for volumes of an earlier agent, while it is under way.
    pub(super) scan: OptionFuture<Scan>,
}

/// Looks for volumes of an earlier agent.
pub(super) type Scan = BoxFuture<'static, Result<Vec<PodOnDisk>, DiskError>>;

impl AgentEvents {
    /// The next event. Shutdown comes first: tasks may end because of it.
    ///
    /// # Cancel safety
    ///
    /// Every arm is cancel-safe, so dropping the future loses nothing.
    pub(super) async fn next(&mut self, node: &mut NodePods) -> AgentEvent {
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => AgentEvent::ShutDown,
            error = self.tasks.failure() => AgentEvent::Failed(error),
            error = node.deleter.failure() => {
                AgentEvent::Failed(TaskError::new("pod deletion", &Err::<(), _>(error)))
            }
            Some(report) = self.reports.recv() => AgentEvent::Report(report),
            change = self.config_maps.next() => changed(Kind::ConfigMap, change),
            change = self.secrets.next() => changed(Kind::Secret, change),
            Ok(()) = self.cluster.changed() => AgentEvent::Cluster,
            Some(source) = self.certificates.recv() => AgentEvent::Certificate(source),
            Ok(()) = self.clock_jumps.changed() => AgentEvent::ClockJump,
            () = self.on_change.reloaded() => AgentEvent::HooksReloaded,
            Some(stale) = self.checkpoint.recv() => AgentEvent::Stale(Box::new(stale)),
            Some(found) = &mut self.scan => {
                self.scan = OptionFuture::default();
                AgentEvent::Scanned(found)
            }
            ended = node.reconciler.worker_ended() => match ended {
                Ok(uid) => AgentEvent::VolumesGone(uid),
                Err(error) => AgentEvent::Failed(error),
            },
        }
    }
}

/// The change stream of a manager ends only if the manager's own task has ended.
fn changed(kind: Kind, change: Option<ObjectChange>) -> AgentEvent {
    match (change, kind) {
        (Some(change), kind) => AgentEvent::Object(kind, change.key),
        (None, Kind::ConfigMap) => AgentEvent::Failed(TaskError::new("ConfigMap manager", &Ok(()))),
        (None, Kind::Secret) => AgentEvent::Failed(TaskError::new("Secret manager", &Ok(()))),
    }
}
