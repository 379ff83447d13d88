//! The memory limit of each in-memory volume of a pod.
//!
//! Rules: kubelet 1.36, `pkg/volume/emptydir/empty_dir.go` and `pkg/kubelet/cm/helpers_linux.go`:
//! 1. the node's allocatable memory,
//! 2. or the pod's memory limit, if it is greater than 0 and not greater than that;
//! 3. a pod has such a limit if it sets one itself, or if every container does, init containers included.

use k8s_openapi::api::core::v1::{Pod, PodSpec, ResourceRequirements};

use larder_objects::Quantity;

use crate::NodeFacts;

/// The limit in bytes; `None` if the node does not say what it has.
pub fn memory_limit(pod: &Pod, node: &NodeFacts) -> Option<u64> {
    let allocatable = bytes(&node.allocatable.get("memory")?.0)?;
    let limit = pod
        .spec
        .as_ref()
        .and_then(pod_limit)
        .filter(|&limit| limit <= allocatable);
    u64::try_from(limit.unwrap_or(allocatable)).ok()
}

/// Rule 3. The pod's overhead comes on top.
fn pod_limit(spec: &PodSpec) -> Option<i64> {
    let limit = declared(spec.resources.as_ref()).or_else(|| containers_limit(spec))?;
    let overhead = spec
        .overhead
        .as_ref()
        .and_then(|overhead| bytes(&overhead.get("memory")?.0));
    Some(limit.saturating_add(overhead.unwrap_or_default()))
}

/// What the containers may take together: all that run at once, or an init container beside the sidecars before it.
fn containers_limit(spec: &PodSpec) -> Option<i64> {
    let (mut sidecars, mut peak) = (0_i64, 0_i64);
    for container in spec.init_containers.iter().flatten() {
        let limit = declared(container.resources.as_ref())?;
        peak = peak.max(sidecars.saturating_add(limit));
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars = sidecars.saturating_add(limit);
        }
    }
    let mut running = sidecars;
    for container in &spec.containers {
        running = running.saturating_add(declared(container.resources.as_ref())?);
    }
    Some(running.max(peak))
}

fn declared(resources: Option<&ResourceRequirements>) -> Option<i64> {
    bytes(&resources?.limits.as_ref()?.get("memory")?.0)
}

/// A positive amount; a malformed one, which the API server rejects, counts as none.
fn bytes(quantity: &str) -> Option<i64> {
    let quantity: Quantity = quantity.parse().ok()?;
    Some(quantity.value()).filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The limit in Mi, on a node with 1000Mi.
    fn limit(spec: Value) -> Option<u64> {
        let pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        let node = serde_json::from_value(json!({"status": {"allocatable": {"memory": "1000Mi"}}}));
        memory_limit(&pod, &NodeFacts::new(&node.unwrap())).map(|bytes| bytes >> 20)
    }

    fn container(memory: &str) -> Value {
        json!({"name": "c", "resources": {"limits": {"memory": memory}}})
    }

    #[test]
    fn a_pod_or_all_its_containers_declare_its_limit() {
        let (small, none) = (container("100Mi"), json!({"name": "c"}));
        let sidecar =
            json!({"name": "c", "restartPolicy": "Always", "resources": small["resources"]});
        let cases = [
            (json!({"containers": [small, small]}), 200),
            (
                json!({"containers": [small], "overhead": {"memory": "7Mi"}}),
                107,
            ),
            (json!({"containers": [small, none]}), 1000),
            (json!({"containers": [small, container("0")]}), 1000),
            (
                json!({"containers": [small], "initContainers": [none]}),
                1000,
            ),
            (
                json!({"containers": [none], "resources": {"limits": {"memory": "50Mi"}}}),
                50,
            ),
            // More than there is.
            (json!({"containers": [container("2Gi")]}), 1000),
            (json!({"containers": [container("1000Mi")]}), 1000),
            // One after the other, but sidecars stay.
            (
                json!({"containers": [small], "initContainers": [container("300Mi"), small]}),
                300,
            ),
            (
                json!({"containers": [small], "initContainers": [sidecar, small]}),
                200,
            ),
            (
                json!({"containers": [small], "initContainers": [sidecar, container("300Mi")]}),
                400,
            ),
        ];
        for (spec, expected) in cases {
            assert_eq!(limit(spec.clone()), Some(expected), "{spec}");
        }
    }

    #[test]
    fn a_node_that_says_nothing_leaves_it_to_the_kernel() {
        let pod = serde_json::from_value(json!({"spec": {"containers": [container("1Mi")]}}));
        assert_eq!(memory_limit(&pod.unwrap(), &NodeFacts::default()), None);
    }
}
