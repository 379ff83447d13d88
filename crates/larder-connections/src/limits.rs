//! The limits of a server for its clients.

use std::time::Duration;

use rustix::process;

/// Time between the end of a request and the next complete head.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Time for which a write may wait for the client to read, or to open its window of HTTP/2: the request timeout of
/// kube-apiserver.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_mins(1);
/// Requests in flight on an HTTP/2 connection.
pub(crate) const MAX_CONCURRENT_STREAMS: u32 = 100;

/// What a server allows its clients.
///
/// Defaults, and the constants of this module, are kube-apiserver's where it has one: kube-apiserver 1.36,
/// `staging/src/k8s.io/apiserver/pkg/server/secure_serving.go`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionLimits {
    /// Most connections at a time, at least 2. `None`, the default: the soft limit of file descriptors less a quarter
    /// (at least 32), which stay for the rest of the process.
    pub max_connections: Option<usize>,
    /// Time from accepting a connection to its first complete request head, TLS handshake included. Defaults to 32 s.
    pub head_timeout: Duration,
    /// Time for which a connection may have requests in flight without a pause. `None`, the default, is for servers
    /// with watches. A server of short answers needs it against clients that request and never read.
    pub response_timeout: Option<Duration>,
    /// Whether clients may speak HTTP/2. By default they may. A server of short answers needs one request at a time:
    /// over HTTP/2 a client may have many answered, and take none.
    pub http2: bool,
    /// Bytes of a request head. Defaults to 128 KiB; kube-apiserver takes 1 MiB, before authentication too.
    pub max_head_bytes: u32,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max_connections: None,
            head_timeout: Duration::from_secs(32),
            response_timeout: None,
            http2: true,
            max_head_bytes: 128 << 10,
        }
    }
}

/// One method for each field, which it sets. For the crates of this workspace.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($field:ident: $type:ty)+) => {
        $(
            #[doc = concat!("Sets [`Self::", stringify!($field), "`].")]
            #[must_use]
            pub fn $field(mut self, $field: $type) -> Self {
                self.$field = $field.into();
                self
            }
        )+
    };
}

impl ConnectionLimits {
    setters! {
        max_connections: usize
        head_timeout: Duration
        response_timeout: Duration
        max_head_bytes: u32
    }

    /// Lets clients speak HTTP/1.1 only.
    #[must_use]
    pub fn http1_only(mut self) -> Self {
        self.http2 = false;
        self
    }

    /// The number of connections that the limits come to in this process.
    pub(crate) fn connections(&self) -> usize {
        let connections = self.max_connections.unwrap_or_else(|| {
            let soft = process::getrlimit(process::Resource::Nofile)
                .current
                .map_or(MAX_CONNECTIONS, |soft| {
                    usize::try_from(soft).unwrap_or(MAX_CONNECTIONS)
                });
            soft.saturating_sub((soft / 4).max(MIN_RESERVE))
                .min(MAX_CONNECTIONS)
        });
        // One is always held for the next client.
        connections.max(2)
    }
}

/// Descriptors that stay for the rest of the process, whatever its limit.
const MIN_RESERVE: usize = 32;
/// Most connections by default: a bound on memory where descriptors are not scarce.
const MAX_CONNECTIONS: usize = 16_384;

/// Raises the soft limit of open files of this process to its hard limit and returns it, as Go's runtime does at
/// startup. A limit that cannot be raised stays.
pub fn raise_descriptor_limit() -> Option<u64> {
    let mut limit = process::getrlimit(process::Resource::Nofile);
    let soft = limit.current;
    limit.current = limit.maximum;
    match process::setrlimit(process::Resource::Nofile, limit) {
        Ok(()) => limit.current,
        Err(error) => {
            tracing::warn!(%error, "failed to raise the limit of open files, keeping it");
            soft
        }
    }
}
