//! JSON merge patch, RFC 7386.
//!
//! As with kube-apiserver 1.36 (`evanphx/json-patch` v4), the objects in a list of the patch lose their nulls, too.

use serde_json::{Map, Value};

/// The value that `patch` makes of `target`: objects are merged, `null` removes, everything else replaces.
pub fn apply(target: Value, patch: &Value) -> Value {
    let patch = match patch {
        Value::Object(patch) => patch,
        Value::Array(items) => {
            return items.iter().map(|item| apply(Value::Null, item)).collect();
        }
        patch => return patch.clone(),
    };
    let mut merged = match target {
        Value::Object(target) => target,
        _ => Map::new(),
    };
    for (key, change) in patch {
        if change.is_null() {
            merged.remove(key);
        } else {
            let held = merged.remove(key).unwrap_or(Value::Null);
            merged.insert(key.clone(), apply(held, change));
        }
    }
    Value::Object(merged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_examples_of_the_rfc_hold() {
        for (target, patch, result) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (
                json!({"a": "b", "b": "c"}),
                json!({"a": null}),
                json!({"b": "c"}),
            ),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [{"b": "c"}]}),
                json!({"a": [1]}),
                json!({"a": [1]}),
            ),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!([1, 2]),
                json!({"a": "b", "c": null}),
                json!({"a": "b"}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            assert_eq!(apply(target.clone(), &patch), result, "{target} {patch}");
        }
    }
}
