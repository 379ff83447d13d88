//! Sending one request on a permit, and its response.

use std::{
    future::{Future as _, poll_fn},
    pin::pin,
    sync::Arc,
};

use bytes::Bytes;
use http::{Request, Response, request};
use http_body_util::Full;
use larder_net::http1;
use parking_lot::Mutex;

use super::{Connection, Sender, StreamPermit};
use crate::{
    Error, Link,
    body::{Body, Incoming},
    credentials::Generation,
};

/// Why a request got no response.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The server has not processed the request and never will, so any request may be sent again.
    Unprocessed,
    /// The server may or may not have processed it.
    Broken(Error),
}

impl StreamPermit {
    /// Sends a request, with credentials of that generation in its head, and waits for the head of the response.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future resets the stream and releases the permit.
    pub(crate) async fn send(
        self,
        head: &request::Parts,
        body: Bytes,
        head_generation: u64,
    ) -> Result<Response<Body>, SendError> {
        let connection = Arc::clone(&self.connection);
        let sent_with = Generation {
            handshake: connection.handshake,
            head: head_generation,
        };
        let is_probe = self.probe.is_some();
        let mut response = match &connection.sender {
            Sender::Http2(sender) => self.send_http2(sender.clone(), head, body).await?,
            Sender::Http1(sender) => self.send_http1(sender, head, body).await?,
        };
        connection.responded(response.status(), is_probe, sent_with);
        response.extensions_mut().insert(Link::new(connection));
        Ok(response)
    }

    async fn send_http2(
        self,
        mut sender: h2::client::SendRequest<Bytes>,
        head: &request::Parts,
        body: Bytes,
    ) -> Result<Response<Body>, SendError> {
        let connection = Arc::clone(&self.connection);
        let failed = |error: h2::Error| connection.failed(error);
        let mut request = Request::from_parts(head.clone(), ());
        if !body.is_empty() {
            request
                .headers_mut()
                .insert(http::header::CONTENT_LENGTH, body.len().into());
        }
        // Until the response begins, a limit that drops may leave the stream waiting inside h2. A safe request is then
        // sent on another connection.
        let mut shrunk = pin!(connection.shrunk.notified());
        shrunk.as_mut().enable();
        let (response, upload) = sender
            .send_request(request, body.is_empty())
            .map_err(failed)?;
        // The response does not need this handle, which would keep the connection from closing.
        drop(sender);
        let exchange = async {
            let mut response = pin!(response);
            let mut upload = pin!(upload_body(upload, body));
            let mut uploaded = false;
            // The server may answer before it has read the whole body, to reject it for instance.
            poll_fn(|cx| {
                if !uploaded && upload.as_mut().poll(cx).is_ready() {
                    uploaded = true;
                }
                response.as_mut().poll(cx)
            })
            .await
        };
        let response = if head.method.is_safe() {
            tokio::select! {
                biased;
                response = exchange => response,
                () = shrunk => return Err(SendError::Unprocessed),
            }
        } else {
            exchange.await
        }
        .map_err(failed)?;
        Ok(response.map(|incoming| Body::new(Incoming::Http2(incoming), self)))
    }

    async fn send_http1(
        self,
        sender: &Mutex<Option<http1::Sender<Full<Bytes>>>>,
        head: &request::Parts,
        body: Bytes,
    ) -> Result<Response<Body>, SendError> {
        // None: an earlier request was canceled half-way, and the connection with it.
        let taken = sender.lock().take();
        let Some(mut taken) = taken else {
            self.connection.close();
            return Err(SendError::Unprocessed);
        };
        if taken.ready().await.is_err() {
            self.connection.close();
            return Err(SendError::Unprocessed);
        }
        let result = taken.send(http1_request(head, body)).await;
        *sender.lock() = Some(taken);
        match result {
            Ok(response) => Ok(response.map(|incoming| Body::new(Incoming::Http1(incoming), self))),
            Err(mut error) => {
                self.connection.close();
                if error.take_message().is_some() {
                    Err(SendError::Unprocessed)
                } else {
                    Err(SendError::Broken(
                        self.connection.http1_error(error.into_error()),
                    ))
                }
            }
        }
    }
}

impl Connection {
    fn failed(&self, error: h2::Error) -> SendError {
        // h2 reports a GOAWAY only to streams that the server will not process (`recv_go_away`).
        let unprocessed = error.is_remote()
            && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM));
        if unprocessed {
            SendError::Unprocessed
        } else {
            SendError::Broken(self.http2_error(error))
        }
    }
}

/// For HTTP/1.1: the path in the request line, the host in a header.
fn http1_request(head: &request::Parts, body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::from_parts(head.clone(), Full::new(body));
    let path = head.uri.path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(http::Uri::default, http::Uri::from);
    if let Some(authority) = head.uri.authority()
        && let Ok(host) = authority.as_str().try_into()
    {
        request.headers_mut().insert(http::header::HOST, host);
    }
    request
}

/// Sends `body` as fast as the server's window permits. The response reports a failure.
async fn upload_body(mut stream: h2::SendStream<Bytes>, mut body: Bytes) {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let Some(Ok(granted)) = poll_fn(|cx| stream.poll_capacity(cx)).await else {
            return;
        };
        let chunk = body.split_to(granted.min(body.len()));
        if stream.send_data(chunk, body.is_empty()).is_err() {
            return;
        }
    }
}
