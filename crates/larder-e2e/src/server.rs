//! The API server under test.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use kube::Client;

use crate::{EmbeddedServer, Identity, NodeRequest, Proxy, RealServer, client::client};

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

    /// Name of the server, for people.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embedded(_) => "the embedded API server",
            Self::Real(_) => "a real kube-apiserver",
        }
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Embedded(server) => server.address,
            Self::Real(server) => server.address(),
        }
    }

    /// File for the clients of `identity`.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn kubeconfig(&self, identity: Identity) -> anyhow::Result<PathBuf> {
        self.kubeconfig_at(identity, self.address())
    }

    /// File for the clients of `identity` that come through `proxy`.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn kubeconfig_through(&self, proxy: &Proxy, identity: Identity) -> anyhow::Result<PathBuf> {
        self.kubeconfig_at(identity, proxy.address())
    }

    fn kubeconfig_at(&self, identity: Identity, address: SocketAddr) -> anyhow::Result<PathBuf> {
        match self {
            Self::Embedded(server) => server.kubeconfig(identity, address),
            Self::Real(server) => server.kubeconfig(identity, address),
        }
    }

    /// kube's own client with all permissions: the second opinion of every test.
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
            Self::Embedded(server) => server.serving.shutdown().await,
            Self::Real(server) => server.kill_apiserver(),
        }
    }

    /// Loses everything that is stored. To be called while it is killed.
    ///
    /// # Errors
    ///
    /// The storage cannot be replaced by an empty one.
    pub fn forget(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Embedded(server) => server.api = server.api.emptied()?,
            Self::Real(server) => server.forget()?,
        }
        Ok(())
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

    /// Forgets all versions but the current ones. A running real API server still has those in its watch cache.
    ///
    /// # Errors
    ///
    /// etcd did not do it.
    pub async fn compact(&self) -> anyhow::Result<()> {
        match self {
            Self::Embedded(server) => server.api.compact(),
            Self::Real(server) => server.compact().await?,
        }
        Ok(())
    }

    /// Answers every request of the node with 429 and `Retry-After: 1`, until [`Self::relax`]. In place of a real
    /// server, another one does so for clients that connect through `proxy`.
    ///
    /// # Errors
    ///
    /// The other server did not start.
    pub async fn throttle(&mut self, proxy: &Proxy) -> anyhow::Result<()> {
        match self {
            Self::Embedded(server) => server.throttle(true),
            Self::Real(server) => proxy.lead_to(server.start_busy().await?),
        }
        Ok(())
    }

    /// Answers as usual again.
    pub fn relax(&self, proxy: &Proxy) {
        match self {
            Self::Embedded(server) => server.throttle(false),
            Self::Real(server) => proxy.lead_to(server.address()),
        }
    }

    /// From now on answers 401 to the node's present credentials, and cuts open connections.
    ///
    /// # Errors
    ///
    /// The real server, which reads its tokens when it starts, did not start again.
    pub async fn expire_credentials(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Embedded(server) => server.expire_credentials(),
            Self::Real(server) => server.expire_credentials().await?,
        }
        Ok(())
    }

    /// Replaces the credentials of the node that its kubeconfig names: a certificate for the embedded server, a token
    /// for the real one.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub fn renew_credentials(&self) -> anyhow::Result<()> {
        match self {
            // Writes the same file.
            Self::Embedded(_) => self.kubeconfig(Identity::Node).map(|_| ()),
            Self::Real(server) => server.renew_credentials(),
        }
    }

    /// The requests of the node so far, oldest first. A real server does not record those with unknown credentials.
    ///
    /// # Errors
    ///
    /// The audit log of the real server cannot be read.
    pub fn node_requests(&self) -> anyhow::Result<Vec<NodeRequest>> {
        match self {
            Self::Embedded(server) => server.node_requests(),
            Self::Real(server) => server.node_requests(),
        }
    }
}
