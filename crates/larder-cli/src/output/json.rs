//! JSON for programs, safe to print on a terminal.

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use larder_objects::is_unprintable;
use serde::Serialize;
use serde_json::{Value, json};
use zeroize::Zeroizing;

/// Writes `value` indented, with a newline at the end. Not more than a line of it is in memory.
///
/// # Errors
///
/// `out` cannot be written.
pub(crate) fn write_json(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    let line = Zeroizing::default();
    let mut lines = EscapedJson { out, line };
    serde_json::to_writer_pretty(&mut lines, value)?;
    lines.write_all(b"\n")
}

/// What could not be read: paths or objects, with the reasons.
pub(crate) fn not_read(all: &BTreeSet<(String, String)>) -> Vec<Value> {
    let all = all.iter();
    let all = all.map(|(path, reason)| json!({"path": path, "reason": reason}));
    all.collect()
}

/// Writes lines of JSON. serde_json escapes most of the control characters. DEL, those of C1, and the marks that reorder
/// text are left, which only texts can hold.
struct EscapedJson<'o> {
    out: &'o mut dyn Write,
    /// The beginning of a line. It may hold a Secret.
    line: Zeroizing<Vec<u8>>,
}

impl Write for EscapedJson<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                write_escaped(
                    self.out,
                    str::from_utf8(&self.line).map_err(io::Error::other)?,
                )?;
                self.line.clear();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn write_escaped(out: &mut dyn Write, mut rest: &str) -> io::Result<()> {
    while let Some(at) = rest.find(|c: char| is_unprintable(c) && c != '\n') {
        let (before, after) = rest.split_at(at);
        let character = after.chars().next().expect("find returned its index");
        write!(out, "{before}")?;
        for unit in character.encode_utf16(&mut [0; 2]) {
            write!(out, "\\u{unit:04x}")?;
        }
        rest = &after[character.len_utf8()..];
    }
    write!(out, "{rest}")
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
