//! The built `larder run` as a node, against either API server: the embedded one over TLS, or with `KUBEBUILDER_ASSETS`
//! a real one.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod agent;
mod disk;
mod expected;
mod identity;
mod on_change;
mod soak;
mod world;
