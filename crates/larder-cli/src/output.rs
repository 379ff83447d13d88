//! Printing, and the forms that several commands print. Results go to standard output, everything else to standard error.
//!
//! Invariants:
//! 1. Only this module and the ones below print.
//! 2. No control character of a name, value or error reaches the terminal: [`escaped`].
//! 3. Printing never panics: a closed stream ends the output, not the process.

pub(crate) mod json;
pub(crate) mod references;
mod style;
pub(crate) mod table;
pub(crate) mod tree;

use std::{
    borrow::Cow,
    error::Error,
    fmt,
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use larder_objects::chain;

pub(crate) use self::style::Style;

/// Prints clap's message: help on standard output, errors on standard error. Returns clap's exit code.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let code = u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
    match error.print() {
        // Help that was asked for and could not be printed.
        Err(failure) if !error.use_stderr() && failure.kind() != io::ErrorKind::BrokenPipe => {
            ExitCode::FAILURE
        }
        _ => code,
    }
}

/// Prints an error with its causes, on one line.
pub(crate) fn error(error: &dyn Error) {
    note(chain(error));
}

/// Prints a message that is not a result.
pub(crate) fn note(text: impl fmt::Display) {
    let text = text.to_string();
    // Not `eprintln!`, which panics when standard error is a broken pipe.
    let _ = writeln!(io::stderr(), "larder: {}", escaped(&text));
}

/// Lets `print` write to standard output. A reader that stops early is not an error: `larder … | head` is valid use.
///
/// # Errors
///
/// Standard output cannot be written for another reason.
pub(crate) fn results(print: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = print(&mut out).and_then(|()| out.flush());
    // Dropping the buffer would try to write it again.
    let _ = out.into_parts();
    match printed {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// Replaces each character that a terminal may act on by its escape: `\u{1b}`, `\n`.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
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
fn is_unprintable(character: char) -> bool {
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
    fn causes_are_printed_once_and_in_order() {
        let error = anyhow::anyhow!("disk full")
            .context("write a")
            .context("render web");
        assert_eq!(chain(error.as_ref()), "render web: write a: disk full");
    }

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
