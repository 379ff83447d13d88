//! Fields that a kind does not have. Most are misspelled or misplaced, so the object lacks what its author meant.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Map, Value};

use super::{error::Suggestion, typed::decode};
use crate::{FieldPath, PathSegment, similar::most_similar};

/// Number of unknown fields that are reported of one object.
const MAX_UNKNOWN: usize = 100;

/// A field that its type does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownField {
    pub(super) field: FieldPath,
    pub(super) suggestion: Option<Suggestion>,
}

impl UnknownField {
    /// Adds the field `name` of the struct at `within`, which has `known` fields, to `unknown`.
    pub(super) fn note(
        unknown: &mut Vec<Self>,
        within: impl FnOnce() -> FieldPath,
        name: &str,
        known: &[&'static str],
    ) {
        if unknown.len() < MAX_UNKNOWN {
            unknown.push(Self {
                field: within().child(name),
                suggestion: most_similar(name, known.iter().copied()).map(Suggestion::Name),
            });
        }
    }

    /// Adds the field `name` of the object itself if a name of `known` is similar.
    pub(super) fn note_similar(unknown: &mut Vec<Self>, name: &str, known: &[&'static str]) {
        if let Some(suggestion) = most_similar(name, known.iter().copied()) {
            unknown.push(Self {
                field: FieldPath::root().child(name),
                suggestion: Some(Suggestion::Name(suggestion)),
            });
        }
    }

    /// The same field of an object that is the part `prefix` of another one.
    pub(super) fn within(mut self, prefix: &FieldPath) -> Self {
        self.field = prefix.join(&self.field);
        if let Some(Suggestion::Place(place)) = &mut self.suggestion {
            *place = prefix.join(place);
        }
        self
    }
}

/// The keys of `object` that are not `known`. For types that leave out some fields of their kind.
pub(super) fn unknown_keys(object: &Value, known: &[&'static str]) -> Vec<UnknownField> {
    let keys = object.as_object().into_iter().flat_map(Map::keys);
    let mut unknown = Vec::new();
    for key in keys.filter(|key| !known.contains(&key.as_str())) {
        UnknownField::note(&mut unknown, FieldPath::root, key, known);
    }
    unknown
}

/// A field of a pod's specification that a level above it has, too.
const OF_JOBS: &str = "activeDeadlineSeconds";

/// The fields of a pod's specification that `object` has on a level above it. `template` is the path of a workload's
/// template; that of a pod is empty.
pub(super) fn misplaced(object: &Value, template: &'static str) -> Vec<UnknownField> {
    let template = FieldPath::fields(template);
    let place = template.child("spec");
    let mut found = Vec::new();
    let (mut level, mut path) = (object, FieldPath::root());
    let mut parts = place.segments().iter();
    while let Some(PathSegment::Field(part)) = parts.next() {
        // Decoded, it has an unknown field for each of its keys that is none of the specification.
        let set = level.as_object().into_iter().flatten();
        let set = set.filter(|(_, value)| !value.is_null());
        let keys = set.map(|(key, _)| (key.clone(), Value::Null));
        let keys: Map<_, _> = keys.take(MAX_UNKNOWN).collect();
        let mut others = Vec::new();
        // Without containers it is an error, too.
        let _ = decode::<PodSpec>(&keys.clone().into(), &mut others);
        let others: Vec<_> = others.into_iter().map(|other| other.field).collect();
        let keys = keys.keys().map(|key| FieldPath::root().child(key));
        let misplaced = keys.filter(|key| !others.contains(key) && key.to_string() != OF_JOBS);
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
    fn keys_beside_the_known_ones_are_found() {
        let value = json!({"kind": "ConfigMap", "data": {}, "Data": {}});
        let unknown = unknown_keys(&value, &["data", "kind"]);
        assert_eq!(unknown.len(), 1);
        assert_eq!(unknown[0].field.to_string(), "Data");
        assert_eq!(unknown[0].suggestion, Some(Suggestion::Name("data")));
    }

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

    #[test]
    fn the_number_of_noted_fields_is_bounded() {
        let object: Map<_, _> = (0..1000)
            .map(|number| (format!("key{number}"), json!(0)))
            .collect();
        assert_eq!(unknown_keys(&object.into(), &["data"]).len(), MAX_UNKNOWN);
    }
}
