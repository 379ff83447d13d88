//! Escapes all characters that a terminal may act on, and by which a name or message from outside could forge what a
//! person reads.

use std::borrow::Cow;

/// Replaces each character that a terminal may act on by its escape: `\u{1b}`, `\n`.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return text.into();
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if is_unprintable(character) {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    safe.into()
}

/// Control characters, and the marks that reorder or hide the text around them.
pub fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_a_terminal_acts_on_are_escaped() {
        for (text, expected) in [
            ("plain, größe, 日本", "plain, größe, 日本"),
            ("a\x1b[31mb\r\n", "a\\u{1b}[31mb\\r\\n"),
            ("\u{9b}2J\x7f", "\\u{9b}2J\\u{7f}"),
            ("nginx\u{202e}txt", "nginx\\u{202e}txt"),
        ] {
            assert_eq!(escaped(text), expected);
        }
    }
}
