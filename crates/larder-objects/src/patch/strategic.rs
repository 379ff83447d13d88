//! Strategic merge patch: a merge patch that knows which lists are sets and which are keyed, and takes directives.
//!
//! Source: `apimachinery/pkg/util/strategicpatch`, and the `patchStrategy` and `patchMergeKey` tags of
//! `api/core/v1/types.go`, 1.36. The tests of `larder-apiserver` compare it with kubectl.
//!
//! Invariant: the cost grows with the sizes of object and patch together. Lists are matched through hashes of their
//! items.
//!
//! | directive | in | meaning |
//! | --- | --- | --- |
//! | `$patch: replace` | object | what the patch holds replaces what is there |
//! | `$patch: replace` | item of a list | the other items replace the list |
//! | `$patch: delete` | object, or item with merge key | is removed |
//! | `$retainKeys: [..]` | object | other fields are dropped; the patch may set no other ones |
//! | `$deleteFromPrimitiveList/<field>: [..]` | object | these items leave the list of that name |
//! | `$setElementOrder/<field>: [..]` | object | the order of that list; what it does not name keeps its place |
//!
//! The items of a patch come in the order of the patch, or of `$setElementOrder`. Each other item stays before those of
//! the patch that it preceded, and behind the rest: see [`in_order`].

use std::collections::{HashMap, HashSet, hash_map::Entry};

use serde_json::{Map, Value};

use self::ListMerge::{Keyed, Set};
use super::PatchError;

/// How a list is patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListMerge {
    /// The patch replaces it.
    Atomic,
    /// Values that the patch holds are added.
    Set,
    /// Items with the same value of this field are merged, others added.
    Keyed(&'static str),
}

/// The lists that a patch does not simply replace: the field that holds the object with the list, empty if any may; the
/// field of the list; how it is patched. Where two kinds have a list in the same place, they agree.
const MERGED: &[(&str, &str, ListMerge)] = &[
    ("metadata", "finalizers", Set),
    ("metadata", "ownerReferences", Keyed("uid")),
    ("status", "conditions", Keyed("type")),
    // Pod
    ("spec", "containers", Keyed("name")),
    ("spec", "initContainers", Keyed("name")),
    ("spec", "ephemeralContainers", Keyed("name")),
    ("spec", "volumes", Keyed("name")),
    ("spec", "imagePullSecrets", Keyed("name")),
    ("spec", "hostAliases", Keyed("ip")),
    ("spec", "topologySpreadConstraints", Keyed("topologyKey")),
    ("spec", "resourceClaims", Keyed("name")),
    ("spec", "schedulingGates", Keyed("name")),
    ("", "env", Keyed("name")),
    ("", "volumeMounts", Keyed("mountPath")),
    ("", "volumeDevices", Keyed("devicePath")),
    ("containers", "ports", Keyed("containerPort")),
    ("initContainers", "ports", Keyed("containerPort")),
    ("ephemeralContainers", "ports", Keyed("containerPort")),
    ("status", "podIPs", Keyed("ip")),
    ("status", "hostIPs", Keyed("ip")),
    ("status", "resourceClaimStatuses", Keyed("name")),
    // Node
    ("spec", "podCIDRs", Set),
    ("status", "addresses", Keyed("type")),
    // Service
    ("spec", "ports", Keyed("port")),
    // ServiceAccount
    ("", "secrets", Keyed("name")),
];

/// How the list `field` below `parent` is patched.
pub(super) fn list(parent: &str, field: &str) -> ListMerge {
    let is_it = |(above, name, _): &&(&str, &str, _)| {
        *name == field && (above.is_empty() || *above == parent)
    };
    MERGED
        .iter()
        .find(is_it)
        .map_or(ListMerge::Atomic, |(.., merge)| *merge)
}

pub(super) const PATCH: &str = "$patch";
pub(super) const RETAIN_KEYS: &str = "$retainKeys";
pub(super) const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
pub(super) const SET_ORDER: &str = "$setElementOrder/";

pub(super) type Fields = Map<String, Value>;

/// What `patch` makes of `target`.
///
/// Directives stay in parts of the patch that are copied as a whole, as they do upstream; see [`without_directives`].
///
/// # Errors
///
/// It is no patch, or does not fit the object.
pub fn apply(target: Value, patch: &Value) -> Result<Value, PatchError> {
    let (Value::Object(target), Value::Object(patch)) = (target, patch) else {
        return Err(PatchError::new("it is not an object"));
    };
    merge_object("", target, patch).map(Value::Object)
}

/// Drops directives and nulls, which no field of an object can hold. An API server drops them when it decodes what a
/// patch has made.
pub fn without_directives(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields
                .into_iter()
                .filter(|(field, value)| {
                    let is_directive = [PATCH, RETAIN_KEYS].contains(&&**field)
                        || field.starts_with(DELETE_FROM)
                        || field.starts_with(SET_ORDER);
                    !is_directive && !value.is_null()
                })
                .map(|(field, value)| (field, without_directives(value)));
            Value::Object(fields.collect())
        }
        Value::Array(items) => items.into_iter().map(without_directives).collect(),
        value => value,
    }
}

/// Merges `patch` into `target`, the value of the field `parent`.
fn merge_object(parent: &str, mut target: Fields, patch: &Fields) -> Result<Fields, PatchError> {
    match patch.get(PATCH).map(Value::as_str) {
        None => {}
        Some(Some("replace")) => {
            let mut replaced = patch.clone();
            replaced.remove(PATCH);
            return Ok(replaced);
        }
        Some(Some("delete")) => return Ok(Fields::new()),
        Some(_) => return Err(PatchError::new("unknown patch type")),
    }
    if let Some(retained) = patch.get(RETAIN_KEYS) {
        retain(&mut target, patch, retained)?;
    }
    for (directive, order) in patch {
        if let Some(field) = directive.strip_prefix(SET_ORDER) {
            merge_and_order(parent, field, &mut target, patch, order)?;
        }
    }
    for (field, change) in patch {
        if let Some(field) = field.strip_prefix(DELETE_FROM) {
            if let (Some(Value::Array(held)), Value::Array(deleted)) =
                (target.get_mut(field), change)
            {
                let deleted: HashSet<_> = deleted.iter().map(identity).collect();
                held.retain(|item| !deleted.contains(&identity(item)));
            }
        } else if change.is_null() {
            target.remove(field);
        } else if field != RETAIN_KEYS
            && !field.starts_with(SET_ORDER)
            && !patch.contains_key(&format!("{SET_ORDER}{field}"))
        {
            let merged = merge_field(parent, field, target.remove(field), change)?;
            target.extend(merged.map(|merged| (field.clone(), merged)));
        }
    }
    Ok(target)
}

/// Drops what `$retainKeys` does not name.
fn retain(target: &mut Fields, patch: &Fields, retained: &Value) -> Result<(), PatchError> {
    let retained: HashSet<&str> = items(retained, RETAIN_KEYS)?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let mut set = patch.iter().filter(|(field, value)| {
        let is_directive = field.starts_with(DELETE_FROM) || field.starts_with(SET_ORDER);
        !value.is_null() && !is_directive && *field != RETAIN_KEYS
    });
    if set.any(|(field, _)| !retained.contains(&**field)) {
        return Err(PatchError::new("invalid patch format of retainKeys"));
    }
    target.retain(|field, _| retained.contains(&**field));
    Ok(())
}

/// Merges the list `field` of `patch`, if there is one, and puts the whole in the given order.
fn merge_and_order(
    parent: &str,
    field: &str,
    target: &mut Fields,
    patch: &Fields,
    order: &Value,
) -> Result<(), PatchError> {
    let (order, list) = (items(order, SET_ORDER)?, list(parent, field));
    let change = match patch.get(field) {
        Some(change) => Some(items(change, field)?),
        None => None,
    };
    if let Some(change) = change {
        check_order(change, order, list)?;
    }
    let held = match target.remove(field) {
        None | Some(Value::Null) => None,
        Some(Value::Array(held)) => Some(held),
        Some(_) => return Err(PatchError::new(format!("{field} is not a list"))),
    };
    let (merged, before) = match (held, change) {
        (None, None) => return Ok(()),
        (Some(held), None) => (held.clone(), held),
        (None, Some(change)) => (change.iter().filter_map(fresh).collect(), Vec::new()),
        (Some(held), Some(change)) if list == ListMerge::Atomic => (change.to_vec(), held),
        (Some(held), Some(change)) => {
            let length = held.len();
            let [items, plain, kept] = merge_items(field, list, held, change)?;
            // Upstream, new items take the places of deleted ones there.
            let before = items.iter().take(length).cloned().collect();
            (in_order(items, &plain, &kept, list)?, before)
        }
    };
    if list == ListMerge::Atomic && merged.iter().any(Value::is_object) {
        return Err(PatchError::new(format!("{field} has no merge key")));
    }
    let ordered = in_order(merged, order, &before, list)?;
    target.insert(field.to_owned(), Value::Array(ordered));
    Ok(())
}

/// The items of a patch must come in the order that it asks for.
fn check_order(change: &[Value], order: &[Value], list: ListMerge) -> Result<(), PatchError> {
    let mut ids = order.iter().map(|item| id(item, list));
    for item in change.iter().filter(|item| item[PATCH] != "delete") {
        let id = id(item, list)?;
        if !ids.any(|other| other.as_ref() == Ok(&id)) {
            return Err(PatchError::new(
                "the order in the patch list doesn't match the $setElementOrder list",
            ));
        }
    }
    Ok(())
}

/// What `change` makes of a field that holds `held`; `None` if nothing stays.
fn merge_field(
    parent: &str,
    field: &str,
    held: Option<Value>,
    change: &Value,
) -> Result<Option<Value>, PatchError> {
    match (held, change) {
        (Some(Value::Object(held)), Value::Object(change)) => {
            merge_object(field, held, change).map(|merged| Some(Value::Object(merged)))
        }
        (Some(Value::Array(held)), Value::Array(change)) => {
            let merged = match list(parent, field) {
                ListMerge::Atomic => change.clone(),
                list => {
                    let [items, plain, kept] = merge_items(field, list, held, change)?;
                    in_order(items, &plain, &kept, list)?
                }
            };
            Ok(Some(Value::Array(merged)))
        }
        (_, change) => Ok(fresh(change)),
    }
}

/// A part of a patch that meets nothing: without nulls, and without what has a directive `$patch`.
fn fresh(change: &Value) -> Option<Value> {
    match change {
        Value::Object(change) if change.contains_key(PATCH) => None,
        Value::Object(change) => {
            let fields = change
                .iter()
                .filter(|(_, value)| !value.is_null())
                .filter_map(|(field, value)| Some((field.clone(), fresh(value)?)));
            Some(Value::Object(fields.collect()))
        }
        Value::Array(change) => Some(change.iter().filter_map(fresh).collect()),
        change => Some(change.clone()),
    }
}

/// What `patch` makes of the list `held`: its items, first those of before, then new ones; those of the patch that are no
/// directives; and those of before that are not deleted.
fn merge_items(
    field: &str,
    list: ListMerge,
    held: Vec<Value>,
    patch: &[Value],
) -> Result<[Vec<Value>; 3], PatchError> {
    let ListMerge::Keyed(key) = list else {
        let mut known = HashSet::new();
        let items = held
            .iter()
            .chain(patch)
            .filter(|item| known.insert(identity(item)))
            .cloned();
        return Ok([items.collect(), patch.to_vec(), held]);
    };
    let (before, plain) = obey_directives(held, patch, list)?;
    let mut items = before.clone();
    let mut places = HashMap::new();
    for (place, item) in items.iter().enumerate() {
        if let Some(id) = item.get(key) {
            places.entry(identity(id)).or_insert(place);
        }
    }
    let no_object = || PatchError::new(format!("an item of {field} is not an object"));
    for item in &plain {
        let change = item.as_object().ok_or_else(no_object)?;
        match places.entry(id(item, list)?) {
            Entry::Occupied(place) => {
                let target = &mut items[*place.get()];
                let held = target
                    .as_object_mut()
                    .map(std::mem::take)
                    .ok_or_else(no_object)?;
                *target = Value::Object(merge_object(field, held, change)?);
            }
            Entry::Vacant(place) => {
                place.insert(items.len());
                items.push(item.clone());
            }
        }
    }
    Ok([items, plain, before])
}

/// Carries out the items of `patch` that are directives: what is left of `held`, and the other items.
fn obey_directives(
    mut held: Vec<Value>,
    patch: &[Value],
    list: ListMerge,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let (mut plain, mut deleted, mut replaces) = (Vec::new(), HashSet::new(), false);
    for item in patch {
        match item.get(PATCH).map(Value::as_str) {
            None => plain.push(item.clone()),
            Some(Some("delete")) => _ = deleted.insert(id(item, list)?),
            Some(Some("replace")) => replaces = true,
            Some(Some("merge")) => {
                return Err(PatchError::new(
                    "merging lists cannot yet be specified in the patch",
                ));
            }
            Some(_) => return Err(PatchError::new("unknown patch type")),
        }
    }
    if replaces {
        return Ok((plain, Vec::new()));
    }
    if !deleted.is_empty() {
        held.retain(|item| id(item, list).is_ok_and(|id| !deleted.contains(&id)));
    }
    Ok((held, plain))
}

/// Puts the items that `order` names in that order. The others keep theirs, that of `before`, and each comes as soon as
/// the next item that `order` names does not stand before it there.
fn in_order(
    merged: Vec<Value>,
    order: &[Value],
    before: &[Value],
    list: ListMerge,
) -> Result<Vec<Value>, PatchError> {
    let ranks = |items: &[Value]| -> Result<HashMap<String, usize>, PatchError> {
        let mut ranks = HashMap::new();
        for (rank, item) in items.iter().enumerate() {
            ranks.entry(id(item, list)?).or_insert(rank);
        }
        Ok(ranks)
    };
    let (order, before) = (ranks(order)?, ranks(before)?);
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for item in merged {
        let id = id(&item, list)?;
        let place = before.get(&id).copied();
        match order.get(&id) {
            Some(&rank) => named.push((rank, place, item)),
            None => others.push((place, item)),
        }
    }
    // Both are stable: items of the same key keep their order.
    named.sort_by_key(|(rank, ..)| *rank);
    others.sort_by_key(|(place, _)| *place);
    let mut others = others.into_iter().peekable();
    let mut all = Vec::new();
    for (_, place, item) in named {
        // What was not there before comes first.
        while let Some((_, other)) =
            others.next_if(|(other, _)| place.is_some_and(|place| other.is_some_and(|o| o < place)))
        {
            all.push(other);
        }
        all.push(item);
    }
    all.extend(others.map(|(_, item)| item));
    Ok(all)
}

/// The identity of an item in its list.
fn id(item: &Value, list: ListMerge) -> Result<String, PatchError> {
    match list {
        ListMerge::Keyed(key) => item.get(key).map(identity).ok_or_else(|| {
            PatchError::new(format!("map: does not contain declared merge key: {key}"))
        }),
        ListMerge::Set | ListMerge::Atomic => Ok(identity(item)),
    }
}

/// A form of the value that can be hashed.
fn identity(value: &Value) -> String {
    value.to_string()
}

fn items<'a>(value: &'a Value, field: &str) -> Result<&'a [Value], PatchError> {
    value
        .as_array()
        .map(Vec::as_slice)
        .ok_or_else(|| PatchError::new(format!("{field} is not a list")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(target: Value, patch: Value, expected: Value) {
        assert_eq!(apply(target, &patch).unwrap(), expected);
    }

    fn spec(containers: Value) -> Value {
        json!({"spec": {"containers": containers}})
    }

    #[test]
    fn items_with_the_same_key_are_merged_and_others_added() {
        check(
            spec(json!([{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}])),
            spec(
                json!([{"name": "a", "env": [{"name": "Y", "value": "2"}]}, {"name": "b", "image": "2"}]),
            ),
            spec(json!([
                {"name": "a", "image": "1", "env": [{"name": "Y", "value": "2"}, {"name": "X", "value": "1"}]},
                {"name": "b", "image": "2"},
            ])),
        );
        // `ports` of a container is keyed, `args` is not.
        check(
            spec(json!([{"name": "a", "args": ["1"], "ports": [{"containerPort": 1}]}])),
            spec(json!([{"name": "a", "args": ["2"], "ports": [{"containerPort": 2}]}])),
            spec(
                json!([{"name": "a", "args": ["2"], "ports": [{"containerPort": 2}, {"containerPort": 1}]}]),
            ),
        );
    }

    #[test]
    fn directives_delete_and_replace() {
        let target = spec(json!([{"name": "a"}, {"name": "b"}]));
        let delete = spec(json!([{"name": "a", "$patch": "delete"}]));
        check(target.clone(), delete, spec(json!([{"name": "b"}])));
        let replace = spec(json!([{"name": "c"}, {"$patch": "replace"}]));
        check(target.clone(), replace, spec(json!([{"name": "c"}])));
        check(
            target.clone(),
            json!({"spec": {"$patch": "replace", "x": 1}}),
            json!({"spec": {"x": 1}}),
        );
        check(
            target.clone(),
            json!({"spec": {"$patch": "delete"}}),
            json!({"spec": {}}),
        );
        check(
            target,
            json!({"spec": {"containers": null}}),
            json!({"spec": {}}),
        );
    }

    #[test]
    fn retained_keys_drop_the_other_fields() {
        // How a volume changes its source.
        check(
            json!({"spec": {"volumes": [{"name": "v", "configMap": {"name": "m"}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}}),
        );
    }

    #[test]
    fn sets_gain_and_lose_values() {
        check(
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["b", "c"]}}),
            json!({"metadata": {"finalizers": ["b", "c"]}}),
        );
    }

    #[test]
    fn the_order_is_set_and_strangers_keep_their_place() {
        check(
            spec(json!([{"name": "a"}, {"name": "x"}, {"name": "b"}])),
            json!({"spec": {
                "$setElementOrder/containers": [{"name": "c"}, {"name": "b"}, {"name": "a"}],
                "containers": [{"name": "c"}],
            }}),
            spec(json!([{"name": "c"}, {"name": "x"}, {"name": "b"}, {"name": "a"}])),
        );
    }

    #[test]
    fn long_lists_cost_no_more_than_their_length() {
        let named = |from: usize, to: usize| -> Vec<_> {
            (from..to)
                .map(|number| json!({"name": format!("c{number}")}))
                .collect()
        };
        let patch = json!({
            "spec": {"containers": named(20_000, 40_000), "$setElementOrder/containers": named(0, 40_000),
                "$retainKeys": (0..20_000).map(|number| number.to_string()).chain(["containers".to_owned()]).collect::<Vec<_>>()},
            "metadata": {"finalizers": (0..20_000).collect::<Vec<_>>(),
                "$deleteFromPrimitiveList/finalizers": (0..20_000).collect::<Vec<_>>()},
        });
        let target = json!({"spec": {"containers": named(0, 20_000)}, "metadata": {"finalizers": (10_000..30_000).collect::<Vec<_>>()}});
        // Compared item by item it takes minutes, and the runner ends the test.
        let patched = apply(target, &patch).unwrap();
        assert_eq!(
            patched["spec"]["containers"].as_array().unwrap().len(),
            40_000
        );
    }

    #[test]
    fn items_of_the_same_key_in_a_patch_are_merged() {
        check(
            spec(json!([{"name": "a"}, {"name": "a", "image": "0"}])),
            spec(
                json!([{"name": "b", "$patch": "delete"}, {"name": "b", "image": "1"}, {"name": "b", "tty": true},
                {"name": "a", "$patch": "delete"}, {"name": "a", "image": "2"}]),
            ),
            spec(json!([{"name": "b", "image": "1", "tty": true}, {"name": "a", "image": "2"}])),
        );
    }

    #[test]
    fn bad_patches_are_rejected() {
        for patch in [
            json!([]),
            spec(json!([{"image": "1"}])),
            spec(json!(["a"])),
            json!({"spec": {"$patch": "nonsense"}}),
            json!({"spec": {"$retainKeys": 1}}),
        ] {
            assert!(apply(spec(json!([])), &patch).is_err(), "{patch}");
        }
    }

    #[test]
    fn config_map_data_is_merged() {
        let patch = json!({"data": {"a": null, "b": "2"}});
        let patched = apply(json!({"data": {"a": "1", "c": "3"}}), &patch).unwrap();
        assert_eq!(patched, json!({"data": {"b": "2", "c": "3"}}));
    }
}
