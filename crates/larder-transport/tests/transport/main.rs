//! The transport against real servers on loopback: how streams are spread, and what faults do.
//!
//! Times are shortened by configuration and nothing sleeps: tests wait for what they expect to happen.

#![expect(clippy::unwrap_used, reason = "a test panics with what it saw")]

mod certificates;
mod client;
mod credentials;
mod faults;
mod frames;
mod hostile;
mod proxies;
mod server;
mod spread;

use client::{Client, Watch, chain, config, within};
