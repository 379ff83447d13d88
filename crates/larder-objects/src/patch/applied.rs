//! What `kubectl apply` makes of an object: three-way, of what was applied last, what is applied, and what is there.
//!
//! kubectl sends a patch of what differs. The one here sets all fields of the manifest, which gives the same object. The
//! tests compare both.
//!
//! Source: `apimachinery/pkg/util/strategicpatch`, `CreateThreeWayMergePatch`, and `jsonmergepatch`, 1.36.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{
    PatchError, merge,
    strategic::{
        self, DELETE_FROM, Fields, ListMerge, PATCH, RETAIN_KEYS, SET_ORDER, list,
        without_directives,
    },
};

/// How the lists of a kind are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListRules {
    /// Those of Kubernetes' own kinds: many are merged by a key.
    Keyed,
    /// Those of custom resources: a list replaces another one.
    Whole,
}

/// The object that `kubectl apply` makes of `live` with the manifest `modified`, if it has applied `original` last.
///
/// What `live` has, `modified` lacks and `original` never had stays.
///
/// # Errors
///
/// The manifest does not fit the object.
pub fn applied(
    live: Value,
    original: &Value,
    modified: &Value,
    lists: ListRules,
) -> Result<Value, PatchError> {
    let none = Map::new();
    let original = original.as_object().unwrap_or(&none);
    let Some(modified) = modified.as_object() else {
        return Err(PatchError::new("it is not an object"));
    };
    match lists {
        ListRules::Keyed => {
            let patch = Value::Object(keyed(original, modified, ""));
            strategic::apply(live, &patch).map(without_directives)
        }
        ListRules::Whole => Ok(merge::apply(
            live,
            &Value::Object(whole(original, modified)),
        )),
    }
}

/// A merge patch.
fn whole(original: &Fields, modified: &Fields) -> Fields {
    let none = Map::new();
    let mut patch = deletions(original, modified);
    patch.extend(modified.iter().map(|(field, value)| {
        let before = original.get(field).and_then(Value::as_object);
        let value = match value {
            Value::Object(value) => Value::Object(whole(before.unwrap_or(&none), value)),
            value => value.clone(),
        };
        (field.clone(), value)
    }));
    patch
}

/// The fields that only `original` has, as what removes them.
fn deletions(original: &Fields, modified: &Fields) -> Fields {
    original
        .keys()
        .filter(|field| !modified.contains_key(*field))
        .map(|field| (field.clone(), Value::Null))
        .collect()
}

/// A strategic merge patch of the field `parent`.
fn keyed(original: &Fields, modified: &Fields, parent: &str) -> Fields {
    let mut patch = deletions(original, modified);
    for (field, value) in modified {
        let before = original.get(field);
        match value {
            Value::Object(value) => {
                let none = Map::new();
                let before = before.and_then(Value::as_object).unwrap_or(&none);
                let mut change = keyed(before, value, field);
                if (parent, field.as_str()) == ("spec", "strategy") {
                    retain_keys(&mut change, value);
                }
                patch.insert(field.clone(), Value::Object(change));
            }
            Value::Array(items) => {
                let before = before
                    .and_then(Value::as_array)
                    .map_or(&[][..], Vec::as_slice);
                match list(parent, field) {
                    ListMerge::Atomic => _ = patch.insert(field.clone(), value.clone()),
                    ListMerge::Set => patch_set(&mut patch, field, before, items),
                    ListMerge::Keyed(key) => {
                        patch_list(&mut patch, parent, field, key, before, items);
                    }
                }
            }
            value => _ = patch.insert(field.clone(), value.clone()),
        }
    }
    patch
}

/// A patch of a volume or a strategy drops what is for another kind of it.
fn retain_keys(patch: &mut Fields, modified: &Fields) {
    let kept: Vec<_> = modified
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(field, _)| field.as_str())
        .collect();
    patch.insert(RETAIN_KEYS.to_owned(), json!(kept));
}

fn patch_set(patch: &mut Fields, field: &str, original: &[Value], modified: &[Value]) {
    let kept: HashSet<_> = modified.iter().map(Value::to_string).collect();
    let gone: Vec<_> = original
        .iter()
        .filter(|item| !kept.contains(&item.to_string()))
        .cloned()
        .collect();
    if !gone.is_empty() {
        patch.insert(format!("{DELETE_FROM}{field}"), Value::Array(gone));
    }
    patch.insert(field.to_owned(), Value::Array(modified.to_vec()));
}

/// A list whose items have the identity `key`.
fn patch_list(
    patch: &mut Fields,
    parent: &str,
    field: &str,
    key: &str,
    original: &[Value],
    modified: &[Value],
) {
    let id = |item: &Value| item.get(key).map(Value::to_string);
    let place = |item: &Value| json!({key: item[key]});
    let before = |item: &Value| original.iter().find(|one| id(one) == id(item));
    let kept: HashSet<_> = modified.iter().filter_map(id).collect();
    let deletions = original
        .iter()
        .filter(|item| id(item).is_some_and(|id| !kept.contains(&id)))
        .map(|item| json!({key: item[key], PATCH: "delete"}));
    let none = Map::new();
    let changes = modified.iter().map(|item| {
        let Some(fields) = item.as_object() else {
            return item.clone();
        };
        let before = before(item).and_then(Value::as_object).unwrap_or(&none);
        let mut change = keyed(before, fields, field);
        if (parent, field) == ("spec", "volumes") {
            retain_keys(&mut change, fields);
        }
        Value::Object(change)
    });
    let items = changes.chain(deletions).collect();
    patch.insert(field.to_owned(), Value::Array(items));
    let order = modified.iter().map(place).collect();
    patch.insert(format!("{SET_ORDER}{field}"), Value::Array(order));
}
