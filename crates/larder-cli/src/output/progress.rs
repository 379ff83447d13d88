//! The progress of a wait, on standard error. On a terminal the line is redrawn in place; in a pipe there is one line for
//! each change.
//!
//! Invariant: nothing is printed about a wait that is over within [`QUIET`].

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    escaped, note,
    screen::{Size, cut},
};

/// Time before the first line.
const QUIET: Duration = Duration::from_secs(1);

/// What is waited for, as a line that is replaced by the next one.
#[derive(Debug)]
pub(crate) struct Progress {
    start: Instant,
    /// The last line, if any.
    shown: String,
    is_terminal: bool,
}

impl Progress {
    /// The progress of a wait that begins now.
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            shown: String::new(),
            is_terminal: io::stderr().is_terminal(),
        }
    }

    /// Prints `text`, unless it was the last line.
    pub(crate) fn tell(&mut self, text: String) {
        if self.start.elapsed() < QUIET || text == self.shown {
            return;
        }
        if self.is_terminal {
            let line = cut(&escaped(&text), Size::of(io::stderr()).columns);
            // Progress that cannot be shown is no reason to stop.
            let _ = write!(io::stderr(), "\r{line}\x1b[K");
        } else {
            note(&text);
        }
        self.shown = text;
    }
}

/// Removes the line from a terminal, to make room for the results.
impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_terminal && !self.shown.is_empty() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
