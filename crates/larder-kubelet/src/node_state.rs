//! Whether and when the kubelet of this node acts on a touch, according to the Node, its lease, and the CSI drivers of
//! the cluster (beside-kubelet R12, R13, R15, R20).

use std::{collections::BTreeSet, time::Duration};

use http::Method;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod},
    storage::v1::CSIDriver,
};
use kube::Client;
use larder_objects::chain;
use larder_projection::pod_volumes;
use larder_transport::path::Resource;
use larder_watch::{
    NodeContext, RequestError,
    collection::{Collection, CollectionEvent, Found},
    request,
};
use tokio::sync::watch;
use tracing::debug;

const LEASES: Resource = Resource::new("coordination.k8s.io", "v1", "leases");
const CSI_DRIVERS: Resource = Resource::new("storage.k8s.io", "v1", "csidrivers");

/// Namespace of the leases of all nodes.
const LEASE_NAMESPACE: &str = "kube-node-lease";

/// A kubelet that runs renews its lease every 10 s (kubelet 1.36, `nodeLeaseDurationSeconds` / 4). The node controller
/// waits 40 s before it marks the node not ready, and so does R13.
const LEASE_TIMEOUT: SignedDuration = SignedDuration::from_secs(40);

/// The kubelet's state according to its Node. By default it is unknown, and the kubelet counts as not ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// Whether the condition `Ready` is `True`.
    pub ready: bool,
    /// When the condition last changed, if known.
    pub since: Option<Timestamp>,
    /// The annotation `node.alpha.kubernetes.io/ttl`.
    pub ttl: Option<Duration>,
    /// `status.nodeInfo.kubeletVersion`; empty if unknown.
    pub kubelet_version: String,
}

impl NodeState {
    /// The state of `node`, whose annotation says `ttl`.
    pub fn new(node: &Node, ttl: Option<Duration>) -> Self {
        let status = node.status.as_ref();
        let mut conditions = status
            .and_then(|status| status.conditions.as_deref())
            .unwrap_or_default()
            .iter();
        let ready = conditions.find(|condition| condition.type_ == "Ready");
        let info = status.and_then(|status| status.node_info.as_ref());
        Self {
            ready: ready.is_some_and(|condition| condition.status == "True"),
            since: ready
                .and_then(|condition| condition.last_transition_time.as_ref())
                .map(|time| time.0),
            ttl,
            kubelet_version: info
                .map(|info| info.kubelet_version.clone())
                .unwrap_or_default(),
        }
    }

    /// Checks whether the kubelet would act on a touch at `now` (R13). `lease` is the result of [`lease_renewed`];
    /// `None` if there is none or this identity may not read it, so that the Node alone counts.
    ///
    /// # Errors
    ///
    /// It would not, since this time, if known. A touch is pointless: the kubelet catches up by itself.
    pub fn check(&self, lease: Option<Timestamp>, now: Timestamp) -> Result<(), Option<Timestamp>> {
        if !self.ready {
            return Err(self.since);
        }
        match lease {
            Some(renewed) if now.duration_since(renewed) > LEASE_TIMEOUT => Err(lease),
            _ => Ok(()),
        }
    }
}

/// When the kubelet of the node last renewed its lease; `None` if it never has. Sends one request.
///
/// # Errors
///
/// The request failed. If it is forbidden, the Node alone decides.
pub async fn lease_renewed(
    client: &Client,
    node_name: &str,
) -> Result<Option<Timestamp>, RequestError> {
    let path = LEASES.in_namespace(LEASE_NAMESPACE)?.object(node_name)?;
    match request::<Lease>(client, Method::GET, path.as_str(), None::<&()>).await {
        Ok(lease) => Ok(lease
            .spec
            .and_then(|spec| spec.renew_time)
            .map(|renewed| renewed.0)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Keeps in `drivers` the names of the CSI drivers with `requiresRepublish`, which the kubelet calls at each sync of a
/// pod (R15). Runs until dropped.
pub async fn follow_republishing_drivers(
    client: Client,
    drivers: watch::Sender<BTreeSet<String>>,
    context: NodeContext,
) {
    let path = CSI_DRIVERS.collection();
    let name = |driver: &Found<CSIDriver>| driver.metadata.name.to_string();
    let mut collection = Collection::<CSIDriver>::new(client, path, None, &context);
    let mut known = BTreeSet::new();
    loop {
        match collection.next().await {
            CollectionEvent::All(all) => {
                let republishing = all.iter().filter(|driver| republishes(driver));
                known = republishing.map(name).collect();
            }
            CollectionEvent::One(driver) if republishes(&driver) => {
                known.insert(name(&driver));
            }
            CollectionEvent::One(Found { metadata, .. }) | CollectionEvent::Gone(metadata) => {
                known.remove(&*metadata.name);
            }
            CollectionEvent::Failed(failure) => {
                let error = chain(&failure);
                debug!(error, "failed to watch CSI drivers, will retry");
                continue;
            }
            CollectionEvent::Resumed => continue,
        }
        publish(&drivers, known.clone());
    }
}

/// Publishes `value` if it is news.
pub(crate) fn publish<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|known| {
        let is_news = *known != value;
        *known = value;
        is_news
    });
}

/// Whether a driver requires republishing. One that cannot be decoded counts as such: this mistake costs a late update,
/// the opposite one a mount (beside-kubelet 11.3).
fn republishes(driver: &Found<CSIDriver>) -> bool {
    driver
        .object
        .as_ref()
        .map_or(true, |driver| driver.spec.requires_republish == Some(true))
}

/// Whether a pod has a volume of one of `drivers`.
pub fn has_volume_of(pod: &Pod, drivers: &BTreeSet<String>) -> bool {
    let mut used = pod_volumes(pod).filter_map(|volume| volume.csi.as_ref());
    used.any(|csi| drivers.contains(&csi.driver))
}

#[cfg(test)]
mod tests;
