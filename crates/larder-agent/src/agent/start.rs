//! Starting the tasks of an agent.

use std::{fs, io, sync::Arc, time::Duration};

use fastrand::Rng;
use k8s_openapi::api::core::v1::Node;
use larder::NodeTtl;
use larder_inputs::cluster_state::{follow_cluster, follow_manifests, follow_trust_bundles};
use larder_objects::chain;
use larder_pods::{
    FullName, PodLoop, PodSource, PodUid,
    mirror::MirrorClient,
    source::{ApiSource, FileSource, SourceReport},
    static_pod::ApiReferences,
};
use larder_projection::disk::{Memory, PodOnDisk, VolumeHost};
use larder_transport::{Backoff, blocking::blocking};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    Agent, AgentHandle,
    build::{Given, static_pods},
    root_place::follow_root,
};
use crate::{
    checkpoint::{ApiContact, Checkpoint, ClusterId, StaleNode},
    config::CheckpointConfig,
    freshness::follow,
    node,
    tasks::Tasks,
};

/// Bounds of the delay between two attempts to register the Node; a random part of up to the same length is added.
const REGISTRATION: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
/// Longest wait for the last write of the checkpoint at the shutdown.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

impl Agent {
    /// Removes leftovers of an earlier agent: links to missing directories of pods, and copies of the manifests of a
    /// source that is now disabled. Returns the pods that have volumes by their UIDs.
    pub(super) async fn tidy(&self) -> Vec<(PodUid, FullName)> {
        let host = self.handle.node.host.clone();
        let copies: Vec<_> = [
            (PodSource::File, self.given.config.static_pod_path.is_none()),
            (PodSource::Http, self.given.config.static_pod_url.is_none()),
        ]
        .into_iter()
        .filter(|(_, off)| *off)
        .map(|(source, _)| self.given.root.manifests(source))
        .collect();
        blocking(move || {
            if let Err(error) = host.prune_names() {
                warn!(error = chain(&error), "failed to remove stale links by name, leaving them");
            }
            for path in copies {
                if let Err(error) = fs::remove_dir_all(&path)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    warn!(error = error.to_string(), path = %path.display(), "failed to remove copies of manifests, leaving them");
                }
            }
            // What cannot be listed is reported by the sweep.
            let pods = host.scan().unwrap_or_default().into_iter();
            let named = pods.filter_map(|PodOnDisk { uid, name, .. }| {
                let (namespace, name) = name?;
                let (namespace, name) = (namespace.into(), name.into());
                Some((PodUid::new(uid), FullName { name, namespace }))
            });
            named.collect()
        })
        .await
    }

    /// Starts the tasks that report pods or facts; returns the sources of pods.
    pub(super) fn start_sources(
        &mut self,
        reports: mpsc::Sender<SourceReport>,
        trust_bundles_wanted: watch::Receiver<bool>,
        tasks: &mut Tasks,
    ) -> Vec<PodSource> {
        let (client, node_name) = (&self.given.client, &self.given.config.node_name);
        let (node_ttl, beside) = (self.node_ttl.clone(), self.handle.beside.clone());
        // An agent that registers its Node creates the missing one, and a host that is no node of the cluster has none.
        let config = &self.given.config;
        let is_node = config.static_pod_api_references == ApiReferences::Refuse;
        let named =
            (is_node && !config.register_node).then(|| (self.handle.clone(), node_name.clone()));
        let seen = move |node: Option<&Node>| {
            if let Some((handle, name)) = &named {
                handle.note_node(name, node.is_some());
            }
            let ttl = node
                .and_then(|node| node.metadata.annotations.as_ref())
                .and_then(NodeTtl::of_annotations);
            node_ttl.set(ttl);
            if let Some(beside) = &beside {
                beside.node.node_seen(node, ttl);
            }
        };
        let inputs = &self.handle.node.inputs;
        let freshness = inputs.cluster_freshness.clone();
        let of_bundles = freshness.trust_bundles.clone();
        let cluster = follow_cluster(
            client.clone(),
            node_name.clone(),
            self.cluster_state.clone(),
            seen,
            freshness,
            self.handle.node_context.clone(),
        );
        tasks.spawn("facts", cluster);
        let trust_bundles = follow_trust_bundles(
            client.clone(),
            trust_bundles_wanted,
            self.cluster_state.clone(),
            of_bundles,
            self.handle.node_context.clone(),
        );
        tasks.spawn("trust bundles", trust_bundles);
        let mut expected = vec![PodSource::Api];
        let source = ApiSource::new(client.clone(), node_name)
            .with_context(&self.handle.node_context)
            .proving(&inputs.pod_freshness);
        tasks.spawn("pod source api", source.run(reports.clone()));
        // Static pods belong to the kubelet, and reference no objects.
        if let Some(beside) = &self.handle.beside {
            beside.start(tasks, &self.handle.node_context, self.given.rng.fork());
            return expected;
        }
        if let Some(path) = &self.given.config.static_pod_path {
            let period = self.given.config.file_check_frequency;
            let file = FileSource::new(path, period, static_pods(&self.given.config))
                .remembering(self.given.root.manifests(PodSource::File));
            tasks.spawn("pod source file", file.run(reports.clone()));
            expected.push(PodSource::File);
        }
        if let Some(http) = self.http.take() {
            tasks.spawn("pod source http", http.run(reports));
            expected.push(PodSource::Http);
        }
        expected
    }

    /// Starts the tasks of the node: its disk, root directory, clock, hooks and events.
    pub(super) fn start_node(&self, shutdown: &CancellationToken, tasks: &mut Tasks) {
        let node = &self.handle.node;
        tasks.spawn("disk turns", node.disk.clone().lend_turns());
        let root = follow_root(self.given.root.looking(), Arc::clone(node));
        tasks.spawn_until_failure("root directory", root);
        tasks.spawn("clock", node.inputs.clock.clone().follow_machine());
        tasks.spawn("hooks", node.on_change.clone().run(shutdown.clone()));
        if let Some(events) = node.events.clone() {
            tasks.spawn("events", async move { events.run().await });
        }
    }

    /// Starts the task that maintains the mirror pods, and registers the Node if configured.
    pub(super) fn start_mirrors(&mut self, pods: &PodLoop, tasks: &mut Tasks) {
        // Mirror pods and the Node belong to the kubelet.
        if self.handle.beside.is_some() {
            return;
        }
        let mut mirrors =
            MirrorClient::new(self.given.client.clone(), &self.given.config.node_name);
        if self.given.config.register_node {
            mirrors = mirrors.registering(node::of_this_host(&self.given.config.node_name));
            let registration = register_node(mirrors.clone(), self.given.rng.fork());
            tasks.spawn("node registration", registration);
        }
        let reconciler = pods.mirror_pods(mirrors);
        self.handle.sources.lock().mirrors = Some(reconciler.problems());
        tasks.spawn("mirror pods", reconciler.run());
    }

    /// Starts the task that follows what rejected manifests may hold. Returns the source of the API server's pods, which
    /// lists them when fewer are hidden.
    pub(super) fn follow_manifests(&mut self, tasks: &mut Tasks) -> Option<ApiSource> {
        let hidden = self.given.hidden.take()?;
        let kept = self
            .given
            .kept
            .take()
            .unwrap_or_else(|| watch::Sender::default().subscribe());
        let following = follow_manifests(hidden, kept, self.cluster_state.clone());
        tasks.spawn("manifests", following);
        let source = ApiSource::new(self.given.client.clone(), &self.given.config.node_name);
        Some(source.with_context(&self.handle.node_context))
    }
}

impl AgentHandle {
    /// Starts the task that reports stale parts; returns what to notify when an object may have become stale or fresh.
    pub(super) fn follow_freshness(&self, tasks: &mut Tasks) -> Arc<Notify> {
        let changed = Arc::new(Notify::new());
        let (node, pods) = (Arc::clone(&self.node), self.pods.clone());
        tasks.spawn("freshness", follow(node, pods, Arc::clone(&changed)));
        changed
    }
}

/// Starts the task of the checkpoint, if there is one. Returns the receiver of the copies that it serves, which is closed
/// when the last write is done.
pub(super) fn start_checkpoint(
    settings: Option<(CheckpointConfig, ClusterId)>,
    given: &Given,
    handle: &AgentHandle,
    contact: watch::Receiver<ApiContact>,
    pods_changed: watch::Receiver<()>,
    tasks: &mut Tasks,
    shutdown: &CancellationToken,
) -> mpsc::Receiver<StaleNode> {
    let (sender, stale) = mpsc::channel(1);
    if let Some((settings, cluster)) = settings {
        let checkpoint = Checkpoint {
            config: settings,
            cluster,
            node: given.config.node_name.clone(),
            directory: match given.config.checkpoint_dir {
                Some(_) => given.config.checkpoint_place(),
                None => given.root.checkpoint(),
            },
            inputs: Arc::clone(&handle.node.inputs),
            waits: handle.node.waits.clone(),
            board: Arc::clone(&handle.checkpoint),
            pods: handle.pods.clone(),
            pods_changed,
            contact,
            stale: sender,
        };
        tasks.spawn("checkpoint", checkpoint.run(shutdown.clone()));
    }
    stale
}

/// Waits for the last write of the checkpoint during the shutdown, but not for a hanging disk.
pub(super) async fn finish_checkpoint(mut stale: mpsc::Receiver<StaleNode>) {
    let finished = async { while stale.recv().await.is_some() {} };
    // The log has a failure of the write.
    let _ = timeout(LAST_WRITE_TIMEOUT, finished).await;
}

/// Creates the Node if there is none, as soon as the API server permits it. Runs until dropped.
async fn register_node(client: MirrorClient, mut rng: Rng) {
    let mut backoff = REGISTRATION;
    while let Err(error) = client.node().await {
        warn!(error = chain(&error), "failed to register node, will retry");
        sleep(backoff.next_delay().mul_f64(1.0 + rng.f64())).await;
    }
    std::future::pending::<()>().await;
}

/// Warns if Secrets may leave memory.
pub(super) fn warn_of_exposed_secrets(host: &VolumeHost) {
    match host.memory() {
        Memory::Directory { in_memory: false } => warn!(
            path = %host.path().display(),
            "Secrets are kept on disk: this process may not mount a tmpfs, and the root directory is not in memory"
        ),
        Memory::Tmpfs { noswap: false } => warn!(
            path = %host.path().display(),
            "Secrets may get into swap space: tmpfs does not accept `noswap` here (it needs Linux 6.4, outside of user namespaces)"
        ),
        Memory::Tmpfs { noswap: true } | Memory::Directory { in_memory: true } => {}
    }
}
