//! JSON documents as YAML.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

use super::json::write_json;

/// Writes `document` in YAML's block style, with its keys in their order.
///
/// # Errors
///
/// `out` cannot be written.
pub(crate) fn write_yaml(out: &mut dyn Write, document: &impl Serialize) -> io::Result<()> {
    let value = serde_json::to_value(document)?;
    let mut text = String::new();
    block(&mut text, &value, 0);
    out.write_all(text.trim_start_matches('\n').as_bytes())
}

/// Appends what follows a `key:` or a `-`: a space and a scalar, or a block on the next lines.
fn block(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                text.extend(["\n", &" ".repeat(indent), &scalar(key), ":"]);
                block(text, value, indent + 2);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                text.extend(["\n", &" ".repeat(indent), "-"]);
                let start = text.len();
                block(text, item, indent + 2);
                // The first field of an item follows its dash.
                let lead = 1 + indent + 2;
                if item.as_object().is_some_and(|fields| !fields.is_empty()) {
                    text.replace_range(start..start + lead, " ");
                }
            }
        }
        Value::String(string) => text.extend([" ", &scalar(string)]),
        // Numbers, literals and empty collections are the same in both.
        other => text.extend([" ", &other.to_string()]),
    }
    if indent == 0 {
        text.push('\n');
    }
}

/// A string as a scalar: plain where no reader of YAML takes it for anything else, in quotes otherwise.
fn scalar(string: &str) -> String {
    let is_plain = string.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && string
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
            .contains(&string.to_ascii_lowercase().as_str());
    if is_plain {
        string.to_owned()
    } else {
        let mut text = Vec::new();
        // A `Vec` takes every write.
        let _ = write_json(&mut text, &string);
        String::from_utf8_lossy(text.trim_ascii_end()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_readable_and_strings_stay_strings() {
        let document = json!({
            "node": "n1", "none": [], "off": "off", "count": 2, "text": "a: b\n",
            "pods": [{"name": "web", "volumes": [{"name": "01"}]}, ["x", {}]],
        });
        let mut out = Vec::new();
        write_yaml(&mut out, &document).unwrap();
        expect![[r#"
            count: 2
            node: n1
            none: []
            "off": "off"
            pods:
              - name: web
                volumes:
                  - name: "01"
              -
                - x
                - {}
            text: "a: b\n"
        "#]]
        .assert_eq(&String::from_utf8(out).unwrap());
    }
}
