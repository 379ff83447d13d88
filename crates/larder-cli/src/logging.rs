//! Logs, on standard error. `LARDER_LOG` sets the filter: `debug`, `larder=trace`.

use std::{io, panic};

use tracing::error;
use tracing_subscriber::EnvFilter;

use crate::{args::LogFormat, output::Style};

/// Starts logging, once, in commands that keep running. Of a panic, only the place is logged: its text may quote data.
pub(crate) fn start(format: LogFormat) {
    let filter = EnvFilter::builder()
        .with_env_var("LARDER_LOG")
        .with_default_directive(tracing::Level::INFO.into())
        .from_env_lossy();
    let log = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(filter)
        // They would be printed to standard error, which panics when that is a broken pipe.
        .log_internal_errors(false)
        .with_target(false);
    match format {
        LogFormat::Text => log.with_ansi(Style::of_stderr().has_color()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(tracing::field::display);
        error!(location, "panicked");
    }));
}
