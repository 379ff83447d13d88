//! The API server under test.

use std::path::{Path, PathBuf};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{embedded::EmbeddedServer, real::RealServer};

/// The node whose identity the server knows.
pub const NODE: &str = "n0";

/// Who a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// May do everything.
    Admin,
    /// `system:node:n0` of group `system:nodes`.
    Node,
}

/// An API server on loopback, over TLS; dropped, it ends.
#[derive(Debug)]
pub enum Server {
    /// The embedded one, in this process.
    Embedded(EmbeddedServer),
    /// A real kube-apiserver.
    Real(RealServer),
}

impl Server {
    /// Starts the server that the environment asks for, and waits until it answers.
    ///
    /// # Errors
    ///
    /// The server did not start; with the end of its log.
    pub async fn start() -> anyhow::Result<Self> {
        match std::env::var_os("KUBEBUILDER_ASSETS") {
            None => Ok(Self::Embedded(EmbeddedServer::start().await?)),
            Some(assets) => Ok(Self::Real(RealServer::start(Path::new(&assets)).await?)),
        }
    }

    /// File for the clients of `identity`.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn kubeconfig(&self, identity: Identity) -> anyhow::Result<PathBuf> {
        match self {
            Self::Embedded(server) => server.kubeconfig(identity),
            Self::Real(server) => server.kubeconfig(identity),
        }
    }

    /// kube's own client with all rights: the second opinion of every test.
    ///
    /// # Errors
    ///
    /// No configuration could be made.
    pub async fn client(&self) -> anyhow::Result<Client> {
        client(self.kubeconfig(Identity::Admin)?).await
    }

    /// Cuts every connection and stops answering, as a crash does; what is stored stays.
    pub async fn kill(&mut self) {
        match self {
            Self::Embedded(server) => server.kill().await,
            Self::Real(server) => server.kill_apiserver(),
        }
    }

    /// Answers again, on the address of before.
    ///
    /// # Errors
    ///
    /// The server did not start; with the end of its log.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Embedded(server) => server.serve().await,
            Self::Real(server) => server.start_apiserver().await,
        }
    }
}

pub(crate) async fn client(kubeconfig: PathBuf) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // A test wants the first answer, not the one after a retry.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}
