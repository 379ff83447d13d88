//! The byte stream below HTTP: it counts bytes as signs of life, and yields after each [`TURN`].

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Number of bytes received from the peer so far. Any of them is a sign of life.
#[derive(Clone, Debug, Default)]
pub(super) struct Received(Arc<AtomicU64>);

impl Received {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The byte stream below HTTP, with or without TLS.
///
/// It yields after every [`TURN`] bytes, so that readers of the streams consume frames before more arrive. Otherwise h2
/// would queue everything that the socket and the windows hold, and its queue never shrinks.
pub(super) struct Io {
    stream: Box<dyn Stream>,
    received: Received,
    /// Bytes received in this turn.
    turn: usize,
}

/// The most that a TLS record carries.
const TURN: usize = 16 << 10;

impl Io {
    pub(super) fn new(stream: Box<dyn Stream>, received: Received) -> Self {
        Self {
            stream,
            received,
            turn: 0,
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.turn >= TURN {
            self.turn = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let bytes = buffer.filled().len() - before;
        self.turn = if result.is_ready() {
            self.turn + bytes
        } else {
            0
        };
        self.received.add(bytes);
        result
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_full_socket_yields_after_each_turn() {
        let (ours, mut theirs) = tokio::io::duplex(4 * TURN);
        let received = Received::default();
        let mut io = Io::new(Box::new(ours), received.clone());
        theirs.write_all(&vec![0; 3 * TURN - 1000]).await.unwrap();
        let mut turns = Vec::new();
        let mut piece = [0; 1024];
        for _ in 0..4 {
            let before = received.bytes();
            while io.read(&mut piece).now_or_never().is_some() {}
            turns.push(received.bytes() - before);
        }
        let turn = TURN as u64;
        assert_eq!(turns, [turn, turn, turn - 1000, 0]);
        // The next turn is a full one.
        theirs.write_all(&vec![0; TURN]).await.unwrap();
        while io.read(&mut piece).now_or_never().is_some() {}
        assert_eq!(received.bytes(), 4 * turn - 1000);
    }
}
