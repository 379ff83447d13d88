//! What pods refer to, and the index of it by node: the graph from which the node authorizer reads what a node may see.
//!
//! Invariant: the index holds exactly the references of the pods that the store holds at that moment. (Source of the edges:
//! Kubernetes 1.36, `plugin/pkg/auth/authorizer/node/graph.go`; its graph lags behind a binding, this one does not.)

use std::collections::BTreeMap;

use serde_json::Value;
use smol_str::SmolStr;

use crate::json::text;

/// Whatever its value, the annotation makes a mirror pod.
pub(crate) const MIRROR: &str = "/metadata/annotations/kubernetes.io~1config.mirror";

/// An object that a pod names, in the pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reference {
    Secret(SmolStr),
    ConfigMap(SmolStr),
    ServiceAccount(SmolStr),
}

/// One pod's references and who holds them: nothing unless a node runs the pod. Mirror pods open no way: the node made them itself.
#[derive(Debug, Default)]
pub(crate) struct OfPod(Option<Box<Held>>);

#[derive(Debug)]
struct Held {
    node: SmolStr,
    namespace: SmolStr,
    references: Vec<Reference>,
}

impl OfPod {
    pub(crate) fn new(pod: &Value) -> Self {
        let node = text(pod, "/spec/nodeName");
        if node.is_empty() || pod.pointer(MIRROR).is_some() {
            return Self::default();
        }
        let mut references = of_spec(&pod["spec"]);
        references.push(Reference::ServiceAccount(account_of(pod)));
        references.sort();
        references.dedup();
        Self(Some(Box::new(Held {
            node: node.into(),
            namespace: text(pod, "/metadata/namespace").into(),
            references,
        })))
    }
}

/// References of all pods.
#[derive(Debug, Default)]
pub(crate) struct References {
    /// By node and namespace, with the number of pods that hold each.
    pods: BTreeMap<(SmolStr, SmolStr), BTreeMap<Reference, usize>>,
}

impl References {
    pub(crate) fn add(&mut self, pod: &OfPod) {
        let Some(held) = &pod.0 else { return };
        let place = (held.node.clone(), held.namespace.clone());
        let pods = self.pods.entry(place).or_default();
        for reference in &held.references {
            *pods.entry(reference.clone()).or_default() += 1;
        }
    }

    /// Takes back what [`Self::add`] has added.
    pub(crate) fn remove(&mut self, pod: &OfPod) {
        let Some(held) = &pod.0 else { return };
        let place = (held.node.clone(), held.namespace.clone());
        let Some(pods) = self.pods.get_mut(&place) else {
            return;
        };
        for reference in &held.references {
            if let Some(count) = pods.get_mut(reference) {
                *count -= 1;
                if *count == 0 {
                    pods.remove(reference);
                }
            }
        }
        if pods.is_empty() {
            self.pods.remove(&place);
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

/// The Secrets and ConfigMaps that a pod's spec names anywhere: the API gives such fields the same few names in all places.
pub(crate) fn of_spec(spec: &Value) -> Vec<Reference> {
    let mut found = Vec::new();
    collect(spec, &mut found);
    found
}

fn collect(value: &Value, found: &mut Vec<Reference>) {
    let name = |value: &Value| {
        value
            .as_str()
            .filter(|name| !name.is_empty())
            .map(SmolStr::new)
    };
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        Value::Object(fields) => {
            for (field, value) in fields {
                match field.as_str() {
                    "secretKeyRef" => found.extend(name(&value["name"]).map(Reference::Secret)),
                    // A volume's source says secretName, a projected one name.
                    "secret" => {
                        let named = name(&value["secretName"]).or_else(|| name(&value["name"]));
                        found.extend(named.map(Reference::Secret));
                    }
                    "imagePullSecrets" => {
                        let names = value.as_array().into_iter().flatten();
                        found.extend(
                            names
                                .filter_map(|item| name(&item["name"]))
                                .map(Reference::Secret),
                        );
                    }
                    "configMap" | "configMapRef" | "configMapKeyRef" => {
                        found.extend(name(&value["name"]).map(Reference::ConfigMap));
                    }
                    // secretRef of the environment and of volumes, nodePublishSecretRef of CSI.
                    field if field == "secretRef" || field.ends_with("SecretRef") => {
                        found.extend(name(&value["name"]).map(Reference::Secret));
                    }
                    "azureFile" => found.extend(name(&value["secretName"]).map(Reference::Secret)),
                    _ => collect(value, found),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reference_is_known_as_long_as_a_pod_of_the_node_holds_it() {
        let pod = |node: &str, maps: &[&str]| {
            let sources = maps.iter().map(|map| json!({"configMap": {"name": map}}));
            OfPod::new(&json!({
                "metadata": {"namespace": "n"},
                "spec": {"nodeName": node, "volumes": sources.collect::<Vec<_>>()},
            }))
        };
        let map = |name: &str| Reference::ConfigMap(name.into());
        let (first, second) = (pod("a", &["x", "y", "x"]), pod("a", &["y"]));
        let mut references = References::default();
        references.add(&first);
        references.add(&second);
        references.add(&pod("", &["z"]));
        assert!(references.has("a", "n", &map("x")) && references.has("a", "n", &map("y")));
        assert!(references.has("a", "n", &Reference::ServiceAccount("default".into())));
        assert!(!references.has("a", "n", &Reference::Secret("x".into())));
        assert!(!references.has("b", "n", &map("x")) && !references.has("a", "m", &map("x")));
        assert!(!references.has("", "n", &map("z")));
        references.remove(&first);
        assert!(!references.has("a", "n", &map("x")) && references.has("a", "n", &map("y")));
        references.remove(&second);
        assert!(references.pods.is_empty());
    }

    #[test]
    fn a_mirror_pod_opens_no_way() {
        let mut references = References::default();
        references.add(&OfPod::new(&json!({
            "metadata": {"namespace": "n", "annotations": {"kubernetes.io/config.mirror": "1"}},
            "spec": {"nodeName": "a", "volumes": [{"secret": {"secretName": "s"}}]},
        })));
        assert!(references.pods.is_empty());
    }
}
