//! Emphasis: colors on a terminal, nothing elsewhere.

use std::{
    fmt,
    io::{self, IsTerminal},
};

use super::escape::escaped;

/// Whether and how text is emphasized.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    color: bool,
}

impl Style {
    /// No emphasis.
    pub(crate) const PLAIN: Self = Self { color: false };

    /// Emphasis whatever the terminal.
    #[cfg(test)]
    pub(crate) const COLOR: Self = Self { color: true };

    /// The style for standard output. `NO_COLOR` (no-color.org) and `TERM=dumb` switch colors off.
    pub(crate) fn of_stdout() -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            color: io::stdout().is_terminal() && !no_color && !dumb,
        }
    }

    /// A heading.
    pub(crate) fn bold(self, text: impl fmt::Display) -> String {
        self.paint("1", text)
    }

    /// Secondary text.
    pub(crate) fn dim(self, text: impl fmt::Display) -> String {
        self.paint("2", text)
    }

    /// A failure.
    pub(crate) fn red(self, text: impl fmt::Display) -> String {
        self.paint("31", text)
    }

    /// A warning.
    pub(crate) fn yellow(self, text: impl fmt::Display) -> String {
        self.paint("33", text)
    }

    /// A success.
    pub(crate) fn green(self, text: impl fmt::Display) -> String {
        self.paint("32", text)
    }

    /// The place of a change, as git has it.
    pub(crate) fn cyan(self, text: impl fmt::Display) -> String {
        self.paint("36", text)
    }

    /// The text with its control characters escaped, in a color.
    fn paint(self, code: &str, text: impl fmt::Display) -> String {
        let text = text.to_string();
        let text = escaped(&text);
        if self.color {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.into_owned()
        }
    }
}
