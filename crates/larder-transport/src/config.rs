//! Settings of the transport.

use std::time::Duration;

use super::{Connector, RateLimit, SetupError};

const SECOND: Duration = Duration::from_secs(1);
/// Shortest of the durations that must pass.
const SHORTEST: Duration = Duration::from_millis(1);
const YEAR: Duration = Duration::from_hours(365 * 24);

/// Settings of a [`Transport`](super::Transport). The defaults suit a node with thousands of watches. No duration may
/// exceed a year; [`connect`](super::connect) refuses settings out of bounds.
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
    /// Time for name resolution, TCP, a proxy, TLS and the server's first SETTINGS together. Defaults to 10 s; at least
    /// 1 ms.
    pub connect_timeout: Duration,
    /// Silence of the peer after which a PING is sent on an HTTP/2 connection. Defaults to 10 s (client-go: 30 s); at
    /// least 1 s. Together with [`keep_alive_timeout`](Self#structfield.keep_alive_timeout), a dead peer is detected
    /// within 15 s.
    pub keep_alive_interval: Duration,
    /// Time without any byte from the peer after a PING until the connection is closed. Defaults to 5 s (client-go:
    /// 15 s); at least 1 s.
    pub keep_alive_timeout: Duration,
    /// Time after which a connection without streams is closed. Defaults to 90 s.
    pub idle_timeout: Duration,
    /// Delay after the first failed attempt to connect; it doubles with each further failure. Defaults to
    /// 100 ms; at least 1 ms.
    pub backoff_base: Duration,
    /// Longest delay between two attempts to connect, before jitter of ±50 %. Defaults to 5 s; at least
    /// 1 ms.
    pub backoff_cap: Duration,
    /// Most streams on one connection, if the server allows as many. Defaults to 100, kube-apiserver's own limit; at
    /// least 1.
    ///
    /// The connection window is this number times the stream window, so unread streams never block the others.
    pub max_streams_per_connection: u32,
    /// Bytes that the server may send ahead on a watch. Defaults to 256 KiB, which is credit and not memory; at
    /// least 1 KiB.
    pub watch_window: u32,
    /// Bytes that the server may send ahead on an ordinary request. Defaults to 1 MiB, the size of a large object; at
    /// least 1 KiB.
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

    /// Checks the bounds of all settings: with others, the transport would loop, or wait forever.
    pub(crate) fn check(&self) -> Result<(), SetupError> {
        let within = |setting, value: Duration, least: Duration| {
            let expected = format!("{least:?} to one year");
            let fits = (least..=YEAR).contains(&value).then_some(());
            fits.ok_or(SetupError::Setting { setting, expected })
        };
        let at_least = |setting, value: u32, least: u32| {
            let expected = format!("{least} or more");
            let fits = (value >= least).then_some(());
            fits.ok_or(SetupError::Setting { setting, expected })
        };
        within("connect_timeout", self.connect_timeout, SHORTEST)?;
        within("keep_alive_interval", self.keep_alive_interval, SECOND)?;
        within("keep_alive_timeout", self.keep_alive_timeout, SECOND)?;
        within("idle_timeout", self.idle_timeout, Duration::ZERO)?;
        within("backoff_base", self.backoff_base, SHORTEST)?;
        within("backoff_cap", self.backoff_cap, SHORTEST)?;
        let interval = self.credentials_check_interval;
        let none = Duration::ZERO;
        within("credentials_check_interval", interval, none)?;
        let streams = self.max_streams_per_connection;
        at_least("max_streams_per_connection", streams, 1)?;
        at_least("watch_window", self.watch_window, 1 << 10)?;
        at_least("request_window", self.request_window, 1 << 10)?;
        Ok(())
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rate_limit: RateLimit::default(),
            connector: Connector::default(),
            connect_timeout: Duration::from_secs(10),
            keep_alive_interval: Duration::from_secs(10),
            keep_alive_timeout: Duration::from_secs(5),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_would_loop_or_wait_forever_are_refused() {
        let error = |config: Config| config.check().unwrap_err().to_string();
        Config::default().check().unwrap();
        let zero = Config::default().keep_alive_interval(Duration::ZERO);
        let expected = "invalid keep_alive_interval: expected 1s to one year";
        assert_eq!(error(zero), expected);
        let endless = Config::default().idle_timeout(Duration::MAX);
        assert_eq!(
            error(endless),
            "invalid idle_timeout: expected 0ns to one year"
        );
        let expected = "invalid backoff_cap: expected 1ms to one year";
        assert_eq!(
            error(Config::default().backoff_cap(Duration::ZERO)),
            expected
        );
        let expected = "invalid max_streams_per_connection: expected 1 or more";
        assert_eq!(
            error(Config::default().max_streams_per_connection(0)),
            expected
        );
    }
}
