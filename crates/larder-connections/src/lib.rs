//! Internal to larder: its API has no stability.
//!
//! Accepts connections within limits, so that clients that send nothing cannot stop a server.
//!
//! For any HTTP server over TCP or a Unix socket:
//!
//! ```no_run
//! # use larder_connections::{Acceptor, ConnectionLimits};
//! # async fn run<S, B>(listener: tokio::net::TcpListener, service: S, shutdown: tokio_util::sync::CancellationToken)
//! # where
//! #     S: larder_connections::HttpService<B>,
//! #     B: http_body::Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>, Data: Send> + Send + 'static,
//! # {
//! let limits = ConnectionLimits::default().max_connections(64).response_timeout(std::time::Duration::from_secs(30));
//! Acceptor::new(listener, limits).serve(service, shutdown).await; // `service`: an axum::Router, for example
//! # }
//! ```
//!
//! A server with its own handshake (TLS) calls [`Acceptor::serve_with`], one with its own listener
//! [`ConnectionSlots::acquire`], and both [`ConnectionSlot::serve`] for each connection.
//!
//! Invariants:
//! 1. No more than [`ConnectionLimits::max_connections`] connections are open; each holds a [`ConnectionSlot`].
//! 2. At that limit a new connection replaces the one that has been idle longest. If many connections have never
//!    completed a request, one of those goes, and else one that is between two requests: clients that send nothing
//!    cannot take the place of others, nor can idle ones keep new ones away. A connection with a request in flight is
//!    never replaced.
//! 3. A request answered with 401 does not count: an unauthenticated client stays among those that have completed none.
//! 4. Every wait for the client ends: for the first request, for the next request, and for the client to read. A stream
//!    of HTTP/2 whose window stays closed ends its connection.
//! 5. A failed accept or a panic of one connection never ends the server, and no failure makes it spin.

mod activity;
mod limits;
mod responses;
mod slots;
mod timed_writes;

use std::{io, time::Duration};

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

pub use self::{
    limits::{ConnectionLimits, raise_descriptor_limit},
    slots::{ConnectionSlot, ConnectionSlots},
};

/// Any error of a body or a service.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How long requests may take to end at shutdown, and after an idle connection was asked to close.
const DRAIN: Duration = Duration::from_secs(5);
/// First and longest pause after a failed accept, as Go's `net/http.Server`.
const ACCEPT_PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// Time after which the kernel probes a silent client: kube-apiserver's `defaultKeepAlivePeriod`.
const KEEP_ALIVE: Duration = Duration::from_mins(3);

/// A service that [`Acceptor`] can serve: any tower service of HTTP, such as an axum router.
pub trait HttpService<B>:
    Service<
        Request<Incoming>,
        Response = Response<B>,
        Error: Into<BoxError>,
        Future: Send + 'static,
    > + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S, B> HttpService<B> for S where
    S: Service<
            Request<Incoming>,
            Response = Response<B>,
            Error: Into<BoxError>,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// A socket on which clients connect.
pub trait Listener: Send + Sync {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection. Cancel safe.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// With TCP_NODELAY and keep-alive set.
impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        set_options(&stream);
        Ok(stream)
    }
}

/// A listener with limits.
#[derive(Debug)]
pub struct Acceptor<L = TcpListener> {
    listener: L,
    slots: ConnectionSlots,
    /// For the next connection. Taken before there is one, so that no accepted stream waits for a slot.
    reserved: Option<ConnectionSlot>,
    /// How long to wait after the next failure.
    pause: Duration,
    /// No accept before this time.
    paused_until: Option<Instant>,
}

impl<L: Listener> Acceptor<L> {
    /// Accepts connections of `listener` within `limits`.
    pub fn new(listener: L, limits: ConnectionLimits) -> Self {
        Self {
            listener,
            slots: ConnectionSlots::new(limits),
            reserved: None,
            pause: ACCEPT_PAUSE.0,
            paused_until: None,
        }
    }

    /// The next connection. Failures to accept are logged and retried.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no connection is lost.
    async fn accept(&mut self) -> (L::Stream, ConnectionSlot) {
        loop {
            if let Some(until) = self.paused_until {
                sleep_until(until).await;
                self.paused_until = None;
            }
            if self.reserved.is_none() {
                self.reserved = Some(self.slots.acquire().await);
            }
            match self.listener.accept().await {
                Ok(stream) => {
                    self.pause = ACCEPT_PAUSE.0;
                    let mut slot = self.reserved.take().expect("reserved above");
                    slot.restart();
                    return (stream, slot);
                }
                // The client's failure, not this process's: the next connection may be fine.
                Err(error) if is_of_client(&error) => {
                    tracing::debug!(%error, "client left before it was accepted");
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection, will retry");
                    // Most often descriptors are exhausted.
                    self.slots.replace_one();
                    self.paused_until = Some(Instant::now() + self.pause);
                    self.pause = (self.pause * 2).min(ACCEPT_PAUSE.1);
                }
            }
        }
    }

    /// Serves `service` in the clear until `shutdown`, then lets requests finish for up to 5 s.
    pub async fn serve<S, B>(self, service: S, shutdown: CancellationToken)
    where
        S: HttpService<B>,
        B: Body<Error: Into<BoxError>, Data: Send> + Send + 'static,
    {
        let serve = |stream, slot: ConnectionSlot| {
            let shutdown = shutdown.clone().cancelled_owned();
            slot.serve(stream, service.clone(), shutdown, std::future::pending())
        };
        self.serve_with(serve, &shutdown).await;
    }

    /// Runs what `serve` returns for each connection until `shutdown`, then lets it finish for up to 5 s.
    pub async fn serve_with<F>(
        mut self,
        serve: impl Fn(L::Stream, ConnectionSlot) -> F,
        shutdown: &CancellationToken,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut connections = JoinSet::new();
        loop {
            // Both `accept` and `join_next` are cancel safe. Biased, so that a seed repeats a simulation.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(ended) = connections.join_next() => log_panic(ended),
                (stream, slot) = self.accept() => {
                    connections.spawn(serve(stream, slot));
                }
            }
        }
        drop(self);
        drain(connections).await;
    }
}

/// Waits up to 5 s for `connections` to end, then cuts them.
async fn drain(mut connections: JoinSet<()>) {
    let drained = timeout(DRAIN, async {
        while let Some(ended) = connections.join_next().await {
            log_panic(ended);
        }
    });
    if drained.await.is_err() {
        tracing::warn!(
            left = connections.len(),
            "connections still open at the shutdown deadline, cutting them"
        );
    }
}

/// A panic while one request is answered ends its connection, not the server: no input of a client may do that.
pub fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        // The panic hook has reported the location.
        tracing::error!("panic while a connection was served, closed it");
    }
}

fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted
    )
}

fn set_options(stream: &TcpStream) {
    // Small frames must not wait for each other: a change is one of them.
    let options = stream.set_nodelay(true).and_then(|()| {
        sockopt::set_socket_keepalive(stream, true)?;
        Ok(sockopt::set_tcp_keepidle(stream, KEEP_ALIVE)?)
    });
    if let Err(error) = options {
        tracing::debug!(%error, "failed to set options of a connection");
    }
}
