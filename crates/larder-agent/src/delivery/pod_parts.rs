//! A decoded pod by the names of its volumes and containers, for a pass over its parts.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Pod, Volume};
use larder_projection::{ContainerView, VolumeKind, containers, pod_volumes};

/// Why a name of the plan is known.
const SAME: &str = "the plan was made from the same specification";

/// A pod by the names of its volumes and containers; the first of a name counts, as in its plan.
pub(crate) struct PodParts<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) uid: &'a str,
    volumes: HashMap<&'a str, &'a Volume>,
    containers: HashMap<&'a str, ContainerView<'a>>,
}

impl<'a> PodParts<'a> {
    pub(crate) fn new(pod: &'a Pod) -> Self {
        let (mut by_name, mut volumes) = (HashMap::new(), HashMap::new());
        for volume in pod_volumes(pod) {
            // The plan omits volumes of types that are not served.
            if VolumeKind::of(volume).is_some() {
                volumes.entry(&*volume.name).or_insert(volume);
            }
        }
        for container in containers(pod) {
            by_name.entry(container.name).or_insert(container);
        }
        Self {
            pod,
            uid: pod.metadata.uid.as_deref().unwrap_or_default(),
            volumes,
            containers: by_name,
        }
    }

    /// The volume of this name in the plan.
    pub(crate) fn volume(&self, name: &str) -> &'a Volume {
        self.volumes.get(name).expect(SAME)
    }

    /// The container of this name in the plan.
    pub(crate) fn container(&self, name: &str) -> ContainerView<'a> {
        *self.containers.get(name).expect(SAME)
    }
}
