//! What every pod of the node may read without naming it: the node itself, and the Services.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Node, Service};
use kube::Client;
use larder::NodeTtl;
use larder_projection::{NodeFacts, ServiceFacts};
use tokio::sync::watch;

use crate::follow::{Change, follow};

/// The facts as last heard; `None` until they were heard once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) node: Option<Arc<NodeFacts>>,
    pub(crate) services: Option<Arc<[ServiceFacts]>>,
}

/// Keeps `facts`, and the time to live that the node asks for, up to date with the API server. Ends only when dropped.
pub(crate) async fn follow_facts(
    client: Client,
    node_name: String,
    facts: watch::Sender<Facts>,
    node_ttl: watch::Sender<Option<Duration>>,
) {
    let selector = format!("fieldSelector=metadata.name%3D{node_name}");
    let node = follow(client.clone(), "/api/v1/nodes", &selector, |change| {
        let node: Option<Node> = match change {
            Change::All(nodes) => nodes.into_iter().next(),
            Change::One(node) => Some(node),
            Change::Gone(_) => None,
        };
        let annotations = node
            .as_ref()
            .and_then(|node| node.metadata.annotations.as_ref());
        node_ttl.send_replace(annotations.and_then(NodeTtl::of_annotations));
        let node = node.map(|node| Arc::new(NodeFacts::new(&node)));
        set(&facts, |facts| &mut facts.node, node);
    });
    let mut by_name = BTreeMap::new();
    let services = follow(client, "/api/v1/services", "", |change| {
        let changed = match change {
            Change::All(services) => {
                by_name.clear();
                services
            }
            Change::One(service) => vec![service],
            Change::Gone(service) => {
                by_name.remove(&name(&service));
                Vec::new()
            }
        };
        for service in changed {
            match ServiceFacts::new(&service) {
                Some(facts) => by_name.insert(name(&service), facts),
                None => by_name.remove(&name(&service)),
            };
        }
        let services: Arc<[_]> = by_name.values().cloned().collect();
        set(&facts, |facts| &mut facts.services, Some(services));
    });
    tokio::join!(node, services);
}

fn name(service: &Service) -> (Option<String>, Option<String>) {
    let metadata = &service.metadata;
    (metadata.namespace.clone(), metadata.name.clone())
}

/// Changes one fact, and wakes those who wait only if it is another one: a node reports itself every few minutes.
fn set<T: PartialEq>(
    facts: &watch::Sender<Facts>,
    fact: impl Fn(&mut Facts) -> &mut Option<T>,
    value: Option<T>,
) {
    facts.send_if_modified(|facts| {
        let fact = fact(facts);
        let changed = *fact != value;
        *fact = value;
        changed
    });
}
