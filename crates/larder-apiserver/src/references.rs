//! The references of pods, from which the node authorizer reads a node's permissions.
//!
//! Source of the edges: Kubernetes 1.36, `plugin/pkg/auth/authorizer/node/graph.go`. Its graph lags behind a binding; here
//! the pods that are currently in the store are looked at.

use k8s_openapi::api::core::v1::Pod;
use larder_objects::references;
use serde_json::Value;
use smol_str::SmolStr;

use crate::{
    json::{decode, text},
    resource::ApiKind,
};

/// The annotation of mirror pods; its value does not matter.
pub(crate) const MIRROR: &str = "/metadata/annotations/kubernetes.io~1config.mirror";

/// Kind and name of an object that a pod names, in the pod's namespace.
pub(crate) type Reference = (ApiKind, SmolStr);

/// The references of one pod, by which its node may read.
#[derive(Debug)]
pub(crate) struct PodReferences {
    /// The pod's node.
    node: SmolStr,
    references: Vec<Reference>,
}

impl PodReferences {
    /// Nothing unless a node runs the pod. A mirror pod grants nothing, since the node itself creates it.
    pub(crate) fn of(pod: &Value) -> Option<Box<Self>> {
        let node = text(pod, "/spec/nodeName");
        if node.is_empty() || pod.pointer(MIRROR).is_some() {
            return None;
        }
        let account = (ApiKind::ServiceAccount, account_of(pod));
        let pod = typed(pod);
        let secrets = references::secrets(&pod).into_iter();
        let maps = references::config_maps(&pod).into_iter();
        let maps = maps.map(|name| (ApiKind::ConfigMap, name));
        let objects = maps.chain(secrets.map(|name| (ApiKind::Secret, name)));
        Some(Box::new(Self {
            node: node.into(),
            references: objects.chain([account]).collect(),
        }))
    }

    /// Whether `node` runs the pod, and the pod refers to the object.
    pub(crate) fn grant(&self, node: &str, reference: &Reference) -> bool {
        self.node == node && self.references.contains(reference)
    }
}

/// The service account that a pod runs as.
pub(crate) fn account_of(pod: &Value) -> SmolStr {
    match text(pod, "/spec/serviceAccountName") {
        "" => "default".into(),
        named => named.into(),
    }
}

/// A pod's JSON as a pod. What is stored has been decoded before.
pub(crate) fn typed(pod: &Value) -> Pod {
    decode(pod).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_grants_to_its_node_what_it_refers_to() {
        let pod = |node: &str| {
            let sources = ["x", "y"].map(|map| json!({"configMap": {"name": map}}));
            PodReferences::of(&json!({
                "metadata": {"namespace": "n"},
                "spec": {"nodeName": node, "volumes": sources},
            }))
        };
        let references = pod("a").unwrap();
        let map = |name: &str| (ApiKind::ConfigMap, name.into());
        assert!(references.grant("a", &map("x")) && references.grant("a", &map("y")));
        assert!(references.grant("a", &(ApiKind::ServiceAccount, "default".into())));
        assert!(!references.grant("a", &(ApiKind::Secret, "x".into())));
        assert!(!references.grant("b", &map("x")) && !references.grant("a", &map("z")));
        assert!(pod("").is_none());
    }

    #[test]
    fn a_mirror_pod_grants_nothing() {
        let references = PodReferences::of(&json!({
            "metadata": {"namespace": "n", "annotations": {"kubernetes.io/config.mirror": "1"}},
            "spec": {"nodeName": "a", "volumes": [{"secret": {"secretName": "s"}}]},
        }));
        assert!(references.is_none());
    }
}
