//! The audit log: one record for each request, never a body.
//!
//! A record is written once the status of the response is known, before its body is sent. So the record of a watch
//! exists while the watch runs, and has the time at which the watch began.
//!
//! Invariants:
//! 1. A record is one line of JSON, whatever the request holds.
//! 2. The log never stops the server: records that a file cannot take at once (a full disk, a FIFO without a reader)
//!    are counted and dropped. The count is logged when the next record is written.

use std::{
    fmt,
    fs::{self, File, Metadata},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::Arc,
};

use larder_files::ownership::Ownership;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use serde::Serialize;

/// The log of requests; by default it keeps none. Cloning gives another handle to the same log.
#[derive(Clone, Default)]
pub struct AuditLog {
    sink: Sink,
}

#[derive(Clone, Default)]
enum Sink {
    #[default]
    Nowhere,
    /// One JSON object per line. The lock keeps lines whole.
    Writer(Arc<Mutex<Lines>>),
    Memory(Arc<Mutex<Vec<AuditRecord>>>),
}

/// Lines on their way to a writer.
struct Lines {
    writer: Box<dyn Write + Send>,
    /// The end of a line of which the writer has taken the beginning.
    rest: Vec<u8>,
    /// Records dropped since the last one that was written.
    dropped: u64,
}

impl Lines {
    /// Writes `line`. An error means that the writer has taken nothing of it.
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let (taken, result) = push(&mut self.writer, &self.rest);
        self.rest.drain(..taken);
        result?;
        match push(&mut self.writer, line) {
            (0, Err(error)) => Err(error),
            (taken, _) => {
                self.rest = line[taken..].to_vec();
                self.writer.flush()
            }
        }
    }
}

/// Writes `bytes` until an error, and returns how many were taken.
fn push(writer: &mut impl Write, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut taken = 0;
    while taken < bytes.len() {
        match writer.write(&bytes[taken..]) {
            Ok(0) => return (taken, Err(io::ErrorKind::WriteZero.into())),
            Ok(length) => taken += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (taken, Err(error)),
        }
    }
    (taken, Ok(()))
}

/// Rejects what another user may have put in the place of a log.
fn check_owner(found: &Metadata) -> io::Result<()> {
    let ownership = Ownership::from(found);
    if ownership.is_trusted() {
        return Ok(());
    }
    let problem = format!("it belongs to user {}", ownership.owner);
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditRecord {
    /// When it was answered, as RFC 3339 with microseconds.
    pub time: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`; of what is no object, `get`
    /// for GET and so on.
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
    /// Writes each record as one line of JSON, and flushes. A `writer` that blocks stops the server while it does; one
    /// that returns [`WouldBlock`](io::ErrorKind::WouldBlock) loses records instead.
    pub fn to_writer(writer: impl Write + Send + 'static) -> Self {
        let lines = Lines {
            writer: Box::new(writer),
            rest: Vec::new(),
            dropped: 0,
        };
        Self {
            sink: Sink::Writer(Arc::new(Mutex::new(lines))),
        }
    }

    /// Appends each record to the file at `path`, which is created if it does not exist. It may be a FIFO: what its
    /// reader leaves in it too long is lost.
    ///
    /// # Errors
    ///
    /// The file cannot be opened; for a FIFO also if no process has it open for reading. The file, or a link at `path`,
    /// belongs to another user than root and that of this process.
    pub fn to_file(path: &Path) -> io::Result<Self> {
        let mut flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let found = fs::symlink_metadata(path).ok();
        if let Some(link) = found.filter(Metadata::is_symlink) {
            // In a sticky directory, no other user can replace it after this.
            check_owner(&link)?;
            flags.remove(OFlags::NOFOLLOW);
        }
        let mut options = File::options();
        options.append(true).create(true);
        let options = options.custom_flags(flags.bits().cast_signed());
        let file = options.open(path)?;
        check_owner(&file.metadata()?)?;
        Ok(Self::to_writer(file))
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
            Sink::Writer(lines) => {
                let mut line = serde_json::to_vec(&record).expect("strings and a number");
                line.push(b'\n');
                let mut lines = lines.lock();
                match lines.write(&line) {
                    Ok(()) => match std::mem::take(&mut lines.dropped) {
                        0 => {}
                        dropped => tracing::warn!(
                            dropped,
                            "audit log takes records again, some were dropped"
                        ),
                    },
                    Err(error) => {
                        if lines.dropped == 0 {
                            tracing::warn!(%error, "failed to write an audit record, dropping records until it works");
                        }
                        lines.dropped += 1;
                    }
                }
            }
        }
    }
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.sink {
            Sink::Nowhere => "AuditLog::default",
            Sink::Writer(_) => "AuditLog::to_writer",
            Sink::Memory(_) => "AuditLog::in_memory",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};

    use super::*;

    #[test]
    fn a_file_or_link_of_another_user_is_refused_and_left_alone() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let shared = tempfile::tempdir().unwrap();
        fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let at = |name: &str| shared.path().join(name);
        for name in ["target", "foreign"] {
            fs::write(at(name), "kept").unwrap();
        }
        chown(at("foreign"), Some(1000), None).unwrap();
        for (link, target) in [
            ("own-link", "target"),
            ("foreign-link", "target"),
            ("foreign-link-to-new", "new"),
            ("own-link-to-foreign", "foreign"),
        ] {
            symlink(at(target), at(link)).unwrap();
            if link.starts_with("foreign") {
                lchown(at(link), Some(1000), None).unwrap();
            }
        }
        for refused in [
            "foreign",
            "foreign-link",
            "foreign-link-to-new",
            "own-link-to-foreign",
        ] {
            let error = AuditLog::to_file(&at(refused)).unwrap_err();
            assert_eq!(error.to_string(), "it belongs to user 1000", "{refused}");
        }
        assert!(!at("new").exists());
        for name in ["target", "foreign"] {
            assert_eq!(fs::read_to_string(at(name)).unwrap(), "kept");
        }
        for taken in ["target", "own-link", "fresh"] {
            AuditLog::to_file(&at(taken)).unwrap();
        }
    }
}
