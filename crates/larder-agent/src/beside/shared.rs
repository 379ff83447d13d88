//! The state that all pods of a node share in this mode, and the tasks that maintain it.

use std::{path::Path, sync::Arc, time::Duration};

use fastrand::Rng;
use kube::Client;
use larder_files::operation_error::{OperationError, failed};
use larder_inputs::clock::Clock;
use larder_kubelet::{
    fingerprint::FingerprintKey, kubelet_dir::KubeletDir, node_state::follow_republishing_drivers,
    node_view::NodeViewer, permissions::Permission, swaps::Swaps, touch_queue::TouchQueue,
};
use larder_objects::chain;
use larder_projection::disk::VolumeHost;
use larder_watch::NodeContext;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::{sync::watch, time::sleep};
use tracing::warn;

use super::{
    BesideConfig,
    host_lock::{LockDir, wait_for_lock},
    metrics::BesideMetrics,
};
use crate::{
    status::{BesideStatus, RightStatus},
    tasks::Tasks,
};

/// Pause between two attempts to take the lock, after an error.
const LOCK_AGAIN: Duration = Duration::from_secs(30);
/// The setting that names the directory of the lock.
const LOCK_OPTION: &str = "beside.lockDir";

/// Shared by the workers of all pods.
pub(crate) struct Beside {
    pub(crate) config: BesideConfig,
    pub(crate) directory: Arc<KubeletDir>,
    /// Its volumes, as hooks read them.
    pub(crate) volumes: Arc<VolumeHost>,
    pub(super) swaps: Swaps,
    pub(super) queue: TouchQueue,
    pub(super) metrics: BesideMetrics,
    /// Key of the fingerprints of payloads.
    pub(super) key: FingerprintKey,
    /// Decides whether any pod may be touched.
    pub(crate) node: Arc<NodeViewer>,
    pub(super) client: Client,
    lock_dir: LockDir,
    /// Why the lock cannot be taken.
    lock_problem: Mutex<Option<String>>,
    /// Whether the last examined volume in memory was visible.
    pub(super) disk_visible: Mutex<Option<bool>>,
}

impl Beside {
    /// Opens the kubelet's root directory.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub(crate) fn new(
        config: BesideConfig,
        root_dir: &Path,
        node_name: &str,
        client: Client,
        clock: Clock,
        registry: &mut Registry,
        mut rng: Rng,
    ) -> Result<Self, OperationError> {
        let directory = Arc::new(KubeletDir::open(&config.kubelet_root_dir, config.mounts)?);
        let volumes = VolumeHost::open_existing(&config.kubelet_root_dir)
            .map_err(std::io::Error::other)
            .map_err(failed("open", &config.kubelet_root_dir))?;
        let node = NodeViewer::new(client.clone(), node_name, config.dry_run, move || {
            clock.now()
        });
        Ok(Self {
            swaps: Swaps::new(Arc::clone(&directory), config.swaps),
            directory,
            volumes: Arc::new(volumes),
            queue: TouchQueue::new(rng.fork()),
            metrics: BesideMetrics::register(registry),
            key: FingerprintKey::default(),
            node: Arc::new(node),
            client,
            lock_dir: LockDir {
                is_own_root: config.locks_in(root_dir),
                path: config.lock_dir.clone(),
                option: LOCK_OPTION,
            },
            lock_problem: Mutex::default(),
            disk_visible: Mutex::default(),
            config,
        })
    }

    /// Starts the tasks of the mode.
    pub(crate) fn start(self: &Arc<Self>, tasks: &mut Tasks, context: &NodeContext, mut rng: Rng) {
        let drivers = watch::Sender::default();
        let node = Arc::clone(&self.node);
        let following = node.follow(drivers.subscribe(), context.outages_over());
        tasks.spawn("kubelet", following);
        let node = Arc::clone(&self.node);
        tasks.spawn("permissions", node.follow_permissions(rng.fork()));
        let client = self.client.clone();
        let drivers = follow_republishing_drivers(client, drivers, context.clone());
        tasks.spawn("CSI drivers", drivers);
        tasks.spawn("touches", self.queue.clone().run());
        tasks.spawn("lock of the node", Arc::clone(self).keep_lock());
    }

    /// Holds the lock while the agent runs (R28).
    async fn keep_lock(self: Arc<Self>) {
        // A dry run touches nothing, so it takes no lock.
        if self.config.dry_run {
            self.node.locked();
            return std::future::pending().await;
        }
        loop {
            match wait_for_lock(&self.lock_dir).await {
                Ok(_lock) => {
                    *self.lock_problem.lock() = None;
                    self.node.locked();
                    std::future::pending::<()>().await;
                }
                Err(error) => {
                    let error = chain(&error);
                    let is_news = self.lock_problem.lock().replace(error.clone());
                    if is_news.as_ref() != Some(&error) {
                        warn!(error, "failed to take the lock of the node, will retry");
                    }
                    sleep(LOCK_AGAIN).await;
                }
            }
        }
    }

    /// The status of the mode.
    pub(crate) fn status(&self) -> BesideStatus {
        let permissions = self.node.permissions();
        let rights = Permission::ALL.map(|permission| RightStatus {
            right: permission.as_str().to_owned(),
            granted: permissions.is_granted(permission),
        });
        BesideStatus {
            identity: permissions.identity,
            rights: rights.into(),
            kubelet_version: self.node.kubelet_version(),
            kubelet_root_dir: self.volumes.path().display().to_string(),
            ttl_secs: self.node.subscribe().borrow().cache_ttl().as_secs(),
            disk_visible: *self.disk_visible.lock(),
            dry_run: self.config.dry_run,
            problem: (self.lock_problem.lock().clone()).unwrap_or_else(|| self.node.suspended()),
        }
    }

    /// Sets the metrics that are read at each scrape.
    pub(crate) fn observe(&self) {
        self.metrics.observe(self.queue.rate());
    }
}
