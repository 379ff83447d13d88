//! Fields that a kind does not have. Most are misspelled, so the object lacks what its author meant.

use serde_json::{Map, Value};

use crate::FieldPath;

/// Number of unknown fields that are reported of one object.
const MAX_UNKNOWN: usize = 100;
/// Longest name for which a similar one is looked up, in bytes. Comparing costs the product of the lengths.
const MAX_COMPARED: usize = 64;
/// Number of names that one is compared with.
const MAX_NAMES: usize = 1000;

/// A field that its type does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownField {
    pub(super) field: FieldPath,
    /// The name of a field that the type has, if one is similar.
    pub(super) suggestion: Option<&'static str>,
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
                suggestion: most_similar(name, known.iter().copied()),
            });
        }
    }

    /// Adds the field `name` of the object itself if a name of `known` is similar.
    pub(super) fn note_similar(unknown: &mut Vec<Self>, name: &str, known: &[&'static str]) {
        if let Some(suggestion) = most_similar(name, known.iter().copied()) {
            unknown.push(Self {
                field: FieldPath::root().child(name),
                suggestion: Some(suggestion),
            });
        }
    }

    /// The same field of an object that is the part `prefix` of another one.
    pub(super) fn within(mut self, prefix: &FieldPath) -> Self {
        self.field = prefix.join(&self.field);
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

/// The name of `known` that differs from `name` in the fewest letters, if those are at most a third. Of many names, the
/// first 1000 are compared.
pub fn most_similar<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    if name.len() > MAX_COMPARED {
        return None;
    }
    let lower = name.to_lowercase();
    let distance = |known: &str| strsim::osa_distance(&lower, &known.to_lowercase());
    let known = known.into_iter().take(MAX_NAMES);
    known
        .filter(|known| known.len() <= MAX_COMPARED)
        .map(|known| (distance(known), known))
        .min()
        .filter(|(distance, _)| *distance <= (name.len() / 3).max(1) && *distance < name.len())
        .map(|(_, known)| known)
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
        assert_eq!(unknown[0].suggestion, Some("data"));
    }

    #[test]
    fn suggestions_differ_in_few_letters() {
        let known = ["name", "image", "volumeMounts", "env", "envFrom"];
        for (name, expected) in [
            ("nam", Some("name")),
            ("evn", Some("env")),
            ("envfrom", Some("envFrom")),
            ("volumeMount", Some("volumeMounts")),
            ("volumes_mount", Some("volumeMounts")),
            ("x", None),
            ("command", None),
            (&"n".repeat(65), None),
        ] {
            assert_eq!(most_similar(name, known), expected, "{name}");
        }
    }

    #[test]
    fn the_number_of_noted_fields_is_bounded() {
        let object: Map<_, _> = (0..1000)
            .map(|number| (format!("key{number}"), json!(0)))
            .collect();
        assert_eq!(unknown_keys(&object.into(), &["data"]).len(), MAX_UNKNOWN);
    }
}
