//! Text in double quotes, as Go's `%q` writes it.

use std::fmt::Write as _;

/// `text` as a Go string literal: printable characters as they are, everything else escaped, hexadecimal in lower case.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for char in text.chars() {
        match char {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            char if is_printable(char) => quoted.push(char),
            char => {
                let code = u32::from(char);
                let written = match code {
                    0..0x80 => write!(quoted, "\\x{code:02x}"),
                    0x80..0x1_0000 => write!(quoted, "\\u{code:04x}"),
                    _ => write!(quoted, "\\U{code:08x}"),
                };
                written.expect("a String takes every write");
            }
        }
    }
    quoted.push('"');
    quoted
}

/// Whether Go shows `char` as it is: letters, marks, numbers, punctuation, symbols and the ASCII space.
fn is_printable(char: char) -> bool {
    if char.is_ascii() {
        return (' '..='~').contains(&char);
    }
    // The standard library knows the same classes behind `escape_debug`, which escapes what is not printable. A leading
    // letter keeps it from escaping combining marks as well, as it does at the start of a text.
    let mut buffer = [b'a'; 5];
    let length = char.encode_utf8(&mut buffer[1..]).len();
    let text = std::str::from_utf8(&buffer[..=length]).expect("a letter and one character");
    text.escape_debug().nth(1) == Some(char)
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn control_characters_are_escaped_and_printable_ones_are_kept() {
        // projection 45
        for (text, quoted) in [
            ("value\n", r#""value\n""#),
            (r#"{"a":"b\c"}"#, r#""{\"a\":\"b\\c\"}""#),
            ("\u{7}\u{8}\u{c}\n\r\t\u{b}", r#""\a\b\f\n\r\t\v""#),
            ("\0\u{1b}\u{7f}", r#""\x00\x1b\x7f""#),
            ("it's", r#""it's""#),
            ("é ü 中 😀 ⌘", r#""é ü 中 😀 ⌘""#),
            ("e\u{301}", "\"e\u{301}\""),
            ("\u{301}", "\"\u{301}\""),
            (
                "\u{a0}\u{200b}\u{ad}\u{feff}",
                r#""\u00a0\u200b\u00ad\ufeff""#,
            ),
            ("\u{2028}\u{3000}\u{e000}", r#""\u2028\u3000\ue000""#),
            ("\u{10ffff}\u{e0001}", r#""\U0010ffff\U000e0001""#),
            ("\u{85}", r#""\u0085""#),
        ] {
            assert_eq!(quote(text), quoted, "{text:?}");
        }
    }
}
