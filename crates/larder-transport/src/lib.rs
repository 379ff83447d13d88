//! The way to the API server: a `kube::Client` over several HTTP/2 connections.
//!
//! A node watches hundreds of objects, each with a request of its own. kube's own transport opens a connection for every
//! one of them; a shared HTTP/2 pool would queue for ever at the 100 streams that the API server allows on a connection.
//! Here streams are counted against the server's limit, and another connection is opened when they are used up.
//!
//! ```text
//! kube::Client ─► base URL, credentials, headers ─► Transport ─► rate limit ─► Pool ─► Connection ─► stream
//!                 (layers of kube)                               (not watches)  (worker)  (driver)
//! ```
//!
//! - Ordinary requests have a connection of their own and never wait behind watches.
//! - A server that takes no more streams on a connection (GOAWAY) is served on another one, and existing streams go on.
//!   Streams that the server has not processed are sent again.
//! - A PING finds out within 45 s that the peer is dead; see [`Config`] for this and all other times.
//! - Each stream has a window of its own, and the connection's window covers all of them: a stream that nobody reads
//!   stops itself, not the others.
//! - Renewed client certificates are used by new connections, and renewed tokens by new requests; see [`Source`]. After an
//!   answer 401 one request goes first, and the others share its outcome.
//! - An HTTP proxy that the kubeconfig or the environment names is asked for a tunnel.
//! - Servers without HTTP/2 get HTTP/1.1, with one connection for each request under way.
//!
//! h2 is used directly, without hyper's client on top: its errors tell which streams were not processed, and no task or
//! channel is needed for a stream, which keeps a watch at well under 2 KiB.
//!
//! One worker task per transport owns everything that runs; it ends with the last [`Transport`], client and response body.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt as _};
use http::{
    HeaderValue, Request, Response, Uri,
    header::{AUTHORIZATION, USER_AGENT},
};
use http_body_util::BodyExt as _;
use kube::client::{Body as RequestBody, ConfigExt as _};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tower::ServiceBuilder;
use tower_service::Service;

mod access;
mod backoff;
mod body;
mod bucket;
mod config;
mod connection;
mod credentials;
mod dial;
mod endpoint;
mod error;
mod metrics;
pub mod path;
mod pool;
mod proxy;
mod rate_limit;

pub use body::Body;
pub use bucket::TokenBucket;
pub use config::Config;
pub use credentials::{KubeconfigError, PluginError, Source};
pub use dial::Connector;
pub use error::{ConnectError, Error, Part, SetupError, StreamError};
pub use metrics::Metrics;
pub use rate_limit::{InvalidRateLimit, RateLimit};

use connection::{SendError, StreamPermit};
use credentials::Credentials;
use endpoint::Endpoint;
use pool::{Live, Pool, Reservation};
use rate_limit::Limiter;

/// How often a request that the server has not processed is sent.
const ATTEMPTS: u32 = 5;

/// Makes a client for the server that `source` names, and the handle to its connections. Nothing is sent yet.
///
/// kube's retries and traces are not in the client: whoever sends knows better what to repeat and when.
///
/// # Errors
///
/// The configuration is unusable. That the server cannot be reached is not an error here; requests tell it.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), larder_transport::SetupError> {
/// use larder_transport::{Config, Metrics, Source};
///
/// let source = Source::Kubeconfig { path: "/etc/larder/kubeconfig".into(), context: None };
/// let (client, transport) = larder_transport::connect(source, Config::default(), Metrics::default()).await?;
/// # drop(client);
/// for connection in transport.connections() {
///     println!("{}: {} of {} streams", connection.id, connection.streams, connection.limit);
/// }
/// # Ok(())
/// # }
/// ```
pub async fn connect(
    source: Source,
    config: Config,
    metrics: Metrics,
) -> Result<(kube::Client, Transport), SetupError> {
    let (settings, credentials) = Credentials::load(source).await?;
    let endpoint = Endpoint::new(&settings)?;
    // Only what kube's layers need, and no credentials.
    let mut kube_config = kube::Config::new(settings.server);
    kube_config.headers = settings.headers;
    let headers = kube_config
        .extra_headers_layer()
        .expect("nobody is impersonated but by the headers that were checked");
    let transport = Transport::start(endpoint, credentials, config, metrics);
    let service = ServiceBuilder::new()
        .layer(kube_config.base_uri_layer())
        .layer(headers)
        .map_err(tower::BoxError::from)
        .service(transport.clone());
    Ok((kube::Client::new(service, settings.namespace), transport))
}

/// What a request is to the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// It stays open: a watch, or a log that is followed.
    Watch,
    /// It ends by itself.
    Request,
}

impl Lane {
    /// `watch` or `request`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Request => "request",
        }
    }

    fn of(uri: &Uri) -> Self {
        let stays_open = uri.query().is_some_and(|query| {
            query.split('&').any(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, "true"));
                matches!(name, "watch" | "follow") && !matches!(value, "false" | "0")
            })
        });
        if stays_open {
            Self::Watch
        } else {
            Self::Request
        }
    }
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/2.
    Http2,
    /// HTTP/1.1.
    Http1,
}

/// One connection at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// Number of the connection, from 1 in the order in which they were opened.
    pub id: u64,
    /// What it is used for.
    pub lane: Lane,
    /// What is spoken on it.
    pub protocol: Protocol,
    /// Requests under way, watches included.
    pub streams: usize,
    /// Most requests that it takes at once.
    pub limit: usize,
    /// It takes no new requests and ends with the ones that it has.
    pub closing: bool,
}

/// Handle to the connections of one API server, and a service that sends requests over them. Clones share everything.
///
/// Requests must carry an absolute URL, which `kube::Client` sees to. Their bodies are sent from memory.
#[derive(Clone, Debug)]
pub struct Transport {
    handle: Handle,
}

/// What keeps the worker running.
type Handle = Arc<TransportInner>;

#[derive(Debug)]
struct TransportInner {
    server: Arc<str>,
    reservations: mpsc::UnboundedSender<Reservation>,
    live: Live,
    limiter: Limiter,
    credentials: Arc<Credentials>,
    user_agent: Option<HeaderValue>,
    metrics: Metrics,
    /// Holds the worker, which is aborted when this is dropped.
    _worker: JoinSet<()>,
}

impl Transport {
    fn start(server: Endpoint, credentials: Credentials, config: Config, metrics: Metrics) -> Self {
        // Not bounded: every entry belongs to a request that waits for it.
        let (reservations, requests) = mpsc::unbounded_channel();
        let live = Live::default();
        let name = Arc::clone(&server.name);
        let limiter = Limiter::new(config.rate_limit);
        let user_agent = HeaderValue::try_from(&config.user_agent).ok();
        let credentials = Arc::new(credentials);
        let pool = Pool::new(
            server,
            Arc::new(config),
            Arc::clone(&credentials),
            metrics.clone(),
            requests,
            Arc::clone(&live),
        );
        let mut worker = JoinSet::new();
        worker.spawn(pool.run());
        Self {
            handle: Arc::new(TransportInner {
                server: name,
                reservations,
                live,
                limiter,
                credentials,
                user_agent,
                metrics,
                _worker: worker,
            }),
        }
    }

    /// `HOST:PORT` of the server.
    pub fn server(&self) -> &str {
        &self.handle.server
    }

    /// The connections that exist now, the oldest first.
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        let live = self.handle.live.lock();
        live.iter()
            .map(|connection| ConnectionStatus {
                id: connection.id,
                lane: connection.lane,
                protocol: connection.protocol(),
                streams: connection.open(),
                limit: connection.limit(),
                closing: connection.is_closing(),
            })
            .collect()
    }

    /// Requests and watches under way on all connections.
    pub fn streams(&self) -> usize {
        let live = self.handle.live.lock();
        live.iter().map(|connection| connection.open()).sum()
    }

    /// Sends a request and waits for the head of the response.
    ///
    /// Sent again, at most [`ATTEMPTS`] times in all, as long as the server says that it has not processed it; and once
    /// if the connection broke under a request that changes nothing, as happens when the server closes an idle one.
    async fn send(self, request: Request<RequestBody>) -> Result<Response<Body>, Error> {
        let shared = &*self.handle;
        let (mut head, body) = request.into_parts();
        if let Some(agent) = &shared.user_agent {
            head.headers
                .entry(USER_AGENT)
                .or_insert_with(|| agent.clone());
        }
        let body: Bytes = body
            .collect()
            .await
            .map_err(|_| Error::RequestBody)?
            .to_bytes();
        let lane = Lane::of(&head.uri);
        if lane == Lane::Request && !shared.limiter.acquire().await.is_zero() {
            shared.metrics.throttled.inc();
        }
        let mut broken_before = false;
        for _ in 0..ATTEMPTS {
            let permit = self.reserve(lane).await?;
            // Not earlier: while the request waited there may have come another.
            if let Some(value) = shared.credentials.authorization() {
                head.headers.insert(AUTHORIZATION, value);
            }
            match permit.send(&head, body.clone()).await {
                Ok(response) => {
                    return Ok(response.map(|body| body.holding(Arc::clone(&self.handle))));
                }
                Err(SendError::Unprocessed) => {
                    shared.metrics.refused_streams.inc();
                }
                Err(SendError::Broken(error)) => {
                    if broken_before || !head.method.is_safe() {
                        return Err(error);
                    }
                    broken_before = true;
                }
            }
        }
        Err(Error::Refused {
            server: Arc::clone(&shared.server),
            attempts: ATTEMPTS,
        })
    }

    async fn reserve(&self, lane: Lane) -> Result<StreamPermit, Error> {
        let (reply, permit) = oneshot::channel();
        self.handle
            .reservations
            .send(Reservation { lane, reply })
            .map_err(|_| Error::Closed)?;
        permit.await.map_err(|_| Error::Closed)?
    }
}

impl Service<Request<RequestBody>> for Transport {
    type Response = Response<Body>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Response, Error>>;

    /// Always ready: requests wait one by one, so that none holds up the others.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        self.clone().send(request).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_open_is_told_from_what_ends() {
        for (uri, lane) in [
            ("/api/v1/pods", Lane::Request),
            ("/api/v1/pods?watch=false", Lane::Request),
            ("/api/v1/pods?watch=0&limit=1", Lane::Request),
            ("/api/v1/pods?labelSelector=watch%3Dtrue", Lane::Request),
            ("/api/v1/pods?limit=1&watch=true", Lane::Watch),
            ("/api/v1/pods?watch=1", Lane::Watch),
            ("/api/v1/pods?watch", Lane::Watch),
            ("/api/v1/namespaces/n/pods/p/log?follow=true", Lane::Watch),
        ] {
            assert_eq!(Lane::of(&uri.parse().unwrap()), lane, "{uri}");
        }
    }
}
