//! Records as bytes: numbers are little-endian, texts and lists are preceded by their length.
//!
//! Invariants:
//! 1. A record is written to one allocation of the right size: no copy of its bytes stays in freed memory.
//! 2. Reading allocates at most a constant multiple of the input's length, whatever lengths the input claims.

use std::io;

use jiff::Timestamp;
use zeroize::Zeroizing;

/// Malformed bytes. They occur only if a program with the key has sealed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("content is malformed")]
pub struct Malformed;

/// A sink for bytes.
pub trait Sink {
    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);

    /// Appends a number.
    ///
    /// # Panics
    ///
    /// With 2³² or more.
    fn number(&mut self, number: usize) {
        let number = u32::try_from(number).expect("records are limited to megabytes");
        self.put(&number.to_le_bytes());
    }

    /// Appends `bytes` and their length.
    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.put(bytes);
    }

    /// Appends a text and its length.
    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Appends a truth value.
    fn flag(&mut self, flag: bool) {
        self.put(&[u8::from(flag)]);
    }

    /// Appends a time, in milliseconds.
    fn time(&mut self, time: Timestamp) {
        self.put(&time.as_millisecond().to_le_bytes());
    }
}

/// Counts bytes instead of keeping them.
#[derive(Debug, Default)]
pub struct Counter(pub usize);

impl Sink for Counter {
    fn put(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The output of `put`, in an allocation of its size.
pub fn encoded(put: impl Fn(&mut dyn Sink)) -> Zeroizing<Vec<u8>> {
    let mut counter = Counter(0);
    put(&mut counter);
    let mut bytes = Zeroizing::new(Vec::with_capacity(counter.0));
    put(&mut *bytes);
    bytes
}

/// Input that is consumed from the front.
#[derive(Debug)]
pub struct Source<'a>(pub &'a [u8]);

#[expect(
    clippy::missing_errors_doc,
    reason = "all of them fail if the input is shorter or another value"
)]
impl<'a> Source<'a> {
    /// Takes `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// Takes a number.
    pub fn number(&mut self) -> Result<usize, Malformed> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    /// Takes bytes with their length.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.number()?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Takes a text with its length.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed)
    }

    /// Takes a truth value.
    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(Malformed),
        }
    }

    /// Takes a time.
    pub fn time(&mut self) -> Result<Timestamp, Malformed> {
        let millis = i64::from_le_bytes(self.array()?);
        Timestamp::from_millisecond(millis).map_err(|_| Malformed)
    }

    /// Takes a list. Its claimed length does not decide how much is allocated.
    pub fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let length = self.number()?;
        let mut items = Vec::new();
        for _ in 0..length {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Checks that no input is left.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}
