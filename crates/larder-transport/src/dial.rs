//! Opening one connection: name, TCP, the proxy's tunnel, TLS, then HTTP/2 up to the server's first SETTINGS, or
//! HTTP/1.1.
//!
//! SETTINGS hold the number of streams that the server allows, which must be known before the first one is opened. A
//! server sends them right after the TLS handshake, so waiting for them costs little.

use std::{fmt, future::poll_fn, io, pin::Pin, sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::Full;
use larder_net::{
    connect::{ConnectFailure, connect},
    http1,
    io::{Io, Received, Stream},
    lookup::lookup,
    tls_words::in_words,
};
use rustls::ClientConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::{Config, ConnectError, Lane, StreamError, endpoint::Endpoint};

/// How the byte streams below TLS and HTTP are opened: over TCP, or by a function (a Unix socket, a tunnel, a simulated
/// network).
///
/// ```
/// use larder_transport::{Config, Connector};
///
/// let connector = Connector::new(|_host, _port| tokio::net::UnixStream::connect("/run/apiserver.sock"));
/// let config = Config::default().connector(connector);
/// # drop(config);
/// ```
#[derive(Clone, Default)]
pub struct Connector(Option<Arc<Open>>);

type Open = dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Box<dyn Stream>>> + Send + Sync;

impl Connector {
    /// Opens streams with `open`, which gets host and port from the URL of the server, or of the proxy before it.
    ///
    /// Over HTTP/2, a dead peer is detected as over TCP. HTTP/1.1 has no PING, so the stream must fail by itself when
    /// the peer is dead. Errors of `open` reach the log.
    pub fn new<S, F>(open: impl Fn(String, u16) -> F + Send + Sync + 'static) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
    {
        Self(Some(Arc::new(move |host, port| {
            let stream = open(host, port);
            Box::pin(async { Ok(Box::new(stream.await?) as Box<dyn Stream>) })
        })))
    }

    async fn open(
        &self,
        host: &str,
        port: u16,
        config: &Config,
    ) -> Result<Box<dyn Stream>, ConnectError> {
        let Some(open) = &self.0 else {
            let tcp = connect_to(host, port).await?;
            keep_tcp_alive(&tcp, config);
            return Ok(Box::new(tcp));
        };
        let opened = open(host.to_owned(), port).await;
        let host = host.to_owned();
        opened.map_err(|source| ConnectError::Stream { host, port, source })
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            None => "Tcp",
            Some(_) => "Function",
        })
    }
}

/// A connection that is ready for its first stream and not yet driven by a task.
pub(super) enum Dialed {
    Http2 {
        sender: h2::client::SendRequest<Bytes>,
        driver: Box<h2::client::Connection<Io<Box<dyn Stream>>, Bytes>>,
        received: Received,
    },
    Http1 {
        sender: http1::Sender<Full<Bytes>>,
        driver: Box<http1::Connection<Box<dyn Stream>, Full<Bytes>>>,
        received: Received,
    },
}

/// A connection that was opened for the pool.
pub(super) struct NewConnection {
    pub(super) dialed: Dialed,
    /// The generation of the credentials of its handshake.
    pub(super) handshake: u64,
}

/// Opens a connection to `server` for `lane`.
pub(super) async fn dial(
    server: Arc<Endpoint>,
    tls: Arc<ClientConfig>,
    config: Arc<Config>,
    lane: Lane,
) -> Result<Dialed, ConnectError> {
    let waited = config.connect_timeout;
    let steps = async {
        let (stream, is_http2) = tunnel(&server, tls, &config).await?;
        if is_http2 || server.tls_name.is_none() && config.http2_prior_knowledge {
            start_http2(stream, &config, lane).await
        } else {
            start_http1(stream).await
        }
    };
    tokio::time::timeout(waited, steps)
        .await
        .unwrap_or(Err(ConnectError::Timeout { waited }))
}

/// Opens a byte stream to `server`, through the proxy before it, with TLS if the server has that. Returns whether TLS has
/// agreed on HTTP/2.
pub(super) async fn tunnel(
    server: &Endpoint,
    tls: Arc<ClientConfig>,
    config: &Config,
) -> Result<(Box<dyn Stream>, bool), ConnectError> {
    let mut stream = first_hop(server, config).await?;
    if let Some(proxy) = &server.proxy {
        proxy.tunnel(&mut stream, &server.name).await?;
    }
    let Some(name) = &server.tls_name else {
        return Ok((stream, false));
    };
    let secured = TlsConnector::from(tls)
        .connect(name.clone(), stream)
        .await
        .map_err(|error| ConnectError::Tls(in_words(error)))?;
    let is_http2 = secured.get_ref().1.alpn_protocol() == Some(b"h2");
    Ok((Box::new(secured), is_http2))
}

/// Opens a byte stream to `server`, or to the proxy before it.
pub(super) async fn first_hop(
    server: &Endpoint,
    config: &Config,
) -> Result<Box<dyn Stream>, ConnectError> {
    let (host, port) = match &server.proxy {
        None => (&server.host, server.port),
        Some(proxy) => (&proxy.host, proxy.port),
    };
    config.connector.open(host, port, config).await
}

/// Connects to the host's address that answers first. The caller limits the time.
async fn connect_to(host: &str, port: u16) -> Result<TcpStream, ConnectError> {
    let resolve = |source| ConnectError::Resolve {
        host: host.to_owned(),
        source,
    };
    let addresses = lookup(host, port).await.map_err(resolve)?;
    let no_address = || resolve(io::Error::new(io::ErrorKind::NotFound, "no address"));
    let connected = connect(&addresses).await.ok_or_else(no_address)?;
    connected.map_err(|ConnectFailure { address, source }| ConnectError::Tcp { address, source })
}

/// Lets the kernel detect a dead peer within the time that PINGs take. HTTP/1.1 has no other means.
fn keep_tcp_alive(tcp: &TcpStream, config: &Config) {
    use rustix::net::sockopt;
    const PROBES: u32 = 3;
    let second = Duration::from_secs(1);
    let patience = config.keep_alive_interval + config.keep_alive_timeout;
    let set = || -> rustix::io::Result<()> {
        sockopt::set_tcp_nodelay(tcp, true)?;
        sockopt::set_socket_keepalive(tcp, true)?;
        sockopt::set_tcp_keepidle(tcp, config.keep_alive_interval.max(second))?;
        sockopt::set_tcp_keepintvl(tcp, (config.keep_alive_timeout / PROBES).max(second))?;
        sockopt::set_tcp_keepcnt(tcp, PROBES)?;
        sockopt::set_tcp_user_timeout(tcp, u32::try_from(patience.as_millis()).unwrap_or(u32::MAX))
    };
    if let Err(error) = set() {
        tracing::debug!(%error, "failed to set TCP keep-alive");
    }
}

pub(super) async fn start_http2(
    stream: Box<dyn Stream>,
    config: &Config,
    lane: Lane,
) -> Result<Dialed, ConnectError> {
    /// What h2 reports until the server's SETTINGS arrive. A server that allows no streams is useless and runs into the
    /// timeout.
    const NO_SETTINGS_YET: usize = 0;
    /// Largest head of a response. Those of an API server have some hundred bytes.
    const MAX_HEADER_BYTES: u32 = 64 << 10;
    const LARGEST_WINDOW: u32 = (1 << 31) - 1;

    let window = match lane {
        Lane::Watch => config.watch_window,
        Lane::Request => config.request_window,
    }
    .min(LARGEST_WINDOW);
    let whole = window
        .saturating_mul(config.max_streams_per_connection)
        .min(LARGEST_WINDOW);
    let received = Received::default();
    let io = Io::http2(stream, received.clone());
    let (sender, mut driver) = h2::client::Builder::new()
        .enable_push(false)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_max_send_streams(NO_SETTINGS_YET)
        .initial_window_size(window)
        .initial_connection_window_size(whole)
        .handshake(io)
        .await
        .map_err(|error| ConnectError::Http(StreamError::of_http2(error)))?;
    poll_fn(|cx| match Pin::new(&mut driver).poll(cx) {
        _ if driver.max_concurrent_send_streams() != NO_SETTINGS_YET => Poll::Ready(Ok(())),
        Poll::Ready(Ok(())) => Poll::Ready(Err(ConnectError::Http(StreamError::Incomplete))),
        Poll::Ready(Err(error)) => {
            Poll::Ready(Err(ConnectError::Http(StreamError::of_http2(error))))
        }
        Poll::Pending => Poll::Pending,
    })
    .await?;
    Ok(Dialed::Http2 {
        sender,
        driver: Box::new(driver),
        received,
    })
}

async fn start_http1(stream: Box<dyn Stream>) -> Result<Dialed, ConnectError> {
    let received = Received::default();
    let (sender, driver) = http1::handshake(stream, received.clone())
        .await
        .map_err(|error| ConnectError::Http(StreamError::of_http1(error)))?;
    Ok(Dialed::Http1 {
        sender,
        driver: Box::new(driver),
        received,
    })
}
