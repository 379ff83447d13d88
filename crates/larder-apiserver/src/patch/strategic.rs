//! Strategic merge patch: a merge patch that knows which lists are sets and which are keyed, and takes directives.
//!
//! Source: `apimachinery/pkg/util/strategicpatch`, and the `patchStrategy` and `patchMergeKey` tags of
//! `api/core/v1/types.go`, 1.36.
//!
//! Invariant: the cost grows with the sizes of object and patch together. Lists are matched through hashes of their
//! items.
//!
//! | directive | in | meaning |
//! | --- | --- | --- |
//! | `$patch: replace` | object, or an item of a list | what the patch holds replaces what is there |
//! | `$patch: delete` | object, or item with merge key | is removed |
//! | `$patch: merge` | object | as without it |
//! | `$retainKeys: [..]` | object | other fields are dropped |
//! | `$deleteFromPrimitiveList/<field>: [..]` | object | these items leave the list of that name |
//! | `$setElementOrder/<field>: [..]` | object | the order of that list; what it does not name keeps its place |

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::PatchError;
use crate::resource::Kind;

/// How a list is patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListMerge {
    /// The patch replaces it.
    Atomic,
    /// Values that the patch holds are added.
    Set,
    /// Items with the same value of this field are merged, others added.
    Keyed(&'static str),
}

/// The lists of a pod that are not atomic, and the field that identifies an item: `PARENT/LIST=FIELD`, or `PARENT/LIST`
/// for a set. The parent is named where the list alone is ambiguous.
const POD: &str = "containers=name initContainers=name ephemeralContainers=name volumes=name imagePullSecrets=name \
    hostAliases=ip topologySpreadConstraints=topologyKey resourceClaims=name schedulingGates=name env=name \
    volumeMounts=mountPath volumeDevices=devicePath containers/ports=containerPort \
    initContainers/ports=containerPort ephemeralContainers/ports=containerPort status/conditions=type \
    status/podIPs=ip status/hostIPs=ip status/resourceClaimStatuses=name";

/// Those of the metadata of every kind.
const METADATA: &str = "metadata/finalizers metadata/ownerReferences=uid";

/// How the list `field` below `parent` is patched.
fn list(kind: Kind, parent: &str, field: &str) -> ListMerge {
    let own = match kind {
        Kind::Pod => POD,
        Kind::Node => "spec/podCIDRs status/conditions=type status/addresses=type",
        Kind::Service => "spec/ports=port status/conditions=type",
        Kind::Namespace | Kind::PodCertificateRequest => "status/conditions=type",
        Kind::ServiceAccount => "secrets=name",
        Kind::ConfigMap
        | Kind::Secret
        | Kind::Event
        | Kind::ClusterTrustBundle
        | Kind::Lease
        | Kind::CsiDriver => "",
    };
    let mut known = METADATA
        .split_ascii_whitespace()
        .chain(own.split_ascii_whitespace());
    let found = known.find_map(|known| {
        let (path, list) = match known.split_once('=') {
            Some((path, key)) => (path, ListMerge::Keyed(key)),
            None => (known, ListMerge::Set),
        };
        let (above, name) = path.split_once('/').unwrap_or((parent, path));
        (name == field && above == parent).then_some(list)
    });
    found.unwrap_or(ListMerge::Atomic)
}

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

type Fields = Map<String, Value>;

/// What `patch` makes of `target`, an object of `kind`.
pub(super) fn apply(kind: Kind, target: Value, patch: &Value) -> Result<Value, PatchError> {
    let (Value::Object(target), Value::Object(patch)) = (target, patch) else {
        return Err(malformed("it is not an object"));
    };
    merge_object(kind, "", target, patch).map(Value::Object)
}

/// Merges `patch` into `target`, the value of the field `parent`.
fn merge_object(
    kind: Kind,
    parent: &str,
    mut target: Fields,
    patch: &Fields,
) -> Result<Fields, PatchError> {
    match directive(patch)? {
        Some("replace") => return Ok(plain(patch)),
        Some("delete") => return Ok(Fields::new()),
        _ => {}
    }
    if let Some(retained) = patch.get(RETAIN_KEYS) {
        let retained: HashSet<&str> = items(retained, RETAIN_KEYS)?
            .iter()
            .filter_map(Value::as_str)
            .collect();
        target.retain(|field, _| retained.contains(field.as_str()));
    }
    for (field, change) in patch {
        if let Some(field) = field.strip_prefix(DELETE_FROM) {
            let deleted: HashSet<_> = items(change, DELETE_FROM)?.iter().map(identity).collect();
            if let Some(Value::Array(held)) = target.get_mut(field) {
                held.retain(|item| !deleted.contains(&identity(item)));
            }
        } else if change.is_null() {
            target.remove(field);
        } else if !field.starts_with('$') {
            let held = target.remove(field);
            let merged = merge_field(kind, parent, field, held, change)?;
            target.insert(field.clone(), merged);
        }
    }
    for (field, order) in patch {
        if let Some(field) = field.strip_prefix(SET_ORDER)
            && let Some(Value::Array(held)) = target.get_mut(field)
        {
            reorder(held, items(order, SET_ORDER)?, list(kind, parent, field));
        }
    }
    Ok(target)
}

/// What `change` makes of a field that holds `held`.
fn merge_field(
    kind: Kind,
    parent: &str,
    field: &str,
    held: Option<Value>,
    change: &Value,
) -> Result<Value, PatchError> {
    match (held, change) {
        (held, Value::Object(change)) => {
            let held = match held {
                Some(Value::Object(held)) => held,
                _ => Fields::new(),
            };
            merge_object(kind, field, held, change).map(Value::Object)
        }
        (held, Value::Array(change)) => {
            let held = match held {
                Some(Value::Array(held)) => held,
                _ => Vec::new(),
            };
            merge_list(kind, field, list(kind, parent, field), held, change).map(Value::Array)
        }
        (_, change) => Ok(change.clone()),
    }
}

fn merge_list(
    kind: Kind,
    field: &str,
    list: ListMerge,
    mut held: Vec<Value>,
    patch: &[Value],
) -> Result<Vec<Value>, PatchError> {
    match list {
        ListMerge::Atomic => Ok(patch.to_vec()),
        ListMerge::Set => {
            let mut known: HashSet<_> = held.iter().map(identity).collect();
            held.extend(
                patch
                    .iter()
                    .filter(|item| known.insert(identity(item)))
                    .cloned(),
            );
            Ok(held)
        }
        ListMerge::Keyed(key) => {
            let replaces = |item: &Value| item[PATCH] == "replace" && item.get(key).is_none();
            if patch.iter().any(replaces) {
                let kept = patch.iter().filter(|item| !replaces(item));
                return Ok(kept.cloned().collect());
            }
            let mut slots: Vec<_> = held.into_iter().map(Some).collect();
            let mut places: HashMap<String, Vec<usize>> = HashMap::new();
            for (place, item) in slots.iter().flatten().enumerate() {
                if let Some(id) = item.get(key) {
                    places.entry(identity(id)).or_default().push(place);
                }
            }
            for item in patch {
                let Value::Object(change) = item else {
                    return Err(malformed(&format!("an item of {field} is not an object")));
                };
                let Some(id) = change.get(key) else {
                    return Err(malformed(&format!(
                        "map: does not contain declared merge key: {key} (in {field})"
                    )));
                };
                let id = identity(id);
                if directive(change)? == Some("delete") {
                    for place in places.remove(&id).unwrap_or_default() {
                        slots[place] = None;
                    }
                    continue;
                }
                let place = *places
                    .entry(id)
                    .or_insert_with(|| {
                        slots.push(None);
                        vec![slots.len() - 1]
                    })
                    .first()
                    .expect("an entry has a place");
                let target = match slots[place].take() {
                    Some(Value::Object(target)) => target,
                    _ => Fields::new(),
                };
                let merged = merge_object(kind, field, target, change)?;
                slots[place] = Some(Value::Object(merged));
            }
            Ok(slots.into_iter().flatten().collect())
        }
    }
}

/// A form of the value that can be hashed.
fn identity(value: &Value) -> String {
    value.to_string()
}

/// Puts the items that `order` names in that order. An item that it does not name stays behind the one that it
/// followed.
fn reorder(held: &mut Vec<Value>, order: &[Value], list: ListMerge) {
    let id = |item: &Value| match list {
        ListMerge::Keyed(key) => identity(&item[key]),
        _ => identity(item),
    };
    let mut ranks = HashMap::new();
    for (rank, item) in order.iter().enumerate() {
        ranks.entry(id(item)).or_insert(rank);
    }
    let mut rank = None;
    let mut ranked: Vec<_> = std::mem::take(held)
        .into_iter()
        .map(|item| {
            let named = ranks.get(&id(&item)).copied();
            rank = named.or(rank);
            ((rank, named.is_none()), item)
        })
        .collect();
    // Stable: items of the same rank keep their order.
    ranked.sort_by_key(|(rank, _)| *rank);
    held.extend(ranked.into_iter().map(|(_, item)| item));
}

/// The patch without its directives.
fn plain(patch: &Fields) -> Fields {
    let fields = patch
        .iter()
        .filter(|(field, value)| !field.starts_with('$') && !value.is_null());
    fields
        .map(|(field, value)| (field.clone(), value.clone()))
        .collect()
}

/// `$patch`, checked.
fn directive(patch: &Fields) -> Result<Option<&str>, PatchError> {
    match patch.get(PATCH) {
        None => Ok(None),
        Some(Value::String(word)) if matches!(&**word, "replace" | "delete" | "merge") => {
            Ok(Some(word))
        }
        Some(other) => Err(malformed(&format!("unknown patch type: {other}"))),
    }
}

fn items<'a>(value: &'a Value, directive: &str) -> Result<&'a [Value], PatchError> {
    let items = value.as_array().map(Vec::as_slice);
    items.ok_or_else(|| malformed(&format!("{directive} is not a list")))
}

fn malformed(why: &str) -> PatchError {
    PatchError::Malformed(why.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(target: Value, patch: Value, expected: Value) {
        assert_eq!(apply(Kind::Pod, target, &patch).unwrap(), expected);
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
                {"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
                {"name": "b", "image": "2"},
            ])),
        );
        // `ports` of a container is keyed, `args` is not.
        check(
            spec(json!([{"name": "a", "args": ["1"], "ports": [{"containerPort": 1}]}])),
            spec(json!([{"name": "a", "args": ["2"], "ports": [{"containerPort": 2}]}])),
            spec(
                json!([{"name": "a", "args": ["2"], "ports": [{"containerPort": 1}, {"containerPort": 2}]}]),
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
            spec(json!([{"name": "c"}, {"name": "b"}, {"name": "a"}, {"name": "x"}])),
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
        let patched = apply(Kind::Pod, target, &patch).unwrap();
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
            assert!(
                apply(Kind::Pod, spec(json!([])), &patch).is_err(),
                "{patch}"
            );
        }
    }

    #[test]
    fn config_map_data_is_merged() {
        let patch = json!({"data": {"a": null, "b": "2"}});
        let patched = apply(
            Kind::ConfigMap,
            json!({"data": {"a": "1", "c": "3"}}),
            &patch,
        )
        .unwrap();
        assert_eq!(patched, json!({"data": {"b": "2", "c": "3"}}));
    }
}
