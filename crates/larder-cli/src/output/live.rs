//! A report that stays at the bottom of the terminal and is redrawn in place, while log lines scroll above it.
//!
//! The report is on standard output and the log on standard error. There is one of each in a process, so the state is
//! global.

use std::io::{self, IsTerminal as _, Write as _};

use parking_lot::Mutex;

use super::{
    screen::{Screen, ScreenReport, Size},
    style::Style,
};

/// What the terminal shows; `None` before the first report. The lock is held while anything is printed.
static SHOWN: Mutex<Option<(Screen, String)>> = Mutex::new(None);

/// Whether the terminal can show `text` as a whole. Not without one, or if it does not move its cursor.
pub(crate) fn fits(text: &str) -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !is_dumb && text.lines().count() < Size::of(io::stdout()).rows
}

/// Shows `text` in place of the last report.
pub(crate) fn draw(text: String) {
    let mut shown = SHOWN.lock();
    let (screen, last) = shown.get_or_insert_default();
    *last = text;
    put(&redrawn(screen, last));
}

/// Lets `write` print lines above the report.
pub(crate) fn above<T>(write: impl FnOnce() -> T) -> T {
    let mut shown = SHOWN.lock();
    let Some((screen, text)) = &mut *shown else {
        return write();
    };
    put(&screen.erase());
    let written = write();
    put(&redrawn(screen, text));
    written
}

fn redrawn(screen: &mut Screen, text: &str) -> String {
    let report = ScreenReport {
        text,
        ageless: text,
    };
    // It has colors of its own.
    screen.redraw(report, Size::of(io::stdout()), Style::PLAIN)
}

fn put(text: &str) {
    let mut out = io::stdout().lock();
    // A closed standard output is no reason to stop.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
