//! Credentials reach no log, no error and no `Debug`: at startup, in use and at renewal.
//!
//! Every credential has the text [`CANARY`] in it, and so has everything around a mistake in a file.

#![expect(clippy::unwrap_used, reason = "a test panics with what it saw")]

#[path = "../transport/certificates.rs"]
#[expect(dead_code, reason = "shared with the tests of the transport")]
mod certificates;
#[path = "../transport/client.rs"]
#[expect(dead_code, reason = "shared with the tests of the transport")]
mod client;
#[path = "../transport/server.rs"]
#[expect(dead_code, reason = "shared with the tests of the transport")]
mod server;

mod renewal;
mod startup;

use std::{
    fmt::{Debug, Write as _},
    io,
    sync::{Arc, OnceLock},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use parking_lot::Mutex;
use tracing_subscriber::{filter::LevelFilter, fmt::MakeWriter};

use client::within;

/// The text that must not be seen.
const CANARY: &str = "c4n4ry";

/// The log of all tests of this process, at level trace.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn captured() -> Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        let captured = LOG.get_or_init(|| {
            let log = Log::default();
            tracing_subscriber::fmt()
                .with_max_level(LevelFilter::TRACE)
                .with_ansi(false)
                .with_writer(log.clone())
                .init();
            log
        });
        captured.clone()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }

    #[track_caller]
    fn check(&self) {
        check("log", &self.text());
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// The canary in a text, as it is or in base64.
#[track_caller]
fn check(what: &str, text: &str) {
    let encoded = BASE64.encode(CANARY);
    let basic = BASE64.encode(format!("u:{CANARY}"));
    for canary in [CANARY, &encoded, &basic] {
        if let Some(at) = text.find(canary) {
            let (from, to) = (at.saturating_sub(300), (at + 50).min(text.len()));
            panic!("{what} shows a credential: {}", &text[from..to]);
        }
    }
}

#[track_caller]
fn check_debug(value: &impl Debug) {
    check("Debug", &format!("{value:?} {value:#?}"));
}

/// Checks an error and its causes. Returns them as text.
#[track_caller]
fn check_error(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    for error in std::iter::successors(Some(error), |error| error.source()) {
        write!(text, "{error}: ").unwrap();
        check_debug(&error);
    }
    check("error", &text);
    text
}
