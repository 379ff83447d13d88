//! The agent's state of a pod with hooks.

use std::sync::Arc;

use larder_containers::targets::KnownContainers;
use larder_pods::StoredPod;

/// A pod with hooks. Attempts get a copy.
#[derive(Clone, Debug)]
pub(super) struct HookedPod {
    pub(super) pod: Arc<StoredPod>,
    /// The containers that earlier rounds have found.
    pub(super) known_containers: Arc<KnownContainers>,
}

impl HookedPod {
    /// Whether no hook of the pod fires any more (rule F9).
    pub(super) fn is_ending(pod: &StoredPod) -> bool {
        pod.metadata.deletion_timestamp.is_some() || pod.is_terminal()
    }
}
