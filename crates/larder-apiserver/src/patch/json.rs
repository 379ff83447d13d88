//! JSON patch, RFC 6902: a list of operations on JSON pointers, all or none.

use serde::Deserialize;
use serde_json::Value;

use super::PatchError;
use crate::json::json_type;

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Operation {
    Add { path: String, value: Value },
    Remove { path: String },
    Replace { path: String, value: Value },
    Move { from: String, path: String },
    Copy { from: String, path: String },
    Test { path: String, value: Value },
}

/// Most operations of one patch; as kube-apiserver.
const MAX_OPERATIONS: usize = 10_000;

/// What the operations of `patch` make of `target`.
pub(super) fn apply(mut target: Value, patch: &Value) -> Result<Value, PatchError> {
    if !patch.is_array() {
        let found = json_type(patch);
        return Err(PatchError::Malformed(format!(
            "json: cannot unmarshal {found} into Go value of type []handlers.jsonPatchOp"
        )));
    }
    let operations = Vec::<Operation>::deserialize(patch).map_err(|_| PatchError::Unfit)?;
    if operations.len() > MAX_OPERATIONS {
        let message = format!("it has more than {MAX_OPERATIONS} operations");
        return Err(PatchError::Malformed(message));
    }
    for operation in operations {
        match operation {
            Operation::Add { path, value } => add(&mut target, &path, value)?,
            Operation::Remove { path } => {
                remove(&mut target, &path)?;
            }
            Operation::Replace { path, value } => {
                *target.pointer_mut(&path).ok_or(PatchError::Unfit)? = value;
            }
            Operation::Move { from, path } => {
                if path
                    .strip_prefix(&*from)
                    .is_some_and(|rest| rest.starts_with('/'))
                {
                    // A value cannot be moved into itself.
                    return Err(PatchError::Unfit);
                }
                let value = remove(&mut target, &from)?;
                add(&mut target, &path, value)?;
            }
            Operation::Copy { from, path } => {
                let value = target.pointer(&from).ok_or(PatchError::Unfit)?.clone();
                add(&mut target, &path, value)?;
            }
            Operation::Test { path, value } => {
                if target.pointer(&path).unwrap_or(&Value::Null) != &value {
                    return Err(PatchError::Unfit);
                }
            }
        }
    }
    Ok(target)
}

fn add(target: &mut Value, path: &str, value: Value) -> Result<(), PatchError> {
    if path.is_empty() {
        *target = value;
        return Ok(());
    }
    let (parent, last) = parent(target, path)?;
    match parent {
        Value::Object(fields) => {
            fields.insert(last, value);
        }
        Value::Array(items) => {
            let index = if last == "-" {
                items.len()
            } else {
                index(&last)
                    .filter(|index| *index <= items.len())
                    .ok_or(PatchError::Unfit)?
            };
            items.insert(index, value);
        }
        _ => return Err(PatchError::Unfit),
    }
    Ok(())
}

fn remove(target: &mut Value, path: &str) -> Result<Value, PatchError> {
    if path.is_empty() {
        return Err(PatchError::Unfit);
    }
    let (parent, last) = parent(target, path)?;
    let removed = match parent {
        Value::Object(fields) => fields.remove(&last),
        Value::Array(items) => index(&last)
            .filter(|index| *index < items.len())
            .map(|index| items.remove(index)),
        _ => None,
    };
    removed.ok_or(PatchError::Unfit)
}

/// What holds the value at `path`, and its last token.
fn parent<'v>(target: &'v mut Value, path: &str) -> Result<(&'v mut Value, String), PatchError> {
    let (parent, last) = path.rsplit_once('/').ok_or(PatchError::Unfit)?;
    let parent = target.pointer_mut(parent).ok_or(PatchError::Unfit)?;
    Ok((parent, last.replace("~1", "/").replace("~0", "~")))
}

/// An index of a list; RFC 6901 allows no leading zeros and no signs.
fn index(token: &str) -> Option<usize> {
    let plain = token == "0" || !token.starts_with('0');
    (plain && token.bytes().all(|byte| byte.is_ascii_digit())).then(|| token.parse().ok())?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(target: Value, patch: Value, expected: Option<Value>) {
        assert_eq!(apply(target, &patch).ok(), expected);
    }

    #[test]
    fn operations_add_remove_replace_move_copy_and_test() {
        let add = json!([{"op": "add", "path": "/a/1", "value": "x"}, {"op": "add", "path": "/a/-", "value": "z"}]);
        check(
            json!({"a": [1, 2]}),
            add,
            Some(json!({"a": [1, "x", 2, "z"]})),
        );
        let keys = json!([{"op": "remove", "path": "/a~1b"}, {"op": "replace", "path": "/c~0d", "value": 2}]);
        check(json!({"a/b": 1, "c~d": 1}), keys, Some(json!({"c~d": 2})));
        let moves = json!([{"op": "move", "from": "/a", "path": "/b"}, {"op": "copy", "from": "/b", "path": "/c"}]);
        check(json!({"a": 1}), moves, Some(json!({"b": 1, "c": 1})));
        let test =
            json!([{"op": "test", "path": "/a", "value": 1}, {"op": "remove", "path": "/a"}]);
        check(json!({"a": 1}), test, Some(json!({})));
    }

    #[test]
    fn what_does_not_fit_is_refused_as_a_whole() {
        for patch in [
            json!([{"op": "remove", "path": "/x"}]),
            json!([{"op": "replace", "path": "/x", "value": 1}]),
            json!([{"op": "test", "path": "/a", "value": 2}]),
            json!([{"op": "add", "path": "/l/9", "value": 2}]),
            json!([{"op": "add", "path": "/l/01", "value": 2}]),
            json!([{"op": "add", "path": "/x/y", "value": 2}]),
            json!([{"op": "move", "from": "/l", "path": "/l/0"}]),
            json!([{"op": "nonsense", "path": "/a"}]),
            json!({"op": "remove", "path": "/a"}),
        ] {
            check(json!({"a": 1, "l": [1]}), patch, None);
        }
    }
}
