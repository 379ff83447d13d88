//! Reading objects in their JSON form.

use serde_json::Value;

/// The string at `pointer`; empty when absent.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}
