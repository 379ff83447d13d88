//! Fields of a pod's specification on a level above it, such as `spec.volumes` of a Deployment.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Map, Value};

use super::{
    error::Suggestion,
    typed::decode,
    unknown::{MAX_UNKNOWN, UnknownField},
};
use crate::{FieldPath, PathSegment};

/// A field of a pod's specification that a level above it has, too.
const OF_JOBS: &str = "activeDeadlineSeconds";

/// The fields of a pod's specification that `object` has on a level above it. `template` is the path of a workload's
/// template; that of a pod is empty.
pub(super) fn misplaced(object: &Value, template: &'static str) -> Vec<UnknownField> {
    let template = FieldPath::fields(template);
    let place = template.child("spec");
    let mut found = Vec::new();
    let mut level = object;
    let mut path = FieldPath::root();
    let mut parts = place.segments().iter();
    while let Some(PathSegment::Field(part)) = parts.next() {
        // Decoded, it has an unknown field for each of its keys that is none of the specification.
        let set = level
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !value.is_null());
        let keys: Map<_, _> = set
            .map(|(key, _)| (key.clone(), Value::Null))
            .take(MAX_UNKNOWN)
            .collect();
        let mut others = Vec::new();
        // Without containers it is an error, too.
        let _ = decode::<PodSpec>(&keys.clone().into(), &mut others);
        let others: Vec<_> = others.into_iter().map(|other| other.field).collect();
        let misplaced = keys
            .keys()
            .map(|key| FieldPath::root().child(key))
            .filter(|key| !others.contains(key) && key.to_string() != OF_JOBS);
        found.extend(misplaced.map(|key| UnknownField {
            field: path.join(&key),
            suggestion: Some(Suggestion::Place(place.clone())),
        }));
        level = &level[&**part];
        path = path.child(part);
    }
    found
}

/// Adds fields to `unknown`, or what they mean to those that are there.
pub(super) fn merge(unknown: &mut Vec<UnknownField>, misplaced: Vec<UnknownField>) {
    for field in misplaced {
        match unknown.iter_mut().find(|known| known.field == field.field) {
            Some(known) => *known = field,
            None => unknown.push(field),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_the_pod_above_its_specification_are_misplaced() {
        let job = json!({
            "hostNetwork": true, "metadata": {"name": "j"},
            "spec": {
                "volumes": [], "schedule": "* * * * *",
                "jobTemplate": {"spec": {
                    "activeDeadlineSeconds": 1, "containers": [], "backoffLimit": 0,
                    "template": {"volumes": [], "spec": {"volumes": []}},
                }},
            },
        });
        let found = misplaced(&job, "spec.jobTemplate.spec.template");
        let fields: Vec<_> = found.iter().map(|one| one.field.to_string()).collect();
        let expected = [
            "hostNetwork",
            "spec.volumes",
            "spec.jobTemplate.spec.containers",
            "spec.jobTemplate.spec.template.volumes",
        ];
        assert_eq!(fields, expected);
        let place = FieldPath::from("spec.jobTemplate.spec.template.spec");
        assert_eq!(found[0].suggestion, Some(Suggestion::Place(place)));
    }
}
