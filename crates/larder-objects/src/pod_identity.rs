//! The identity of a pod.

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use smol_str::SmolStr;

/// Namespace, name and UID of a pod: a recreated pod is another pod. Fields that are missing are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodIdentity {
    /// Namespace of the pod, and of the objects it refers to.
    pub namespace: SmolStr,
    /// Name of the pod.
    pub name: SmolStr,
    /// UID of the pod.
    pub uid: SmolStr,
}

impl From<&ObjectMeta> for PodIdentity {
    fn from(pod: &ObjectMeta) -> Self {
        let text = |field: &Option<String>| field.as_deref().unwrap_or_default().into();
        Self {
            namespace: text(&pod.namespace),
            name: text(&pod.name),
            uid: text(&pod.uid),
        }
    }
}

impl From<&Pod> for PodIdentity {
    fn from(pod: &Pod) -> Self {
        Self::from(&pod.metadata)
    }
}
