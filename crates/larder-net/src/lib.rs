//! Internal, no stability. The client's side of HTTP, to servers that may be hostile, and nothing of Kubernetes.
//!
//! ```text
//! URL ─► host and port ─► addresses ─► the first one that answers ─► bounded bytes ─► HTTP
//! url, redirect            lookup       connect                       io               http1
//! http_url
//! ```
//!
//! Every client of the workspace is built on these parts: the transport to the API server, the requests of hooks, the
//! URLs of a sidecar and of static pods. So a bound holds for all of them.
//!
//! Without the feature `client`, only URLs remain.

#[cfg(feature = "client")]
pub mod connect;
#[cfg(feature = "client")]
pub mod http1;
pub mod http_url;
#[cfg(feature = "client")]
pub mod io;
#[cfg(feature = "client")]
pub mod lookup;
pub mod redirect;
#[cfg(feature = "client")]
pub mod tls_words;
pub mod url;
