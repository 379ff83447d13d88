//! Settings of the transport.

use std::time::Duration;

use super::{Connector, RateLimit};

/// Settings of a [`Transport`](super::Transport). The defaults suit a node with thousands of watches.
///
/// ```
/// use larder_transport::{Config, RateLimit};
///
/// let config = Config::default().rate_limit(RateLimit::Unlimited).user_agent("edge/1.0");
/// # drop(config);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Limit of ordinary requests; watches do not count. Defaults to the kubelet's 50 per second with bursts of 100.
    pub rate_limit: RateLimit,
    /// How the byte streams of connections are opened. Defaults to TCP.
    pub connector: Connector,
    /// Time for name resolution, TCP, a proxy, TLS and the server's first SETTINGS together. Defaults to 10 s.
    pub connect_timeout: Duration,
    /// Time between two PINGs on an HTTP/2 connection. Defaults to 30 s, as in client-go. Together with
    /// [`keep_alive_timeout`](Self#structfield.keep_alive_timeout), a dead peer is detected within 45 s.
    pub keep_alive_interval: Duration,
    /// Time without any byte from the peer after a PING until the connection is closed. Defaults to 15 s.
    pub keep_alive_timeout: Duration,
    /// Time after which a connection without streams is closed. Defaults to 90 s.
    pub idle_timeout: Duration,
    /// Delay after the first failed attempt to connect; it doubles with each further failure. Defaults to 100 ms.
    pub backoff_base: Duration,
    /// Longest delay between two attempts to connect, before jitter of ±50 %. Defaults to 5 s.
    pub backoff_cap: Duration,
    /// Most streams on one connection, if the server allows as many. Defaults to 100, kube-apiserver's own limit.
    ///
    /// The connection window is this number times the stream window, so unread streams never block the others.
    pub max_streams_per_connection: u32,
    /// Bytes that the server may send ahead on a watch. Defaults to 256 KiB, which is credit and not memory.
    pub watch_window: u32,
    /// Bytes that the server may send ahead on an ordinary request. Defaults to 1 MiB, the size of a large object.
    pub request_window: u32,
    /// Shortest time between two checks of the credentials. Defaults to 10 s. After a 401 or a failed TLS handshake,
    /// the next check follows a second later.
    pub credentials_check_interval: Duration,
    /// Speak HTTP/2 over `http://` without negotiation. Defaults to `false`, which means HTTP/1.1. Over TLS, ALPN
    /// decides.
    pub http2_prior_knowledge: bool,
    /// `User-Agent` of requests that have none. Defaults to `larder/VERSION`.
    pub user_agent: String,
    /// Seed of all random delays, so that a test can be repeated. Defaults to a random one.
    pub seed: Option<u64>,
}

impl Config {
    setters! {
        rate_limit: RateLimit
        connector: Connector
        connect_timeout: Duration
        keep_alive_interval: Duration
        keep_alive_timeout: Duration
        idle_timeout: Duration
        backoff_base: Duration
        backoff_cap: Duration
        max_streams_per_connection: u32
        watch_window: u32
        request_window: u32
        credentials_check_interval: Duration
        http2_prior_knowledge: bool
        seed: Option<u64>
    }

    /// Sets [`user_agent`](Self#structfield.user_agent).
    #[must_use]
    pub fn user_agent(mut self, user_agent: impl Into<String>) -> Self {
        self.user_agent = user_agent.into();
        self
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rate_limit: RateLimit::default(),
            connector: Connector::default(),
            connect_timeout: Duration::from_secs(10),
            keep_alive_interval: Duration::from_secs(30),
            keep_alive_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(90),
            backoff_base: Duration::from_millis(100),
            backoff_cap: Duration::from_secs(5),
            max_streams_per_connection: 100,
            watch_window: 256 << 10,
            request_window: 1 << 20,
            credentials_check_interval: Duration::from_secs(10),
            http2_prior_knowledge: false,
            user_agent: concat!("larder/", env!("CARGO_PKG_VERSION")).to_owned(),
            seed: None,
        }
    }
}
