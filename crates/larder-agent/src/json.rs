//! JSON in one allocation of its size: growing would take twice as much for a moment, and would leave copies in freed
//! memory, which may be of secrets.

use std::io;

use serde::Serialize;

/// Counts bytes instead of keeping them.
struct Counter(usize);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The value as JSON; all keys of its maps are text.
pub(crate) fn json(value: &impl Serialize) -> Vec<u8> {
    const WRITABLE: &str = "keys of JSON are text, and memory takes it";
    let mut length = Counter(0);
    serde_json::to_writer(&mut length, value).expect(WRITABLE);
    let mut json = Vec::with_capacity(length.0);
    serde_json::to_writer(&mut json, value).expect(WRITABLE);
    json
}
