//! A report that stays at the bottom of the terminal and is redrawn in place, while log lines scroll above it.
//!
//! The report is on standard output and the log on standard error. There is one of each in a process, so the state is
//! global.

use std::io::{self, IsTerminal as _};

use larder_console::{Fate, Stream, write};
use parking_lot::Mutex;

use super::{
    screen::{Screen, ScreenReport, Size},
    style::Style,
};

/// What the terminal shows once everything is written that was taken; `None` before the first report. The lock is held
/// while anything is passed on.
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
    let mut next = screen.clone();
    let drawn = redrawn(&mut next, last);
    put(screen, next, Stream::Out, drawn);
}

/// Prints lines of the log above the report.
pub(crate) fn above(lines: String) {
    let mut shown = SHOWN.lock();
    let Some((screen, text)) = &mut *shown else {
        // If they are dropped, they are counted.
        let _ = write(Stream::Err, lines.into_bytes());
        return;
    };
    let mut next = screen.clone();
    if io::stderr().is_terminal() {
        // In one piece, so that the report is never lost above its lines.
        let all = next.erase() + &lines + &redrawn(&mut next, text);
        put(screen, next, Stream::Err, all);
    } else {
        let _ = write(Stream::Err, lines.into_bytes());
    }
}

fn redrawn(screen: &mut Screen, text: &str) -> String {
    let report = ScreenReport {
        text,
        ageless: text,
    };
    // It has colors of its own.
    screen.redraw(report, Size::of(io::stdout()), Style::PLAIN)
}

/// Passes a text on that makes the terminal show `next`, unless it is dropped: then it will show what it did.
fn put(screen: &mut Screen, next: Screen, stream: Stream, text: String) {
    if write(stream, text.into_bytes()) == Fate::Taken {
        *screen = next;
    }
}
