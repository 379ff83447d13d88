//! HTTP/1.1 over a byte stream, with bounds on what comes before an answer.

use http::{Request, Response};
use hyper::{
    body::{Body, Incoming},
    client::conn::{TrySendError, http1},
    ext::on_informational,
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::io::{Interim, Io, Received};

/// Longest head of an answer, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Sends requests, one after the other.
#[derive(Debug)]
pub struct Sender<B> {
    inner: http1::SendRequest<B>,
    interim: Interim,
}

/// The connection, which must be polled for requests to be sent.
pub type Connection<S, B> = http1::Connection<TokioIo<Io<S>>, B>;

/// Begins HTTP/1.1 on a stream; `received` counts its bytes.
///
/// # Errors
///
/// HTTP does not start.
pub async fn handshake<S, B>(
    stream: S,
    received: Received,
) -> Result<(Sender<B>, Connection<S, B>), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let interim = Interim::default();
    let io = Io::http1(stream, received, interim.clone());
    let (inner, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .handshake(TokioIo::new(io))
        .await?;
    Ok((Sender { inner, interim }, connection))
}

impl<B: Body + 'static> Sender<B> {
    /// Waits until the next request can be sent.
    ///
    /// # Errors
    ///
    /// The connection has ended.
    pub async fn ready(&mut self) -> Result<(), hyper::Error> {
        self.inner.ready().await
    }

    /// Sends a request, and waits for the head of its answer.
    ///
    /// # Errors
    ///
    /// The error has the request, if nothing of it was sent.
    pub async fn send(
        &mut self,
        mut request: Request<B>,
    ) -> Result<Response<Incoming>, TrySendError<Request<B>>> {
        self.interim.begin();
        let interim = self.interim.clone();
        on_informational(&mut request, move |_| interim.count());
        self.inner.try_send_request(request).await
    }
}
