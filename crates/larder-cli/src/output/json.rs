//! JSON for programs, safe to print on a terminal.

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use larder_objects::is_unprintable;
use serde::Serialize;
use serde_json::{Value, json};

/// Writes `value` indented, with a newline at the end. Not more than a text of it is in memory.
///
/// # Errors
///
/// `out` cannot be written.
pub(crate) fn write_json(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(EscapedJson(out), value)?;
    out.write_all(b"\n")
}

/// A file: its mode in four octal digits, its content, and its owner and group, if they are to be named.
pub(crate) fn file(mode: u32, owner: Option<u32>, group: Option<u32>, data: Value) -> Value {
    let mut file = json!({"mode": format!("{mode:04o}"), "data": data});
    for (field, id) in [("owner", owner), ("group", group)] {
        if let Some(id) = id {
            file[field] = id.into();
        }
    }
    file
}

/// What could not be read: paths or objects, with the reasons.
pub(crate) fn not_read(all: &BTreeSet<(String, String)>) -> Vec<Value> {
    all.iter()
        .map(|(path, reason)| json!({"path": path, "reason": reason}))
        .collect()
}

/// Writes pieces of JSON. serde_json escapes most of the control characters. DEL, those of C1, and the marks that reorder
/// text are left, which only texts can hold.
struct EscapedJson<'o>(&'o mut dyn Write);

impl Write for EscapedJson<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A piece of a text has whole characters.
        let mut rest = str::from_utf8(bytes).map_err(io::Error::other)?;
        while let Some(at) = rest.find(|c: char| is_unprintable(c) && c != '\n') {
            let (before, after) = rest.split_at(at);
            let character = after.chars().next().expect("find returned its index");
            self.0.write_all(before.as_bytes())?;
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(self.0, "\\u{unit:04x}")?;
            }
            rest = &after[character.len_utf8()..];
        }
        self.0.write_all(rest.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_the_value_is_the_same() {
        let value =
            serde_json::json!({"a\u{9b}2J": ["\x1b\x7f", [], {}], "b\u{202e}": {"ü\u{e0041}": 1}});
        let mut text = Vec::new();
        write_json(&mut text, &value).unwrap();
        let text = String::from_utf8(text).unwrap();
        let control = |character: char| character.is_control() && character != '\n';
        assert!(
            !text.contains(control) && !text.contains(['\u{202e}', '\u{e0041}']),
            "{text:?}"
        );
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, value);
    }
}
