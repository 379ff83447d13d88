//! Logs, on standard error. `LARDER_LOG` sets the filter: `debug`, `larder=trace`. It can be changed at run time.
//!
//! Invariants:
//! 1. The text of a panic is never printed. It may quote input that holds a Secret.
//! 2. No control character of a name or error reaches the terminal, and none forges a line.
//! 3. No pod, object or client determines how much is logged ([`limit`]).
//! 4. A reader of the log that has stopped stops nothing else: lines are passed on to `larder_console`.

pub(crate) mod limit;

use std::{
    fmt,
    io::{self, Write},
    panic,
};

use larder_agent::local_api::LogControl;
use larder_console::{Format, Stream};
use tracing::{Event, Level, Subscriber, dispatcher, error, field};
use tracing_subscriber::{
    EnvFilter,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime as _, SystemTime},
    },
    layer::SubscriberExt as _,
    registry::LookupSpan,
    reload,
    util::SubscriberInitExt as _,
};

pub(crate) use self::limit::LineLimit;
use crate::{
    args::{LogFormat, sidecar::variables::LogSettings},
    output::{self, escaped, live},
};

/// Reports panics from now on by location and task alone: in the log, or on standard error in commands without one.
pub(crate) fn hide_panic_texts() {
    panic::set_hook(Box::new(|panic| {
        let location = panic.location();
        let task = tokio::task::try_id();
        if dispatcher::has_been_set() {
            let (location, task) = (location.map(field::display), task.map(field::display));
            error!(location, task, "panicked");
        } else {
            let location = location.map(|location| format!(" at {location}"));
            let task = task.map(|task| format!(" in task {task}"));
            let (location, task) = (location.unwrap_or_default(), task.unwrap_or_default());
            output::note(format_args!("error: panicked{location}{task}"));
        }
    }));
}

/// The log of a command that keeps running.
pub(crate) struct Log {
    /// Changes its filter.
    pub(crate) control: LogControl,
    /// What its lines are limited by.
    pub(crate) limit: LineLimit,
}

/// Starts logging, once, in commands that keep running.
pub(crate) fn start(format: LogFormat) -> Log {
    larder_console::hold(match format {
        LogFormat::Text => Format::Text,
        LogFormat::Json => Format::Json,
    });
    let limit = LineLimit::default();
    let (filter, control) = reload::Layer::new(filter(Level::INFO));
    let log = tracing_subscriber::fmt::layer()
        // They would be printed to standard error, which panics when that is a broken pipe.
        .log_internal_errors(false)
        .with_target(false);
    let subscriber = tracing_subscriber::registry()
        .with(filter)
        .with(limit.clone());
    match format {
        LogFormat::Text => {
            // No colors: in a line with them, an escape sequence of a name would go unnoticed.
            let log = log.with_ansi(false).with_writer(|| EscapedLines);
            subscriber.with(log).init();
        }
        LogFormat::Json => {
            let log = log.json().flatten_event(true);
            subscriber.with(log.with_writer(|| WholeLines)).init();
        }
    }
    let shown = control.clone();
    let control = LogControl::new(
        move || shown.with_current(ToString::to_string).unwrap_or_default(),
        move |text| {
            let new = parse(text)?;
            control.reload(new).map_err(|error| error.to_string())
        },
    );
    Log { control, limit }
}

/// The filter of `LARDER_LOG`, by default that of `level`.
fn filter(level: Level) -> EnvFilter {
    EnvFilter::builder()
        .with_env_var("LARDER_LOG")
        .with_default_directive(level.into())
        .from_env_lossy()
}

/// Starts logging as k8s-sidecar does: three fields for each event. `LARDER_LOG` overrides the level.
pub(crate) fn start_sidecar(settings: &LogSettings) -> LineLimit {
    larder_console::hold(if settings.json {
        Format::Json
    } else {
        Format::Text
    });
    let limit = LineLimit::default();
    tracing_subscriber::fmt()
        .with_env_filter(filter(settings.level))
        .log_internal_errors(false)
        .with_writer(|| EscapedLines)
        .event_format(*settings)
        .finish()
        .with(limit.clone())
        .init();
    limit
}

/// `time`, `level` and `msg`; the fields of an event follow its message.
impl<S, N> FormatEvent<S, N> for LogSettings
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let level = match *event.metadata().level() {
            Level::ERROR => "ERROR",
            Level::WARN => "WARNING",
            Level::INFO => "INFO",
            _ => "DEBUG",
        };
        let mut message = String::new();
        context.format_fields(Writer::new(&mut message), event)?;
        if self.json {
            let line = serde_json::json!({"time": time, "level": level, "msg": message});
            writeln!(writer, "{line}")
        } else {
            writeln!(writer, "time={time} level={level} msg={message:?}")
        }
    }
}

/// Writes lines in which every character that a terminal acts on is escaped, line ends within the line included. Each
/// write is one line.
struct EscapedLines;

impl Write for EscapedLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        live::above(escaped_line(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn escaped_line(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    format!("{}\n", escaped(text))
}

/// Writes lines of JSON, in which nothing acts on a terminal.
struct WholeLines;

impl Write for WholeLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // If it is dropped, it is counted.
        let _ = larder_console::write(Stream::Err, line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A filter as in `LARDER_LOG`. A single word must be a level: as a target it would be a typing error.
fn parse(text: &str) -> Result<EnvFilter, String> {
    let is_word = text.chars().all(|c| c.is_ascii_alphanumeric());
    // The parser treats an empty word as `error`.
    let is_level = !text.is_empty() && text.parse::<tracing::level_filters::LevelFilter>().is_ok();
    if is_word && !is_level {
        return Err(format!(
            "unknown log level {text:?}, expected off, error, warn, info, debug, trace, or a filter such as larder=trace,info"
        ));
    }
    EnvFilter::builder()
        .parse(text)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use larder_console::Console;

    use super::*;

    const CANARY: &str = "hunter2";

    /// The child of the test below.
    #[test]
    #[ignore = "panics"]
    fn child_panics() {
        let _console = Console::default();
        hide_panic_texts();
        if std::env::var_os("LOGGED").is_some() {
            start(LogFormat::Json);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let panicked = tokio::task::JoinSet::from_iter([async { panic!("{CANARY}") }]);
            panicked.join_all().await;
        });
    }

    #[test]
    fn panics_are_reported_without_their_text() {
        for logged in [false, true] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args([
                "logging::tests::child_panics",
                "--exact",
                "--ignored",
                "--nocapture",
            ]);
            if logged {
                child.env("LOGGED", "1");
            }
            let output = child.output().unwrap();
            assert!(!output.status.success());
            let printed = [output.stdout, output.stderr].concat();
            let printed = String::from_utf8(printed).unwrap();
            assert!(!printed.contains(CANARY), "{printed}");
            assert!(
                printed.contains("panicked") && printed.contains("src/logging.rs:"),
                "{printed}"
            );
            assert!(printed.contains("task"), "{printed}");
        }
    }

    #[test]
    fn names_forge_no_line_and_reach_no_terminal() {
        let line = b"WARN manifest rejected path=a\x1b[31m\nFAKE.yaml\n";
        let expected = "WARN manifest rejected path=a\\u{1b}[31m\\nFAKE.yaml\n";
        assert_eq!(escaped_line(line), expected);
    }

    #[test]
    fn levels_and_filters_are_accepted_and_typing_errors_are_not() {
        for text in ["debug", "OFF", "larder=trace,info", "larder_agent=debug"] {
            assert!(parse(text).is_ok(), "{text}");
        }
        for text in ["debgu", "", "larder=loud", "a=b=c"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
