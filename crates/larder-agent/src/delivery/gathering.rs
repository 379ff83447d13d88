//! The inputs that a pod's worker has fetched, or is fetching, for its next pass.
//!
//! Invariant: a need is fetched once at a time. No fetched input outlives the pass that needs it, unless the worker
//! retains it: the managers hold the objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use jiff::Timestamp;
use larder_inputs::cluster_state::ClusterState;
use larder_objects::{Kind, Object as _};
use larder_projection::{Inputs, Need, TrustBundles};
use smol_str::SmolStr;

use super::{
    fetch::{Fetched, fetch},
    inputs::NodeInputs,
    plan::PodPlan,
    readers::ReadObject,
};

/// The inputs of one pod.
#[derive(Default)]
pub(crate) struct Gathering {
    /// The value of each need; `None` while it is being fetched.
    values: BTreeMap<Need, Option<Fetched>>,
    fetching: FuturesUnordered<BoxFuture<'static, (Need, Fetched)>>,
}

impl Gathering {
    /// Starts to fetch each of `needs` that is neither fetched nor being fetched.
    pub(crate) fn fetch<'a>(
        &mut self,
        inputs: &Arc<NodeInputs>,
        plan: &Arc<PodPlan>,
        needs: impl Iterator<Item = &'a Need>,
    ) {
        for need in needs {
            if !self.values.contains_key(need) {
                self.values.insert(need.clone(), None);
                let fetch = fetch(Arc::clone(inputs), Arc::clone(plan), need.clone());
                self.fetching.push(fetch.boxed());
            }
        }
    }

    /// Waits for one of the fetches; `None` if there is none. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Need> {
        let (need, fetched) = self.fetching.next().await?;
        Some(self.keep(need, fetched))
    }

    /// Takes in the completed fetches. An object that a manager has in memory is fetched at once.
    pub(crate) fn collect(&mut self) -> BTreeSet<Need> {
        let mut arrived = BTreeSet::new();
        while let Some(Some((need, fetched))) = self.fetching.next().now_or_never() {
            arrived.insert(self.keep(need, fetched));
        }
        arrived
    }

    fn keep(&mut self, need: Need, fetched: Fetched) -> Need {
        self.values.insert(need.clone(), Some(fetched));
        need
    }

    /// The value of `need`, if it is fetched.
    fn value(&self, need: &Need) -> Option<&Fetched> {
        self.values.get(need)?.as_ref()
    }

    /// Whether `need` is fetched.
    pub(crate) fn has(&self, need: &Need) -> bool {
        self.value(need).is_some()
    }

    /// The time of the copy in the checkpoint that `need` was read from.
    pub(crate) fn stale_as_of(&self, need: &Need) -> Option<Timestamp> {
        match self.value(need)? {
            Fetched::ConfigMap(_, stale) | Fetched::Secret(_, stale) => *stale,
            Fetched::Token(_) | Fetched::PodCertificate(_) | Fetched::Cluster => None,
        }
    }

    /// The identity of a fetched object.
    pub(crate) fn identity(&self, kind: Kind, name: &SmolStr) -> Option<ReadObject> {
        let (metadata, is_immutable) = match self.value(&Need::Object(kind, name.clone()))? {
            Fetched::ConfigMap(Ok(object), _) => (object.metadata(), object.is_immutable()),
            Fetched::Secret(Ok(object), _) => (object.metadata(), object.is_immutable()),
            _ => return None,
        };
        let uid = metadata.uid.clone();
        Some(ReadObject { uid, is_immutable })
    }

    /// The inputs of a projection that reads only fetched needs.
    pub(crate) fn inputs(&self, cluster: &ClusterState) -> Inputs {
        let mut inputs = Inputs {
            services: cluster.services.clone(),
            node: cluster.node.clone(),
            trust_bundles: cluster
                .trust_bundles
                .clone()
                .unwrap_or(TrustBundles::NotSynced),
            ..Inputs::default()
        };
        for (need, value) in &self.values {
            match (need, value) {
                (Need::Object(_, name), Some(Fetched::ConfigMap(object, _))) => {
                    inputs.config_maps.insert(name.to_string(), object.clone());
                }
                (Need::Object(_, name), Some(Fetched::Secret(object, _))) => {
                    inputs.secrets.insert(name.to_string(), object.clone());
                }
                (Need::Token(request), Some(Fetched::Token(token))) => {
                    inputs.tokens.insert(request.clone(), token.clone());
                }
                (Need::PodCertificate(key), Some(Fetched::PodCertificate(issued))) => {
                    inputs.pod_certificates.insert(key.clone(), issued.clone());
                }
                // Not fetched yet, or of the cluster, whose state is taken above.
                (
                    Need::Object(..)
                    | Need::Token(_)
                    | Need::PodCertificate(_)
                    | Need::Services
                    | Need::Node
                    | Need::TrustBundles,
                    _,
                ) => {}
            }
        }
        inputs
    }

    /// Forgets the value of `need`, which has changed.
    pub(crate) fn forget(&mut self, need: &Need) {
        if self.has(need) {
            self.values.remove(need);
        }
    }

    /// Forgets all values.
    pub(crate) fn forget_all(&mut self) {
        self.values.retain(|_, value| value.is_none());
    }

    /// Forgets the values of all other needs.
    pub(crate) fn retain(&mut self, needs: &BTreeSet<&Need>) {
        self.values
            .retain(|need, value| value.is_none() || needs.contains(need));
        // A map that was emptied keeps its last node.
        if self.values.is_empty() {
            self.values = BTreeMap::new();
        }
    }
}
