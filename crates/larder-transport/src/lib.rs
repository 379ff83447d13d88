//! A `kube::Client` over several HTTP/2 connections to the API server.
//!
//! A node watches hundreds of objects, each with a request of its own. kube's own transport opens a connection for each
//! of them. A shared HTTP/2 pool would queue at the 100 streams that the API server allows per connection. This
//! transport counts streams against the server's limit and opens another connection when they are used up.
//!
//! ```text
//! kube::Client ─► base URL, headers ─► Transport ─► rate limit ─► Pool ─► Connection ─► stream
//!                 (layers of kube)                  (not watches)  (worker)  (driver)
//! ```
//!
//! - Ordinary requests have their own connection and never wait behind watches.
//! - After a GOAWAY, new streams use another connection, and existing streams continue. Requests that the server has
//!   not processed are sent again.
//! - PINGs detect a dead peer within 15 s; see [`Config`] for this and all other times.
//! - Each stream has its own window, and the connection's window covers all of them, so an unread stream stops only
//!   itself.
//! - New connections use renewed client certificates, and new requests use renewed tokens; see [`ClusterSource`]. After a 401,
//!   one request is sent as a probe, and the others share its outcome.
//! - A tunnel leads through the HTTP proxy from the kubeconfig or the environment.
//! - Servers without HTTP/2 get HTTP/1.1, with one connection per request in flight.
//! - [`path`] builds the paths of requests, with every name escaped.
//!
//! Features: `client`, on by default, is the transport itself. Without it, only [`path`], [`TokenBucket`], [`Backoff`]
//! and [`OwnRateLimit`] remain, which need few dependencies.
//!
//! h2 is used directly, without hyper's client on top. Its errors identify the streams that were not processed, and a
//! stream needs no task or channel, which keeps a watch well under 2 KiB.
//!
//! Invariants:
//! 1. One worker task per transport owns everything that runs. It ends with the last [`Transport`], client and response
//!    body.
//! 2. Credentials reach no log, no error and no `Debug`. Neither does any text that may quote them, such as a parser's
//!    message or what the peer has sent.

#[macro_use]
mod setters;

#[cfg(feature = "client")]
mod access;
mod backoff;
#[doc(hidden)]
pub mod blocking;
#[cfg(feature = "client")]
mod body;
mod bucket;
#[cfg(feature = "client")]
mod config;
#[cfg(feature = "client")]
mod connect_backoff;
#[cfg(feature = "client")]
mod connection;
#[cfg(feature = "client")]
mod credentials;
#[cfg(feature = "client")]
mod dial;
#[cfg(feature = "client")]
mod endpoint;
#[cfg(feature = "client")]
mod error;
#[cfg(feature = "client")]
#[doc(hidden)]
pub mod http_client;
mod link;
#[cfg(feature = "client")]
mod metrics;
mod own_rate_limit;
pub mod path;
#[cfg(feature = "client")]
mod pool;
#[cfg(feature = "client")]
mod proxy;
#[cfg(feature = "client")]
mod rate_limit;
#[cfg(feature = "metrics")]
#[doc(hidden)]
pub mod registrar;
#[cfg(feature = "client")]
mod setup_error;
#[cfg(feature = "client")]
mod transport;

pub use backoff::Backoff;
pub use bucket::TokenBucket;
pub use link::{Carrier, Link, Probing};
pub use own_rate_limit::OwnRateLimit;
#[cfg(feature = "client")]
pub use {
    body::Body,
    config::Config,
    credentials::ClusterSource,
    dial::Connector,
    error::{ConnectError, Error, StreamError},
    metrics::Metrics,
    rate_limit::RateLimit,
    setup_error::{KubeconfigError, PluginError, SetupError},
    transport::{ConnectionStatus, Lane, Protocol, Transport, connect},
};
