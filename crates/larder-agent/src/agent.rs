//! The agent as a whole: the sources that feed the reconciler, and the handle that shows its state.
//!
//! Building and running are two steps: [`AgentBuilder::build`] does what can fail; [`Agent::run`] owns every task and
//! ends them all.

mod build;
mod events;
mod handle;
mod node_pods;
mod root_place;
mod start;

use std::{collections::HashSet, mem, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::OptionFuture};
use larder::NodeTtl;
use larder_hooks::OnChange;
use larder_inputs::{
    certificates::{self, SourceId},
    cluster_state::ClusterState,
};
use larder_pods::deleter::PodDeleter;
use larder_pods::{
    PodLoop, PodManager, PodMerge, PodMetrics, PodUid,
    source::{ApiSource, HttpSource},
};
use larder_projection::disk::{DiskError, PodOnDisk, VolumeHost};
use larder_transport::blocking::blocking;
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::{
    build::Given,
    events::{AgentEvent, AgentEvents, Scan},
    node_pods::NodePods,
    start::{finish_checkpoint, start_checkpoint, warn_of_exposed_secrets},
};
pub use self::{
    build::{AgentBuilder, BuildError, PodDeletion},
    handle::{AgentHandle, Health},
};
use crate::{
    checkpoint::ClusterId,
    config::CheckpointConfig,
    reconcile::Reconciler,
    tasks::{TaskError, Tasks},
};

/// Reports of sources in the queue. A faster source waits.
const REPORTS: usize = 16;
/// Longest wait for rounds of hooks and passes under way at the end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// An agent that is ready to run.
#[expect(missing_debug_implementations, reason = "it holds a client")]
pub struct Agent {
    given: Given,
    /// Shared by all managers and collections.
    http: Option<HttpSource>,
    cluster_state: watch::Sender<ClusterState>,
    /// For the strategy `Cache`.
    node_ttl: NodeTtl,
    manager: PodManager,
    pod_metrics: PodMetrics,
    handle: AgentHandle,
    issuer: certificates::Issuer,
    certificates: mpsc::UnboundedReceiver<SourceId>,
    checkpoint: Option<(CheckpointConfig, ClusterId)>,
}

impl Agent {
    /// A handle that shows the agent's state.
    pub fn handle(&self) -> AgentHandle {
        self.handle.clone()
    }

    /// Serves until `shutdown`. Then every pass under way is finished, for at most 10 s, and the volumes stay as they are.
    ///
    /// A disk or a name server that hangs keeps a blocking thread of the runtime. Dropping the runtime would wait for
    /// it, `Runtime::shutdown_timeout` does not.
    ///
    /// # Errors
    ///
    /// A background task ended unexpectedly. The agent then stops as after `shutdown`, and the process should exit: a
    /// new one resumes from the volumes on disk.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), TaskError> {
        // Workers end with this one, which a failure cancels as well.
        let shutdown = shutdown.child_token();
        warn_of_exposed_secrets(&self.handle.node.host);
        let earlier = self.tidy().await;
        let (reports, inbox) = mpsc::channel(REPORTS);
        let mut tasks = Tasks::default();
        let wants_trust_bundles = watch::Sender::new(false);
        let wanted = wants_trust_bundles.subscribe();
        let expected = self.start_sources(reports, wanted, &mut tasks);
        let merge = PodMerge::new(expected).keeping(earlier);
        let pods = PodLoop::new(merge, mem::take(&mut self.manager));
        self.start_mirrors(&pods, &mut tasks);

        let handle = self.handle.clone();
        let inputs = Arc::clone(&handle.node.inputs);
        self.start_node(&shutdown, &mut tasks);
        let late_pods = self.follow_manifests(&mut tasks);
        tasks.spawn("pod certificates", self.issuer.run());
        let (contact, changed) = (watch::Sender::default(), watch::Sender::default());
        let checkpoint = start_checkpoint(
            self.checkpoint,
            &self.given,
            &self.handle,
            contact.subscribe(),
            changed.subscribe(),
            &mut tasks,
            &shutdown,
        );
        let cluster = inputs.cluster.clone();
        let hidden = Arc::clone(&cluster.borrow().hidden);
        let mut node = NodePods {
            pods,
            reconciler: handle.reconciler(wants_trust_bundles, self.given.rng, shutdown.clone()),
            deleter: PodDeleter::new(
                (self.given.pod_deletion == PodDeletion::ByAgent).then_some(self.given.client),
            ),
            metrics: self.pod_metrics,
            freshness: handle.follow_freshness(&mut tasks),
            handle: self.handle,
            scan_due: true,
            has_node: false,
            hidden,
            cluster_state: self.cluster_state,
            contact,
            changed,
        };
        node.publish();
        let mut events = AgentEvents {
            shutdown,
            tasks,
            reports: inbox,
            config_maps: inputs.config_maps.subscribe(),
            secrets: inputs.secrets.subscribe(),
            cluster,
            certificates: self.certificates,
            clock_jumps: inputs.clock.jumps(),
            on_change: handle.node.on_change.clone(),
            checkpoint,
            scan: OptionFuture::default(),
        };
        let scan = || left_behind(handle.node.host.clone(), late_pods.clone()).boxed();
        let result = serve(&mut events, &mut node, scan).await;
        events.shutdown.cancel();
        finish_checkpoint(events.checkpoint).await;
        end(node.reconciler, &events.on_change, events.tasks, result).await
    }
}

/// Handles events until the shutdown, or a failure. `scan` looks for the volumes of an earlier agent.
async fn serve(
    events: &mut AgentEvents,
    node: &mut NodePods,
    scan: impl Fn() -> Scan,
) -> Result<(), TaskError> {
    loop {
        match events.next(node).await {
            AgentEvent::ShutDown => return Ok(()),
            AgentEvent::Failed(error) => return Err(error),
            AgentEvent::Report(report) => node.report(report),
            AgentEvent::Object(kind, key) => node.object_changed(kind, &key),
            AgentEvent::Cluster => node.cluster_changed(),
            AgentEvent::Certificate(source) => node.reconciler.certificate_changed(source),
            AgentEvent::ClockJump => node.reconciler.clock_jumped(),
            AgentEvent::HooksReloaded => node.reconciler.hooks_changed(),
            AgentEvent::Stale(stale) => node.serve_stale(*stale),
            AgentEvent::Scanned(found) => node.sweep(found),
            AgentEvent::VolumesGone(uid) => node.volumes_gone(&uid),
        }
        // As soon as all sources have reported.
        if node.may_scan() {
            events.scan = Some(scan()).into();
        }
    }
}

/// Ends everything after the shutdown: rounds of hooks, tasks, and the passes under way.
async fn end(
    reconciler: Reconciler,
    on_change: &OnChange,
    mut tasks: Tasks,
    result: Result<(), TaskError>,
) -> Result<(), TaskError> {
    let drain = async {
        // Running steps of hooks get their time, which the task of hooks bounds.
        if result.is_ok() {
            on_change.drained().await;
        }
        tasks.shutdown().await;
        reconciler.drain().await
    };
    let Ok(drained) = timeout(DRAIN_TIMEOUT, drain).await else {
        warn!("rounds of hooks or passes still running at the shutdown deadline, exiting anyway");
        return result;
    };
    result.and(drained)
}

/// The pods on disk that the API server has not bound to this node.
async fn left_behind(
    host: Arc<VolumeHost>,
    late_pods: Option<ApiSource>,
) -> Result<Vec<PodOnDisk>, DiskError> {
    let bound = match late_pods {
        Some(source) => source.uids().await,
        None => HashSet::new(),
    };
    let found = blocking(move || Ok((host.scan()?, host.has_kubelet()?)));
    let (mut found, has_kubelet) = found.await?;
    // The pods of a kubelet that has the same root directory are not this agent's to remove.
    found.retain(|pod| pod.is_own || !has_kubelet);
    found.retain(|pod| !bound.contains(&PodUid::new(pod.uid.as_str())));
    Ok(found)
}
