//! The references of pods, and their index by node: the graph from which the node authorizer reads a node's
//! permissions.
//!
//! Invariant: the index holds exactly the references of the pods that are currently in the store. (Source of the edges:
//! Kubernetes 1.36, `plugin/pkg/auth/authorizer/node/graph.go`; its graph lags behind a binding, this one does not.)

use std::collections::BTreeMap;

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
    /// The pod's node and namespace.
    place: (SmolStr, SmolStr),
    references: Vec<Reference>,
}

impl PodReferences {
    /// Nothing unless a node runs the pod. A mirror pod grants nothing, since the node itself creates it.
    pub(crate) fn of(pod: &Value) -> Option<Box<Self>> {
        let node = text(pod, "/spec/nodeName");
        if node.is_empty() || pod.pointer(MIRROR).is_some() {
            return None;
        }
        let namespace = text(pod, "/metadata/namespace");
        let account = (ApiKind::ServiceAccount, account_of(pod));
        let pod = typed(pod);
        let secrets = references::secrets(&pod).into_iter();
        let maps = references::config_maps(&pod).into_iter();
        let maps = maps.map(|name| (ApiKind::ConfigMap, name));
        let objects = maps.chain(secrets.map(|name| (ApiKind::Secret, name)));
        Some(Box::new(Self {
            place: (node.into(), namespace.into()),
            references: objects.chain([account]).collect(),
        }))
    }
}

/// References of all pods.
#[derive(Debug, Default)]
pub(crate) struct References {
    /// By node and namespace, with the number of pods that hold each.
    pods: BTreeMap<(SmolStr, SmolStr), BTreeMap<Reference, usize>>,
}

impl References {
    pub(crate) fn add(&mut self, pod: Option<&PodReferences>) {
        let Some(pod) = pod else { return };
        let pods = self.pods.entry(pod.place.clone()).or_default();
        for reference in &pod.references {
            *pods.entry(reference.clone()).or_default() += 1;
        }
    }

    /// Takes back what [`Self::add`] has added.
    pub(crate) fn remove(&mut self, pod: Option<&PodReferences>) {
        let Some(pod) = pod else { return };
        let Some(pods) = self.pods.get_mut(&pod.place) else {
            return;
        };
        for reference in &pod.references {
            if let Some(count) = pods.get_mut(reference) {
                *count -= 1;
                if *count == 0 {
                    pods.remove(reference);
                }
            }
        }
        if pods.is_empty() {
            self.pods.remove(&pod.place);
        }
    }

    /// Whether a pod in `namespace` that `node` runs refers to the object.
    pub(crate) fn has(&self, node: &str, namespace: &str, reference: &Reference) -> bool {
        let pods = self.pods.get(&(node.into(), namespace.into()));
        pods.is_some_and(|pods| pods.contains_key(reference))
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
    fn a_reference_lasts_as_long_as_a_pod_of_the_node() {
        let pod = |node: &str, maps: &[&str]| {
            let sources = maps.iter().map(|map| json!({"configMap": {"name": map}}));
            PodReferences::of(&json!({
                "metadata": {"namespace": "n"},
                "spec": {"nodeName": node, "volumes": sources.collect::<Vec<_>>()},
            }))
        };
        let map = |name: &str| (ApiKind::ConfigMap, name.into());
        let (first, second) = (pod("a", &["x", "y", "x"]), pod("a", &["y"]));
        let mut references = References::default();
        references.add(first.as_deref());
        references.add(second.as_deref());
        references.add(pod("", &["z"]).as_deref());
        assert!(references.has("a", "n", &map("x")) && references.has("a", "n", &map("y")));
        assert!(references.has("a", "n", &(ApiKind::ServiceAccount, "default".into())));
        assert!(!references.has("a", "n", &(ApiKind::Secret, "x".into())));
        assert!(!references.has("b", "n", &map("x")) && !references.has("a", "m", &map("x")));
        assert!(!references.has("", "n", &map("z")));
        references.remove(first.as_deref());
        assert!(!references.has("a", "n", &map("x")) && references.has("a", "n", &map("y")));
        references.remove(second.as_deref());
        assert!(references.pods.is_empty());
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
