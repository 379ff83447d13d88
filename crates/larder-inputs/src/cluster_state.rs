//! Cluster state that the pods of the node share: the Node, the Services, and ClusterTrustBundles while a pod
//! references any.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    ClusterResourceScope,
    api::{
        certificates::v1beta1::{ClusterTrustBundle as BetaTrustBundle, ClusterTrustBundleSpec},
        core::v1::{Node, Service},
    },
};
use kube::Client;
use larder_objects::manifest::{HiddenObjects, KeptObjects};
use larder_projection::{NodeFacts, ServiceFacts, TrustBundle, TrustBundles};
use larder_transport::path::{Resource, field_selector};
use larder_watch::{
    CollectionFreshness, NodeContext,
    collection::{Collection, CollectionEvent},
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::{
    last_good::{LastGood, UndecodedObjects},
    served_version::{ServedCollection, ServedObject, ServedResource, ServedSpec},
};

const NODES: Resource = Resource::core("nodes");
const SERVICES: Resource = Resource::core("services");

type ClusterTrustBundle = ServedObject<ClusterTrustBundleSpec>;

impl ServedSpec for ClusterTrustBundleSpec {
    const KIND: &'static str = "ClusterTrustBundle";
    const PLURAL: &'static str = "clustertrustbundles";
    type Scope = ClusterResourceScope;
    type Status = NoStatus;
}

/// Trust bundles have no status: what may be there is not read.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NoStatus {}

impl From<ClusterTrustBundle> for TrustBundle {
    fn from(bundle: ClusterTrustBundle) -> Self {
        let ClusterTrustBundle { metadata, spec, .. } = bundle;
        BetaTrustBundle { metadata, spec }.into()
    }
}

/// How fresh is what is known of the cluster. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct ClusterFreshness {
    /// Of the Node.
    pub node: CollectionFreshness,
    /// Of the Services.
    pub services: CollectionFreshness,
    /// Of the ClusterTrustBundles.
    pub trust_bundles: CollectionFreshness,
}

/// The last known state; `None` until one was read.
#[derive(Clone, Debug, Default)]
pub struct ClusterState {
    /// The Node.
    pub node: Option<Arc<NodeFacts>>,
    /// The Services that pods get variables for.
    pub services: Option<Arc<[ServiceFacts]>>,
    /// When Node and Services were current, if they are of a checkpoint.
    pub copied_as_of: Option<Timestamp>,
    /// The ClusterTrustBundles, while they are wanted.
    pub trust_bundles: Option<TrustBundles>,
    /// Nodes, Services and ClusterTrustBundles of which an earlier version is known, or none.
    pub undecoded: UndecodedState,
    /// Objects that may exist although the API server lacks them, see [`follow_manifests`].
    pub hidden: Arc<HiddenObjects>,
    /// Objects of which the API server has an earlier version than the manifests that fill it.
    pub kept: Arc<KeptObjects>,
}

/// The objects whose newest version cannot be decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UndecodedState {
    /// The Node.
    pub node: UndecodedObjects,
    /// The Services.
    pub services: UndecodedObjects,
    /// The ClusterTrustBundles.
    pub trust_bundles: UndecodedObjects,
}

/// Keeps the Node and the Services of `state` in sync with the API server, and reports each Node to `seen`; `None` if
/// there is none. Ends only when dropped.
pub async fn follow_cluster(
    client: Client,
    node_name: String,
    state: watch::Sender<ClusterState>,
    seen: impl Fn(Option<&Node>),
    freshness: ClusterFreshness,
    context: NodeContext,
) {
    let selector = field_selector("metadata.name", &node_name);
    let node = Collection::new(
        client.clone(),
        NODES.collection(),
        Some(&selector),
        &context,
    )
    .proving(&freshness.node);
    let services =
        Collection::new(client, SERVICES.collection(), None, &context).proving(&freshness.services);
    tokio::join!(
        follow_node(node, &state, seen),
        follow_services(services, &state)
    );
}

async fn follow_node(
    mut collection: Collection<Node>,
    state: &watch::Sender<ClusterState>,
    seen: impl Fn(Option<&Node>),
) {
    let mut nodes = LastGood::new();
    loop {
        let event = collection.next().await;
        if !nodes.take(event, Some) {
            continue;
        }
        let node = nodes.known.values().next();
        // Before a version can be decoded, it is not known what there is.
        if node.is_some() || nodes.undecoded.iter().next().is_none() {
            seen(node);
        }
        let node = node.map(|node| Arc::new(NodeFacts::new(node)));
        set(
            state,
            |state| (&mut state.node, &mut state.undecoded.node),
            (node, nodes.undecoded.clone()),
        );
    }
}

async fn follow_services(mut collection: Collection<Service>, state: &watch::Sender<ClusterState>) {
    let mut services = LastGood::new();
    loop {
        let event = collection.next().await;
        if services.take(event, |service| ServiceFacts::new(&service)) {
            let known: Arc<[_]> = services.known.values().cloned().collect();
            set(
                state,
                |state| (&mut state.services, &mut state.undecoded.services),
                (Some(known), services.undecoded.clone()),
            );
        }
    }
}

/// Copies into `state` what the manifests may hold that fill the API server, and that cannot be read, and of which objects
/// an earlier version is in use for that. Ends when both senders are dropped.
pub async fn follow_manifests(
    mut hidden: watch::Receiver<Arc<HiddenObjects>>,
    mut kept: watch::Receiver<Arc<KeptObjects>>,
    state: watch::Sender<ClusterState>,
) {
    loop {
        let now_hidden = Arc::clone(&hidden.borrow_and_update());
        let now_kept = Arc::clone(&kept.borrow_and_update());
        state.send_if_modified(|state| {
            let is_news = state.hidden != now_hidden || state.kept != now_kept;
            (state.hidden, state.kept) = (now_hidden, now_kept);
            is_news
        });
        // Both are cancel-safe.
        tokio::select! {
            biased;
            Ok(()) = hidden.changed() => {}
            Ok(()) = kept.changed() => {}
            else => return,
        }
    }
}

/// Keeps the trust bundles of `state` in sync with the API server while they are `wanted`. Ends only when dropped.
pub async fn follow_trust_bundles(
    client: Client,
    mut wanted: watch::Receiver<bool>,
    state: watch::Sender<ClusterState>,
    freshness: CollectionFreshness,
    context: NodeContext,
) {
    let publish = |bundles, undecoded| {
        set(
            &state,
            |state| (&mut state.trust_bundles, &mut state.undecoded.trust_bundles),
            (bundles, undecoded),
        );
    };
    let served = ServedResource::of::<ClusterTrustBundleSpec>();
    while wanted.wait_for(|wanted| *wanted).await.is_ok() {
        let bundles = ServedCollection::new(&client, &served, None, &context).proving(&freshness);
        tokio::select! {
            biased;
            _ = wanted.wait_for(|wanted| !wanted) => {}
            () = keep_trust_bundles(bundles, publish) => {}
        }
        publish(None, UndecodedObjects::default());
    }
}

async fn keep_trust_bundles(
    mut collection: ServedCollection<ClusterTrustBundle>,
    publish: impl Fn(Option<TrustBundles>, UndecodedObjects),
) {
    let mut bundles = LastGood::new();
    loop {
        let event = collection.next().await;
        let is_unserved =
            matches!(&event, CollectionEvent::Failed(failure) if failure.error.is_not_found());
        if bundles.take(event, |bundle| Some(TrustBundle::from(bundle))) {
            let known = bundles.known.values().cloned().collect();
            publish(Some(TrustBundles::Synced(known)), bundles.undecoded.clone());
        } else if is_unserved {
            bundles = LastGood::new();
            publish(Some(TrustBundles::Unsupported), UndecodedObjects::default());
        }
    }
}

/// Sets two fields, and notifies only if one differs: a Node is updated every few minutes without a change that matters.
fn set<T: PartialEq>(
    state: &watch::Sender<ClusterState>,
    fields: impl Fn(&mut ClusterState) -> (&mut Option<T>, &mut UndecodedObjects),
    values: (Option<T>, UndecodedObjects),
) {
    state.send_if_modified(|state| {
        let (known, undecoded) = fields(state);
        let is_news = (&*known, &*undecoded) != (&values.0, &values.1);
        (*known, *undecoded) = values;
        is_news
    });
}
