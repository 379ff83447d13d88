//! Fetches the inputs of a part. A worker gets data from nowhere else.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use larder_inputs::cluster_state::ClusterState;
use larder_objects::{
    ConfigMap, Kind, ObjectKey, Secret, SecretBytes, chain, manifest::HiddenObjects,
};
use larder_projection::{Need, PodCertificate, Unavailable};
use smol_str::SmolStr;
use tokio::time::timeout;

use super::{inputs::NodeInputs, plan::PodPlan};

/// Longest wait for the Node, the Services or the trust bundles. The managers wait as long for an object (kubelet 1.36,
/// `pkg/kubelet/util/manager/watch_based_manager.go`).
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(1);

/// The result of fetching one [`Need`].
#[derive(Debug)]
pub(crate) enum Fetched {
    /// An object; with the time of the copy if it comes from the checkpoint.
    ConfigMap(Result<Arc<ConfigMap>, Unavailable>, Option<Timestamp>),
    Secret(Result<Arc<Secret>, Unavailable>, Option<Timestamp>),
    Token(Result<Arc<SecretBytes>, Unavailable>),
    PodCertificate(Result<Arc<PodCertificate>, Unavailable>),
    /// Node, Services and trust bundles are known. They are read from the state of the cluster when they are used.
    Cluster,
}

/// Fetches `need` for the pod of `plan`. Ready at once when it is in memory.
///
/// An object is as fresh as the registration of this pod requires: the registration of another pod never makes it wait.
pub(crate) async fn fetch(
    inputs: Arc<NodeInputs>,
    plan: Arc<PodPlan>,
    need: Need,
) -> (Need, Fetched) {
    let unavailable = |error: larder::Error, kind: Kind, name: &SmolStr| {
        let key = ObjectKey::new(plan.key.namespace.clone(), name.clone());
        unavailable(error, &inputs.cluster.borrow().hidden, kind, &key)
    };
    let expired = |kind, stale: Option<Timestamp>| {
        let max_ages = *inputs.max_ages.lock();
        stale.filter(|as_of| max_ages.is_expired(kind, *as_of, inputs.clock.now()))
    };
    let registration = || {
        let registration = plan.registration.as_ref();
        registration
            .expect("a plan with parts gets its registration before its worker gets the plan")
    };
    let fetched = match &need {
        // The mark is read before the object, so the object may be newer than its mark, never older.
        Need::Object(kind @ Kind::ConfigMap, name) => {
            let stale = registration().config_maps.stale_as_of(name);
            let object = registration()
                .config_maps
                .get(name)
                .await
                .map_err(|error| unavailable(error, *kind, name));
            match expired(*kind, registration().config_maps.stale_as_of(name)) {
                Some(as_of) => Fetched::ConfigMap(Err(too_old(as_of)), None),
                None => Fetched::ConfigMap(object, stale),
            }
        }
        Need::Object(kind @ Kind::Secret, name) => {
            let stale = registration().secrets.stale_as_of(name);
            let object = registration()
                .secrets
                .get(name)
                .await
                .map_err(|error| unavailable(error, *kind, name));
            match expired(*kind, registration().secrets.stale_as_of(name)) {
                Some(as_of) => Fetched::Secret(Err(too_old(as_of)), None),
                None => Fetched::Secret(object, stale),
            }
        }
        // Boxed: the request is large, and an agent that starts waits for hundreds of objects.
        Need::Token(request) => {
            Fetched::Token(Box::pin(inputs.tokens.get(&plan.pod, request)).await)
        }
        Need::PodCertificate(key) => {
            let source = plan.certificates.get(key);
            Fetched::PodCertificate(inputs.certificates.get(&plan.pod, key, source))
        }
        Need::TrustBundles => wait(&inputs, |cluster| cluster.trust_bundles.is_some()).await,
        Need::Services => wait(&inputs, |cluster| cluster.services.is_some()).await,
        Need::Node => wait(&inputs, |cluster| cluster.node.is_some()).await,
    };
    (need, fetched)
}

async fn wait(inputs: &NodeInputs, is_known: impl FnMut(&ClusterState) -> bool) -> Fetched {
    let mut cluster = inputs.cluster.clone();
    // If it is still unknown, the projection fails with the kubelet's message.
    let _ = timeout(CLUSTER_TIMEOUT, cluster.wait_for(is_known)).await;
    Fetched::Cluster
}

/// The API server cannot prove that an object does not exist that a rejected manifest may hold, not even an optional one.
fn unavailable(
    error: larder::Error,
    hidden: &HiddenObjects,
    kind: Kind,
    key: &ObjectKey,
) -> Unavailable {
    let text = chain(&error);
    match Unavailable::from(error) {
        Unavailable::NotFound if hidden.may_hold(kind.as_str(), key) => {
            Unavailable::failed(format!("{text}, or is in a manifest that cannot be read"))
        }
        unavailable => unavailable,
    }
}

/// The copy of the checkpoint is as of this time.
fn too_old(as_of: Timestamp) -> Unavailable {
    Unavailable::failed(format!(
        "last known good of {as_of:.0} has expired: the API server has not answered"
    ))
}
