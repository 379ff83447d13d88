//! Facts of a pod's node: which ones its projections read, and where they are.

use std::collections::{BTreeSet, HashMap};

use k8s_openapi::api::core::v1::Pod;
use larder_objects::{
    ObjectKey,
    manifest::{Manifest, Manifests},
};
use larder_projection::{UnknownSource, containers, environment, pod_volumes, project};

use crate::offline::{Offline, assume_all};

/// The node that the pod runs on.
pub(super) fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()?
        .node_name
        .as_deref()
        .filter(|name| !name.is_empty())
}

/// Whether a projection reads the name of the node, or what its Node says.
pub(super) fn reads_node_name(pod: &Pod) -> bool {
    let facts = unknown_facts(pod);
    reads_node(pod) || facts.contains("spec.nodeName") || facts.contains("spec.host")
}

/// Whether a projection reads what only the Node says: an address that the pod's status lacks, or a limit that no
/// container sets.
pub(super) fn reads_node(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let shares_network = spec.is_some_and(|spec| spec.host_network == Some(true));
    unknown_facts(pod).iter().any(|fact| match fact.as_str() {
        "status.hostIP" | "status.hostIPs" => true,
        "status.podIP" | "status.podIPs" => shares_network,
        fact => fact.starts_with("limits."),
    })
}

/// What the projections of a pod read that the pod itself does not say: `status.hostIP`, `limits.cpu`.
fn unknown_facts(pod: &Pod) -> BTreeSet<String> {
    let mut inputs = Offline::default().inputs(pod);
    // A missing object hides no fact.
    assume_all(&mut inputs);
    let mut facts = BTreeSet::new();
    let mut note = |source: UnknownSource| facts.insert(source.what.to_string());
    for environment in containers(pod).flat_map(|view| environment(pod, view, &inputs)) {
        environment.unknown_sources().for_each(|source| {
            note(source);
        });
    }
    for volume in pod_volumes(pod).flat_map(|volume| project(pod, volume, &inputs)) {
        volume.unknown_sources().for_each(|source| {
            note(source);
        });
    }
    facts
}

/// Completes the pods that are on both sides: where one lacks the node, the other's counts, with the addresses.
pub(super) fn share_nodes(from: &mut Manifests, to: &mut Manifests) {
    let mut pods: HashMap<_, _> = pods_mut(from).collect();
    for (key, pod) in pods_mut(to) {
        if let Some(other) = pods.get_mut(&key) {
            take_node(pod, other);
            take_node(other, pod);
        }
    }
}

fn pods_mut(manifests: &mut Manifests) -> impl Iterator<Item = (ObjectKey, &mut Pod)> {
    manifests
        .documents
        .iter_mut()
        .filter_map(|document| match &mut document.manifest {
            Manifest::Pod(pod) => Some((document.object.key(), &mut **pod)),
            _ => None,
        })
}

fn take_node(pod: &mut Pod, other: &Pod) {
    let (Some(spec), Some(node)) = (&mut pod.spec, node_name(other)) else {
        return;
    };
    let name = spec.node_name.get_or_insert_with(|| node.to_owned());
    let status = pod.status.get_or_insert_default();
    if name == node
        && status.host_ip.is_none()
        && let Some(known) = &other.status
    {
        status.host_ip.clone_from(&known.host_ip);
        status.host_ips.clone_from(&known.host_ips);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(env: Value, limits: Value, status: Value) -> Pod {
        serde_json::from_value(json!({
            "spec": {"nodeName": "n1", "enableServiceLinks": true, "containers": [
                {"name": "c", "env": [{"name": "V", "valueFrom": env}], "resources": {"limits": limits}}]},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn node_is_read_only_for_what_nothing_else_says() {
        let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
        let limit = json!({"resourceFieldRef": {"resource": "limits.cpu"}});
        let request = json!({"resourceFieldRef": {"resource": "requests.cpu"}});
        let (none, address) = (json!({}), json!({"hostIP": "10.0.0.1"}));
        for (env, limits, status, expected) in [
            (field("status.hostIP"), &none, &none, true),
            (field("status.hostIPs"), &none, &address, false),
            (field("status.podIP"), &none, &none, false),
            (field("spec.nodeName"), &none, &none, false),
            (limit.clone(), &none, &address, true),
            (limit.clone(), &json!({"memory": "1Gi"}), &none, true),
            (limit, &json!({"cpu": "1"}), &none, false),
            (request, &none, &none, false),
        ] {
            let pod = pod(env.clone(), limits.clone(), status.clone());
            assert_eq!(reads_node(&pod), expected, "{env} {limits} {status}");
        }
    }

    #[test]
    fn stated_node_is_kept_and_its_addresses_are_not_those_of_another() {
        let field = json!({"fieldRef": {"fieldPath": "status.hostIP"}});
        let live = pod(field.clone(), json!({}), json!({"hostIP": "10.0.0.1"}));
        let mut same = pod(field.clone(), json!({}), json!({}));
        take_node(&mut same, &live);
        assert_eq!(same, live);
        let mut other = pod(field, json!({}), json!({}));
        other.spec.as_mut().unwrap().node_name = Some("n2".to_owned());
        let before = other.clone();
        take_node(&mut other, &live);
        assert_eq!(other, before);
    }
}
