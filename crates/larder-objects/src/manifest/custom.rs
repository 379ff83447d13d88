//! Pods of custom resources: what has a pod template at `spec.template`, as an Argo Rollout, a CloneSet or a Service of
//! Knative.
//!
//! No schema of these kinds is known here, so only the fields of a pod are read. What does not fit is no pod.

use serde_json::{Value, json};

use super::{Problem, RawObject, Workload, normalize};

/// Where the template is.
const TEMPLATE: &str = "spec.template";
/// What Knative calls the container of a Service that has no name; of several, each is followed by its number.
const KNATIVE_CONTAINER: &str = "user-container";

/// Whether the object has a pod template: a list of containers at its place.
pub(super) fn has_template(object: &RawObject) -> bool {
    object
        .pointer("/spec/template/spec/containers")
        .and_then(Value::as_array)
        .is_some_and(|all| !all.is_empty() && all.iter().all(Value::is_object))
        && !object.text("/metadata/name").is_empty()
}

/// The custom resource `value` of this `kind`, with its group, as a workload; and its pod.
pub(super) fn pod(mut value: Value, kind: &str) -> Result<(Workload, Value), Problem> {
    let mut workload = Workload::of(&value, TEMPLATE);
    kind.clone_into(&mut workload.kind);
    if kind == "Service.serving.knative.dev" {
        as_knative(&mut value["spec"]["template"]["spec"]);
    }
    let pod = normalize::pod_of_workload(value, TEMPLATE)?;
    Ok((workload, pod))
}

/// Completes the template of a Service of Knative: containers may have no names there, and see no variables of Services.
fn as_knative(spec: &mut Value) {
    let containers = spec["containers"]
        .as_array_mut()
        .map_or(&mut [][..], Vec::as_mut_slice);
    let is_only = containers.len() == 1;
    for (number, container) in containers.iter_mut().enumerate() {
        let name = if is_only {
            KNATIVE_CONTAINER.to_owned()
        } else {
            format!("{KNATIVE_CONTAINER}-{number}")
        };
        if container["name"].as_str().is_none_or(str::is_empty) {
            container["name"] = name.into();
        }
    }
    if spec["enableServiceLinks"].is_null() {
        spec["enableServiceLinks"] = json!(false);
    }
}
