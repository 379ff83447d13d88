//! An embedded Kubernetes API server for the kinds that a node agent needs.
//!
//! One server, two ways to reach it: a [`tower::Service`](tower_service::Service) for `kube::Client::new`, without
//! sockets, or TCP and TLS, so that `kubectl` works. `examples/in_memory.rs` shows the first way on one screen.
//!
//! ```
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::{Api, Client};
//! use larder_apiserver::{ApiServer, Options};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = ApiServer::new(Options::default());
//! let maps: Api<ConfigMap> = Api::default_namespaced(Client::new(server.service(), "default"));
//! assert!(maps.list(&Default::default()).await?.items.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! Invariants:
//! 1. One store, one version counter; [`Options`] say how much of the past it keeps.
//! 2. A watch gets every change in order, or ends with 410. No event is lost silently.
//! 3. A stored object is canonical: of its kind, with known fields only.
//! 4. Unsupported requests are rejected (404, 405, 406, 415), never partly served.
//! 5. The server runs no task unless it listens on TCP; reading the response of a watch drives it.
//! 6. No client input takes the server down, and the cost of a request grows no faster than its size.
//!
//! The store is in memory only. It holds Secrets as JSON, as an API server without encryption at rest does. Bodies
//! reach no log and no audit record, and no error quotes a Secret.

mod audit;
mod authorize;
mod clock;
mod cut;
#[cfg(feature = "faults")]
mod faults;
mod fill;
mod json;
mod object;
mod patch;
mod pki;
mod query;
mod request;
mod resource;
mod rest;
mod selector;
mod serve;
mod server;
mod status;
mod store;
mod tokens;
mod unread;
mod versions;
mod write;

pub use audit::{AuditLog, AuditRecord};
pub use authorize::{AllowAll, Attempt, AttemptedUpdate, AttemptedWrite, Authorization, Objects};
pub use cut::Cut;
#[cfg(feature = "faults")]
pub use faults::{Fault, Faults, Injected, Paused};
pub use fill::Applied;
pub use pki::{SetupError, User};
pub use request::Verb;
pub use resource::ApiKind;
pub use rest::Body;
pub use serve::Protocol;
pub use server::{ApiServer, ApiService, Options};
pub use status::{ApiError, Cause};
pub use versions::CertificatesVersions;

/// Any error of a body or a service.
type BoxError = Box<dyn std::error::Error + Send + Sync>;
