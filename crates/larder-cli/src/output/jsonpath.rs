//! Templates of `-o jsonpath=`, as kubectl has them (kubectl 1.36, `client-go/util/jsonpath`): text, and in braces a
//! path, a quoted text, or `range PATH` … `end`. Paths are those of RFC 9535 without their `$`.

use std::str::FromStr;

use jsonpath_rust::{
    parser::{model::JpQuery, parse_json_path},
    query::{QueryRef, js_path_process},
};
use serde_json::Value;

use super::escaped;

/// A template that was read.
#[derive(Clone, Debug)]
pub(crate) struct Template(Vec<TemplatePart>);

#[derive(Clone, Debug)]
enum TemplatePart {
    Text(String),
    Path(JpQuery),
    Range(JpQuery, Vec<TemplatePart>),
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parts(&mut &*text, false).map(Self)
    }
}

/// The parts up to the end of the text, or up to `{end}` within a range.
fn parts(rest: &mut &str, in_range: bool) -> Result<Vec<TemplatePart>, String> {
    let mut parts = Vec::new();
    while let Some(open) = rest.find('{') {
        let (text, after) = rest.split_at(open);
        if !text.is_empty() {
            parts.push(TemplatePart::Text(text.to_owned()));
        }
        let close = close(after).ok_or_else(|| format!("{after:?} has no closing brace"))?;
        let expression = after[1..close].trim();
        *rest = &after[close + 1..];
        if expression == "end" {
            return if in_range {
                Ok(parts)
            } else {
                Err("{end} without {range}".to_owned())
            };
        }
        parts.push(match expression.strip_prefix("range ") {
            Some(path) => TemplatePart::Range(path_of(path.trim())?, self::parts(rest, true)?),
            None if expression.starts_with(['"', '\'']) => TemplatePart::Text(quoted(expression)?),
            None => TemplatePart::Path(path_of(expression)?),
        });
    }
    if in_range {
        return Err("{range} without {end}".to_owned());
    }
    if !rest.is_empty() {
        parts.push(TemplatePart::Text((*rest).to_owned()));
    }
    Ok(parts)
}

/// The position of the brace that closes the one at the start; braces in quotes do not count.
fn close(text: &str) -> Option<usize> {
    let (mut quote, mut escaped) = (None, false);
    for (position, character) in text.char_indices() {
        match (quote, character) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if open == character => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, '}') => return Some(position),
            _ => {}
        }
    }
    None
}

/// A text in quotes, with the escapes of JSON.
fn quoted(text: &str) -> Result<String, String> {
    let inner = text
        .get(1..text.len().saturating_sub(1))
        .filter(|_| text.ends_with(&text[..1]));
    let json = format!("\"{}\"", inner.unwrap_or("\\").replace("\\'", "'"));
    serde_json::from_str(&json).map_err(|_| format!("expected a text in quotes, found {text}"))
}

fn path_of(text: &str) -> Result<JpQuery, String> {
    let path = text.strip_prefix(['$', '@']).unwrap_or(text);
    // `{.}` is the document.
    let path = if path == "." { "" } else { path };
    let query = (path.is_empty() || path.starts_with(['.', '[']))
        .then(|| parse_json_path(&format!("${path}")).ok());
    let wrong = || format!("{text:?} is not supported: expected a path such as .pods[*].name");
    query.flatten().ok_or_else(wrong)
}

impl Template {
    /// The text for `document`. A path that leads nowhere has none.
    pub(crate) fn render(&self, document: &Value) -> String {
        let mut text = String::new();
        render(&self.0, document, &mut text);
        text
    }
}

/// In a range, `current` is its item.
fn render(parts: &[TemplatePart], current: &Value, text: &mut String) {
    for part in parts {
        match part {
            TemplatePart::Text(part) => text.push_str(part),
            TemplatePart::Path(path) => {
                // A string without quotes, anything else as JSON.
                let found = select(path, current).into_iter().map(|value| {
                    value
                        .as_str()
                        .map_or_else(|| value.to_string(), str::to_owned)
                });
                // Values come from others; the template is the user's.
                text.push_str(&escaped(&found.collect::<Vec<_>>().join(" ")));
            }
            TemplatePart::Range(path, parts) => {
                for item in select(path, current) {
                    render(parts, item, text);
                }
            }
        }
    }
}

/// What `path` leads to; nothing, if it leads nowhere.
fn select<'a>(path: &JpQuery, value: &'a Value) -> Vec<&'a Value> {
    js_path_process(path, value)
        .unwrap_or_default()
        .into_iter()
        .map(QueryRef::val)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(template: &str, expected: &str) {
        let document = json!({"node": "n1", "pods": [
            {"name": "web", "phase": "Failing", "volumes": [{"name": "tls", "files": 2}]},
            {"name": "db", "phase": "Delivered", "volumes": []},
        ]});
        assert_eq!(
            template.parse::<Template>().unwrap().render(&document),
            expected
        );
    }

    #[test]
    fn templates_are_those_of_kubectl() {
        check("{.node}", "n1");
        check("{.pods[*].name}", "web db");
        check("{.pods[-1]['name']} is {.pods[1].phase}", "db is Delivered");
        check(
            r#"{range .pods[*]}{.name}{"\t"}{.volumes[*].files}{"\n"}{end}"#,
            "web\t2\ndb\t\n",
        );
        check(r#"{.pods[?(@.phase=="Failing")].name}"#, "web");
        check(r#"{.pods[?(@.phase != "Failing")].name}"#, "db");
        check("{..files}", "2");
        check("{.missing.field}[{.pods[7]}]", "[]");
        check("{.pods[0].volumes}", r#"[{"files":2,"name":"tls"}]"#);
    }

    #[test]
    fn what_is_not_supported_is_an_error() {
        for bad in [
            "{.a",
            "{range .pods[*]}",
            "{end}",
            "{.pods[}",
            "{.pods[?(@.x>>1)]}",
            "{pods}",
            "{'a}",
        ] {
            assert!(bad.parse::<Template>().is_err(), "{bad}");
        }
    }
}
