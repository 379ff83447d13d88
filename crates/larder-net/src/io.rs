//! The byte stream below HTTP, with or without TLS.
//!
//! Invariants:
//! 1. It yields after each `TURN` of bytes. So no server keeps a thread by sending without a pause, and readers of
//!    streams consume frames before more arrive; otherwise h2 would queue everything that the socket and the windows
//!    hold, and its queue never shrinks.
//! 2. What the server sends besides answers is bounded, and the connection ends beyond it: over HTTP/1.1 the number of
//!    interim answers (`MAX_INTERIM`), over HTTP/2 the bytes of frames that carry no data (`SPARE_BYTES`).
//! 3. Each byte counts as a sign of life; see [`Received`].

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// The most that a TLS record carries.
const TURN: usize = 16 << 10;

/// Most interim answers (1xx) to one request over HTTP/1.1. Servers send one or two.
const MAX_INTERIM: u32 = 16;

/// Bytes of frames without data that a server may send over HTTP/2 at once: heads, interim answers, PING, SETTINGS,
/// WINDOW_UPDATE and the like. The heads of 100 streams take some 20 KiB.
const SPARE_BYTES: u64 = 256 << 10;

/// So many more bytes of them each second. Each byte of data allows another one, too.
const SPARE_BYTES_PER_SEC: u64 = 8 << 10;

/// A byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The signs of life of a peer: every byte is one. Clones are one.
#[derive(Clone, Debug)]
pub struct Received(Arc<SignsOfLife>);

#[derive(Debug)]
struct SignsOfLife {
    bytes: AtomicU64,
    opened: Instant,
    /// When the last byte came, in microseconds after `opened`.
    last: AtomicU64,
}

impl Default for Received {
    fn default() -> Self {
        Self(Arc::new(SignsOfLife {
            bytes: AtomicU64::new(0),
            opened: Instant::now(),
            last: AtomicU64::new(0),
        }))
    }
}

impl Received {
    /// Number of bytes received so far.
    pub fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// When the last byte came; before the first one, when the stream was opened.
    pub fn last(&self) -> Instant {
        self.0.opened + Duration::from_micros(self.0.last.load(Ordering::Relaxed))
    }

    /// Counts bytes that came at `now`.
    pub fn add(&self, bytes: usize, now: Instant) {
        let since = now.saturating_duration_since(self.0.opened).as_micros();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.0.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.0.last.fetch_max(since, Ordering::Relaxed);
    }
}

/// The interim answers to the request under way on an HTTP/1.1 connection. Clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interim(Arc<AtomicU32>);

impl Interim {
    /// A request is sent.
    pub(crate) fn begin(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn is_flood(&self) -> bool {
        self.0.load(Ordering::Relaxed) > MAX_INTERIM
    }
}

/// A byte stream that yields, and that a server cannot flood.
#[derive(Debug)]
pub struct Io<S> {
    stream: S,
    received: Received,
    /// Bytes received in this turn.
    turn: usize,
    bound: Bound,
}

/// What bounds the bytes besides answers.
#[derive(Debug)]
enum Bound {
    Http1(Interim),
    Http2(Frames),
}

/// The frames of an HTTP/2 connection as they come in (RFC 9113, section 4.1).
#[derive(Debug)]
struct Frames {
    head: [u8; HEAD],
    /// Bytes of the head that have come.
    head_bytes: usize,
    /// Bytes of the payload that have not come.
    payload: usize,
    /// Bytes without data that may come.
    spare: u64,
    /// Until when `spare` was filled up.
    filled: Instant,
}

/// Bytes of a frame's head.
const HEAD: usize = 9;
/// The type of a frame with data.
const DATA: u8 = 0;

impl<S> Io<S> {
    pub(crate) fn http1(stream: S, received: Received, interim: Interim) -> Self {
        Self::new(stream, received, Bound::Http1(interim))
    }

    /// A stream for HTTP/2, whose bytes `received` counts.
    pub fn http2(stream: S, received: Received) -> Self {
        let frames = Frames::new(Instant::now());
        Self::new(stream, received, Bound::Http2(frames))
    }

    fn new(stream: S, received: Received, bound: Bound) -> Self {
        Self {
            stream,
            received,
            turn: 0,
            bound,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Io<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.turn >= TURN {
            this.turn = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Bound::Http1(interim) = &this.bound
            && interim.is_flood()
        {
            return Poll::Ready(Err(flood("interim answers")));
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(cx, buffer);
        let bytes = &buffer.filled()[before..];
        this.turn = if result.is_ready() {
            this.turn + bytes.len()
        } else {
            0
        };
        if !bytes.is_empty() {
            let now = Instant::now();
            this.received.add(bytes.len(), now);
            if let Bound::Http2(frames) = &mut this.bound {
                frames.received(bytes, now)?;
            }
        }
        result
    }
}

impl Frames {
    fn new(now: Instant) -> Self {
        Self {
            head: [0; HEAD],
            head_bytes: 0,
            payload: 0,
            spare: SPARE_BYTES,
            filled: now,
        }
    }

    /// Takes in the next bytes.
    ///
    /// # Errors
    ///
    /// They are a flood of frames without data.
    fn received(&mut self, mut bytes: &[u8], now: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let payload = bytes.split_off(..self.payload.min(bytes.len()));
            self.payload -= payload.map_or(0, <[u8]>::len);
            let missing = HEAD - self.head_bytes;
            let Some(head) = bytes.split_off(..missing.min(bytes.len())) else {
                break;
            };
            self.head[self.head_bytes..self.head_bytes + head.len()].copy_from_slice(head);
            self.head_bytes += head.len();
            if self.head_bytes == HEAD {
                self.begin(now)?;
            }
        }
        Ok(())
    }

    /// A frame begins: its head is complete.
    fn begin(&mut self, now: Instant) -> io::Result<()> {
        let [a, b, c, kind, ..] = self.head;
        let length = u32::from_be_bytes([0, a, b, c]);
        self.head_bytes = 0;
        self.payload = usize::try_from(length).unwrap_or(usize::MAX);
        let (data, other) = match kind {
            DATA => (u64::from(length), HEAD as u64),
            _ => (0, HEAD as u64 + u64::from(length)),
        };
        self.fill(data, now);
        let spare = self.spare.checked_sub(other);
        self.spare = spare.ok_or_else(|| flood("frames without data"))?;
        Ok(())
    }

    /// Allows as many bytes more as came as data, and those of the time since the last call.
    fn fill(&mut self, data: u64, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        self.filled += Duration::from_millis(millis);
        let by_time = millis.saturating_mul(SPARE_BYTES_PER_SEC) / 1000;
        let spare = self.spare.saturating_add(data).saturating_add(by_time);
        self.spare = spare.min(SPARE_BYTES);
    }
}

fn flood(of: &str) -> io::Error {
    io::Error::other(format!("the server sends {of} without an end"))
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Io<S> {
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
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
        time::advance,
    };

    use super::*;

    fn http1(stream: DuplexStream) -> (Io<DuplexStream>, Received, Interim) {
        let (received, interim) = (Received::default(), Interim::default());
        let io = Io::http1(stream, received.clone(), interim.clone());
        (io, received, interim)
    }

    #[tokio::test]
    async fn a_full_socket_yields_after_each_turn() {
        let (ours, mut theirs) = duplex(4 * TURN);
        let (mut io, received, _) = http1(ours);
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

    #[tokio::test(start_paused = true)]
    async fn each_byte_is_a_sign_of_life() {
        let (ours, mut theirs) = duplex(100);
        let (mut io, received, _) = http1(ours);
        let opened = Instant::now();
        advance(Duration::from_secs(7)).await;
        assert_eq!(received.last(), opened);
        theirs.write_all(b"x").await.unwrap();
        io.read_u8().await.unwrap();
        advance(Duration::from_secs(1)).await;
        assert_eq!(received.last().elapsed().as_secs(), 1);
    }

    #[tokio::test]
    async fn interim_answers_are_counted_for_each_request() {
        let (ours, mut theirs) = duplex(100);
        let (mut io, _, interim) = http1(ours);
        theirs.write_all(b"xyz").await.unwrap();
        for _ in 0..MAX_INTERIM {
            interim.count();
        }
        io.read_u8().await.unwrap();
        interim.count();
        io.read_u8().await.unwrap_err();
        interim.begin();
        io.read_u8().await.unwrap();
    }

    /// A frame of this type, with a payload of so many bytes.
    fn frame(kind: u8, length: usize) -> Vec<u8> {
        let head = u32::try_from(length).unwrap().to_be_bytes();
        let head = [&head[1..], &[kind, 0, 0, 0, 0, 1]].concat();
        [head, vec![0; length]].concat()
    }

    /// How many of `limit` such frames are accepted, in pieces of so many bytes.
    fn accepted(frame: &[u8], piece: usize, limit: usize) -> usize {
        let now = Instant::now();
        let mut frames = Frames::new(now);
        let bytes = frame.repeat(limit);
        let mut pieces = bytes.chunks(piece);
        let before = pieces.position(|piece| frames.received(piece, now).is_err());
        before.map_or(limit, |before| before * piece / frame.len())
    }

    #[tokio::test(start_paused = true)]
    async fn frames_without_data_are_bounded_whatever_the_pieces() {
        let ping = frame(6, 8);
        let expected = usize::try_from(SPARE_BYTES).unwrap() / ping.len();
        for piece in [1, 7, 17, 4096] {
            let count = accepted(&ping, piece, 20_000);
            assert!(count.abs_diff(expected) <= 4096 / 17, "{piece}: {count}");
        }
        for (length, is_flood) in [(0, true), (4, true), (9, false), (4096, false)] {
            let data = frame(DATA, length);
            let count = accepted(&data, 1000, 60_000);
            assert_eq!(count < 60_000, is_flood, "{length}: {count}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_day_of_pings_is_no_flood() {
        let now = Instant::now();
        let mut frames = Frames::new(now);
        for second in 0..86_400 {
            let now = now + Duration::from_secs(second);
            frames.received(&frame(6, 8), now).unwrap();
        }
    }
}
