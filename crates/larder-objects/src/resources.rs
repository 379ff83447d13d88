//! The resources that a pod requests: the sums over its containers, and the resulting QoS class.
//!
//! Source: Kubernetes 1.36, `component-helpers/resource/helpers.go` and `pkg/apis/core/helper/qos/qos.go`.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource,
};

use crate::{Quantity, quantity::Amount};

/// Amounts by resource, as the API has them.
pub(crate) type Amounts = BTreeMap<String, resource::Quantity>;

/// Which of the two amounts of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Limits,
    Requests,
}

impl Side {
    pub(crate) fn of(self, resources: &ResourceRequirements) -> Option<&Amounts> {
        match self {
            Self::Limits => resources.limits.as_ref(),
            Self::Requests => resources.requests.as_ref(),
        }
    }
}

/// Whether an init container keeps running beside the others.
fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// What the containers of a pod need together, by resource: those that run at the same time are added up, and an init
/// container, which ends before the others start, counts where it needs more than those. Amounts that cannot be read
/// are left out.
pub(crate) fn of_containers(spec: &PodSpec, side: Side) -> BTreeMap<String, Amount> {
    let amounts = |container: &Container| -> BTreeMap<String, Amount> {
        container
            .resources
            .iter()
            .filter_map(|held| side.of(held))
            .flatten()
            .filter_map(|(name, amount)| Some((name.clone(), amount.0.parse().ok()?)))
            .collect()
    };
    let mut together = BTreeMap::new();
    for container in &spec.containers {
        add(&mut together, &amounts(container));
    }
    let mut sidecars = BTreeMap::new();
    let mut most: BTreeMap<String, Amount> = BTreeMap::new();
    for container in spec.init_containers.iter().flatten() {
        let mut at_start = amounts(container);
        if is_sidecar(container) {
            add(&mut together, &at_start);
            add(&mut sidecars, &at_start);
            at_start.clone_from(&sidecars);
        } else {
            add(&mut at_start, &sidecars);
        }
        raise(&mut most, &at_start);
    }
    raise(&mut together, &most);
    together
}

fn add(total: &mut BTreeMap<String, Amount>, more: &BTreeMap<String, Amount>) {
    for (name, amount) in more {
        let held = total.entry(name.clone()).or_default();
        *held = held.plus(*amount);
    }
}

fn raise(total: &mut BTreeMap<String, Amount>, least: &BTreeMap<String, Amount>) {
    for (name, amount) in least {
        let held = total.entry(name.clone()).or_insert(*amount);
        if held.quantity < amount.quantity {
            *held = *amount;
        }
    }
}

/// `status.qosClass` of a pod, after the defaults: `Guaranteed` where each container has limits of processor and memory
/// and asks for all of them, `BestEffort` where none states anything, else `Burstable`. Resources of the pod as a whole
/// stand for those of its containers.
pub fn qos_class(spec: &PodSpec) -> &'static str {
    let init = spec.init_containers.iter().flatten();
    let parts: Vec<Option<&ResourceRequirements>> = if spec.resources.is_some() {
        vec![spec.resources.as_ref()]
    } else {
        spec.containers
            .iter()
            .chain(init)
            .map(|part| part.resources.as_ref())
            .collect()
    };
    let [mut requests, mut limits] = [[Quantity::default(); 2]; 2];
    let mut limited = true;
    for part in parts {
        let amount = |side: Side| {
            ["cpu", "memory"].map(|name| {
                part.and_then(|part| side.of(part))
                    .and_then(|amounts| amounts.get(name)?.0.parse().ok())
                    .unwrap_or_default()
            })
        };
        let (part_requests, part_limits) = (amount(Side::Requests), amount(Side::Limits));
        limited &= part_limits.iter().all(|limit| *limit > Quantity::default());
        for index in 0..2 {
            requests[index] = requests[index].plus(part_requests[index]);
            limits[index] = limits[index].plus(part_limits[index]);
        }
    }
    if [requests, limits] == [[Quantity::default(); 2]; 2] {
        "BestEffort"
    } else if limited && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn class(spec: Value) -> &'static str {
        let mut pod = from_value(json!({"metadata": {}, "spec": spec})).unwrap();
        crate::defaults::pod(&mut pod);
        qos_class(pod.spec.as_ref().unwrap())
    }

    fn container(resources: Value) -> Value {
        json!({"name": "c", "resources": resources})
    }

    #[test]
    fn a_pod_is_guaranteed_where_every_container_is() {
        let whole = container(json!({"limits": {"cpu": "1", "memory": "1Gi"}}));
        let same = container(
            json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m"}}),
        );
        let less =
            container(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1m"}}));
        assert_eq!(
            class(json!({"containers": [whole, same], "initContainers": [whole]})),
            "Guaranteed"
        );
        for (containers, init) in [
            (json!([less]), json!([])),
            (json!([whole]), json!([container(json!({}))])),
            (json!([whole, container(json!({}))]), json!([])),
            (
                json!([container(json!({"limits": {"cpu": "1"}}))]),
                json!([]),
            ),
        ] {
            let spec = json!({"containers": containers, "initContainers": init});
            assert_eq!(class(spec.clone()), "Burstable", "{spec}");
        }
    }

    #[test]
    fn a_pod_that_requests_no_cpu_and_no_memory_is_best_effort() {
        assert_eq!(
            class(json!({"containers": [container(json!({}))]})),
            "BestEffort"
        );
        let other = json!({"requests": {"ephemeral-storage": "1Gi", "cpu": "0"}});
        assert_eq!(
            class(json!({"containers": [container(other)]})),
            "BestEffort"
        );
        let asks = container(json!({"requests": {"cpu": "1m"}}));
        assert_eq!(
            class(json!({"containers": [container(json!({}))], "initContainers": [asks]})),
            "Burstable"
        );
    }

    #[test]
    fn resources_of_the_pod_stand_for_those_of_its_containers() {
        let of = |resources: Value| {
            class(json!({"resources": resources, "containers": [container(json!({}))]}))
        };
        assert_eq!(
            of(json!({"limits": {"cpu": "1", "memory": "1"}})),
            "Guaranteed"
        );
        assert_eq!(of(json!({"limits": {"cpu": "1"}})), "Burstable");
        assert_eq!(of(json!({"requests": {"cpu": "1"}})), "Burstable");
        assert_eq!(of(json!({})), "BestEffort");
    }

    #[test]
    fn init_containers_count_where_they_need_more() {
        let asks = |cpu: &str, policy: &str| json!({"name": "c", "restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}});
        let spec = json!({
            "initContainers": [asks("1", "Always"), asks("5", "")],
            "containers": [asks("2", ""), asks("500m", "")],
        });
        let spec: PodSpec = from_value(spec).unwrap();
        let sums = of_containers(&spec, Side::Requests);
        // The second runs beside the first: 6, and later 1 + 2 + 0.5.
        assert_eq!(sums["cpu"].to_string(), "6");
    }
}
