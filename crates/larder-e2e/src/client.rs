//! Clients of the API server under test, their identities, and the recorded requests of the node's.

use std::path::PathBuf;

use jiff::Timestamp;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use larder_apiserver::AuditRecord;

/// The node whose identity the server knows.
pub const NODE: &str = "n0";

/// The identity of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// May do everything.
    Admin,
    /// `system:node:n0` of group `system:nodes`.
    Node,
}

/// A request that the node has sent, and the server has recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRequest {
    /// When the server recorded it.
    pub at: Timestamp,
    /// `get`, `list`, `watch` and so on.
    pub verb: String,
    /// Path and query of the URL.
    pub uri: String,
}

impl NodeRequest {
    pub(crate) fn of_record(record: &AuditRecord) -> anyhow::Result<Self> {
        Ok(Self {
            at: record.time.parse()?,
            verb: record.verb.to_owned(),
            uri: format!("{}?{}", record.path, record.query),
        })
    }
}

/// kube's own client of `kubeconfig`.
pub(crate) async fn client(kubeconfig: PathBuf) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // A test needs the first answer, not the one after a retry.
    config.default_retry = false;
    // Without this machine's proxy: the server is local.
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}
