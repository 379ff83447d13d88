//! The registration of a pod with both managers.

use k8s_openapi::api::core::v1::Pod;
use larder::RegisteredPod;
use larder_objects::{ConfigMap, Secret};

use super::inputs::NodeInputs;

/// Keeps a pod registered with both managers, and reads what the pod refers to.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) config_maps: RegisteredPod<ConfigMap>,
    pub(crate) secrets: RegisteredPod<Secret>,
}

impl Registration {
    pub(crate) fn new(inputs: &NodeInputs, pod: &Pod) -> Self {
        Self {
            config_maps: inputs.config_maps.registered(pod),
            secrets: inputs.secrets.registered(pod),
        }
    }
}
