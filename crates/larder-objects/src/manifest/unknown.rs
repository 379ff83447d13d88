//! Fields that a kind does not have. Most are misspelled or misplaced, so the object lacks what its author meant.

use serde_json::{Map, Value};

use super::error::Suggestion;
use crate::{FieldPath, similar::most_similar};

/// Number of unknown fields that are reported of one object.
pub(super) const MAX_UNKNOWN: usize = 100;

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
    fn the_number_of_noted_fields_is_bounded() {
        let object: Map<_, _> = (0..1000)
            .map(|number| (format!("key{number}"), json!(0)))
            .collect();
        assert_eq!(unknown_keys(&object.into(), &["data"]).len(), MAX_UNKNOWN);
    }
}
