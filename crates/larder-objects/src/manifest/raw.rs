//! The JSON form of an object, which may hold a Secret.

use std::{fmt, ops::Deref};

use serde_json::Value;
use zeroize::Zeroize as _;

/// An object as JSON. `Debug` shows its name only, and the text of a Secret is zeroized on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct RawObject(Value);

impl RawObject {
    /// Takes `object` over.
    pub fn new(object: Value) -> Self {
        Self(object)
    }

    /// The JSON itself; from here on it is in the caller's care.
    pub fn into_value(mut self) -> Value {
        self.0.take()
    }

    /// The text at `pointer`, a JSON pointer; empty when there is none.
    pub(super) fn text(&self, pointer: &str) -> &str {
        self.0
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or("")
    }
}

impl Deref for RawObject {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

impl Drop for RawObject {
    fn drop(&mut self) {
        if self.text("/kind") == "Secret" {
            zeroize(&mut self.0);
        }
    }
}

impl fmt::Debug for RawObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawObject")
            .field("kind", &self.text("/kind"))
            .field("namespace", &self.text("/metadata/namespace"))
            .field("name", &self.text("/metadata/name"))
            .finish_non_exhaustive()
    }
}

fn zeroize(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(values) => values.iter_mut().for_each(zeroize),
        Value::Object(map) => map.values_mut().for_each(zeroize),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn debug_names_the_object_and_shows_nothing_of_it() {
        let object = RawObject::new(json!({
            "kind": "Secret", "metadata": {"name": "s"}, "data": {"p": "aHVudGVyMg=="},
        }));
        assert_eq!(
            format!("{object:?}"),
            r#"RawObject { kind: "Secret", namespace: "", name: "s", .. }"#
        );
    }

    #[test]
    fn zeroising_reaches_every_text() {
        let mut value =
            json!({"data": {"p": "hunter2"}, "list": ["hunter2", {"x": "hunter2"}], "n": 1});
        zeroize(&mut value);
        assert_eq!(
            value,
            json!({"data": {"p": ""}, "list": ["", {"x": ""}], "n": 1})
        );
    }
}
