//! The inputs that the workers of all pods share, and the registration of a pod with both managers.

use std::time::Duration;

use larder::{ConfigMapManager, RegisteredPod, SecretManager};
use larder_inputs::{
    certificates::Certificates,
    clock::Clock,
    cluster_state::{ClusterFreshness, ClusterState},
    tokens::Tokens,
};
use larder_objects::{ConfigMap, Secret};
use larder_watch::CollectionFreshness;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{kept_pods::KeptPods, max_ages::MaxAges};

/// What workers read.
pub(crate) struct NodeInputs {
    pub(crate) config_maps: ConfigMapManager,
    pub(crate) secrets: SecretManager,
    pub(crate) tokens: Tokens,
    pub(crate) certificates: Certificates,
    pub(crate) cluster: watch::Receiver<ClusterState>,
    pub(crate) cluster_freshness: ClusterFreshness,
    /// How fresh is what is known of the pods that the API server has bound to the node.
    pub(crate) pod_freshness: CollectionFreshness,
    /// The pods of which an earlier version is served.
    pub(crate) kept_pods: Mutex<KeptPods>,
    /// How old a copy of the checkpoint may be when it is used.
    pub(crate) max_ages: Mutex<MaxAges>,
    pub(crate) clock: Clock,
    /// Time between two repair passes, before jitter; a reload may change it.
    pub(crate) sync_frequency: Mutex<Duration>,
}

/// Keeps a pod registered with both managers, and reads what the pod refers to.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) config_maps: RegisteredPod<ConfigMap>,
    pub(crate) secrets: RegisteredPod<Secret>,
}
