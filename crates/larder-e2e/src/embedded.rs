//! The embedded API server over TLS on loopback, as strict to nodes as a real one.

use std::{fs, net::SocketAddr, path::PathBuf};

use larder_apiserver::{ApiServer, Authorization, Options, Transport, User};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{Identity, NODE};

/// A server and what its clients need.
#[derive(Debug)]
pub struct EmbeddedServer {
    api: ApiServer,
    address: SocketAddr,
    folder: TempDir,
    /// The task that serves; aborted, it cuts every connection.
    serving: JoinSet<()>,
}

impl EmbeddedServer {
    /// Starts to serve on a free port.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let options = Options {
            authorization: Authorization::Node,
            ..Options::default()
        };
        let mut server = Self {
            api: ApiServer::try_new(options)?,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            folder: TempDir::with_prefix("larder-e2e-")?,
            serving: JoinSet::new(),
        };
        server.serve().await?;
        Ok(server)
    }

    /// Serves on the address of before.
    pub(crate) async fn serve(&mut self) -> anyhow::Result<()> {
        let listener = TcpListener::bind(self.address).await?;
        self.address = listener.local_addr()?;
        let api = self.api.clone();
        self.serving.spawn(async move {
            api.serve(listener, Transport::Tls, CancellationToken::new())
                .await
                .expect("the listener is bound and the certificates are made");
        });
        Ok(())
    }

    /// Ends all connections as a crash would.
    pub(crate) async fn kill(&mut self) {
        self.serving.shutdown().await;
    }

    pub(crate) fn kubeconfig(&self, identity: Identity) -> anyhow::Result<PathBuf> {
        let user = match identity {
            Identity::Admin => User::admin(),
            Identity::Node => User {
                name: format!("system:node:{NODE}"),
                groups: vec!["system:nodes".to_owned()],
            },
        };
        let path = self.folder.path().join(format!("{identity:?}.kubeconfig"));
        fs::write(&path, self.api.kubeconfig(self.address, user)?)?;
        Ok(path)
    }
}
