//! The state that the managers and collections of a node share.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use crate::{
    limits::RepeatLimiter,
    liveness::{Liveness, SilentWatch},
    outages::Outages,
};

/// State that all managers and collections of a node share for one API server: the rate limit of repeated requests, the
/// known outages, the random source of the collections, and which watches are alive. Clones share it too.
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
#[derive(Clone, Debug, Default)]
pub struct NodeContext {
    pub(crate) outages: Outages,
    pub(crate) repeats: RepeatLimiter,
    pub(crate) liveness: Liveness,
    random: Arc<Mutex<fastrand::Rng>>,
}

impl NodeContext {
    /// A context whose collections draw their random delays from `seed`, so that a test can be repeated.
    pub fn with_seed(seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self {
            random: Arc::new(Mutex::new(random)),
            ..Self::default()
        }
    }

    /// The watches that should have been heard from by now, at most one for each manager and collection.
    ///
    /// A watch is alive while its last response, event or bookmark is younger than its timeout plus a margin. One whose
    /// request has failed is alive too: the failure is known, and was reported as such. If nothing drives a watch (its
    /// task is stuck, or [`Collection::next`](crate::collection::Collection::next) is no longer called), it counts as
    /// silent after five minutes. Costs no request.
    pub fn silent_watches(&self) -> Vec<SilentWatch> {
        self.liveness.silent_watches(Instant::now())
    }

    /// Changes whenever an outage of the API server is over, as managers and collections have found; holds over how long
    /// they spread the retries of those that backed off. For requests of another kind, which are not retried here.
    pub fn outages_over(&self) -> watch::Receiver<Duration> {
        self.outages.over()
    }

    /// A random source for one engine.
    pub(crate) fn fork_random(&self) -> fastrand::Rng {
        self.random.lock().fork()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn contexts_of_one_seed_draw_alike() {
        let draws = |seed| {
            let context = NodeContext::with_seed(seed);
            let (mut first, mut second) = (context.fork_random(), context.clone().fork_random());
            [first.u64(..), second.u64(..)]
        };
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
        let [first, second] = draws(1);
        assert_ne!(first, second);
    }
}
