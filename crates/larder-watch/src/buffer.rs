//! Bytes of a response: bounded, and wiped if they may be a Secret's.

use std::{mem, ops::Deref};

use zeroize::Zeroize;

use crate::error::RequestError;

/// A growing buffer that leaves no copy of a Secret in freed memory.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    limit: usize,
    secret: bool,
}

impl Buffer {
    pub(crate) fn new(secret: bool, limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            limit,
            secret,
        }
    }

    /// Appends `data`.
    ///
    /// # Errors
    ///
    /// The limit is passed; nothing was appended.
    pub(crate) fn push(&mut self, data: &[u8]) -> Result<(), RequestError> {
        let length = self.bytes.len() + data.len();
        if length > self.limit {
            return Err(RequestError::TooLong {
                limit_bytes: self.limit,
            });
        }
        if length > self.bytes.capacity() {
            // Vec would move the bytes and free the old place as it is.
            let mut grown = Vec::with_capacity(length.max(self.bytes.capacity() * 2));
            grown.extend_from_slice(&self.bytes);
            self.wipe();
            self.bytes = grown;
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Forgets the first `count` bytes; an emptied buffer gives its memory back.
    pub(crate) fn consume(&mut self, count: usize) {
        if count == self.bytes.len() {
            self.wipe();
            self.bytes = Vec::new();
        } else {
            self.bytes.copy_within(count.., 0);
            let rest = self.bytes.len() - count;
            if self.secret {
                self.bytes[rest..].zeroize();
            }
            self.bytes.truncate(rest);
        }
    }

    /// The bytes, which the caller wipes if they are a Secret's.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        mem::take(&mut self.bytes)
    }

    fn wipe(&mut self) {
        if self.secret {
            self.bytes.zeroize();
        } else {
            mem::take(&mut self.bytes);
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.wipe();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_pushed_up_to_the_limit() {
        let mut buffer = Buffer::new(true, 6);
        buffer.push(b"abc").unwrap();
        buffer.push(b"def").unwrap();
        assert!(matches!(
            buffer.push(b"g"),
            Err(RequestError::TooLong { limit_bytes: 6 })
        ));
        buffer.consume(2);
        assert_eq!(&*buffer, b"cdef");
        buffer.consume(4);
        assert!(buffer.is_empty());
        buffer.push(b"again").unwrap();
        assert_eq!(&*buffer, b"again");
    }
}
