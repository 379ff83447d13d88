//! The state that all pods of a node share in this mode, and the tasks that maintain it.
//!
//! Invariants:
//! 1. One value, [`NodeView`], decides whether any pod may be touched; each worker follows it.
//! 2. While a permission is missing, no touch is sent. The permission is checked every 5 to 10 min (R18).

use std::{collections::BTreeSet, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use fastrand::Rng;
use futures::{FutureExt as _, future::Fuse};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use larder_kubelet::{
    fingerprint::FingerprintKey,
    kubelet_dir::{KubeletDir, ReadError, VolumeId},
    node_state::{NodeState, follow_republishing_drivers, lease_renewed},
    objects::NodeObjects,
    permissions::Permissions,
    rules::Gate,
    swaps::Swaps,
    touch_queue::TouchQueue,
};
use larder_objects::chain;
use larder_projection::{VolumeKind, disk::VolumeHost};
use larder_watch::NodeContext;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use super::{BesideConfig, host_lock::HostLock, metrics::BesideMetrics};
use crate::{
    clock::Clock,
    status::{BesideStatus, RightStatus},
    tasks::Tasks,
};

/// Time to live of objects where the Node has no annotation (managers.md, T12).
const DEFAULT_TTL: Duration = Duration::from_mins(1);
/// Interval between two reads of the Node's lease. The kubelet renews it every 10 s.
const LEASE: Duration = Duration::from_secs(10);
/// Longest wait for the lease.
const LEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest time between two checks of a missing permission; up to as much again is added (R18).
const ASK_AGAIN: Duration = Duration::from_mins(5);
/// Pause between two attempts to take the lock, after an error.
const LOCK_AGAIN: Duration = Duration::from_secs(30);
/// The setting that names the directory of the lock.
const LOCK_OPTION: &str = "beside.lockDir";

/// The API server has not said when the lease was renewed.
struct NoAnswer;

/// The facts that decide for all pods of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeView {
    pub(super) gate: Gate,
    /// The annotation of the Node.
    pub(super) ttl: Option<Duration>,
    /// CSI drivers that require republishing of their volumes (R15).
    pub(super) republishing: Arc<BTreeSet<String>>,
    /// Outages of the API server that have ended.
    pub(super) outages_over: u64,
}

impl NodeView {
    /// How long a kubelet that caches objects serves a copy (R12).
    pub(super) fn cache_ttl(&self) -> Duration {
        self.ttl.unwrap_or(DEFAULT_TTL)
    }
}

/// Shared by the workers of all pods.
pub(crate) struct Beside {
    pub(crate) config: BesideConfig,
    pub(crate) directory: Arc<KubeletDir>,
    /// Its volumes, as hooks read them.
    pub(crate) volumes: Arc<VolumeHost>,
    pub(super) swaps: Swaps,
    pub(super) queue: TouchQueue,
    pub(super) objects: NodeObjects,
    pub(super) metrics: BesideMetrics,
    /// Key of the fingerprints of payloads.
    pub(super) key: FingerprintKey,
    pub(super) node: watch::Receiver<NodeView>,
    pub(super) client: Client,
    node_name: String,
    clock: Clock,
    view: watch::Sender<NodeView>,
    kubelet: watch::Sender<NodeState>,
    missing: watch::Sender<Option<String>>,
    permissions: Mutex<Permissions>,
    /// Why the lock cannot be taken.
    lock_problem: Mutex<Option<String>>,
    /// Whether the last examined volume in memory was visible.
    disk_visible: Mutex<Option<bool>>,
}

impl Beside {
    /// Opens the kubelet's root directory.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub(crate) fn new(
        config: BesideConfig,
        node_name: &str,
        client: Client,
        clock: Clock,
        registry: &mut Registry,
        mut rng: Rng,
    ) -> Result<Self, ReadError> {
        let directory = Arc::new(KubeletDir::open(&config.kubelet_root_dir, config.mounts)?);
        let volumes =
            VolumeHost::open_existing(&config.kubelet_root_dir).map_err(|error| ReadError::Io {
                operation: "open",
                path: config.kubelet_root_dir.clone(),
                source: std::io::Error::other(error),
            })?;
        let initial = NodeView {
            gate: Gate::Unknown,
            ..NodeView::default()
        };
        let view = watch::Sender::new(initial);
        Ok(Self {
            swaps: Swaps::new(Arc::clone(&directory), config.swaps),
            directory,
            volumes: Arc::new(volumes),
            queue: TouchQueue::new(rng.fork()),
            objects: NodeObjects::default(),
            metrics: BesideMetrics::register(registry),
            key: FingerprintKey::default(),
            node: view.subscribe(),
            client,
            node_name: node_name.to_owned(),
            clock,
            view,
            kubelet: watch::Sender::default(),
            missing: watch::Sender::new(None),
            permissions: Mutex::default(),
            lock_problem: Mutex::default(),
            disk_visible: Mutex::default(),
            config,
        })
    }

    /// The kubelet's directory of a volume.
    pub(crate) fn volume_path(&self, pod_uid: &str, kind: VolumeKind, name: &str) -> PathBuf {
        self.directory.volume_path(&VolumeId {
            pod_uid,
            kind,
            name,
        })
    }

    /// Takes in the Node and the TTL that it states; `None` if there is none.
    pub(crate) fn node_seen(&self, node: Option<&Node>, ttl: Option<Duration>) {
        let state = node.map(|node| NodeState::new(node, ttl));
        self.kubelet_seen(state.unwrap_or_default());
    }

    fn kubelet_seen(&self, state: NodeState) {
        self.kubelet.send_if_modified(|known| {
            let is_news = *known != state;
            *known = state;
            is_news
        });
    }

    /// Starts the tasks of the mode.
    pub(crate) fn start(self: &Arc<Self>, tasks: &mut Tasks, context: &NodeContext, mut rng: Rng) {
        let drivers = watch::Sender::default();
        let following = drivers.subscribe();
        tasks.spawn("touches", self.queue.clone().run());
        tasks.spawn(
            "CSI drivers",
            follow_republishing_drivers(self.client.clone(), drivers, context.clone()),
        );
        let locked = watch::Sender::new(false);
        let has_lock = locked.subscribe();
        let outages_over = context.outages_over();
        tasks.spawn("lock of the node", Arc::clone(self).keep_lock(locked));
        let kubelet = Arc::clone(self).follow_kubelet(following, has_lock, outages_over);
        tasks.spawn("kubelet", kubelet);
        let permissions = Arc::clone(self).follow_permissions(rng.fork());
        tasks.spawn("permissions", permissions);
    }

    /// Notes that the API server has denied a touch: `permission` is missing.
    pub(super) fn forbidden(&self, permission: &str) {
        self.missing.send_if_modified(|missing| {
            let is_news = missing.is_none();
            if is_news {
                warn!(permission, "not permitted to touch pods, will check again");
                *missing = Some(permission.to_owned());
            }
            is_news
        });
    }

    /// Notes whether a volume in memory is visible to this process.
    pub(super) fn note_visibility(&self, is_visible: bool) {
        *self.disk_visible.lock() = Some(is_visible);
    }

    /// Holds the lock while the agent runs (R28).
    async fn keep_lock(self: Arc<Self>, locked: watch::Sender<bool>) {
        // A dry run touches nothing, so it takes no lock.
        if self.config.dry_run {
            locked.send_replace(true);
            return std::future::pending().await;
        }
        loop {
            match HostLock::wait(&self.config.lock_dir, LOCK_OPTION).await {
                Ok(_lock) => {
                    *self.lock_problem.lock() = None;
                    locked.send_replace(true);
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

    /// Publishes the view of the node whenever anything that it depends on changes.
    async fn follow_kubelet(
        self: Arc<Self>,
        mut drivers: watch::Receiver<BTreeSet<String>>,
        mut locked: watch::Receiver<bool>,
        mut outages_over: watch::Receiver<Duration>,
    ) {
        let mut kubelet = self.kubelet.subscribe();
        let mut missing = self.missing.subscribe();
        let (mut lease, mut is_lease_read) = (None, false);
        let mut reading = pin!(Fuse::terminated());
        let mut next_lease = Instant::now();
        let mut outages = 0;
        loop {
            let state = kubelet.borrow_and_update().clone();
            let gate = self.gate(
                &state,
                lease,
                missing.borrow_and_update().as_ref(),
                *locked.borrow_and_update(),
            );
            // What is closed for another reason is so at once.
            let gate = match gate {
                Gate::Open if !is_lease_read => Gate::Unknown,
                gate => gate,
            };
            let view = NodeView {
                gate,
                ttl: state.ttl,
                republishing: Arc::new(drivers.borrow_and_update().clone()),
                outages_over: outages,
            };
            self.view.send_if_modified(|known| {
                let is_news = *known != view;
                *known = view;
                is_news
            });
            if Instant::now() >= next_lease && state.ready {
                next_lease = Instant::now() + LEASE;
                reading.set(self.read_lease().fuse());
            }
            let wake = if state.ready {
                next_lease
            } else {
                Instant::now() + LEASE
            };
            // Every arm is cancel-safe. The senders live as long as this.
            tokio::select! {
                Ok(()) = kubelet.changed() => {}
                Ok(()) = drivers.changed() => {}
                Ok(()) = missing.changed() => {}
                Ok(()) = locked.changed() => {}
                Ok(()) = outages_over.changed() => outages += 1,
                read = &mut reading => {
                    // Without an answer the age of the lease is unknown; touches fail by themselves.
                    lease = read.unwrap_or_else(|NoAnswer| lease.map(|_| self.clock.now()));
                    is_lease_read = true;
                }
                () = sleep_until(wake) => {}
            }
        }
    }

    /// The time of the lease. A lease that this identity may not read does not count (R13).
    async fn read_lease(&self) -> Result<Option<Timestamp>, NoAnswer> {
        match timeout(LEASE_TIMEOUT, lease_renewed(&self.client, &self.node_name)).await {
            Ok(Ok(lease)) => Ok(lease),
            Ok(Err(error)) if error.is_forbidden() => Ok(None),
            Ok(Err(error)) => {
                debug!(
                    error = chain(&error),
                    "failed to read the lease of the node, will retry"
                );
                Err(NoAnswer)
            }
            Err(_) => Err(NoAnswer),
        }
    }

    fn gate(
        &self,
        state: &NodeState,
        lease: Option<Timestamp>,
        missing: Option<&String>,
        locked: bool,
    ) -> Gate {
        if *state == NodeState::default() {
            return Gate::Unknown;
        }
        if let Err(not_ready) = state.check(lease, self.clock.now()) {
            return Gate::KubeletNotReady(not_ready.since);
        }
        match missing {
            Some(permission) => Gate::Forbidden(permission.clone()),
            None if !locked => Gate::Locked,
            None if self.config.dry_run => Gate::DryRun,
            None => Gate::Open,
        }
    }

    /// Reviews the permissions at the start, and again while one is missing.
    async fn follow_permissions(self: Arc<Self>, mut rng: Rng) {
        let mut missing = self.missing.subscribe();
        loop {
            let permissions = Permissions::review(&self.client, &self.node_name).await;
            let may_touch = permissions.may_touch();
            *self.permissions.lock() = permissions;
            if missing.borrow_and_update().is_some() && may_touch != Some(false) {
                // Where reviews are not answered, the next touch shows it.
                if may_touch == Some(true) {
                    info!("permission to touch pods granted, continuing");
                }
                self.missing.send_replace(None);
                missing.mark_unchanged();
            }
            // The sender lives as long as this.
            let _ = missing.wait_for(Option::is_some).await;
            sleep(ASK_AGAIN.mul_f64(1.0 + rng.f64())).await;
        }
    }

    /// The status of the mode.
    pub(crate) fn status(&self) -> BesideStatus {
        let kubelet = self.kubelet.borrow().clone();
        let permissions = self.permissions.lock();
        BesideStatus {
            identity: permissions.identity.clone(),
            rights: permissions
                .granted
                .map(|(right, granted)| RightStatus {
                    right: right.to_owned(),
                    granted,
                })
                .into(),
            kubelet_version: kubelet.kubelet_version,
            kubelet_root_dir: self.directory.path().display().to_string(),
            ttl_secs: self.node.borrow().cache_ttl().as_secs(),
            disk_visible: *self.disk_visible.lock(),
            dry_run: self.config.dry_run,
            problem: self.problem(),
        }
    }

    /// Why no pod is touched at present; empty if there is no reason.
    fn problem(&self) -> String {
        if let Some(problem) = &*self.lock_problem.lock() {
            return problem.clone();
        }
        self.node.borrow().gate.to_string()
    }

    /// Sets the metrics that are read at each scrape.
    pub(crate) fn observe(&self) {
        self.metrics.observe(self.queue.rate());
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio::task::JoinSet;

    use super::*;
    use larder_kubelet::{kubelet_dir::Mounts, swaps::SwapDetection};

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_not_answered_delays_no_other_news() {
        let root = tempfile::tempdir().unwrap();
        let mut config = BesideConfig::new(root.path());
        (config.mounts, config.swaps) = (Mounts::NotExpected, SwapDetection::Polling);
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            std::future::pending::<()>().await;
            Ok::<_, Infallible>(http::Response::new(kube::client::Body::empty()))
        });
        let beside = Beside::new(
            config,
            "node-1",
            Client::new(service, "n"),
            Clock::system(),
            &mut Registry::default(),
            Rng::with_seed(1),
        );
        let beside = Arc::new(beside.unwrap());
        let (drivers, locked) = (watch::Sender::default(), watch::Sender::new(true));
        let outages_over = watch::Sender::default();
        let (mut tasks, following) = (JoinSet::new(), Arc::clone(&beside));
        let (drivers_seen, has_lock) = (drivers.subscribe(), locked.subscribe());
        let outages_seen = outages_over.subscribe();
        tasks.spawn(async move {
            following
                .follow_kubelet(drivers_seen, has_lock, outages_seen)
                .await;
        });
        let start = Instant::now();
        let mut node = beside.node.clone();
        let state = NodeState {
            ready: true,
            ..NodeState::default()
        };
        beside.kubelet_seen(state.clone());
        tokio::task::yield_now().await;
        assert_eq!(node.borrow_and_update().gate, Gate::Unknown);
        beside.forbidden("patch pods/status");
        let is_forbidden = |view: &NodeView| matches!(view.gate, Gate::Forbidden(_));
        node.wait_for(is_forbidden).await.unwrap();
        beside.missing.send_replace(None);
        locked.send_replace(false);
        node.wait_for(|view| view.gate == Gate::Locked)
            .await
            .unwrap();
        locked.send_replace(true);
        outages_over.send_replace(Duration::from_secs(1));
        node.wait_for(|view| view.outages_over == 1).await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        node.wait_for(|view| view.gate == Gate::Open).await.unwrap();
        assert_eq!(start.elapsed(), LEASE_TIMEOUT);
    }
}
