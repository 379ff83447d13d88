//! The end of a command's output, in memory that does not grow with it.

use std::{collections::VecDeque, convert::Infallible, future::pending};

use tokio::{io::AsyncReadExt as _, net::unix::pipe};

/// Most bytes that are kept (rule X5).
const KEPT: usize = 8 << 10;

/// Reads a pipe, and keeps the end.
pub(super) struct Tail {
    pipe: pipe::Receiver,
    kept: VecDeque<u8>,
    /// All bytes that were read.
    read: u64,
    has_ended: bool,
}

impl Tail {
    pub(super) fn new(pipe: pipe::Receiver) -> Self {
        Self {
            pipe,
            kept: VecDeque::new(),
            read: 0,
            has_ended: false,
        }
    }

    /// Reads until all writers have closed the pipe. Cancel-safe: output that was read is kept.
    pub(super) async fn read_to_end(&mut self) {
        let mut buffer = [0; 4096];
        while !self.has_ended {
            match self.pipe.read(&mut buffer).await {
                Ok(0) | Err(_) => self.has_ended = true,
                Ok(read) => self.keep(&buffer[..read]),
            }
        }
    }

    /// Reads until all writers have closed the pipe, and never returns.
    pub(super) async fn read_on(&mut self) -> Infallible {
        self.read_to_end().await;
        pending().await
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.read += bytes.len() as u64;
        self.kept.extend(bytes);
        if let Some(excess) = self.kept.len().checked_sub(KEPT)
            && excess > 0
        {
            self.kept.drain(..excess);
        }
    }

    /// How many bytes there were.
    pub(super) fn bytes(&self) -> u64 {
        self.read
    }

    /// What is kept, as text.
    pub(super) fn text(mut self) -> String {
        String::from_utf8_lossy(self.kept.make_contiguous())
            .trim_end()
            .to_owned()
    }
}
