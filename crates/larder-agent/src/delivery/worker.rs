//! The worker of a pod, as the reconciler sees it.

use std::{path::Path, sync::Arc};

use fastrand::Rng;
use futures::future::BoxFuture;
use larder_pods::StoredPod;
use tokio_util::sync::CancellationToken;

use super::{inbox::Inbox, pod_statuses::PodStatusEntry};

/// Makes the workers of pods. The modes of the agent differ in it, and nowhere else in the reconciler.
pub(crate) trait WorkerFactory: Send + Sync {
    /// The directory below which `pods/UID` is the directory of a pod.
    fn volumes(&self) -> &Path;

    /// Why nothing of the pod is read; `None` if it is served.
    fn excludes(&self, pod: &StoredPod) -> Option<&'static str>;

    /// A worker, which works until its pod has ended and it has left the inbox, or until `shutdown`.
    fn worker(
        self: Arc<Self>,
        seat: WorkerSeat,
        shutdown: CancellationToken,
    ) -> BoxFuture<'static, ()>;
}

/// What connects a worker with the reconciler.
pub(crate) struct WorkerSeat {
    pub(crate) inbox: Arc<Inbox>,
    /// Where it publishes.
    pub(crate) entry: Arc<PodStatusEntry>,
    pub(crate) rng: Rng,
}
