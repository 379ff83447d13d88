//! The body of a response as it comes from the connection.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use super::{Error, Handle, connection::StreamPermit};

/// A response's body. It holds its stream, and with it the connection, until it is dropped.
///
/// Bytes that nobody reads stay with the server: once the stream's window is full it sends no more on this stream, and
/// goes on with the others.
pub struct Body {
    incoming: Incoming,
    slot: StreamPermit,
    /// Keeps the pool alive, which owns the connection's driver.
    handle: Option<Handle>,
}

pub(super) enum Incoming {
    Http2(h2::RecvStream),
    Http1(hyper::body::Incoming),
}

impl Body {
    pub(super) fn new(incoming: Incoming, slot: StreamPermit) -> Self {
        Self {
            incoming,
            slot,
            handle: None,
        }
    }

    pub(super) fn holding(mut self, handle: Handle) -> Self {
        self.handle = Some(handle);
        self
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("connection", &self.slot.connection.id)
            .finish_non_exhaustive()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        let connection = &this.slot.connection;
        match &mut this.incoming {
            Incoming::Http2(stream) => match ready!(stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Read is read: the server may send as much again.
                    match stream.flow_control().release_capacity(data.len()) {
                        Ok(()) => Poll::Ready(Some(Ok(Frame::data(data)))),
                        Err(error) => Poll::Ready(Some(Err(connection.http2_error(error)))),
                    }
                }
                Some(Err(error)) => Poll::Ready(Some(Err(connection.http2_error(error)))),
                None => match ready!(stream.poll_trailers(cx)) {
                    Ok(trailers) => Poll::Ready(trailers.map(|map| Ok(Frame::trailers(map)))),
                    Err(error) => Poll::Ready(Some(Err(connection.http2_error(error)))),
                },
            },
            Incoming::Http1(incoming) => Pin::new(incoming)
                .poll_frame(cx)
                .map_err(|error| connection.http1_error(error)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.incoming {
            Incoming::Http2(stream) => stream.is_end_stream(),
            Incoming::Http1(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.incoming {
            Incoming::Http2(_) => SizeHint::default(),
            Incoming::Http1(incoming) => incoming.size_hint(),
        }
    }
}
