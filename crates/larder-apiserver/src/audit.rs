//! The audit log: one record for each request, never a body.
//!
//! A record is written when the status of the answer is known and before the answer's body is sent. So the record of a watch is
//! there while the watch runs, and its time is the one at which it began.

use std::{fmt, io::Write, sync::Arc};

use parking_lot::Mutex;
use serde::Serialize;

/// Where records go. Cloning gives another handle to the same log.
#[derive(Clone, Default)]
pub struct AuditLog {
    sink: Sink,
}

#[derive(Clone, Default)]
enum Sink {
    #[default]
    Nowhere,
    /// One JSON object per line. The lock keeps lines whole.
    Writer(Arc<Mutex<Box<dyn Write + Send>>>),
    Memory(Arc<Mutex<Vec<AuditRecord>>>),
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditRecord {
    /// When it was answered, as RFC 3339 with microseconds.
    pub time: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`; of what is no object, `get` for GET and so
    /// on.
    pub verb: &'static str,
    /// Path of the URL.
    pub path: String,
    /// Query of the URL, as sent; empty when there is none.
    pub query: String,
    /// `User-Agent`; empty when there is none.
    pub user_agent: String,
    /// HTTP status; 0 when the request was left without an answer.
    pub status: u16,
}

impl AuditLog {
    /// Keeps nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Writes each record as one line of JSON, and flushes.
    pub fn to_writer(writer: impl Write + Send + 'static) -> Self {
        let sink = Sink::Writer(Arc::new(Mutex::new(Box::new(writer))));
        Self { sink }
    }

    /// Keeps all records in memory, for tests.
    pub fn in_memory() -> Self {
        let sink = Sink::Memory(Arc::default());
        Self { sink }
    }

    /// The records so far; none unless they are kept in memory.
    pub fn records(&self) -> Vec<AuditRecord> {
        match &self.sink {
            Sink::Memory(records) => records.lock().clone(),
            _ => Vec::new(),
        }
    }

    /// The records so far, which are forgotten.
    pub fn take(&self) -> Vec<AuditRecord> {
        match &self.sink {
            Sink::Memory(records) => std::mem::take(&mut *records.lock()),
            _ => Vec::new(),
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        !matches!(self.sink, Sink::Nowhere)
    }

    pub(crate) fn record(&self, record: AuditRecord) {
        match &self.sink {
            Sink::Nowhere => {}
            Sink::Memory(records) => records.lock().push(record),
            Sink::Writer(writer) => {
                let mut line = serde_json::to_vec(&record).expect("strings and a number");
                line.push(b'\n');
                let mut writer = writer.lock();
                if let Err(error) = writer.write_all(&line).and_then(|()| writer.flush()) {
                    tracing::warn!(%error, "failed to write an audit record");
                }
            }
        }
    }
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.sink {
            Sink::Nowhere => "AuditLog::none",
            Sink::Writer(_) => "AuditLog::to_writer",
            Sink::Memory(_) => "AuditLog::in_memory",
        })
    }
}
