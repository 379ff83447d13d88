//! Errors of opening connections and of requests.
//!
//! Invariant: no error, its causes and their `Debug` included, quotes a credential, a file or data that the peer has
//! sent. The peer knows our token, so a GOAWAY may echo it. Errors of h2 and hyper are therefore replaced by
//! [`StreamError`].

use std::{io, sync::Arc, time::Duration};

use crate::setup_error::SetupError;

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
    /// The peer did not answer a PING, and sent nothing else either.
    #[error("connection to {server} is dead: nothing received for {waited:?} after a PING")]
    Dead {
        /// Host and port.
        server: Arc<str>,
        /// Time since the PING.
        waited: Duration,
    },
    /// A stream or its connection broke.
    #[error("connection to {server} broke")]
    Broken {
        /// Host and port.
        server: Arc<str>,
        /// How.
        source: StreamError,
    },
    /// The API server kept refusing the stream before processing it.
    #[error("{server} refused the request {attempts} times")]
    Refused {
        /// Host and port.
        server: Arc<str>,
        /// Number of attempts.
        attempts: u32,
    },
    /// The API server has just answered 401 to another request with the same credentials. The next request goes out
    /// after a pause, or with new credentials.
    #[error("{server} does not accept {credentials} (401)")]
    Unauthorized {
        /// Host and port.
        server: Arc<str>,
        /// The client's credential and its source; never its content.
        credentials: Arc<str>,
        /// Why the credentials were not renewed, if the last attempt failed.
        source: Option<Arc<SetupError>>,
    },
    /// The client's first credentials are not there: a plugin or a file takes long, or fails.
    #[error("no credentials for {server} yet ({credentials})")]
    NoCredentials {
        /// Host and port.
        server: Arc<str>,
        /// The client's credential and its source; never its content.
        credentials: Arc<str>,
        /// Why they were not loaded, if the last attempt failed.
        source: Option<Arc<SetupError>>,
    },
    /// The body of the request could not be read.
    #[error("failed to read the request body")]
    RequestBody,
    /// The transport is gone.
    #[error("the transport has shut down")]
    Closed,
}

impl Error {
    /// Whether the same request may succeed later without any change.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Self::RequestBody | Self::Closed)
    }

    /// Whether the API server does not accept the client's credentials.
    pub fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Unauthorized { .. })
    }
}

/// How a stream or its connection broke.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The API server reset the stream.
    #[error("the API server reset the stream: {reason}")]
    Reset {
        /// Name of the error code in HTTP/2.
        reason: &'static str,
    },
    /// The API server closed the connection with a GOAWAY.
    #[error("the API server closed the connection: {reason}")]
    GoAway {
        /// Name of the error code in HTTP/2.
        reason: &'static str,
    },
    /// The API server violates the protocol, or a limit for headers.
    #[error("HTTP protocol error: {reason}")]
    Protocol {
        /// The violated rule.
        reason: &'static str,
    },
    /// The connection ended before the response did.
    #[error("the connection ended before the response did")]
    Incomplete,
    /// The byte stream failed: TCP or TLS.
    #[error("the byte stream failed")]
    Io(#[source] Arc<io::Error>),
}

/// Inherent, since a `From` of a foreign error would make its crate part of this one's API.
impl StreamError {
    pub(crate) fn of_http2(error: h2::Error) -> Self {
        let reason = error.reason().map_or("no code", name);
        if error.is_remote() && error.is_go_away() {
            Self::GoAway { reason }
        } else if error.is_remote() && error.is_reset() {
            Self::Reset { reason }
        } else if error.is_io() {
            error
                .into_io()
                .map_or(Self::Incomplete, |error| Self::Io(Arc::new(error)))
        } else {
            Self::Protocol { reason }
        }
    }

    pub(crate) fn of_http1(error: hyper::Error) -> Self {
        if error.is_parse_too_large() {
            return Self::Protocol {
                reason: "the head of the response is too large",
            };
        }
        if error.is_parse() {
            return Self::Protocol {
                reason: "malformed HTTP/1.1 message",
            };
        }
        let source = std::error::Error::source(&error);
        match source.and_then(|source| source.downcast_ref::<io::Error>()) {
            // It cannot be taken out of hyper's error. Its text comes from the system or from rustls.
            Some(error) => {
                let text = error.to_string();
                Self::Io(Arc::new(io::Error::new(error.kind(), text)))
            }
            None => Self::Incomplete,
        }
    }
}

/// Name of an error code (RFC 9113, section 7).
fn name(reason: h2::Reason) -> &'static str {
    const NAMES: [&str; 14] = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    ];
    let code = usize::try_from(u32::from(reason)).unwrap_or(usize::MAX);
    NAMES.get(code).unwrap_or(&"unknown code")
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
        /// The first address that failed.
        address: std::net::SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The proxy refuses to open a tunnel.
    #[error("proxy {proxy} refused the connection with status {status}")]
    ProxyRefused {
        /// Host and port of the proxy.
        proxy: String,
        /// Code of its answer.
        status: u16,
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
    /// The TLS handshake failed: unknown authority, wrong name, expired or rejected certificate.
    #[error("TLS handshake failed")]
    Tls(#[source] io::Error),
    /// HTTP did not start.
    #[error("HTTP handshake failed")]
    Http(#[source] StreamError),
    /// It took too long.
    #[error("no connection after {waited:?}")]
    Timeout {
        /// Duration of the attempt.
        waited: Duration,
    },
}

impl ConnectError {
    /// Whether time ran out, as opposed to a refusal.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. })
    }
}
