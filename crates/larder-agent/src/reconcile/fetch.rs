//! Getting what a part reads. The only place where a worker's data comes from.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use larder_objects::{ConfigMap, Kind, Secret, SecretBytes, chain};
use larder_pods::StoredPod;
use larder_projection::{Inputs, PodCertificate, TrustBundles, Unavailable};
use tokio::time::timeout;

use super::{Shared, plan::Need};
use crate::facts::Facts;

/// How long the Node, the Services or the trust bundles are waited for. The managers wait as long for an object (kubelet 1.36,
/// `pkg/kubelet/util/manager/watch_based_manager.go`).
const FACTS_TIMEOUT: Duration = Duration::from_secs(1);

/// What came of fetching one [`Need`].
#[derive(Debug)]
pub(super) enum Have {
    ConfigMap(Result<Arc<ConfigMap>, Unavailable>),
    Secret(Result<Arc<Secret>, Unavailable>),
    Token(Result<Arc<SecretBytes>, Unavailable>),
    PodCertificate(Result<Arc<PodCertificate>, Unavailable>),
    /// The Node, the Services and the trust bundles are read from the facts when they are used; this says only that they were waited for.
    Facts,
}

/// Fetches `need` for `pod`. Ready at once when it is in memory.
pub(super) async fn fetch(shared: Arc<Shared>, pod: Arc<StoredPod>, need: Need) -> (Need, Have) {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let unavailable = |error| unavailable(&error, shared.facts.borrow().has_gaps);
    let have = match &need {
        Need::Object(Kind::ConfigMap, name) => Have::ConfigMap(
            shared
                .config_maps
                .get(namespace, name)
                .await
                .map_err(unavailable),
        ),
        Need::Object(Kind::Secret, name) => Have::Secret(
            shared
                .secrets
                .get(namespace, name)
                .await
                .map_err(unavailable),
        ),
        // What asks is large, and hundreds of objects are waited for when the agent starts.
        Need::Token(request) => Have::Token(Box::pin(shared.tokens.get(&pod, request)).await),
        Need::PodCertificate(key) => Have::PodCertificate(shared.certificates.get(&pod, key)),
        Need::TrustBundles => wait(&shared, |facts| facts.trust_bundles.is_some()).await,
        Need::Services => wait(&shared, |facts| facts.services.is_some()).await,
        Need::Node => wait(&shared, |facts| facts.node.is_some()).await,
    };
    (need, have)
}

async fn wait(shared: &Shared, known: impl FnMut(&Facts) -> bool) -> Have {
    let mut facts = shared.facts.clone();
    // Whatever comes of it: the projection says it in the kubelet's words.
    let _ = timeout(FACTS_TIMEOUT, facts.wait_for(known)).await;
    Have::Facts
}

/// An API server with gaps cannot say that there is no such object, not even an optional one.
fn unavailable(error: &larder::Error, has_gaps: bool) -> Unavailable {
    match (error.is_not_found(), has_gaps) {
        (true, false) => Unavailable::NotFound,
        (true, true) => Unavailable::failed(format!(
            "{}, or stands in a manifest that cannot be read",
            chain(error)
        )),
        (false, _) => Unavailable::failed(chain(error)),
    }
}

/// The inputs of a projection that reads no more than what is in `have`.
pub(super) fn inputs(have: &BTreeMap<Need, Have>, facts: &Facts) -> Inputs {
    let mut inputs = Inputs {
        services: facts.services.clone(),
        node: facts.node.clone(),
        trust_bundles: facts
            .trust_bundles
            .clone()
            .unwrap_or(TrustBundles::NotSynced),
        ..Inputs::default()
    };
    for (need, have) in have {
        match (need, have) {
            (Need::Object(_, name), Have::ConfigMap(found)) => {
                inputs.config_maps.insert(name.to_string(), found.clone());
            }
            (Need::Object(_, name), Have::Secret(found)) => {
                inputs.secrets.insert(name.to_string(), found.clone());
            }
            (Need::Token(request), Have::Token(token)) => {
                inputs.tokens.insert(request.clone(), token.clone());
            }
            (Need::PodCertificate(key), Have::PodCertificate(issued)) => {
                inputs.pod_certificates.insert(key.clone(), issued.clone());
            }
            _ => {}
        }
    }
    inputs
}
