//! The public interface of the transport: a service that sends requests, and the state of its connections.

use std::{
    fmt,
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
    time::Instant,
};
use tower::ServiceBuilder;
use tower_service::Service;

use crate::{
    Body, ClusterSource, Config, Error, Metrics, OwnRateLimit, SetupError,
    connection::{SendError, StreamPermit},
    credentials::{Credentials, StartedCredentials},
    endpoint::Endpoint,
    pool::{Live, Pool, Reservation},
    rate_limit::Limiter,
};

/// Most times that a request is sent while the server does not process it.
const ATTEMPTS: u32 = 5;

/// Creates a client for the API server of `source`, and the handle to its connections. Nothing is sent yet.
///
/// It waits three seconds for the credentials. If a plugin or a file takes longer, requests wait for them, and fail if they
/// do not come; see [`Transport::loading_since`].
///
/// The client has none of kube's retries and traces: callers know better what to repeat and when.
///
/// # Errors
///
/// The settings or the configuration are unusable. Whether the server can be reached shows in requests only.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), larder_transport::SetupError> {
/// use larder_transport::{Config, Metrics, ClusterSource};
///
/// let source = ClusterSource::Kubeconfig { path: "/etc/larder/kubeconfig".into(), context: None };
/// let (client, transport) = larder_transport::connect(source, Config::default(), Metrics::default()).await?;
/// # drop(client);
/// for connection in transport.connections() {
///     println!("{}: {} of {} streams", connection.id, connection.streams, connection.limit);
/// }
/// # Ok(())
/// # }
/// ```
pub async fn connect(
    source: ClusterSource,
    config: Config,
    metrics: Metrics,
) -> Result<(kube::Client, Transport), SetupError> {
    config.check()?;
    let (settings, started) = Credentials::load(source).await?;
    let endpoint = Endpoint::new(&settings)?;
    // Only what kube's layers need, and no credentials.
    let mut kube_config = kube::Config::new(settings.server);
    kube_config.headers = settings.headers;
    let headers = kube_config
        .extra_headers_layer()
        .expect("without an impersonated user the layer has no value to reject");
    let transport = Transport::start(endpoint, started, config, metrics);
    let service = ServiceBuilder::new()
        .layer(kube_config.base_uri_layer())
        .layer(headers)
        .map_err(tower::BoxError::from)
        .service(transport.clone());
    Ok((kube::Client::new(service, settings.namespace), transport))
}

/// The kind of a request, which decides about its connection.
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
#[non_exhaustive]
pub struct ConnectionStatus {
    /// Number of the connection, from 1 in the order in which they were opened.
    pub id: u64,
    /// The requests that it is used for.
    pub lane: Lane,
    /// Its protocol.
    pub protocol: Protocol,
    /// Requests under way, watches included.
    pub streams: usize,
    /// Most requests at once.
    pub limit: usize,
    /// It takes no new requests and ends with those it has.
    pub closing: bool,
}

/// Handle to the connections of one API server, and a service that sends requests over them. Clones share all state.
///
/// Requests must carry an absolute URL, which `kube::Client` sees to. Their bodies are sent from memory.
#[derive(Clone, Debug)]
pub struct Transport {
    handle: Handle,
}

/// Keeps the worker running.
pub(crate) type Handle = Arc<TransportInner>;

pub(crate) struct TransportInner {
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

impl fmt::Debug for TransportInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.server)
    }
}

impl Transport {
    fn start(
        server: Endpoint,
        started: StartedCredentials,
        config: Config,
        metrics: Metrics,
    ) -> Self {
        // Unbounded: every entry belongs to a request that waits for it.
        let (reservations, requests) = mpsc::unbounded_channel();
        let live = Live::default();
        let name = Arc::clone(&server.name);
        let credentials = Arc::clone(&started.credentials);
        let limiter = Limiter::new(config.rate_limit);
        let user_agent = HeaderValue::try_from(&config.user_agent).ok();
        let pool = Pool::new(
            server,
            Arc::new(config),
            started,
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

    /// Since when the first credentials are loading, if they are not there yet: a plugin or a file takes long, or fails.
    pub fn loading_since(&self) -> Option<Instant> {
        self.handle
            .credentials
            .loading()
            .map(|loading| loading.since)
    }

    /// Requests and watches under way on all connections.
    pub fn streams(&self) -> usize {
        let live = self.handle.live.lock();
        live.iter().map(|connection| connection.open()).sum()
    }

    /// Sends a request and waits for the head of the response.
    ///
    /// A request that the server reports as not processed is sent again, up to [`ATTEMPTS`] times in all. A safe
    /// request is also sent again once if its connection broke, as happens when the server closes an idle one.
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
        let is_limited = head.extensions.get::<OwnRateLimit>().is_none();
        if lane == Lane::Request && is_limited && !shared.limiter.acquire().await.is_zero() {
            shared.metrics.throttled_requests.inc();
        }
        let mut broken_before = false;
        for _ in 0..ATTEMPTS {
            let permit = self.reserve(lane).await?;
            // Not earlier: the credentials may be renewed while the request waits.
            let (authorization, generation) = shared.credentials.authorization();
            if let Some(value) = authorization {
                head.headers.insert(AUTHORIZATION, value);
            }
            match permit.send(&head, body.clone(), generation).await {
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

    /// Always ready: each request waits by itself.
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
    fn the_query_decides_about_the_lane() {
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
