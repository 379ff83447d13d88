//! End-to-end tests that run on either API server: the embedded one over TLS, or a real kube-apiserver.
//!
//! With `KUBEBUILDER_ASSETS` (the variable of Go's envtest) set to a folder with `etcd` and `kube-apiserver`, the suite
//! starts these; otherwise it starts the embedded server. The tests are the same for both.

mod busy;
pub mod corpus;
mod embedded;
pub mod fake_kubelet;
pub mod figures;
pub mod node;
pub mod pods;
mod proxy;
mod real;
mod reboot;
mod server;

pub use embedded::EmbeddedServer;
pub use proxy::Proxy;
pub use real::{RealServer, StatusPatch};
pub use reboot::reboot;
pub use server::{Identity, NODE, NodeRequest, Server};
