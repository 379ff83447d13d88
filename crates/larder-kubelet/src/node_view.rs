//! The view of the node that decides whether any of its pods may be touched, and the tasks that maintain it.
//!
//! Invariants:
//! 1. One value, [`NodeView`], decides whether any pod may be touched.
//! 2. While a permission is missing, no touch is sent. The permission is checked every 5 to 10 min (R18).

use std::{collections::BTreeSet, pin::pin, sync::Arc, time::Duration};

use fastrand::Rng;
use futures::{FutureExt as _, future::Fuse};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use larder_objects::chain;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    node_state::{NodeState, lease_renewed, publish},
    permissions::{Permission, Permissions},
    rules::{Gate, throttled},
};

/// Time to live of objects where the Node has no annotation (managers.md, T12).
const DEFAULT_TTL: Duration = Duration::from_mins(1);
/// Interval between two reads of the Node's lease. The kubelet renews it every 10 s.
const LEASE: Duration = Duration::from_secs(10);
/// Longest wait for the lease.
const LEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest time between two checks of a missing permission; up to as much again is added (R18).
const ASK_AGAIN: Duration = Duration::from_mins(5);
/// The API server has not said when the lease was renewed.
struct NoAnswer;

/// What is known of the lease of the node.
#[derive(Clone, Copy)]
enum KnownLease {
    Unread,
    /// When it was renewed; `None` if there is none, or this identity may not read it (R13).
    Renewed(Option<Timestamp>),
}

impl KnownLease {
    fn renewed(self) -> Option<Timestamp> {
        match self {
            Self::Unread => None,
            Self::Renewed(at) => at,
        }
    }
}

/// What the view of the node may change after.
enum ViewEvent {
    /// What is known of the node apart from its lease, or the CSI drivers.
    Changed,
    OutageOver,
    LeaseRead(Result<Option<Timestamp>, NoAnswer>),
    LeaseDue,
}

/// The facts that decide for all pods of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// Whether pods may be touched.
    pub gate: Gate,
    /// The annotation of the Node.
    pub ttl: Option<Duration>,
    /// CSI drivers that require republishing of their volumes (R15).
    pub republishing: Arc<BTreeSet<String>>,
    /// Until when the API server has asked the node to send no touch; may be over.
    pub throttled_until: Option<Timestamp>,
    /// Outages of the API server that have ended.
    pub outages_over: u64,
}

impl NodeView {
    /// How long a kubelet that caches objects serves a copy (R12).
    pub fn cache_ttl(&self) -> Duration {
        self.ttl.unwrap_or(DEFAULT_TTL)
    }
}

/// Maintains the view of one node.
#[expect(missing_debug_implementations, reason = "it holds a client")]
pub struct NodeViewer {
    client: Client,
    node_name: String,
    /// `--dry-run`: no pod is touched.
    dry_run: bool,
    now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    view: watch::Sender<NodeView>,
    known: watch::Sender<KnownState>,
}

/// What is known of the node apart from its lease.
#[derive(Debug, Default)]
struct KnownState {
    /// The kubelet's state; `None` if no Node has been read.
    kubelet: Option<NodeState>,
    permissions: Permissions,
    /// A permission without which no pod can be touched.
    missing: Option<String>,
    /// This larder has the lock of the node (R28), or needs none.
    locked: bool,
    throttled_until: Option<Timestamp>,
}

impl NodeViewer {
    /// For the node of this name. `now` shows the time of day. In a dry run no pod may be touched.
    pub fn new(
        client: Client,
        node_name: &str,
        dry_run: bool,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Self {
        let view = NodeView {
            gate: Gate::Unknown,
            ..NodeView::default()
        };
        Self {
            client,
            node_name: node_name.to_owned(),
            dry_run,
            now: Box::new(now),
            view: watch::Sender::new(view),
            known: watch::Sender::default(),
        }
    }

    /// Follows the view.
    pub fn subscribe(&self) -> watch::Receiver<NodeView> {
        self.view.subscribe()
    }

    /// The kubelet's version; empty if unknown.
    pub fn kubelet_version(&self) -> String {
        let known = self.known.borrow();
        known
            .kubelet
            .as_ref()
            .map_or_else(String::new, |kubelet| kubelet.kubelet_version.clone())
    }

    /// Why no pod is touched at present; empty if pods are touched.
    pub fn suspended(&self) -> String {
        let view = self.view.borrow();
        let throttled_until = view.throttled_until.filter(|until| *until > (self.now)());
        match (&view.gate, throttled_until) {
            (Gate::Open, Some(until)) => throttled(until),
            (gate, _) => gate.to_string(),
        }
    }

    /// The result of the last review.
    pub fn permissions(&self) -> Permissions {
        self.known.borrow().permissions.clone()
    }

    /// Takes in the Node and the TTL that it states; `None` if there is none.
    pub fn node_seen(&self, node: Option<&Node>, ttl: Option<Duration>) {
        let state = node.map(|node| NodeState::new(node, ttl));
        self.known.send_modify(|known| known.kubelet = state);
    }

    /// This larder has the lock of the node (R28), or needs none.
    pub fn locked(&self) {
        self.known.send_modify(|known| known.locked = true);
    }

    /// Notes that the API server has answered a touch with 429: the queue sends none for this time.
    pub fn throttled(&self, retry_after: Duration) {
        let now = (self.now)();
        let until = now.checked_add(retry_after).unwrap_or(Timestamp::MAX);
        self.known.send_if_modified(|known| {
            let before = known.throttled_until;
            if before.is_none_or(|before| before <= now) {
                warn!(
                    seconds = retry_after.as_secs(),
                    "API server has too many requests, touching no pod for a while"
                );
            }
            let is_news = before.is_none_or(|before| before < until);
            if is_news {
                known.throttled_until = Some(until);
            }
            is_news
        });
    }

    /// Notes that the API server has denied a touch: `permission` is missing.
    pub fn forbidden(&self, permission: &str) {
        self.known.send_if_modified(|known| {
            let is_news = known.missing.is_none();
            if is_news {
                warn!(permission, "not permitted to touch pods, will check again");
                known.missing = Some(permission.to_owned());
            }
            is_news
        });
    }

    /// Publishes the view of the node whenever anything that it depends on changes. Runs until dropped.
    pub async fn follow(
        self: Arc<Self>,
        mut drivers: watch::Receiver<BTreeSet<String>>,
        mut outages_over: watch::Receiver<Duration>,
    ) {
        let mut changes = self.known.subscribe();
        let mut lease = KnownLease::Unread;
        let mut reading = pin!(Fuse::terminated());
        let mut next_lease = Instant::now();
        let mut outages = 0;
        loop {
            let ready = {
                let known = changes.borrow_and_update();
                let kubelet = known.kubelet.as_ref();
                let view = NodeView {
                    gate: self.gate(&known, lease),
                    ttl: kubelet.and_then(|kubelet| kubelet.ttl),
                    republishing: Arc::new(drivers.borrow_and_update().clone()),
                    throttled_until: known.throttled_until,
                    outages_over: outages,
                };
                publish(&self.view, view);
                kubelet.is_some_and(|kubelet| kubelet.ready)
            };
            let now = Instant::now();
            if ready && now >= next_lease {
                next_lease = now + LEASE;
                reading.set(self.read_lease().fuse());
            }
            let wake = if ready { next_lease } else { now + LEASE };
            // Every arm is cancel-safe. The senders live as long as this.
            let event = tokio::select! {
                biased;
                Ok(()) = changes.changed() => ViewEvent::Changed,
                Ok(()) = drivers.changed() => ViewEvent::Changed,
                Ok(()) = outages_over.changed() => ViewEvent::OutageOver,
                read = &mut reading => ViewEvent::LeaseRead(read),
                () = sleep_until(wake) => ViewEvent::LeaseDue,
            };
            match event {
                ViewEvent::Changed | ViewEvent::LeaseDue => {}
                ViewEvent::OutageOver => outages += 1,
                ViewEvent::LeaseRead(Ok(renewed)) => lease = KnownLease::Renewed(renewed),
                // The age of the lease is unknown; touches fail by themselves.
                ViewEvent::LeaseRead(Err(NoAnswer)) => {
                    let renewed = lease.renewed().map(|_| (self.now)());
                    lease = KnownLease::Renewed(renewed);
                }
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

    fn gate(&self, known: &KnownState, lease: KnownLease) -> Gate {
        let Some(kubelet) = &known.kubelet else {
            return Gate::Unknown;
        };
        if let Err(since) = kubelet.check(lease.renewed(), (self.now)()) {
            return Gate::KubeletNotReady(since);
        }
        match &known.missing {
            Some(permission) => Gate::Forbidden(permission.clone()),
            None if !known.locked => Gate::Locked,
            None if self.dry_run => Gate::DryRun,
            None if matches!(lease, KnownLease::Unread) => Gate::Unknown,
            None => Gate::Open,
        }
    }

    /// Reviews the permissions at the start, and again while one is missing. Runs until dropped.
    pub async fn follow_permissions(self: Arc<Self>, mut rng: Rng) {
        let mut changes = self.known.subscribe();
        let is_missing = |known: &KnownState| known.missing.is_some();
        loop {
            let permissions = Permissions::review(&self.client, &self.node_name).await;
            self.known.send_modify(|known| {
                let may_touch = permissions.is_granted(Permission::TouchPods);
                if is_missing(known) && may_touch == Some(true) {
                    info!("permission to touch pods granted, continuing");
                }
                // Where reviews are not answered, the next touch shows it.
                known.missing.take_if(|_| may_touch != Some(false));
                known.permissions = permissions;
            });
            // The sender lives as long as this.
            let _ = changes.wait_for(is_missing).await;
            sleep(ASK_AGAIN.mul_f64(1.0 + rng.f64())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicI64, Ordering::Relaxed},
    };

    use tokio::task::JoinSet;

    use super::*;

    fn viewer(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Arc<NodeViewer> {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            std::future::pending::<()>().await;
            Ok::<_, Infallible>(http::Response::new(kube::client::Body::empty()))
        });
        let viewer = NodeViewer::new(Client::new(service, "n"), "node-1", false, now);
        viewer.locked();
        Arc::new(viewer)
    }

    #[tokio::test]
    async fn a_node_without_status_is_a_kubelet_that_is_not_ready() {
        let viewer = viewer(|| Timestamp::UNIX_EPOCH);
        let (drivers, outages_over) = (watch::Sender::default(), watch::Sender::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&viewer).follow(drivers.subscribe(), outages_over.subscribe()));
        tokio::task::yield_now().await;
        assert_eq!(viewer.suspended(), "waiting for the Node");
        viewer.node_seen(Some(&Node::default()), None);
        tokio::task::yield_now().await;
        assert_eq!(viewer.suspended(), "kubelet not ready");
        viewer.node_seen(None, None);
        tokio::task::yield_now().await;
        assert_eq!(viewer.suspended(), "waiting for the Node");
    }

    // beside-kubelet 23
    #[tokio::test]
    async fn a_wait_that_the_api_server_asked_for_is_shown_until_it_is_over() {
        let seconds = Arc::new(AtomicI64::new(0));
        let clock = Arc::clone(&seconds);
        let viewer = viewer(move || Timestamp::from_second(clock.load(Relaxed)).unwrap());
        viewer.throttled(Duration::from_mins(2));
        // A shorter wait does not end the longer one.
        viewer.throttled(Duration::from_secs(1));
        let throttled_until = viewer.known.borrow().throttled_until;
        viewer.view.send_replace(NodeView {
            throttled_until,
            ..NodeView::default()
        });
        assert_eq!(
            viewer.suspended(),
            "the API server has too many requests (429), no pod is touched until 1970-01-01T00:02:00Z"
        );
        seconds.store(120, Relaxed);
        assert_eq!(viewer.suspended(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_not_answered_delays_no_other_news() {
        let viewer = viewer(|| Timestamp::UNIX_EPOCH);
        let drivers = watch::Sender::default();
        let outages_over = watch::Sender::default();
        let mut tasks = JoinSet::new();
        let following = Arc::clone(&viewer).follow(drivers.subscribe(), outages_over.subscribe());
        tasks.spawn(following);
        let start = Instant::now();
        let mut node = viewer.subscribe();
        let state = NodeState {
            ready: true,
            ..NodeState::default()
        };
        viewer
            .known
            .send_modify(|known| known.kubelet = Some(state));
        tokio::task::yield_now().await;
        assert_eq!(node.borrow_and_update().gate, Gate::Unknown);
        viewer.forbidden("patch pods/status");
        let is_forbidden = |view: &NodeView| matches!(view.gate, Gate::Forbidden(_));
        node.wait_for(is_forbidden).await.unwrap();
        viewer.known.send_modify(|known| {
            (known.missing, known.locked) = (None, false);
        });
        node.wait_for(|view| view.gate == Gate::Locked)
            .await
            .unwrap();
        viewer.locked();
        outages_over.send_replace(Duration::from_secs(1));
        node.wait_for(|view| view.outages_over == 1).await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        node.wait_for(|view| view.gate == Gate::Open).await.unwrap();
        assert_eq!(start.elapsed(), LEASE_TIMEOUT);
    }
}
