//! What waits to be written: a bounded buffer that drops and counts.
//!
//! Invariants:
//! 1. At most [`MAX_BYTES`] and one text more are held, so a reader that has stopped costs no more memory.
//! 2. A text is taken as a whole or not at all. What is taken is written in its order.
//! 3. What is dropped is counted, and the gap is where the count is written: after all that was taken before it.

use std::mem;

use crate::Stream;

/// A text is dropped while this many bytes wait.
const MAX_BYTES: usize = 512 << 10;

/// What has become of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Fate {
    /// It will be written.
    Taken,
    /// Nothing reads what was written before. It is counted.
    Dropped,
}

/// The texts that wait, and the number of lines that were dropped after them.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    texts: Vec<(Stream, Vec<u8>)>,
    bytes: usize,
    dropped: u64,
}

impl Queue {
    pub(crate) fn push(&mut self, stream: Stream, text: Vec<u8>) -> Fate {
        if self.bytes >= MAX_BYTES {
            self.dropped += text
                .split(|byte| *byte == b'\n')
                .skip(1)
                .map(|_| 1)
                .sum::<u64>();
            return Fate::Dropped;
        }
        self.bytes += text.len();
        self.texts.push((stream, text));
        Fate::Taken
    }

    /// All that waits. There is room again from here on.
    pub(crate) fn take(&mut self) -> Self {
        mem::take(self)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.dropped == 0
    }

    pub(crate) fn texts(&self) -> &[(Stream, Vec<u8>)] {
        &self.texts
    }

    /// Lines that were dropped after these texts.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_beyond_the_bound_are_dropped_and_counted_after_those_before() {
        let mut queue = Queue::default();
        let line = vec![b'\n'; 1 << 10];
        let taken = (0..2000).filter(|_| queue.push(Stream::Err, line.clone()) == Fate::Taken);
        assert_eq!(taken.count(), MAX_BYTES >> 10);
        let batch = queue.take();
        assert_eq!(batch.texts().len(), MAX_BYTES >> 10);
        assert_eq!(batch.dropped(), (2000 - (MAX_BYTES as u64 >> 10)) << 10);
        assert_eq!(queue.push(Stream::Out, line), Fate::Taken);
        assert_eq!(queue.take().dropped(), 0);
    }

    #[test]
    fn a_long_text_is_taken_whole_where_there_is_room() {
        let mut queue = Queue::default();
        assert_eq!(
            queue.push(Stream::Out, vec![b'a'; 2 * MAX_BYTES]),
            Fate::Taken
        );
        assert_eq!(queue.push(Stream::Out, b"b\n".to_vec()), Fate::Dropped);
        assert_eq!(queue.take().dropped(), 1);
        assert!(queue.is_empty());
    }
}
