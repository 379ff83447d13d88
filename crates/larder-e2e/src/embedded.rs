//! The embedded API server over TLS on loopback, as strict to nodes as a real one.

use std::{fs, net::SocketAddr, path::PathBuf};

use larder_apiserver::{ApiServer, AuditLog, Fault, Options, Protocol, User};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{Identity, NODE, NodeAuthorizer, NodeRequest, reserved_port};

/// A server, and the inputs of its clients.
#[derive(Debug)]
pub struct EmbeddedServer {
    pub(crate) api: ApiServer,
    pub(crate) address: SocketAddr,
    folder: TempDir,
    /// The task that serves; aborted, it cuts every connection.
    pub(crate) serving: JoinSet<()>,
}

impl EmbeddedServer {
    /// Starts to serve on a free port.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let options = Options::default()
            .authorization(NodeAuthorizer)
            .audit(AuditLog::in_memory());
        let mut server = Self {
            api: ApiServer::try_new(options)?,
            address: SocketAddr::from(([127, 0, 0, 1], reserved_port()?)),
            folder: TempDir::with_prefix("larder-e2e-")?,
            serving: JoinSet::new(),
        };
        server.serve().await?;
        Ok(server)
    }

    /// Serves on its address.
    pub(crate) async fn serve(&mut self) -> anyhow::Result<()> {
        let listener = TcpListener::bind(self.address).await?;
        let api = self.api.clone();
        self.serving.spawn(async move {
            api.serve(listener, Protocol::Tls, CancellationToken::new())
                .await
                .expect("the listener is bound and the certificates are made");
        });
        Ok(())
    }

    pub(crate) fn expire_credentials(&self) {
        self.api.revoke(&user(Identity::Node).name);
        self.api.faults().close_connections();
    }

    pub(crate) fn throttle(&self, throttled: bool) {
        self.api.faults().clear();
        if throttled {
            let fault = Fault::on_any().user(&user(Identity::Node).name);
            self.api.faults().inject(fault.retry_after(429, 1));
        }
    }

    pub(crate) fn node_requests(&self) -> anyhow::Result<Vec<NodeRequest>> {
        let mut records = self.api.audit().records();
        // Only the node speaks through larder's transport.
        records.retain(|record| record.user_agent.starts_with("larder/"));
        records.iter().map(NodeRequest::of_record).collect()
    }

    pub(crate) fn kubeconfig(
        &self,
        identity: Identity,
        address: SocketAddr,
    ) -> anyhow::Result<PathBuf> {
        let name = format!("{identity:?}-{}.kubeconfig", address.port());
        let path = self.folder.path().join(name);
        fs::write(&path, self.api.kubeconfig(address, user(identity))?)?;
        Ok(path)
    }
}

fn user(identity: Identity) -> User {
    match identity {
        Identity::Admin => User::admin(),
        Identity::Node => User {
            name: format!("system:node:{NODE}"),
            groups: vec!["system:nodes".to_owned()],
        },
    }
}
