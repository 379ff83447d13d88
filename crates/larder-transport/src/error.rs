//! What can go wrong between a request and its response.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

/// Why a transport could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The kubeconfig file cannot be read or names no usable cluster, user or context.
    #[error("failed to load kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: kube::config::KubeconfigError,
    },
    /// This process does not run in a pod: a variable that every container has is not set.
    #[error("{variable} is not set, as it is in every pod")]
    NotInCluster {
        /// The variable.
        variable: &'static str,
    },
    /// The service account of this pod is unusable.
    #[error("failed to load the in-cluster configuration")]
    InCluster(#[source] kube::config::KubeconfigError),
    /// The server's URL has no host, or neither `http` nor `https` as scheme.
    #[error("server URL {url} is neither http://HOST nor https://HOST")]
    Url {
        /// The URL.
        url: String,
    },
    /// The kubeconfig or the environment asks for a proxy of a kind that is not spoken.
    #[error("proxy {url} is not supported, only http://[USER:PASSWORD@]HOST:PORT is")]
    Proxy {
        /// The proxy, without user and password.
        url: String,
    },
    /// The file with the bearer token cannot be used.
    #[error("failed to read the token file {}", path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// `tls-server-name` or the host is not a name that a certificate can have.
    #[error("{name:?} is not a valid server name")]
    ServerName {
        /// The name.
        name: String,
        /// Why not.
        source: rustls_pki_types::InvalidDnsNameError,
    },
    /// Certificates or keys are unusable.
    #[error("failed to load the TLS credentials")]
    Tls(#[source] kube::Error),
    /// Token file, exec plugin or auth provider failed.
    #[error("failed to load the user's credentials")]
    Auth(#[source] kube::Error),
    /// The exec plugin or file access panicked.
    #[error("loading credentials was interrupted")]
    Interrupted(#[source] tokio::task::JoinError),
}

/// Why a request got no response, or a response body ended early.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No connection could be opened. The next attempt follows after a back-off; requests wait for its outcome.
    #[error("failed to connect to {server}")]
    Connect {
        /// Host and port.
        server: Arc<str>,
        /// Why.
        source: Arc<ConnectError>,
    },
    /// The peer did not answer a PING, and nothing else came from it either.
    #[error("connection to {server} is dead: nothing received for {waited:?} after a PING")]
    Dead {
        /// Host and port.
        server: Arc<str>,
        /// How long we waited.
        waited: Duration,
    },
    /// An HTTP/2 stream or its connection broke.
    #[error("HTTP/2 stream from {server} broke")]
    Http2 {
        /// Host and port.
        server: Arc<str>,
        /// How.
        source: Arc<h2::Error>,
    },
    /// An HTTP/1.1 connection broke.
    #[error("HTTP/1.1 connection to {server} broke")]
    Http1 {
        /// Host and port.
        server: Arc<str>,
        /// How.
        source: Arc<hyper::Error>,
    },
    /// The server kept refusing the stream before processing it.
    #[error("{server} refused the request {attempts} times")]
    Refused {
        /// Host and port.
        server: Arc<str>,
        /// How often it was sent.
        attempts: u32,
    },
    /// The server has just answered 401 to another request with the same credentials. It is asked again after a pause, or when
    /// there are new credentials.
    #[error("{server} does not accept {credentials} (401)")]
    Unauthorized {
        /// Host and port.
        server: Arc<str>,
        /// What was shown, and where it is from; never what it says.
        credentials: Arc<str>,
        /// Why there are no newer ones, if there is a reason: what the last look at the files found.
        source: Option<Arc<SetupError>>,
    },
    /// The body of the request could not be read.
    #[error("failed to read the request body")]
    RequestBody(#[source] Arc<kube::Error>),
    /// The request cannot be expressed in HTTP.
    #[error("invalid request")]
    InvalidRequest(#[source] Arc<http::Error>),
    /// The transport is gone.
    #[error("the transport has shut down")]
    Closed,
}

impl Error {
    /// Whether the same request may succeed later without any change.
    pub fn is_retryable(&self) -> bool {
        !matches!(
            self,
            Self::RequestBody(_) | Self::InvalidRequest(_) | Self::Closed
        )
    }

    /// Whether the server does not accept our credentials.
    pub fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Unauthorized { .. })
    }

    /// Whether no connection could be opened.
    pub fn is_connect(&self) -> bool {
        matches!(self, Self::Connect { .. })
    }
}

/// Why no connection could be opened, by step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The name has no address.
    #[error("failed to resolve {host}")]
    Resolve {
        /// Host as configured.
        host: String,
        /// Why.
        source: io::Error,
    },
    /// No address accepted the connection.
    #[error("failed to open a TCP connection to {address}")]
    Tcp {
        /// The last address tried.
        address: std::net::SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The proxy does not open a tunnel.
    #[error("proxy {proxy} refused the connection: {status}")]
    ProxyRefused {
        /// Host and port of the proxy.
        proxy: String,
        /// Its answer: code and words.
        status: String,
    },
    /// The proxy broke off, or does not speak HTTP.
    #[error("proxy {proxy} failed to open a tunnel")]
    ProxyBroke {
        /// Host and port of the proxy.
        proxy: String,
        /// How.
        source: io::Error,
    },
    /// The function of a [`Connector`](super::Connector) failed.
    #[error("failed to open a stream to {host}:{port}")]
    Stream {
        /// Host as configured.
        host: String,
        /// Port as configured.
        port: u16,
        /// Why.
        source: io::Error,
    },
    /// The TLS handshake failed: unknown authority, wrong name, expired or refused certificate.
    #[error("TLS handshake failed")]
    Tls(#[source] io::Error),
    /// HTTP/2 did not start.
    #[error("HTTP/2 handshake failed")]
    Http2(#[source] h2::Error),
    /// HTTP/1.1 did not start.
    #[error("HTTP/1.1 handshake failed")]
    Http1(#[source] hyper::Error),
    /// It took too long.
    #[error("no connection after {waited:?}")]
    Timeout {
        /// How long we waited.
        waited: Duration,
    },
}

impl ConnectError {
    /// Whether time ran out, as opposed to a refusal.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }
}
