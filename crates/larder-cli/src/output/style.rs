//! Emphasis: colors on a terminal, nothing elsewhere.

use std::{
    fmt,
    io::{self, IsTerminal},
};

use super::escaped;

/// How a text is emphasized.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Paint {
    Plain,
    /// A heading.
    Bold,
    /// Secondary text.
    Dim,
    /// A failure.
    Red,
    /// A warning.
    Yellow,
    /// A success.
    Green,
    /// The place of a change, as git has it.
    Cyan,
}

impl Paint {
    /// Its class on a page, and its code on a terminal; 0 for none.
    pub(super) fn class_and_code(self) -> (&'static str, u8) {
        match self {
            Self::Plain => ("plain", 0),
            Self::Bold => ("bold", 1),
            Self::Dim => ("dim", 2),
            Self::Red => ("red", 31),
            Self::Yellow => ("yellow", 33),
            Self::Green => ("green", 32),
            Self::Cyan => ("cyan", 36),
        }
    }
}

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

    /// The style for standard output. `NO_COLOR` (no-color.org) switches colors off; `CLICOLOR_FORCE`
    /// (bixense.com/clicolors) switches them on where it is no terminal, as in the log of a CI system.
    pub(crate) fn of_stdout() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let is_forced = variable("CLICOLOR_FORCE").is_some_and(|value| value != "0");
        let is_dumb = variable("TERM").is_some_and(|term| term == "dumb");
        let can = is_forced || io::stdout().is_terminal() && !is_dumb;
        Self {
            color: can && variable("NO_COLOR").is_none(),
        }
    }

    /// The text with its control characters escaped, in a color.
    pub(crate) fn paint(self, paint: Paint, text: impl fmt::Display) -> String {
        let text = text.to_string();
        let text = escaped(&text);
        match paint.class_and_code() {
            (_, code @ 1..) if self.color => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.into_owned(),
        }
    }
}
