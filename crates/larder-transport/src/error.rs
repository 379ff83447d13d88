//! Why a transport cannot be set up, a connection not opened, or a request not answered.
//!
//! Invariant: no error, its causes and their `Debug` included, quotes a credential, a file or what the peer has sent.
//! The peer knows our token, so a GOAWAY may echo it. Errors of h2 and hyper are therefore replaced by [`StreamError`].

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use crate::credentials::{KubeconfigError, PluginError};

/// Why a transport cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The kubeconfig file is unreadable, or names no usable cluster or context.
    #[error("failed to load kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The problem.
        source: KubeconfigError,
    },
    /// This process does not run in a pod: a variable that every container has is not set.
    #[error("not running in a pod: {variable} is not set")]
    NotInCluster {
        /// The variable.
        variable: &'static str,
    },
    /// The API server's URL has no host, or neither `http` nor `https` as scheme.
    #[error("unsupported server URL {url}: expected http[s]://HOST[:PORT]")]
    Url {
        /// Scheme, host and port, as far as it has them.
        url: String,
    },
    /// The port in the API server's URL, `server` of the kubeconfig's cluster, is none.
    #[error("invalid port in server {url}: expected 1 to 65535")]
    Port {
        /// Scheme, host and port.
        url: String,
    },
    /// The kubeconfig or the environment asks for an unsupported proxy.
    #[error("unsupported proxy {url}: expected http://[USER:PASSWORD@]HOST:PORT")]
    Proxy {
        /// The proxy, without user and password.
        url: String,
    },
    /// A credential file cannot be read.
    #[error("failed to read the {part} from {}", path.display())]
    Unreadable {
        /// The text that was read.
        part: Part,
        /// The file.
        path: PathBuf,
        /// Why; never the content.
        source: io::Error,
    },
    /// A part of the credentials is unusable.
    #[error("invalid {part}: {problem}")]
    Invalid {
        /// The part.
        part: Part,
        /// The problem; never the content.
        problem: &'static str,
    },
    /// `tls-server-name` or the host is not a name that a certificate can have.
    #[error("tls-server-name or the server's host is not a name that a certificate can have")]
    ServerName,
    /// No authority is configured, and those of the system are unusable.
    #[error("failed to load the system's certificate authorities")]
    SystemAuthorities,
    /// The exec plugin gave no credentials.
    #[error("exec plugin {name} gave no credentials")]
    Plugin {
        /// Name of its command, without directory and arguments.
        name: String,
        /// Why.
        source: PluginError,
    },
    /// The kubeconfig asks for an auth provider. Kubernetes has replaced these by exec plugins.
    #[error("auth provider {provider} is not supported: configure an exec plugin")]
    Provider {
        /// The provider.
        provider: &'static str,
    },
    /// Reading the credentials panicked, or the runtime is shutting down.
    #[error("reading the credentials was interrupted")]
    Interrupted,
}

impl SetupError {
    /// A credential file does not exist.
    pub(crate) fn is_missing_file(&self) -> bool {
        matches!(self, Self::Unreadable { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// A part of the credentials, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// A bearer token.
    Token,
    /// User and password.
    Password,
    /// The client's certificate.
    ClientCertificate,
    /// The client's private key.
    ClientKey,
    /// The certificates of the authorities.
    Authority,
    /// The user to impersonate.
    Impersonation,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Token => "token",
            Self::Password => "password",
            Self::ClientCertificate => "client certificate",
            Self::ClientKey => "client key",
            Self::Authority => "certificate authority",
            Self::Impersonation => "impersonated user",
        })
    }
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
        /// The last address tried.
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
