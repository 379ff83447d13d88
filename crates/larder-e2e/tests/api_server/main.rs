//! The same tests on the embedded and on a real API server: managers, the whole agent, roles, outages, recorded answers.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod conformance;
mod connect;
mod deploy;
mod managers;
mod mirror_pods;
mod offline;
mod outages;
mod policies;
mod rbac;
mod static_pods;
mod transport;
