//! An embedded Kubernetes API server for the kinds that a node agent needs.
//!
//! Two faces of one server: a [`tower::Service`](tower_service::Service) for `kube::Client::new`, without sockets; or served over
//! TCP and TLS, so that `kubectl` works.
//!
//! Invariants:
//! 1. One store, one version counter; [`Options`] say how much of the past it keeps.
//! 2. A watch gets every change in order or is told, with 410, that it cannot. Nothing is lost silently.
//! 3. What is stored is canonical: of its kind, with known fields only.
//! 4. What is not supported is refused as such (404, 405, 406, 415), never half done.
//! 5. No task runs unless the server is served over TCP; the response of a watch is driven by who reads it.
//!
//! The store holds Secrets as the JSON that clients sent, as an API server without encryption at rest does. It is memory only.
//! Bodies reach no log and no audit record.

mod audit;
mod authorize;
mod clock;
pub mod connections;
mod faults;
mod fill;
mod json;
mod patch;
mod pki;
mod references;
mod resource;
mod rest;
mod selector;
mod serve;
mod server;
mod status;
mod store;
mod tokens;
mod write;

pub use audit::{AuditLog, AuditRecord};
pub use authorize::Authorization;
pub use faults::{Effect, Fault, Faults, Injected, Paused, StreamFault};
pub use fill::Applied;
pub use pki::{TlsError, User};
pub use resource::Kind;
pub use rest::{Body, CertificatesVersions, Cut, Verb};
pub use serve::{ServeError, Transport};
pub use server::{ApiServer, ApiService, Options};
pub use status::{ApiError, Cause};
