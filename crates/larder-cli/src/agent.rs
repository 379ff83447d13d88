//! The running agent: where its root directory is, and what it answers on its socket.

mod client;
mod config;

pub(crate) use self::{client::ask, config::config};
