//! The running agent: its root directory, and its responses on the socket there.
//!
//! Invariant: a response is used only if this user or root runs the agent, because `larder exec` runs commands named in
//! it.

mod client;
mod config;
mod root_dir;

pub(crate) use self::{
    client::{AgentClient, NotListening},
    config::{
        client_config, cluster_id, config, config_with, connect, default_namespace, load_config,
        origin,
    },
};
