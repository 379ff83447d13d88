//! JSON that is zeroized on drop.

use serde_json::Value;
use zeroize::Zeroize as _;

/// A value whose texts are zeroized on drop; keys are not.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Wiped(pub(crate) Value);

impl Drop for Wiped {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

fn wipe(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(values) => values.iter_mut().for_each(wipe),
        Value::Object(map) => map.values_mut().for_each(wipe),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wiping_reaches_every_text() {
        let mut value =
            json!({"data": {"p": "hunter2"}, "list": ["hunter2", {"x": "hunter2"}], "n": 1});
        wipe(&mut value);
        assert_eq!(
            value,
            json!({"data": {"p": ""}, "list": ["", {"x": ""}], "n": 1})
        );
    }
}
