//! Templates of `-o jsonpath=`, as kubectl has them (kubectl 1.36, `client-go/util/jsonpath`): text, and in braces a
//! path, a quoted text, or `range PATH` … `end`.
//!
//! Of JSONPath, a path has what status documents need: `.field`, `['field']`, `[0]`, `[-1]`, `[*]`, `.*` and
//! `[?(@.field=="text")]`. Anything else is an error that says so.

use std::str::FromStr;

use serde_json::Value;

use super::escaped;

/// A template that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Path(Vec<Selector>),
    Range(Vec<Selector>, Vec<Part>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Selector {
    Field(String),
    /// From the end if negative.
    Index(i64),
    All,
    /// Items for which the path has this relation to the text: equal, or not.
    Where(Vec<Selector>, bool, String),
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rest = text;
        let parts = parts(&mut rest, false)?;
        Ok(Self(parts))
    }
}

/// The parts up to the end of the text, or up to `{end}` within a range.
fn parts(rest: &mut &str, in_range: bool) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    while let Some(open) = rest.find('{') {
        let (text, after) = rest.split_at(open);
        if !text.is_empty() {
            parts.push(Part::Text(text.to_owned()));
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
            Some(path) => Part::Range(path_of(path.trim())?, self::parts(rest, true)?),
            None if expression.starts_with(['"', '\'']) => Part::Text(quoted(expression)?),
            None => Part::Path(path_of(expression)?),
        });
    }
    if in_range {
        return Err("{range} without {end}".to_owned());
    }
    if !rest.is_empty() {
        parts.push(Part::Text((*rest).to_owned()));
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
    let inner = text.get(1..text.len().saturating_sub(1));
    let inner = inner.filter(|_| text.ends_with(&text[..1]));
    let json = format!("\"{}\"", inner.unwrap_or("\\").replace("\\'", "'"));
    serde_json::from_str(&json).map_err(|_| format!("expected a text in quotes, found {text}"))
}

fn path_of(text: &str) -> Result<Vec<Selector>, String> {
    let wrong = || format!("{text:?} is not supported: expected a path such as .pods[*].name");
    let mut rest = text.strip_prefix(['$', '@']).unwrap_or(text);
    let mut path = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (name, after) = after.split_at(end);
            match name {
                // `{.}` is the document.
                "" if after.is_empty() => {}
                "" => return Err(wrong()),
                "*" => path.push(Selector::All),
                name => path.push(Selector::Field(name.to_owned())),
            }
            rest = after;
        } else if let Some(after) = rest.strip_prefix("[?(") {
            let end = after.find(")]").ok_or_else(wrong)?;
            path.push(filter(&after[..end]).ok_or_else(wrong)?);
            rest = &after[end + 2..];
        } else {
            let after = rest.strip_prefix('[').ok_or_else(wrong)?;
            let (inner, after) = after.split_once(']').ok_or_else(wrong)?;
            path.push(match inner {
                "*" => Selector::All,
                name if name.starts_with(['"', '\'']) => Selector::Field(quoted(name)?),
                index => Selector::Index(index.parse().map_err(|_| wrong())?),
            });
            rest = after;
        }
    }
    Ok(path)
}

/// `@.phase=="Delivered"`, or with `!=`.
fn filter(text: &str) -> Option<Selector> {
    let (path, equal, value) = match text.split_once("==") {
        Some((path, value)) => (path, true, value),
        None => text
            .split_once("!=")
            .map(|(path, value)| (path, false, value))?,
    };
    let value = value.trim();
    let value = quoted(value).unwrap_or_else(|_| value.to_owned());
    Some(Selector::Where(path_of(path.trim()).ok()?, equal, value))
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
fn render(parts: &[Part], current: &Value, text: &mut String) {
    for part in parts {
        match part {
            Part::Text(part) => text.push_str(part),
            Part::Path(path) => {
                let found = select(path, current).into_iter().map(plain);
                // Values come from others; the template is the user's.
                text.push_str(&escaped(&found.collect::<Vec<_>>().join(" ")));
            }
            Part::Range(path, parts) => {
                for item in select(path, current) {
                    render(parts, item, text);
                }
            }
        }
    }
}

fn select<'a>(path: &[Selector], value: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![value];
    for selector in path {
        found = found
            .into_iter()
            .flat_map(|value| step(selector, value))
            .collect();
    }
    found
}

fn step<'a>(selector: &Selector, value: &'a Value) -> Vec<&'a Value> {
    let items = value.as_array();
    match selector {
        Selector::Field(name) => value.get(name).into_iter().collect(),
        Selector::Index(index) => {
            let items = items.map_or(&[][..], Vec::as_slice);
            let back = usize::try_from(index.unsigned_abs()).unwrap_or(usize::MAX);
            let position = if *index < 0 {
                items.len().checked_sub(back)
            } else {
                Some(back)
            };
            position
                .and_then(|position| items.get(position))
                .into_iter()
                .collect()
        }
        Selector::All => match value {
            Value::Object(fields) => fields.values().collect(),
            _ => items.into_iter().flatten().collect(),
        },
        Selector::Where(path, equal, text) => {
            let matches = |item: &&Value| {
                let mut found = select(path, item).into_iter();
                found.any(|value| plain(value) == *text) == *equal
            };
            items.into_iter().flatten().filter(matches).collect()
        }
    }
}

/// A string without quotes, anything else as JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
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
        check("{.missing.field}[{.pods[7]}]", "[]");
        check("{.pods[0].volumes}", r#"[{"files":2,"name":"tls"}]"#);
    }

    #[test]
    fn what_is_not_supported_is_an_error() {
        for bad in [
            "{.a",
            "{range .pods[*]}",
            "{end}",
            "{..name}",
            "{.pods[0:2]}",
            "{.pods[?(@.x>1)]}",
            "{pods}",
            "{'a}",
        ] {
            assert!(bad.parse::<Template>().is_err(), "{bad}");
        }
    }
}
