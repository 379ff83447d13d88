//! Facts of a pod's node: which ones its projections read, and where they are.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, Pod, ResourceFieldSelector};
use larder_objects::{
    ObjectKey,
    manifest::{Manifest, Manifests},
};
use larder_projection::{containers, pod_volumes};

/// The node that the pod runs on.
pub(super) fn node_name(pod: &Pod) -> Option<&str> {
    let name = pod.spec.as_ref()?.node_name.as_deref();
    name.filter(|name| !name.is_empty())
}

/// Whether a projection reads the name of the node, or what its Node says.
pub(super) fn reads_node_name(pod: &Pod) -> bool {
    reads_node(pod) || fields(pod).any(|path| matches!(path, "spec.nodeName" | "spec.host"))
}

/// Whether a projection reads what only the Node says: an address that the pod's status lacks, or a limit that no
/// container sets.
pub(super) fn reads_node(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let shares_network = spec.is_some_and(|spec| spec.host_network == Some(true));
    let status = pod.status.as_ref();
    let has_address = status.is_some_and(|status| status.host_ip.is_some());
    let mut fields = fields(pod);
    fields.any(|path| match path {
        "status.hostIP" | "status.hostIPs" => !has_address,
        "status.podIP" | "status.podIPs" => shares_network && !has_address,
        _ => false,
    }) || reads_allocatable(pod)
}

/// Whether a limit of the node stands in for one that a container does not set.
fn reads_allocatable(pod: &Pod) -> bool {
    let limits = containers(pod).map(|container| {
        let limits = container.resources.and_then(|all| all.limits.as_ref());
        (container.name, limits)
    });
    let limits: HashMap<_, _> = limits.collect();
    let is_node = |own: &str, field: &ResourceFieldSelector| {
        let named = field.container_name.as_deref();
        let limits = limits.get(named.filter(|name| !name.is_empty()).unwrap_or(own));
        let resource = field.resource.strip_prefix("limits.");
        let is_set = |name| limits.is_some_and(|all| all.is_some_and(|all| all.contains_key(name)));
        resource.is_some_and(|name| !is_set(name))
    };
    let mut variables = containers(pod).flat_map(|container| {
        let variables = container.env.iter();
        variables.map(move |variable| (container.name, variable))
    });
    let has_variable = variables.any(|(container, variable)| {
        let source = variable.value_from.as_ref();
        let field = source.and_then(|source| source.resource_field_ref.as_ref());
        field.is_some_and(|field| is_node(container, field))
    });
    let mut files = downward_files(pod);
    has_variable
        || files.any(|file| {
            let field = file.resource_field_ref.as_ref();
            field.is_some_and(|field| is_node("", field))
        })
}

/// The paths of fields in variables.
fn fields(pod: &Pod) -> impl Iterator<Item = &str> {
    let variables = containers(pod).flat_map(|container| container.env);
    variables.filter_map(|variable| {
        let field = variable.value_from.as_ref()?.field_ref.as_ref()?;
        Some(field.field_path.as_str())
    })
}

fn downward_files(pod: &Pod) -> impl Iterator<Item = &DownwardAPIVolumeFile> {
    pod_volumes(pod).flat_map(|volume| {
        let own = volume.downward_api.iter().flat_map(|api| &api.items);
        let projected = volume.projected.iter().flat_map(|all| &all.sources);
        let projected = projected.flatten().flat_map(|source| &source.downward_api);
        own.chain(projected.flat_map(|api| &api.items)).flatten()
    })
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
    let documents = manifests.documents.iter_mut();
    documents.filter_map(|document| match &mut document.manifest {
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
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "env": [{"name": "V", "valueFrom": env}],
                "resources": {"limits": limits}}]},
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
