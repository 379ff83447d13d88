//! One connection: its streams, and the future that drives it.
//!
//! Invariants:
//! 1. `open` counts the [`StreamPermit`]s of a connection. Only the pool makes slots, one for each stream, and only while `open`
//!    is below `limit`: a stream never waits inside h2 for another one to end.
//! 2. A connection that takes no more streams never takes one again (`Closing` is final).
//! 3. A connection lives in its driver. When the driver's future ends or is dropped, every stream fails.

use std::{
    future::{Future, pending, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, request};
use http_body_util::Full;
use hyper::client::conn::http1;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    Config, Error, Lane, Metrics, Protocol,
    body::{Body, Incoming},
    dial::{Dialed, Io, Received},
};

/// What the pool, the driver and the streams of a connection share.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) lane: Lane,
    server: Arc<str>,
    sender: Sender,
    /// Streams that are open or about to be.
    open: AtomicUsize,
    /// Streams that may be open; changes whenever the server says so.
    limit: AtomicUsize,
    /// No new streams: GOAWAY, renewed credentials, or broken.
    closing: AtomicBool,
    /// A response has come: the server is not merely accepting connections.
    proven: AtomicBool,
    /// The server has answered 401 since somebody looked.
    unauthorized: AtomicBool,
    /// The server has answered otherwise to a request that found out, since somebody looked.
    granted: AtomicBool,
    /// The driver gave the peer up after this silence.
    dead_after: Mutex<Option<Duration>>,
    /// The limit has sunk below the streams that are open.
    shrunk: Notify,
    /// Wakes the pool.
    changed: Arc<Notify>,
    metrics: Metrics,
}

enum Sender {
    Http2(h2::client::SendRequest<Bytes>),
    /// Taken out while it is in use.
    Http1(Mutex<Option<http1::SendRequest<Full<Bytes>>>>),
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Http2(_) => "Http2",
            Self::Http1(_) => "Http1",
        })
    }
}

/// The future that must be polled for a connection to live; ends with it.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Connection {
    pub(super) fn start(
        id: u64,
        lane: Lane,
        server: Arc<str>,
        dialed: Dialed,
        config: &Config,
        changed: Arc<Notify>,
        metrics: Metrics,
    ) -> (Arc<Self>, Driver) {
        let most = config.max_streams_per_connection.max(1) as usize;
        let connection = |sender, limit| {
            Arc::new(Self {
                id,
                lane,
                server,
                sender,
                open: AtomicUsize::new(0),
                limit: AtomicUsize::new(limit),
                closing: AtomicBool::new(false),
                proven: AtomicBool::new(false),
                unauthorized: AtomicBool::new(false),
                granted: AtomicBool::new(false),
                dead_after: Mutex::new(None),
                shrunk: Notify::new(),
                changed,
                metrics,
            })
        };
        match dialed {
            Dialed::Http2 {
                sender,
                driver,
                received,
            } => {
                let limit = driver.max_concurrent_send_streams().min(most);
                let connection = connection(Sender::Http2(sender.clone()), limit);
                let drive = drive_http2(
                    Arc::clone(&connection),
                    driver,
                    sender,
                    received,
                    (config.keep_alive_interval, config.keep_alive_timeout),
                    most,
                );
                (connection, Box::pin(drive))
            }
            Dialed::Http1 { sender, driver } => {
                let connection = connection(Sender::Http1(Mutex::new(Some(sender))), 1);
                let shared = Arc::clone(&connection);
                let drive = async move {
                    if let Err(error) = driver.await {
                        tracing::debug!(%error, "HTTP/1.1 connection ended");
                    }
                    shared.close();
                };
                (connection, Box::pin(drive))
            }
        }
    }

    /// Reserves a stream, if the connection takes another one. Only the pool calls this.
    pub(super) fn reserve(self: &Arc<Self>) -> Option<StreamPermit> {
        if self.is_closing() || self.open() >= self.limit() {
            return None;
        }
        self.open.fetch_add(1, Ordering::AcqRel);
        self.metrics.streams(self.lane).inc();
        Some(StreamPermit {
            connection: Arc::clone(self),
            probe: None,
        })
    }

    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Acquire)
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(super) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Acquire)
    }

    pub(super) fn protocol(&self) -> Protocol {
        match self.sender {
            Sender::Http2(_) => Protocol::Http2,
            Sender::Http1(_) => Protocol::Http1,
        }
    }

    /// Whether the server has answered 401 since the last call.
    pub(super) fn take_unauthorized(&self) -> bool {
        self.unauthorized.swap(false, Ordering::AcqRel)
    }

    /// Whether the server has answered otherwise, to a request that found out, since the last call.
    pub(super) fn take_granted(&self) -> bool {
        self.granted.swap(false, Ordering::AcqRel)
    }

    /// Takes no more streams. Returns whether it took some until now.
    pub(super) fn close(&self) -> bool {
        let first = !self.closing.swap(true, Ordering::AcqRel);
        if first {
            self.changed.notify_one();
        }
        first
    }

    fn set_limit(&self, limit: usize) {
        let before = self.limit.swap(limit, Ordering::AcqRel);
        if limit > before {
            self.changed.notify_one();
        } else if limit < self.open() {
            self.shrunk.notify_waiters();
        }
    }

    /// What a failure of a stream means to the caller.
    pub(super) fn http2_error(&self, source: h2::Error) -> Error {
        let server = Arc::clone(&self.server);
        match *self.dead_after.lock() {
            Some(waited) => Error::Dead { server, waited },
            None => Error::Broken {
                server,
                source: source.into(),
            },
        }
    }

    pub(super) fn http1_error(&self, source: hyper::Error) -> Error {
        Error::Broken {
            server: Arc::clone(&self.server),
            source: source.into(),
        }
    }
}

/// The right to one stream of a connection, from the reservation to the end of the response's body.
#[derive(Debug)]
#[must_use = "dropping it gives the stream back"]
pub(super) struct StreamPermit {
    pub(super) connection: Arc<Connection>,
    /// The request goes first, to find out whether the server takes our credentials.
    pub(super) probe: Option<Arc<()>>,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.connection.open.fetch_sub(1, Ordering::AcqRel);
        self.connection.metrics.streams(self.connection.lane).dec();
        self.connection.changed.notify_one();
    }
}

/// Why a request on a slot got no response.
#[derive(Debug)]
pub(super) enum SendError {
    /// The server has not processed the request and never will: any request may be sent again.
    Unprocessed,
    /// The server may or may not have processed it.
    Broken(Error),
}

impl StreamPermit {
    /// Sends a request and waits for the head of the response.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future resets the stream and gives the slot back.
    pub(super) async fn send(
        self,
        head: &request::Parts,
        body: Bytes,
    ) -> Result<Response<Body>, SendError> {
        let connection = Arc::clone(&self.connection);
        let finds_out = self.probe.is_some();
        let response = match &connection.sender {
            Sender::Http2(sender) => self.send_http2(sender.clone(), head, body).await?,
            Sender::Http1(sender) => self.send_http1(sender, head, body).await?,
        };
        if !connection.proven.swap(true, Ordering::AcqRel) {
            connection.changed.notify_one();
        }
        if response.status() == StatusCode::UNAUTHORIZED {
            connection.unauthorized.store(true, Ordering::Release);
            connection.changed.notify_one();
        } else if finds_out {
            connection.granted.store(true, Ordering::Release);
            connection.changed.notify_one();
        }
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
        let mut request = Request::new(());
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = head.uri.clone();
        *request.headers_mut() = head.headers.clone();
        if !body.is_empty() {
            request
                .headers_mut()
                .insert(http::header::CONTENT_LENGTH, body.len().into());
        }
        // From here until the response has begun, a limit that sinks may leave the stream waiting inside h2. One that
        // changes nothing is then better sent on another connection.
        let mut shrunk = pin!(connection.shrunk.notified());
        shrunk.as_mut().enable();
        let (response, upload) = sender
            .send_request(request, body.is_empty())
            .map_err(failed)?;
        // The stream stays usable for its response only; this handle would keep the connection from closing.
        drop(sender);
        let exchange = async {
            let mut response = pin!(response);
            let mut upload = pin!(upload_body(upload, body));
            let mut uploaded = false;
            // The server may answer before it has read everything, to refuse it for instance.
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
        sender: &Mutex<Option<http1::SendRequest<Full<Bytes>>>>,
        head: &request::Parts,
        body: Bytes,
    ) -> Result<Response<Body>, SendError> {
        // None: an earlier request was given up half-way, and the connection with it.
        let taken = sender.lock().take();
        let Some(mut taken) = taken else {
            self.connection.close();
            return Err(SendError::Unprocessed);
        };
        if taken.ready().await.is_err() {
            self.connection.close();
            return Err(SendError::Unprocessed);
        }
        let result = taken.try_send_request(http1_request(head, body)).await;
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
        // A GOAWAY reaches only streams that the server says it will not process (h2, `recv_go_away`).
        let unprocessed = error.is_remote()
            && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM));
        if unprocessed {
            SendError::Unprocessed
        } else {
            SendError::Broken(self.http2_error(error))
        }
    }
}

/// HTTP/1.1 has the path in the request line and the host in a header.
fn http1_request(head: &request::Parts, body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = head.method.clone();
    *request.headers_mut() = head.headers.clone();
    let path = head.uri.path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(http::Uri::default, http::Uri::from);
    if let Some(authority) = head.uri.authority()
        && let Ok(host) = authority.as_str().try_into()
    {
        request.headers_mut().insert(http::header::HOST, host);
    }
    request
}

/// Sends `body` as fast as the server's window lets it. A failure shows in the response.
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

async fn drive_http2(
    connection: Arc<Connection>,
    mut driver: Box<h2::client::Connection<Io, Bytes>>,
    mut probe: h2::client::SendRequest<Bytes>,
    received: Received,
    (interval, timeout): (Duration, Duration),
    most: usize,
) {
    let ping = driver.ping_pong().expect("nobody else has taken it");
    let shared = Arc::clone(&connection);
    let drive = poll_fn(move |cx| {
        let result = Pin::new(&mut driver).poll(cx);
        shared.set_limit(driver.max_concurrent_send_streams().min(most));
        // Fails as soon as a GOAWAY has come, while the streams that it leaves alone go on.
        if result.is_pending()
            && let Poll::Ready(Err(error)) = probe.poll_ready(cx)
            && shared.close()
        {
            shared.metrics.go_aways.inc();
            tracing::debug!(%error, id = shared.id, "the server takes no more requests on a connection");
        }
        result
    });
    tokio::select! {
        result = drive => if let Err(error) = result {
            tracing::debug!(%error, id = connection.id, "HTTP/2 connection ended");
        },
        () = until_dead(ping, received, interval, timeout) => {
            *connection.dead_after.lock() = Some(timeout);
            connection.metrics.dead_peers.inc();
            tracing::warn!(server = %connection.server, waited = ?timeout, "API server does not answer, connection given up");
        }
    }
    connection.close();
}

/// Sends a PING every `interval`; ends when one is not answered and nothing else comes for `timeout`.
///
/// A slow line may carry megabytes before it carries the answer, so every byte counts.
async fn until_dead(
    mut ping: h2::PingPong,
    received: Received,
    interval: Duration,
    timeout: Duration,
) {
    loop {
        tokio::time::sleep(interval).await;
        let mut seen = received.bytes();
        let mut answer = pin!(ping.ping(h2::Ping::opaque()));
        loop {
            match tokio::time::timeout(timeout, answer.as_mut()).await {
                Ok(Ok(_)) => break,
                // The connection is ending; its driver knows why.
                Ok(Err(_)) => pending().await,
                Err(_) if received.bytes() != seen => seen = received.bytes(),
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::dial::start_http2;

    #[tokio::test(start_paused = true)]
    async fn with_defaults_a_watch_on_a_dead_peer_ends_within_45_seconds() {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        // The peer answers the watch, sends one event, and is heard of no more: nothing is closed.
        let peer = async {
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            let accepted = connection.accept().await.unwrap();
            let (_request, mut respond) = accepted.unwrap();
            let mut body = respond.send_response(Response::new(()), false).unwrap();
            body.send_data(Bytes::from_static(b"event"), false).unwrap();
            let sent = poll_fn(|cx| connection.poll_closed(cx));
            tokio::select! {
                _ = sent => panic!("the client has closed"),
                () = sleep(Duration::from_millis(1)) => {}
            }
            (connection, body)
        };
        let config = Config::default();
        let received = Received::default();
        let watch = async {
            let io = Io::new(Box::new(ours), received.clone());
            let dialed = start_http2(io, received.clone(), &config, Lane::Watch);
            let dialed = dialed.await.map_err(|error| error.to_string()).unwrap();
            let (connection, driver) = Connection::start(
                1,
                Lane::Watch,
                "server".into(),
                dialed,
                &config,
                Arc::new(Notify::new()),
                Metrics::default(),
            );
            let slot = connection.reserve().unwrap();
            let (head, ()) = Request::get("https://server/w?watch=true")
                .body(())
                .unwrap()
                .into_parts();
            let reading = async {
                let response = slot.send(&head, Bytes::new()).await.unwrap();
                let mut body = response.into_body();
                let event = http_body_util::BodyExt::frame(&mut body).await.unwrap();
                assert_eq!(event.unwrap().into_data().unwrap(), "event");
                let last_heard = Instant::now();
                let end = http_body_util::BodyExt::frame(&mut body).await.unwrap();
                (end.unwrap_err(), last_heard.elapsed())
            };
            tokio::join!(reading, driver).0
        };
        let ((error, waited), _dead) = tokio::join!(watch, peer);
        assert!(matches!(error, Error::Dead { .. }), "{error}");
        assert!(waited <= Duration::from_secs(45), "{waited:?}");
        assert!(waited > Duration::from_secs(30), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_is_dead_when_a_ping_is_followed_by_silence_only() {
        let (ours, _theirs) = tokio::io::duplex(1 << 16);
        let (_sender, mut driver) = h2::client::handshake(ours).await.unwrap();
        let ping = driver.ping_pong().unwrap();
        let received = Received::default();
        let busy_line = async {
            for _ in 0..10 {
                sleep(Duration::from_secs(10)).await;
                received.add(1);
            }
            pending::<()>().await;
        };
        let start = Instant::now();
        let (interval, timeout) = (Duration::from_secs(30), Duration::from_secs(15));
        tokio::select! {
            () = busy_line => unreachable!("it never ends"),
            _ = driver => panic!("the peer has said nothing"),
            () = until_dead(ping, received.clone(), interval, timeout) => {}
        }
        // PING at 30 s, last byte at 100 s, looks at 45 s, 60 s, ...: 105 s sees it, 120 s sees silence.
        assert_eq!(start.elapsed().as_secs(), 120);
    }
}
