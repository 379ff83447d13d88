//! One connection: its streams, its limits and its state.
//!
//! Invariants:
//! 1. `open` counts the [`StreamPermit`]s of a connection. Only the pool creates permits, one per stream, and only
//!    while `open` is below `limit`. So a stream never waits inside h2 for another one to end.
//! 2. A connection that takes no more streams never takes one again: `closing` is final.
//! 3. A connection lives in its driver. When the driver's future ends or is dropped, every stream fails.

mod drive;
mod send;

use std::{
    cmp,
    future::Future,
    mem,
    ops::BitOrAssign,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::StatusCode;
use http_body_util::Full;
use larder_net::{http1, io::Received};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use self::drive::KeepAlive;
pub(super) use self::send::SendError;
use super::{
    Carrier, Config, Error, Lane, Metrics, Probing, Protocol, StreamError,
    credentials::Generation,
    dial::{Dialed, NewConnection},
};

/// The state that the pool, the driver and the streams of a connection share.
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) lane: Lane,
    server: Arc<str>,
    /// The generation of the credentials of its handshake.
    handshake: u64,
    received: Received,
    sender: Sender,
    /// Streams that are open or reserved.
    open: AtomicUsize,
    /// Most streams that may be open; follows the server's SETTINGS.
    limit: AtomicUsize,
    state: Mutex<ConnectionState>,
    /// The limit has dropped below the number of open streams.
    shrunk: Notify,
    /// Wakes the pool.
    changed: Arc<Notify>,
    metrics: Metrics,
}

#[derive(Default)]
struct ConnectionState {
    /// No new streams: GOAWAY, renewed credentials, or broken.
    closing: bool,
    /// The silence after which the driver declared the peer dead.
    dead_after: Option<Duration>,
    /// A response has arrived, so the server does more than accept connections.
    answered: bool,
    events: ConnectionEvents,
}

/// What the responses on a connection have shown since the pool looked last.
#[derive(Clone, Copy, Default)]
pub(super) struct ConnectionEvents {
    /// The first response has arrived.
    pub(super) answered: bool,
    /// The newest credentials to which the server has answered 401.
    pub(super) unauthorized: Option<Generation>,
    /// A probe was answered with another status.
    pub(super) granted: bool,
    /// The peer was silent when something was expected of it.
    pub(super) distrusted: bool,
}

impl BitOrAssign for ConnectionEvents {
    fn bitor_assign(&mut self, other: Self) {
        self.answered |= other.answered;
        self.unauthorized = self.unauthorized.max(other.unauthorized);
        self.granted |= other.granted;
        self.distrusted |= other.distrusted;
    }
}

enum Sender {
    Http2(h2::client::SendRequest<Bytes>),
    /// `None` while a request uses it.
    Http1(Mutex<Option<http1::Sender<Full<Bytes>>>>),
}

/// The future that must be polled for a connection to live. It ends with the connection.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Connection {
    pub(super) fn start(
        id: u64,
        lane: Lane,
        server: Arc<str>,
        new: NewConnection,
        config: &Config,
        changed: Arc<Notify>,
        metrics: Metrics,
    ) -> (Arc<Self>, Driver) {
        let NewConnection { dialed, handshake } = new;
        let most = config.max_streams_per_connection.max(1) as usize;
        let keep_alive = KeepAlive {
            interval: config.keep_alive_interval,
            timeout: config.keep_alive_timeout,
        };
        let connection = |sender, limit, received| {
            Arc::new(Self {
                id,
                lane,
                server,
                handshake,
                received,
                sender,
                open: AtomicUsize::new(0),
                limit: AtomicUsize::new(limit),
                state: Mutex::default(),
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
                let connection = connection(Sender::Http2(sender.clone()), limit, received);
                let shared = Arc::clone(&connection);
                let drive = drive::http2(shared, driver, sender, keep_alive, most);
                (connection, Box::pin(drive))
            }
            Dialed::Http1 {
                sender,
                driver,
                received,
            } => {
                let sender = Sender::Http1(Mutex::new(Some(sender)));
                let connection = connection(sender, 1, received);
                let shared = Arc::clone(&connection);
                let drive = async move {
                    if let Err(error) = driver.await {
                        let error = StreamError::of_http1(error);
                        tracing::debug!(%error, id, "HTTP/1.1 connection ended");
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
        self.state.lock().closing
    }

    pub(super) fn has_answered(&self) -> bool {
        self.state.lock().answered
    }

    pub(super) fn protocol(&self) -> Protocol {
        match self.sender {
            Sender::Http2(_) => Protocol::Http2,
            Sender::Http1(_) => Protocol::Http1,
        }
    }

    /// What has happened since the last call.
    pub(super) fn take_events(&self) -> ConnectionEvents {
        mem::take(&mut self.state.lock().events)
    }

    /// Notes a response with that status to a request with those credentials.
    fn responded(&self, status: StatusCode, to_probe: bool, sent_with: Generation) {
        let mut state = self.state.lock();
        let unauthorized = (status == StatusCode::UNAUTHORIZED).then_some(sent_with);
        let events = ConnectionEvents {
            answered: !mem::replace(&mut state.answered, true),
            unauthorized,
            granted: to_probe && unauthorized.is_none(),
            distrusted: false,
        };
        state.events |= events;
        drop(state);
        if events.answered || unauthorized.is_some() || events.granted {
            self.changed.notify_one();
        }
    }

    /// Takes no more streams from now on. Returns whether it took some before.
    pub(super) fn close(&self) -> bool {
        let first = !mem::replace(&mut self.state.lock().closing, true);
        if first {
            self.changed.notify_one();
        }
        first
    }

    /// The peer has been silent for `waited`.
    fn died(&self, waited: Duration) {
        self.state.lock().dead_after = Some(waited);
        self.metrics.dead_peers.inc();
    }

    fn set_limit(&self, limit: usize) {
        let before = self.limit.swap(limit, Ordering::AcqRel);
        match limit.cmp(&before) {
            cmp::Ordering::Greater => self.changed.notify_one(),
            cmp::Ordering::Less if limit < self.open() => self.shrunk.notify_waiters(),
            cmp::Ordering::Less | cmp::Ordering::Equal => {}
        }
    }

    /// A failure of a stream, as callers see it.
    pub(super) fn http2_error(&self, source: h2::Error) -> Error {
        let server = Arc::clone(&self.server);
        match self.state.lock().dead_after {
            Some(waited) => Error::Dead { server, waited },
            None => Error::Broken {
                server,
                source: StreamError::of_http2(source),
            },
        }
    }

    pub(super) fn http1_error(&self, source: hyper::Error) -> Error {
        Error::Broken {
            server: Arc::clone(&self.server),
            source: StreamError::of_http1(source),
        }
    }
}

impl Carrier for Connection {
    fn last_heard(&self) -> Instant {
        self.received.last()
    }

    fn probing(&self) -> Probing {
        match self.sender {
            Sender::Http2(_) => Probing::Ping,
            Sender::Http1(_) => Probing::None,
        }
    }

    fn distrust(&self) {
        self.state.lock().events.distrusted = true;
        self.close();
        self.changed.notify_one();
    }
}

/// One stream of a connection, reserved until the response's body is dropped.
#[must_use = "dropping it releases the stream"]
pub(super) struct StreamPermit {
    pub(super) connection: Arc<Connection>,
    /// The request is a probe of whether the server accepts the client's credentials.
    pub(super) probe: Option<Arc<()>>,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.connection.open.fetch_sub(1, Ordering::AcqRel);
        self.connection.metrics.streams(self.connection.lane).dec();
        self.connection.changed.notify_one();
    }
}
