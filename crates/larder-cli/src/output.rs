//! Printing, and the forms that several commands print. Results go to standard output, everything else to standard
//! error.
//!
//! Invariants:
//! 1. Only this module and the ones below print, and `larder_console`, whose messages they pass on.
//! 2. No control character of a name, value or error reaches the terminal: [`escaped`].
//! 3. Printing never panics: a closed stream ends the output, not the process.

pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod jsonpath;
pub(crate) mod live;
pub(crate) mod progress;
pub(crate) mod references;
pub(crate) mod screen;
mod style;
pub(crate) mod table;
pub(crate) mod tree;
pub(crate) mod yaml;

use std::{
    env,
    io::{self, BufWriter, Write},
    path::Path,
    process::ExitCode,
};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use jiff::Timestamp;
use larder_console::Stream;
pub(crate) use larder_console::{error, escaped, first_names, note};

pub(crate) use self::style::{Paint, Style};
use crate::outcome::EXEC_FAILED;

/// The commands that read manifests with `-f`.
const READ_FILES: [&str; 4] = ["diff", "exec", "refs", "render"];

/// Prints clap's message: help on standard output, errors on standard error. Returns clap's exit code.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let code = u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
    match error.print() {
        // The requested help could not be printed.
        Err(failure) if !error.use_stderr() && failure.kind() != io::ErrorKind::BrokenPipe => {
            return ExitCode::FAILURE;
        }
        _ => {}
    }
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && env::args()
            .nth(1)
            .is_some_and(|command| READ_FILES.contains(&&*command))
        && Path::new(word).exists()
    {
        note(format_args!("to read {word}, write -f {word}"));
    }
    if error.kind() == ErrorKind::MissingRequiredArgument
        && env::args().nth(1).is_some_and(|command| command == "diff")
    {
        note_kubeconfig();
    }
    let is_exec = env::args_os()
        .nth(1)
        .is_some_and(|command| command == "exec");
    if is_exec && error.use_stderr() {
        return ExitCode::from(EXEC_FAILED);
    }
    code
}

/// Says that no cluster was asked, to whom expects it as of kubectl: `KUBECONFIG` is set.
pub(crate) fn note_kubeconfig() {
    if env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty()) {
        note("KUBECONFIG is not read without --kubeconfig, which takes its file");
    }
}

/// Lets `print` write to standard output. A reader that stops early is not an error: `larder … | head` is valid use.
///
/// # Errors
///
/// Standard output cannot be written for another reason.
pub(crate) fn results(print: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    // All lines of a command that goes on wait in one place.
    if larder_console::is_held() {
        let mut text = Vec::new();
        print(&mut text)?;
        // If it is dropped, its lines are counted.
        let _ = larder_console::write(Stream::Out, text);
        return Ok(());
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = print(&mut out).and_then(|()| out.flush());
    // Dropping the buffer would try to write it again.
    let _ = out.into_parts();
    match printed {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed,
    }
}

/// Prints lines to standard output, with their control characters escaped.
pub(crate) fn lines(lines: impl IntoIterator<Item: AsRef<str>>) -> io::Result<()> {
    let mut lines = lines.into_iter();
    results(|out| lines.try_for_each(|line| writeln!(out, "{}", escaped(line.as_ref()))))
}

/// The wall clock.
pub(crate) fn now() -> Timestamp {
    #[expect(
        clippy::disallowed_methods,
        reason = "commands read the clock here only"
    )]
    Timestamp::now()
}

/// The time from `since` to `now`, as kubectl shows ages.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> String {
    larder_objects::age(now.as_second() - since.as_second())
}

/// `1 pod`, `2 pods`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// The end of a sentence that gives its reason, if there is one.
pub(crate) fn because(reason: &str) -> String {
    match reason {
        "" => String::new(),
        reason => format!(": {reason}"),
    }
}
