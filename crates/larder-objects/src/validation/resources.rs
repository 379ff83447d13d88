//! Requests and limits, of a container and of a pod as a whole.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource,
};

use super::{field::Field, names::is_qualified_name};
use crate::{
    Quantity,
    quantity::Amount,
    resources::{Side, of_containers},
};

/// What a container can ask for, besides huge pages and what drivers offer.
const OF_CONTAINERS: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];
/// What a pod as a whole can ask for; the middle one begins the names of huge pages.
const OF_PODS: [&str; 3] = ["cpu", HUGE_PAGES, "memory"];
const HUGE_PAGES: &str = "hugepages-";
/// Names without a domain that the API knows elsewhere, such as in quotas.
const OF_QUOTAS: [&str; 17] = [
    "configmaps",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
    "storage",
];

/// Whose resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Container,
    Pod,
}

/// Checks names and amounts, and that no request exceeds its limit.
pub(super) fn check_resources(
    field: &Field<'_>,
    resources: Option<&ResourceRequirements>,
    owner: Owner,
) {
    let Some(resources) = resources else { return };
    for (name, side) in [("limits", Side::Limits), ("requests", Side::Requests)] {
        for (resource, amount) in side.of(resources).into_iter().flatten() {
            let own_field = field.child(name).key(resource);
            check_name(&own_field, resource, owner);
            check_amount(&own_field, resource, &amount.0);
            if side == Side::Requests {
                check_within_limit(field, resource, &amount.0, resources);
            }
        }
    }
    let sides = [&resources.limits, &resources.requests];
    let names = sides.into_iter().flatten().flat_map(BTreeMap::keys);
    let has_huge_pages = names.clone().any(|name| name.starts_with(HUGE_PAGES));
    if has_huge_pages
        && !names
            .clone()
            .any(|name| matches!(&**name, "cpu" | "memory"))
    {
        field.forbidden("HugePages require cpu or memory");
    }
}

fn check_name(field: &Field<'_>, name: &str, owner: Owner) {
    let before = field.errors();
    field.check_qualified_name(name, name);
    let has_domain = name.contains('/');
    let is_known = OF_CONTAINERS.contains(&name)
        || OF_QUOTAS.contains(&name)
        || name.starts_with(HUGE_PAGES)
        || name.starts_with("requests.hugepages-");
    if field.errors() == before && !has_domain && !is_known {
        let rule = "must be a standard resource type or fully qualified";
        field.invalid(name, rule);
    }
    match owner {
        Owner::Container if !has_domain => {
            if !OF_CONTAINERS.contains(&name) && !name.starts_with(HUGE_PAGES) {
                field.invalid(name, "must be a standard resource for containers");
            }
        }
        Owner::Container if !is_native(name) && !is_extended(name) => {
            let rule = "doesn't follow extended resource name standard";
            field.invalid(name, rule);
        }
        Owner::Container => {}
        Owner::Pod => {
            let supported = OF_PODS.contains(&name) || name.starts_with(HUGE_PAGES);
            if field.errors() == before && !supported {
                field.not_supported(name, &OF_PODS);
            }
        }
    }
}

fn check_amount(field: &Field<'_>, resource: &str, text: &str) {
    let amount = match text.parse::<Quantity>() {
        Ok(amount) => amount,
        Err(error) => return field.invalid(text, &error.to_string()),
    };
    if amount < Quantity::default() {
        field.invalid(text, "must be greater than or equal to 0");
    }
    // Devices are counted. (So are objects, which no container can ask for.)
    if is_extended(resource) && amount.milli_value() % 1000 != 0 {
        field.invalid(text, "must be an integer");
    }
    if let Some(size) = resource.strip_prefix(HUGE_PAGES) {
        let size = size.parse::<Quantity>().unwrap_or_default();
        let is_multiple = size > Quantity::default()
            && size.milli_value() % 1000 == 0
            && amount.value() % size.value() == 0;
        if !is_multiple {
            let rule = format!("{text} is not positive integer multiple of {resource}");
            field.invalid(text, &rule);
        }
    }
}

/// `field` is that of the resources; the API server names the list and not the entry.
fn check_within_limit(
    field: &Field<'_>,
    resource: &str,
    text: &str,
    resources: &ResourceRequirements,
) {
    let overcommits = is_native(resource) && !resource.starts_with(HUGE_PAGES);
    let limits = resources.limits.as_ref();
    let Some(resource::Quantity(limit)) = limits.and_then(|limits| limits.get(resource)) else {
        if !overcommits {
            let rule = "Limit must be set for non overcommitable resources";
            field.child("limits").required(rule);
        }
        return;
    };
    let (Ok(request), Ok(bound)) = (text.parse::<Quantity>(), limit.parse::<Quantity>()) else {
        return;
    };
    let rule = if !overcommits && request != bound {
        "equal to"
    } else if request > bound {
        "less than or equal to"
    } else {
        return;
    };
    let rule = format!("must be {rule} {resource} limit of {limit}");
    field.child("requests").invalid(text, &rule);
}

/// Checks that the resources of the pod as a whole are enough for its containers.
pub(super) fn check_whole(pod: &Field<'_>, spec: &PodSpec) {
    let Some(whole) = &spec.resources else { return };
    let field = pod.child("resources");
    check_resources(&field, Some(whole), Owner::Pod);
    for (name, side) in [("requests", Side::Requests), ("limits", Side::Limits)] {
        for (resource, sum) in of_containers(spec, side) {
            if side == Side::Limits && !resource.starts_with(HUGE_PAGES) {
                continue;
            }
            let held = side.of(whole).and_then(|amounts| amounts.get(&resource));
            if let Some((text, amount)) = held.and_then(read)
                && sum.quantity > amount.quantity
            {
                let rule =
                    format!("must be greater than or equal to aggregate container {name} of {sum}");
                field.child(name).key(&resource).invalid(text, &rule);
            }
        }
    }
    let Some(bounds) = &whole.limits else { return };
    for (index, container) in spec.containers.iter().enumerate() {
        let field = field.child("containers").index(index);
        let limits = container.resources.iter().flat_map(|held| &held.limits);
        for (resource, limit) in limits.flatten() {
            let bound = bounds.get(resource).and_then(read);
            if let (Some((text, limit)), Some((bound_text, bound))) = (read(limit), bound)
                && limit.quantity > bound.quantity
            {
                let field = field.key(resource).child("limits");
                let rule = format!("must be less than or equal to pod limits of {bound_text}");
                field.invalid(text, &rule);
            }
        }
    }
}

fn read(amount: &resource::Quantity) -> Option<(&str, Amount)> {
    Some((&amount.0, amount.0.parse().ok()?))
}

/// Whether Kubernetes itself counts it.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether it is a driver's, named so that a quota can name it as well.
fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && is_qualified_name(&format!("requests.{name}"))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::validation::FieldErrors;

    #[track_caller]
    fn check(resources: Value, expected: Expect) {
        let resources = from_value(resources).unwrap();
        let errors = FieldErrors::found(|object| {
            check_resources(&object.at("r"), Some(&resources), Owner::Container);
        });
        expected.assert_eq(errors.lines().trim_start());
    }

    #[test]
    fn a_request_stays_within_its_limit() {
        check(
            json!({
                "limits": {"cpu": "1", "memory": "1Gi", "example.com/gpu": "2"},
                "requests": {"cpu": "1001m", "memory": "1024Mi", "example.com/gpu": "1", "example.com/other": "1"},
            }),
            expect![[r#"
                r.requests: Invalid value: "1001m": must be less than or equal to cpu limit of 1
                r.requests: Invalid value: "1": must be equal to example.com/gpu limit of 2
                r.limits: Required value: Limit must be set for non overcommitable resources
            "#]],
        );
    }

    #[test]
    fn resource_names_are_native_or_qualified() {
        check(
            json!({"limits": {
                "cpu": "1", "example.com/gpu": "1", "kubernetes.io/x": "1", "hugepages-2Mi": "4Mi",
                "gpu": "1", "pods": "1", "requests.example.com/gpu": "1",
            }}),
            expect![[r#"
                r.limits[gpu]: Invalid value: "gpu": must be a standard resource type or fully qualified
                r.limits[gpu]: Invalid value: "gpu": must be a standard resource for containers
                r.limits[pods]: Invalid value: "pods": must be a standard resource for containers
                r.limits[requests.example.com/gpu]: Invalid value: "requests.example.com/gpu": doesn't follow extended resource name standard
            "#]],
        );
    }

    #[test]
    fn devices_and_huge_pages_come_whole() {
        check(
            json!({"limits": {"example.com/gpu": "1500m", "hugepages-2Mi": "3Mi", "memory": "-1", "cpu": "x"}}),
            expect![[r#"
                r.limits[cpu]: Invalid value: "x": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'
                r.limits[example.com/gpu]: Invalid value: "1500m": must be an integer
                r.limits[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi
                r.limits[memory]: Invalid value: "-1": must be greater than or equal to 0
            "#]],
        );
        check(
            json!({"limits": {"hugepages-1Gi": "1Gi"}}),
            expect![[r#"
                r: Forbidden: HugePages require cpu or memory
            "#]],
        );
    }

    #[test]
    fn a_pod_as_a_whole_has_room_for_its_containers() {
        let spec = json!({
            "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "100m", "ephemeral-storage": "1"}},
            "containers": [
                {"name": "a", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "150m"}}},
                {"name": "b", "resources": {"requests": {"cpu": "50m"}}},
            ],
        });
        let errors = FieldErrors::found(|object| {
            check_whole(&object.child("spec"), &from_value(spec).unwrap());
        });
        expect![[r#"
            spec.resources.requests[ephemeral-storage]: Unsupported value: "ephemeral-storage": supported values: "cpu", "hugepages-", "memory"
            spec.resources.requests[cpu]: Invalid value: "100m": must be greater than or equal to aggregate container requests of 200m
            spec.resources.containers[0][cpu].limits: Invalid value: "2": must be less than or equal to pod limits of 1
        "#]]
        .assert_eq(&errors.lines());
    }
}
