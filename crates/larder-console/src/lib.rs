//! What a program prints that keeps running: messages, log lines and reports, on standard error and standard output.
//!
//! A reader that stops reading (`| tee` was stopped, Ctrl-S) must not stop the program. So from [`hold`] on, texts wait in
//! a bounded buffer; what does not fit is dropped and counted. From [`begin`] on, a thread writes them. A command that
//! ends by itself calls neither: its results are written at once, and are complete, however long their reader takes.
//!
//! Invariants:
//! 1. After [`hold`], nothing here blocks but the end of the [`Console`], which takes at most `LAST_WORDS`.
//! 2. No control character of a name, value or error reaches the terminal: [`escaped`].
//! 3. Printing never panics: a closed stream ends the output, not the process.
//! 4. Where the log is JSON, every line is.

mod queue;
mod writer;

use std::{
    borrow::Borrow,
    error::Error,
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use jiff::Timestamp;
use larder_objects::chain;
pub use larder_objects::escaped;
use rustix::{fs::fstat, stdio, termios::isatty};
use serde_json::{Map, Value};

pub use self::queue::Fate;
use self::writer::Writer;

/// Time for what waits to be written when the program ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// There is one standard output and one standard error in a process, so their state is global.
static CURRENT: OnceLock<Streams> = OnceLock::new();

/// A stream of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// The form of every line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// A JSON object, as in the log.
    Json,
}

/// The importance of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Info,
    Warn,
    Error,
}

struct Streams {
    format: Format,
    out: Arc<Writer>,
    err: Arc<Writer>,
}

/// Owns the writing of both streams; the main function has it. When it is dropped, what waits is written, if that takes
/// not too long.
#[derive(Debug, Default)]
#[must_use = "its end writes what waits"]
pub struct Console(());

/// From now on, nothing that is printed blocks, and every line has this form. No thread starts yet.
pub fn hold(format: Format) {
    CURRENT.get_or_init(|| {
        let gap = match format {
            Format::Text => gap_text,
            Format::Json => gap_json,
        };
        let out = Writer::new(gap);
        let err = if are_one_file() {
            Arc::clone(&out)
        } else {
            Writer::new(gap)
        };
        Streams { format, out, err }
    });
}

/// Starts the threads that write what waits since [`hold`]. Without that, there are none.
pub fn begin() {
    if let Some(streams) = CURRENT.get() {
        streams.out.begin();
        streams.err.begin();
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        if let Some(streams) = CURRENT.get() {
            streams.err.finish(LAST_WORDS);
            streams.out.finish(LAST_WORDS);
        }
    }
}

/// Whether both streams lead to one place, where the order of what is written to them matters.
fn are_one_file() -> bool {
    let (out, err) = (stdio::stdout(), stdio::stderr());
    let same = |(out, err): (rustix::fs::Stat, rustix::fs::Stat)| {
        (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)
    };
    fstat(out).ok().zip(fstat(err).ok()).is_some_and(same) || isatty(out) && isatty(err)
}

/// Writes `text` to `stream`: whole lines.
pub fn write(stream: Stream, text: Vec<u8>) -> Fate {
    let Some(streams) = CURRENT.get() else {
        writer::write(stream, &text);
        return Fate::Taken;
    };
    let writer = match stream {
        Stream::Out => &streams.out,
        Stream::Err => &streams.err,
    };
    writer.push(stream, text)
}

/// Whether [`hold`] was called.
pub fn is_held() -> bool {
    CURRENT.get().is_some()
}

/// The form of the lines.
pub fn format() -> Format {
    CURRENT.get().map_or(Format::Text, |streams| streams.format)
}

/// Prints an error with its causes, on one line.
pub fn error(error: &dyn Error) {
    message(Level::Error, &chain(error));
}

/// Prints a message that is not a result.
pub fn note(text: impl fmt::Display) {
    message(Level::Info, &text.to_string());
}

/// Prints what a program reports that goes on, on standard output: `listening on …`.
pub fn report(text: impl fmt::Display) {
    let text = text.to_string();
    let line = match format() {
        Format::Text => format!("{}\n", escaped(&text)),
        Format::Json => json(Level::Info, &text, Map::new()),
    };
    // If it is dropped, it is counted.
    let _ = write(Stream::Out, line.into_bytes());
}

/// Prints such a report with fields, where every line is JSON.
pub fn report_fields(message: &str, fields: Map<String, Value>) {
    let line = json(Level::Info, message, fields);
    let _ = write(Stream::Out, line.into_bytes());
}

fn message(level: Level, text: &str) {
    let line = match format() {
        Format::Text => format!("larder: {}\n", escaped(text)),
        Format::Json => json(level, text, Map::new()),
    };
    // If it is dropped, it is counted.
    let _ = write(Stream::Err, line.into_bytes());
}

fn gap_text(lines: u64) -> String {
    format!("larder: {lines} lines dropped, because nothing read them\n")
}

fn gap_json(lines: u64) -> String {
    let text = "lines dropped, because nothing read them";
    let fields = Map::from_iter([("lines".to_owned(), lines.into())]);
    json(Level::Warn, text, fields)
}

/// A line as those of the log.
fn json(level: Level, message: &str, fields: Map<String, Value>) -> String {
    #[expect(
        clippy::disallowed_methods,
        reason = "lines have the time at which they were printed"
    )]
    let now = Timestamp::now();
    let level = match level {
        Level::Info => "INFO",
        Level::Warn => "WARN",
        Level::Error => "ERROR",
    };
    let own = [
        ("timestamp", format!("{now:.6}")),
        ("level", level.to_owned()),
        ("message", message.to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), Value::from(value)));
    let line: Map<_, _> = own.into_iter().chain(fields).collect();
    format!("{}\n", Value::from(line))
}

/// The first `most` of these names, and the number of the others: `a, b and 3 more`.
pub fn first_names<N: Borrow<str>>(names: &[N], most: usize) -> String {
    let (first, others) = names.split_at(names.len().min(most));
    match others.len() {
        0 => first.join(", "),
        others => format!("{} and {others} more", first.join(", ")),
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

    #[test]
    fn further_names_are_counted() {
        assert_eq!(first_names(&["a", "b"], 2), "a, b");
        assert_eq!(first_names(&["a", "b", "c", "d"], 2), "a, b and 2 more");
    }

    #[test]
    fn a_line_of_json_is_one_line_with_the_fields_of_the_log() {
        let fields = Map::from_iter([("lines".to_owned(), 3.into())]);
        let line = json(Level::Warn, "a\nb\u{1b}", fields);
        assert_eq!(line.matches('\n').count(), 1);
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["level"], "WARN");
        assert_eq!(value["message"], "a\nb\u{1b}");
        assert_eq!(value["lines"], 3);
        value["timestamp"]
            .as_str()
            .unwrap()
            .parse::<Timestamp>()
            .unwrap();
    }
}
