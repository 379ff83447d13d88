//! Reading objects in their JSON form.
//!
//! Invariant: JSON from a client is nested at most [`MAX_DEPTH`] deep before any code walks it recursively.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Deepest nesting of a body, and of what a patch makes of an object. The deepest field of the API lies at about 20.
/// kube-apiserver 1.36 takes 10 000 (Go's `encoding/json`), of which other clients' parsers, with 128, could not read a
/// list.
pub(crate) const MAX_DEPTH: usize = 64;

/// Parses `body`.
///
/// # Errors
///
/// Why it is not JSON that this server reads. The text never quotes it: it may be a Secret.
pub(crate) fn parse(body: &[u8]) -> Result<Value, String> {
    if is_too_deep(body) {
        return Err("exceeded max depth".to_owned());
    }
    serde_json::from_slice(body)
        .map_err(|error| format!("line {}, column {}", error.line(), error.column()))
}

/// Decodes `value`, by way of its text. A program that also reads such objects from an API server then has one decoder
/// of each type, not two.
///
/// # Errors
///
/// What serde says of the first field with a wrong type, without the strings that it quotes.
pub(crate) fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_json::to_vec(value)
        .and_then(|text| serde_json::from_slice(&text))
        .map_err(|error| {
            let reason = error.to_string();
            // The client has not sent this text.
            let position = format!(" at line {} column {}", error.line(), error.column());
            without_values(reason.strip_suffix(&position).unwrap_or(&reason))
        })
}

/// Whether JSON text is nested deeper than [`MAX_DEPTH`], without building it.
fn is_too_deep(text: &[u8]) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return true;
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// How deep `value` is nested: 0 for a scalar, 1 for a list of scalars.
pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// The length of `value` as JSON.
pub(crate) fn size(value: &Value) -> usize {
    value.to_string().len()
}

/// The text of a decoding error without the strings of the input that serde quotes.
fn without_values(text: &str) -> String {
    let (Some(start), Some(end)) = (text.find("string \""), text.rfind("\", expected")) else {
        return text.to_owned();
    };
    match text.get(end + 1..) {
        Some(rest) if start < end => format!("{}string{rest}", &text[..start]),
        _ => text.to_owned(),
    }
}

/// The type of `value` as Go names it in errors.
pub(crate) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The string at `pointer`; empty when absent.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Gives a field that is absent its default.
pub(crate) fn set_default(field: &mut Value, default: impl Into<Value>) {
    if field.is_null() {
        *field = default.into();
    }
}

/// The items of the list at `pointer`; none if there is no list.
pub(crate) fn items<'v>(
    value: &'v Value,
    pointer: &str,
) -> impl DoubleEndedIterator<Item = &'v Value> + Clone + use<'v> {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nesting_is_bounded_and_strings_do_not_count() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(
            depth(&parse(nested(MAX_DEPTH).as_bytes()).unwrap()),
            MAX_DEPTH
        );
        for text in [
            nested(MAX_DEPTH + 1),
            "[".repeat(3 << 20),
            r#"{"a":"#.repeat(100_000),
        ] {
            assert_eq!(parse(text.as_bytes()), Err("exceeded max depth".to_owned()));
        }
        let text = json!(["[\"{\\".repeat(100), {"[[": "\\\""}]).to_string();
        assert!(parse(text.as_bytes()).is_ok());
    }

    #[test]
    fn quoted_strings_leave_an_error() {
        let text = r#"invalid type: string "pa\"ss", expected u8 at line 1"#;
        assert_eq!(
            without_values(text),
            "invalid type: string, expected u8 at line 1"
        );
        assert_eq!(without_values("missing field `a`"), "missing field `a`");
    }
}
