//! The only place that prints. Results go to standard output, everything else to standard error.

#![expect(clippy::print_stderr, reason = "this is where it happens")]

use std::{
    error::Error,
    fmt,
    io::{self, BufWriter, IsTerminal, Write},
    process::ExitCode,
};

use larder_objects::chain;

/// Prints what clap has to say: help to standard output, errors to standard error.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // Nothing can be done about a closed stream.
    let _ = error.print();
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Prints an error with its causes, on one line.
pub(crate) fn error(error: &dyn Error) {
    eprintln!("larder: {}", chain(error));
}

/// Prints something that the user should know and that is no error.
pub(crate) fn note(text: impl fmt::Display) {
    eprintln!("larder: {text}");
}

/// Lets `print` write to standard output. That nobody reads to the end is no error: `larder … | head` is good use.
pub(crate) fn results(print: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    match print(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// Emphasis: colours on a terminal, nothing elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    colour: bool,
}

impl Style {
    /// For standard output. `NO_COLOR` (no-color.org) and `TERM=dumb` switch colours off.
    pub(crate) fn of_stdout() -> Self {
        Self::of(&io::stdout())
    }

    /// For standard error, by the same rules.
    pub(crate) fn of_stderr() -> Self {
        Self::of(&io::stderr())
    }

    fn of(stream: &impl IsTerminal) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            colour: stream.is_terminal() && !no_color && !dumb,
        }
    }

    /// Whether there are colours.
    pub(crate) fn is_coloured(self) -> bool {
        self.colour
    }

    /// No emphasis.
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { colour: false };

    /// A heading.
    pub(crate) fn bold(self, text: impl fmt::Display) -> String {
        self.paint("1", text)
    }

    /// Something secondary.
    pub(crate) fn dim(self, text: impl fmt::Display) -> String {
        self.paint("2", text)
    }

    /// Something that is wrong.
    pub(crate) fn red(self, text: impl fmt::Display) -> String {
        self.paint("31", text)
    }

    /// Something to look at.
    pub(crate) fn yellow(self, text: impl fmt::Display) -> String {
        self.paint("33", text)
    }

    /// Something that is well.
    pub(crate) fn green(self, text: impl fmt::Display) -> String {
        self.paint("32", text)
    }

    fn paint(self, code: &str, text: impl fmt::Display) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_string()
        }
    }
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
}
