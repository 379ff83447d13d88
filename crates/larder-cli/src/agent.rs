//! The running agent: its root directory, and its answers on the socket in it.
//!
//! Invariant: an answer is used only if this user or root runs the agent. `larder exec` runs commands that an answer
//! names.

mod client;
mod config;
mod root_dir;

pub(crate) use self::{
    client::{AgentClient, NotListening},
    config::{client_config, cluster_id, config, config_with, origin, reloaded_config},
};
