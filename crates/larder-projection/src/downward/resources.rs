//! Requests and limits of containers, divided and rounded up.
//!
//! Kubelet 1.36, `pkg/api/v1/resource/helpers.go` and `pkg/kubelet/kubelet_resources.go`. A limit of cpu, memory or
//! ephemeral storage that is missing or 0 falls back to what the node can allocate; between the two, variables consider
//! the limit of the pod, and volumes do not. The kubelet divides in floating point; here the result stays exact.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceFieldSelector, ResourceRequirements},
    apimachinery::pkg::api::resource,
};

use larder_objects::{Quantity, QuantityError};

use crate::{ContainerKind, ContainerView, NodeFacts};

/// Why a resource has no number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// Not a request or limit of a known resource.
    #[error("unsupported container resource : {0}")]
    Unsupported(String),
    /// No init or regular container has this name.
    #[error("container {0} not found")]
    NoContainer(String),
    /// A limit depends on the node, and nothing is known of the node.
    #[error("failed to find node object, expected a node")]
    NoNode,
    /// A file of a volume shows a limit that depends on the node, and nothing is known of the node.
    #[error("error retrieving node: node not found")]
    NoNodeForVolume,
    /// A quantity of the pod or the node is malformed.
    #[error("invalid quantity {text:?} for {resource}")]
    Quantity {
        /// The resource, for instance `limits.cpu`.
        resource: String,
        /// The malformed text.
        text: String,
        /// The problem.
        source: QuantityError,
    },
}

type List = BTreeMap<String, resource::Quantity>;

/// The number that a variable of `container` gets.
pub(crate) fn variable_resource(
    pod: &Pod,
    container: ContainerView<'_>,
    node: Option<&NodeFacts>,
    field: &ResourceFieldSelector,
) -> Result<String, ResourceError> {
    let (subject, defaults) = match field.container_name.as_deref() {
        None | Some("") => (container, true),
        // The limits of an init container that is named are not defaulted, not even for the container itself.
        Some(name) => {
            let found = find(pod, name)?;
            (found, found.kind == ContainerKind::Regular)
        }
    };
    let requirements = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let pod_limits = requirements.and_then(|requirements| requirements.limits.as_ref());
    let fallback = Fallback {
        node,
        pod_limits,
        missing: ResourceError::NoNode,
    };
    extract(subject.resources, defaults.then_some(fallback), field)
}

/// The number that a file gets.
pub(crate) fn volume_resource(
    pod: &Pod,
    node: Option<&NodeFacts>,
    field: &ResourceFieldSelector,
) -> Result<String, ResourceError> {
    let subject = find(pod, field.container_name.as_deref().unwrap_or_default())?;
    let fallback = Fallback {
        node,
        pod_limits: None,
        missing: ResourceError::NoNodeForVolume,
    };
    extract(subject.resources, Some(fallback), field)
}

/// Ephemeral containers cannot be named.
fn find<'a>(pod: &'a Pod, name: &str) -> Result<ContainerView<'a>, ResourceError> {
    let spec = pod.spec.as_ref();
    let named = |containers: &'a [Container], kind| {
        containers
            .iter()
            .find(|container| container.name == name)
            .map(|container| ContainerView::new(container, kind))
    };
    let regular = spec.map_or(&[][..], |spec| &spec.containers);
    let init = spec.and_then(|spec| spec.init_containers.as_deref());
    // A regular container goes before an init container; the API does not allow both.
    named(regular, ContainerKind::Regular)
        .or_else(|| named(init.unwrap_or_default(), ContainerKind::Init))
        .ok_or_else(|| ResourceError::NoContainer(name.to_owned()))
}

/// The source of a missing limit.
struct Fallback<'a> {
    node: Option<&'a NodeFacts>,
    pod_limits: Option<&'a List>,
    /// The error when nothing is known of the node.
    missing: ResourceError,
}

impl Fallback<'_> {
    fn limit(self, name: &str) -> Result<Quantity, ResourceError> {
        let node = self.node.ok_or(self.missing)?;
        let resource = || format!("limits.{name}");
        // The pod's limit replaces an entry of the node; where the node has none, there is none.
        let Some(allocatable) = node.allocatable.get(name) else {
            return Ok(Quantity::default());
        };
        let of_pod = match (name, self.pod_limits) {
            ("cpu" | "memory", Some(limits)) => amount(Some(limits), name, resource)?,
            _ => Quantity::default(),
        };
        if of_pod.is_zero() {
            parse(allocatable, resource)
        } else {
            Ok(of_pod)
        }
    }
}

fn extract(
    requirements: Option<&ResourceRequirements>,
    fallback: Option<Fallback<'_>>,
    field: &ResourceFieldSelector,
) -> Result<String, ResourceError> {
    let unsupported = || ResourceError::Unsupported(field.resource.clone());
    let (list, name) = field.resource.split_once('.').ok_or_else(unsupported)?;
    let plain = matches!(name, "cpu" | "memory" | "ephemeral-storage");
    if !plain && !name.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let list = match list {
        "requests" => requirements.and_then(|requirements| requirements.requests.as_ref()),
        "limits" => requirements.and_then(|requirements| requirements.limits.as_ref()),
        _ => return Err(unsupported()),
    };
    let resource = || field.resource.clone();
    let mut value = amount(list, name, resource)?;
    if let Some(fallback) = fallback
        && value.is_zero()
        && plain
        && field.resource.starts_with("limits.")
    {
        value = fallback.limit(name)?;
    }
    let divisor = match &field.divisor {
        Some(divisor) => Some(parse(divisor, || "divisor".to_owned())?),
        None => None,
    };
    let divisor = divisor
        .filter(|divisor| !divisor.is_zero())
        .unwrap_or(Quantity::ONE);
    let quotient = if name == "cpu" {
        div_ceil(value.milli_value(), divisor.milli_value())
    } else {
        div_ceil(value.value(), divisor.value())
    };
    Ok(quotient.to_string())
}

/// The amount of `name` in `list`, 0 if it is not there.
fn amount(
    list: Option<&List>,
    name: &str,
    resource: impl Fn() -> String,
) -> Result<Quantity, ResourceError> {
    match list.and_then(|list| list.get(name)) {
        Some(text) => parse(text, resource),
        None => Ok(Quantity::default()),
    }
}

fn parse(
    text: &resource::Quantity,
    resource: impl Fn() -> String,
) -> Result<Quantity, ResourceError> {
    text.0.parse().map_err(|source| ResourceError::Quantity {
        resource: resource(),
        text: text.0.clone(),
        source,
    })
}

/// `value / divisor`, rounded up; `divisor` is not 0.
fn div_ceil(value: i64, divisor: i64) -> i64 {
    let (value, divisor) = (i128::from(value), i128::from(divisor));
    let rounds_up = value % divisor != 0 && (value < 0) == (divisor < 0);
    let quotient = value / divisor + i128::from(rounds_up);
    i64::try_from(quotient).unwrap_or(if quotient < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn division_rounds_up(value in 0..i64::MAX, divisor in 1..i64::MAX) {
            let (quotient, value, divisor) = (i128::from(div_ceil(value, divisor)), i128::from(value), i128::from(divisor));
            prop_assert!(quotient * divisor >= value && (quotient - 1) * divisor < value);
        }
    }
}
