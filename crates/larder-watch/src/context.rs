//! What the managers and collections of a node share.

use tokio::time::Instant;

use crate::{limits::RepeatLimiter, outages::Outages};

/// What all managers and collections of a node that use one API server share: the rate of repeated requests, and what they
/// know of outages. Clones are one.
///
/// ```no_run
/// use k8s_openapi::api::core::v1::{Node, Service};
/// use larder_transport::path::Resource;
/// use larder_watch::{NodeContext, collection::Collection};
///
/// # fn example(client: kube::Client) {
/// let context = NodeContext::default();
/// let (nodes, services) = (Resource::core("nodes"), Resource::core("services"));
/// let nodes = Collection::<Node>::new(client.clone(), nodes.collection(), None, &context);
/// let services = Collection::<Service>::new(client, services.collection(), None, &context);
/// # drop((nodes, services));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct NodeContext {
    pub(crate) outages: Outages,
    pub(crate) repeats: RepeatLimiter,
}

impl Default for NodeContext {
    fn default() -> Self {
        Self {
            outages: Outages::default(),
            repeats: RepeatLimiter::new(Instant::now()),
        }
    }
}
