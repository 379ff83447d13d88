//! End-to-end tests that run on either API server: the embedded one over TLS, or a real kube-apiserver.
//!
//! With `KUBEBUILDER_ASSETS` (the variable of Go's envtest) set to a directory with `etcd` and `kube-apiserver`, the
//! suite starts these; otherwise it starts the embedded server. The tests are the same for both.

mod address;
mod binaries;
mod busy;
mod client;
pub mod deploy;
mod embedded;
pub mod fake_kubelet;
pub mod figures;
mod hung_fs;
mod node_authorizer;
pub mod pods;
pub mod process;
mod proxy;
mod real;
mod root_dir;
mod rounds;
mod scratch_dir;
mod server;
pub mod situations;

pub use address::{own_address, reserved_port};
pub use binaries::{Binaries, UnmetRequirement};
pub use client::{Identity, NODE, NodeRequest};
pub use embedded::EmbeddedServer;
pub use hung_fs::HungFs;
pub use node_authorizer::NodeAuthorizer;
pub use proxy::Proxy;
pub use real::{RealServer, StatusPatch};
pub use root_dir::{Files, pod_files, reboot};
pub use rounds::rounds;
pub use scratch_dir::ScratchDir;
pub use server::Server;
