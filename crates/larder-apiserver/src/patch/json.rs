//! JSON patch, RFC 6902: a list of operations on JSON pointers, all or none.
//!
//! Where kube-apiserver 1.36 (with `evanphx/json-patch` v4) differs from the RFC, so does this: a missing `value` and a
//! missing member of an object count as null, `replace` may add a member, an index may be negative (from the end), and
//! only `replace` and `test` may concern the whole document.
//!
//! Invariant: a patch of any content costs bounded memory, time and nesting. [`MAX_OPERATIONS`], [`MAX_COPIED_BYTES`],
//! [`MAX_STEPS`] and [`MAX_DEPTH`] are checked before an operation is carried out.

use serde::Deserialize;
use serde_json::Value;

use super::malformed;
use crate::{
    json::{MAX_DEPTH, depth, json_type, size},
    status::ApiError,
};

#[derive(Deserialize)]
struct Operation {
    op: Op,
    path: String,
    /// Of `move` and `copy`.
    from: Option<String>,
    /// Of `add`, `replace` and `test`.
    #[serde(default)]
    value: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Op {
    Add,
    Remove,
    Replace,
    Move,
    Copy,
    Test,
}

/// Most operations of one patch. Source: kube-apiserver 1.36,
/// `staging/src/k8s.io/apiserver/pkg/endpoints/handlers/patch.go`, `maxJSONPatchOperations`.
const MAX_OPERATIONS: usize = 10_000;

/// Most bytes of JSON that the `copy` operations of one patch may add. Source: kube-apiserver 1.36,
/// `staging/src/k8s.io/apiserver/pkg/server/config.go`, `JSONPatchMaxCopyBytes`.
const MAX_COPIED_BYTES: usize = 3 << 20;

/// Most values that the operations of one patch may move within lists or visit to measure them: about a second.
/// kube-apiserver has no such limit; there such a patch runs into the request's timeout.
const MAX_STEPS: usize = 1 << 26;

/// What the operations of `patch` make of `target`.
pub(super) fn apply(target: Value, patch: &Value) -> Result<Value, ApiError> {
    let Some(operations) = patch.as_array() else {
        let found = json_type(patch);
        return Err(malformed(&format!(
            "json: cannot unmarshal {found} into Go value of type []handlers.jsonPatchOp"
        )));
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(ApiError::too_large(format_args!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    let operations = Vec::<Operation>::deserialize(patch).map_err(|_| ApiError::unfit_patch())?;
    let mut document = Document {
        depth: depth(&target),
        root: target,
        copied_bytes: 0,
        steps: 0,
    };
    for Operation {
        op,
        path,
        from,
        value,
    } in operations
    {
        let from = from.as_deref().ok_or_else(ApiError::unfit_patch);
        match op {
            Op::Add => {
                let depth = depth(&value);
                document.add(&path, value, depth)?;
            }
            Op::Remove => document.remove(&path).map(drop)?,
            Op::Replace => document.replace(&path, value)?,
            Op::Move => document.move_value(from?, &path)?,
            Op::Copy => document.copy(from?, &path)?,
            Op::Test if *get(&document.root, &path)? == value => {}
            Op::Test => return Err(ApiError::unfit_patch()),
        }
    }
    Ok(document.root)
}

/// An object while operations change it.
struct Document {
    root: Value,
    /// No value of `root` is nested deeper.
    depth: usize,
    /// What `copy` has added.
    copied_bytes: usize,
    /// See [`MAX_STEPS`].
    steps: usize,
}

impl Document {
    /// Puts `value`, whose depth is at most `depth`, at `path`.
    fn add(&mut self, path: &str, value: Value, depth: usize) -> Result<(), ApiError> {
        self.nest(path, depth)?;
        let (parent, last) = parent(&mut self.root, path)?;
        match parent {
            Value::Object(fields) => {
                fields.insert(last, value);
            }
            Value::Array(items) => {
                let index = match last.as_str() {
                    "-" => items.len(),
                    last => index(last, items.len() + 1).ok_or_else(ApiError::unfit_patch)?,
                };
                step(&mut self.steps, items.len() - index)?;
                items.insert(index, value);
            }
            _ => return Err(ApiError::unfit_patch()),
        }
        Ok(())
    }

    fn remove(&mut self, path: &str) -> Result<Value, ApiError> {
        let (parent, last) = parent(&mut self.root, path)?;
        let removed = match parent {
            Value::Object(fields) => fields.remove(&last),
            Value::Array(items) => {
                let index = index(&last, items.len()).ok_or_else(ApiError::unfit_patch)?;
                step(&mut self.steps, items.len() - index)?;
                Some(items.remove(index))
            }
            _ => None,
        };
        removed.ok_or_else(ApiError::unfit_patch)
    }

    fn replace(&mut self, path: &str, value: Value) -> Result<(), ApiError> {
        self.nest(path, depth(&value))?;
        if path.is_empty() {
            self.root = value;
            return Ok(());
        }
        let (parent, last) = parent(&mut self.root, path)?;
        let held = match parent {
            Value::Object(fields) => fields.entry(last).or_insert(Value::Null),
            parent => child(parent, &last).ok_or_else(ApiError::unfit_patch)?,
        };
        *held = value;
        Ok(())
    }

    fn move_value(&mut self, from: &str, path: &str) -> Result<(), ApiError> {
        let value = self.remove(from)?;
        let mut depth_bound = self.depth.saturating_sub(tokens(from));
        if tokens(path) + depth_bound > MAX_DEPTH {
            step(&mut self.steps, size(&value))?;
            depth_bound = depth(&value);
        }
        self.add(path, value, depth_bound)
    }

    fn copy(&mut self, from: &str, path: &str) -> Result<(), ApiError> {
        let value = get(&self.root, from)?;
        self.copied_bytes += size(value);
        if self.copied_bytes > MAX_COPIED_BYTES {
            return Err(ApiError::unfit_patch());
        }
        let value = value.clone();
        let depth = depth(&value);
        self.add(path, value, depth)
    }

    /// Notes that a value of this depth comes to `path`.
    fn nest(&mut self, path: &str, depth: usize) -> Result<(), ApiError> {
        let depth = tokens(path) + depth;
        if depth > MAX_DEPTH {
            return Err(malformed("exceeded max depth"));
        }
        self.depth = self.depth.max(depth);
        Ok(())
    }
}

/// Counts `more` steps.
fn step(steps: &mut usize, more: usize) -> Result<(), ApiError> {
    *steps = steps.saturating_add(more);
    if *steps > MAX_STEPS {
        let why = "the operations of the JSON patch move too many values";
        return Err(ApiError::too_large(why));
    }
    Ok(())
}

/// How many values lie above the one at `path`.
fn tokens(path: &str) -> usize {
    path.bytes().filter(|byte| *byte == b'/').count()
}

/// What holds the value at `path`, and its last token.
fn parent<'v>(target: &'v mut Value, path: &str) -> Result<(&'v mut Value, String), ApiError> {
    let (parent, last) = path.rsplit_once('/').ok_or_else(ApiError::unfit_patch)?;
    let mut tokens = parent.split('/').skip(1).map(unescaped);
    let parent = tokens.try_fold(target, |value, token| child(value, &token));
    Ok((parent.ok_or_else(ApiError::unfit_patch)?, unescaped(last)))
}

/// The value at `path`: null where its parent is an object without it.
fn get<'v>(root: &'v Value, path: &str) -> Result<&'v Value, ApiError> {
    let mut value = root;
    let mut tokens = path.split('/').skip(1).map(unescaped).peekable();
    if tokens.peek().is_none() && !path.is_empty() {
        return Err(ApiError::unfit_patch());
    }
    while let Some(token) = tokens.next() {
        let found = match value {
            Value::Object(fields) => fields.get(&token),
            Value::Array(items) => index(&token, items.len()).map(|index| &items[index]),
            _ => None,
        };
        let is_absent_member = value.is_object() && tokens.peek().is_none();
        value = found
            .or(is_absent_member.then_some(&Value::Null))
            .ok_or_else(ApiError::unfit_patch)?;
    }
    Ok(value)
}

/// The member or item of `value` that `token` names.
fn child<'v>(value: &'v mut Value, token: &str) -> Option<&'v mut Value> {
    match value {
        Value::Object(fields) => fields.get_mut(token),
        Value::Array(items) => index(token, items.len()).map(|index| &mut items[index]),
        _ => None,
    }
}

fn unescaped(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}

/// An index of a list, below `end`; a negative one counts from there.
fn index(token: &str, end: usize) -> Option<usize> {
    let index: i64 = token.parse().ok()?;
    let back = usize::try_from(index.unsigned_abs()).ok()?;
    let index = if index < 0 {
        end.checked_sub(back)?
    } else {
        back
    };
    (index < end).then_some(index)
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

    /// The patch of `operations`, each of which gets its number.
    fn repeated(times: usize, operation: impl Fn(usize) -> Value) -> Value {
        (0..times).map(operation).collect()
    }

    #[test]
    fn copies_are_bounded_in_bytes() {
        // Each doubles the object: 2^40 values in 2 KB of patch.
        let doubling = repeated(
            40,
            |n| json!({"op": "copy", "from": "/a", "path": format!("/a/{n}")}),
        );
        check(json!({"a": {"b": "c"}}), doubling, None);
        let text = "x".repeat(MAX_COPIED_BYTES - 2);
        let copy = |n| json!({"op": "copy", "from": "/a", "path": format!("/{n}")});
        assert!(apply(json!({"a": text}), &repeated(1, copy)).is_ok());
        assert_eq!(
            apply(json!({"a": text}), &repeated(2, copy)),
            Err(ApiError::unfit_patch())
        );
        assert_eq!(
            apply(json!({"a": text + "x"}), &repeated(1, copy)),
            Err(ApiError::unfit_patch())
        );
    }

    #[test]
    fn operations_are_bounded_in_number() {
        let add = |n| json!({"op": "add", "path": "/a", "value": n});
        assert!(apply(json!({}), &repeated(MAX_OPERATIONS, add)).is_ok());
        assert_eq!(
            apply(json!({}), &repeated(MAX_OPERATIONS + 1, add)),
            Err(ApiError::too_large(
                "The allowed maximum operations in a JSON patch is 10000, got 10001"
            ))
        );
    }

    #[test]
    fn no_operation_nests_deeper_than_a_body_may_be() {
        let too_deep = || Err(malformed("exceeded max depth"));
        let nested = |depth| (0..depth).fold(json!(1), |value, _| json!([value]));
        for op in ["add", "replace"] {
            let patch = json!([{"op": op, "path": "/a", "value": nested(MAX_DEPTH - 1)}]);
            assert!(apply(json!({"a": 1}), &patch).is_ok());
            let patch = json!([{"op": op, "path": "/a", "value": nested(MAX_DEPTH)}]);
            assert_eq!(apply(json!({"a": 1}), &patch), too_deep());
        }
        let inner = |depth| "/0".repeat(depth);
        for op in ["copy", "move"] {
            // The value of `/a` goes to the bottom of `/b`.
            let object = json!({"a": nested(40), "b": nested(30)});
            let patch = json!([{"op": op, "from": "/a", "path": format!("/b{}", inner(30))}]);
            assert_eq!(apply(object.clone(), &patch), too_deep());
            let patch = json!([{"op": op, "from": "/a", "path": format!("/b{}", inner(20))}]);
            assert!(apply(object, &patch).is_ok());
        }
        // Each step wraps what there is once more.
        let wrapping = json!([{"op": "move", "from": "/a", "path": "/c"}, {"op": "add", "path": "/a", "value": {}},
            {"op": "move", "from": "/c", "path": "/a/c"}]);
        let wrapping: Vec<_> = (0..MAX_DEPTH)
            .flat_map(|_| wrapping.as_array().unwrap().clone())
            .collect();
        assert_eq!(apply(json!({"a": 1}), &json!(wrapping)), too_deep());
    }

    #[test]
    fn steps_in_long_lists_are_bounded() {
        let object = json!({"a": vec![0; 100_000]});
        let front = |_| json!({"op": "add", "path": "/a/0", "value": 0});
        let rejected = apply(object, &repeated(MAX_OPERATIONS, front)).unwrap_err();
        assert_eq!(rejected.reason(), "RequestEntityTooLarge");
    }

    #[test]
    fn a_patch_that_does_not_fit_changes_nothing() {
        for patch in [
            json!([{"op": "remove", "path": "/x"}]),
            json!([{"op": "replace", "path": "/l/1", "value": 1}]),
            json!([{"op": "add", "path": "", "value": {}}]),
            json!([{"op": "test", "path": "/a", "value": 2}]),
            json!([{"op": "add", "path": "/l/9", "value": 2}]),
            json!([{"op": "add", "path": "/l/-3", "value": 2}]),
            json!([{"op": "add", "path": "/x/y", "value": 2}]),
            json!([{"op": "move", "from": "/l", "path": "/l/0"}]),
            json!([{"op": "nonsense", "path": "/a"}]),
            json!({"op": "remove", "path": "/a"}),
        ] {
            check(json!({"a": 1, "l": [1]}), patch, None);
        }
    }
}
