//! The API server under test.

use std::path::Path;

use kube::Client;
use larder_apiserver::{ApiServer, Options};

use crate::real::RealServer;

/// An API server; dropped, it ends.
#[derive(Debug)]
pub enum Server {
    /// The embedded one, in this process.
    Embedded(ApiServer),
    /// A real kube-apiserver.
    Real(RealServer),
}

impl Server {
    /// Starts the server that the environment asks for, and waits until it answers.
    ///
    /// # Errors
    ///
    /// The server did not start, with the end of its log.
    pub async fn start() -> anyhow::Result<Self> {
        match std::env::var_os("KUBEBUILDER_ASSETS") {
            None => Ok(Self::Embedded(ApiServer::new(Options::default()))),
            Some(assets) => Ok(Self::Real(RealServer::start(Path::new(&assets)).await?)),
        }
    }

    /// kube's own client with all rights: the second opinion of every test.
    ///
    /// # Errors
    ///
    /// No configuration could be made.
    pub async fn client(&self) -> anyhow::Result<Client> {
        match self {
            Self::Embedded(server) => Ok(Client::new(server.service(), "default")),
            Self::Real(server) => server.client().await,
        }
    }
}
