//! The JSON form of an object, which may hold a Secret.

use std::{fmt, ops::Deref};

use serde_json::Value;

use crate::{ObjectKey, wiped::Wiped};

/// An object as JSON. `Debug` shows its name only, and its texts are zeroized on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct RawObject(Wiped);

impl RawObject {
    /// Takes `object` over.
    pub fn new(object: Value) -> Self {
        Self(Wiped(object))
    }

    /// The JSON itself; from here on it is in the caller's care.
    pub fn into_value(mut self) -> Value {
        self.0.0.take()
    }

    /// The text at `pointer`, a JSON pointer; empty when there is none.
    pub fn text(&self, pointer: &str) -> &str {
        self.pointer(pointer).and_then(Value::as_str).unwrap_or("")
    }

    /// Namespace and name, empty where there is none.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(
            self.text("/metadata/namespace"),
            self.text("/metadata/name"),
        )
    }
}

impl Deref for RawObject {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0.0
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
}
