//! A compressed body as the bytes that it stands for.
//!
//! Since Kubernetes 1.37 the API server compresses the response to a streaming list, if asked to: gzip, flushed after
//! each event, until the watch ends.
//!
//! Invariants:
//! 1. Bytes come out in pieces of at most [`PIECE`], each when it is asked for. So a small body that stands for a large
//!    one costs time only for what is read, and the reader's own bound on an event ends it.
//! 2. What is not gzip is an error.

use std::{
    error::Error,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::{Body, Frame};
use miniz_oxide::{
    DataFormat, MZError, MZFlush, MZStatus,
    inflate::stream::{InflateState, inflate},
};

/// Most bytes of a piece.
const PIECE: usize = 16 << 10;
/// Length of the head without optional parts, which no API server sends, and its first bytes: gzip, deflate, no options.
const HEAD: usize = 10;
const MAGIC: [u8; 4] = [0x1f, 0x8b, 8, 0];

/// A body that is gzip, decompressed while it is read.
pub(crate) struct Gunzip<B> {
    body: B,
    /// Received, and not decompressed yet.
    input: BytesMut,
    state: Box<InflateState>,
    progress: Progress,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Head,
    /// More may come out without further input.
    Ready,
    NeedsInput,
    Ended,
}

impl<B> Gunzip<B> {
    pub(crate) fn new(body: B) -> Self {
        Self {
            body,
            input: BytesMut::new(),
            state: InflateState::new_boxed(DataFormat::Raw),
            progress: Progress::Head,
        }
    }

    /// The next piece; `None` if it takes more input.
    fn piece(&mut self) -> io::Result<Option<Bytes>> {
        if self.progress == Progress::Head {
            let Some(head) = self.input.get(..HEAD) else {
                return Ok(None);
            };
            if head[..MAGIC.len()] != MAGIC {
                return Err(malformed());
            }
            self.input.advance(HEAD);
            self.progress = Progress::Ready;
        }
        while self.progress == Progress::Ready {
            let mut piece = BytesMut::zeroed(PIECE);
            let result = inflate(&mut self.state, &self.input, &mut piece, MZFlush::None);
            self.input.advance(result.bytes_consumed);
            self.progress = match result.status {
                Ok(MZStatus::StreamEnd) => Progress::Ended,
                Ok(_) if result.bytes_written == PIECE || !self.input.is_empty() => Progress::Ready,
                Ok(_) | Err(MZError::Buf) => Progress::NeedsInput,
                Err(_) => return Err(malformed()),
            };
            if result.bytes_written > 0 {
                piece.truncate(result.bytes_written);
                return Ok(Some(piece.freeze()));
            }
        }
        Ok(None)
    }
}

/// The body of a watch, as it comes.
pub(crate) enum WatchBody {
    Plain(kube::client::Body),
    Gzip(Box<Gunzip<kube::client::Body>>),
}

impl Body for WatchBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut *self {
            Self::Plain(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            Self::Gzip(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
        }
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed gzip")
}

impl<B> Body for Gunzip<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            match self.piece() {
                Ok(Some(piece)) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
                Ok(None) if self.progress == Progress::Ended => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.input.extend_from_slice(&data);
                        if self.progress == Progress::NeedsInput {
                            self.progress = Progress::Ready;
                        }
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(io::Error::other(error)))),
                // A connection that ends early ends the watch, as without compression.
                None => return Poll::Ready(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;
    use http_body_util::{BodyExt as _, StreamBody};
    use miniz_oxide::deflate::compress_to_vec;

    use super::*;

    fn gzip(deflated: &[u8]) -> Vec<u8> {
        [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff], deflated].concat()
    }

    /// A block that stands for itself, as a flush leaves it.
    fn stored(text: &str) -> Vec<u8> {
        let length = u16::try_from(text.len()).unwrap();
        let head = [&[0][..], &length.to_le_bytes(), &(!length).to_le_bytes()].concat();
        [&head, text.as_bytes()].concat()
    }

    fn body(frames: Vec<Vec<u8>>) -> Gunzip<impl Body<Data = Bytes, Error = Infallible> + Unpin> {
        let frames = frames
            .into_iter()
            .map(|frame| Ok(Frame::data(Bytes::from(frame))));
        Gunzip::new(StreamBody::new(stream::iter(frames)))
    }

    /// The next piece of `body`, or `None` at its end.
    async fn next(
        body: &mut (impl Body<Data = Bytes, Error = io::Error> + Unpin),
    ) -> Option<io::Result<Bytes>> {
        let frame = body.frame().await?;
        Some(frame.map(|frame| frame.into_data().unwrap()))
    }

    #[tokio::test]
    async fn an_event_comes_out_when_it_was_flushed() {
        // managers 83
        let whole = [gzip(&stored("one\n")), stored("two\n")].concat();
        for cut in 1..whole.len() {
            let (head, tail) = whole.split_at(cut);
            let mut body = body(vec![head.to_vec(), tail.to_vec()]);
            let mut text = Vec::new();
            while let Some(piece) = next(&mut body).await {
                text.extend(piece.unwrap());
            }
            assert_eq!(text, b"one\ntwo\n", "{cut}");
        }
        let mut first = body(vec![gzip(&stored("one\n"))]);
        assert_eq!(next(&mut first).await.unwrap().unwrap(), "one\n");
    }

    #[tokio::test]
    async fn a_bomb_comes_out_in_pieces() {
        // managers 84
        let bomb = gzip(&compress_to_vec(&vec![b' '; 64 << 20], 6));
        assert!(bomb.len() < 128 << 10, "{}", bomb.len());
        let mut body = body(vec![bomb]);
        for _ in 0..10 {
            assert!(next(&mut body).await.unwrap().unwrap().len() <= PIECE);
        }
    }

    #[tokio::test]
    async fn other_bytes_are_an_error() {
        for bytes in [
            b"{\"type\":\"ADDED\"}".to_vec(),
            gzip(&[0xff; 20]),
            vec![0x1f; 30],
        ] {
            let error = next(&mut body(vec![bytes])).await.unwrap().unwrap_err();
            assert_eq!(error.to_string(), "malformed gzip");
        }
        assert!(next(&mut body(vec![vec![0x1f, 0x8b]])).await.is_none());
    }
}
