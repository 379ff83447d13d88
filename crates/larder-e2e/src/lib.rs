//! End-to-end tests that run on either API server: the embedded one over TLS, or a real kube-apiserver.
//!
//! With `KUBEBUILDER_ASSETS` set to a folder that holds `etcd` and `kube-apiserver` (the variable that Go's envtest
//! uses), the suite starts these; otherwise it starts the embedded server. The tests do not know which one they talk
//! to.

mod busy;
pub mod corpus;
mod embedded;
pub mod fake_kubelet;
pub mod figures;
pub mod node;
mod proxy;
mod real;
mod server;

pub use embedded::EmbeddedServer;
pub use proxy::Proxy;
pub use real::{RealServer, StatusPatch};
pub use server::{Identity, NODE, NodeRequest, Server};
