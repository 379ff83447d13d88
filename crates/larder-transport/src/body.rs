//! The body of a response, as it arrives on the connection.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::{Error, connection::StreamPermit, transport::Handle};

/// A response's body. It holds its stream, and with it the connection, until it is dropped.
///
/// Unread bytes stay with the server: once the stream's window is full, it pauses this stream and continues the others.
///
/// Received bytes are not wiped. They pass through buffers of rustls, h2 or hyper, which hand out shared slices. So
/// copies of a Secret, base64 inside JSON, may remain in freed memory of this process: up to one TLS record (16 KiB)
/// and one read buffer per connection. Readers wipe their own copies.
pub struct Body {
    incoming: Incoming,
    permit: StreamPermit,
    /// Keeps the pool alive, which owns the connection's driver.
    handle: Option<Handle>,
}

pub(super) enum Incoming {
    Http2(h2::RecvStream),
    Http1(hyper::body::Incoming),
}

impl Body {
    pub(super) fn new(incoming: Incoming, permit: StreamPermit) -> Self {
        Self {
            incoming,
            permit,
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
            .field("connection", &self.permit.connection.id)
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
        let connection = &this.permit.connection;
        match &mut this.incoming {
            Incoming::Http2(stream) => {
                let frame = match ready!(stream.poll_data(cx)) {
                    Some(data) => data.and_then(|data| {
                        // The server may send as many bytes again.
                        stream.flow_control().release_capacity(data.len())?;
                        Ok(Some(Frame::data(data)))
                    }),
                    None => ready!(stream.poll_trailers(cx)).map(|map| map.map(Frame::trailers)),
                };
                Poll::Ready(
                    frame
                        .map_err(|error| connection.http2_error(error))
                        .transpose(),
                )
            }
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
