//! The inputs that the workers of all pods share.

use std::{collections::HashMap, time::Duration};

use jiff::Timestamp;
use larder::{ConfigMapManager, SecretManager};
use larder_objects::{Kind, ObjectKey};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    certificates::Certificates, clock::Clock, cluster_state::ClusterState, tokens::Tokens,
};

/// What workers read.
pub(crate) struct NodeInputs {
    pub(crate) config_maps: ConfigMapManager,
    pub(crate) secrets: SecretManager,
    pub(crate) tokens: Tokens,
    pub(crate) certificates: Certificates,
    pub(crate) cluster: watch::Receiver<ClusterState>,
    /// The last freshness checks of copies that were too old to be served, until the API server has answered.
    pub(crate) expired: Mutex<HashMap<(Kind, ObjectKey), Timestamp>>,
    pub(crate) clock: Clock,
    /// Time between two repair passes, before jitter; a reload may change it.
    pub(crate) sync_frequency: Mutex<Duration>,
}
