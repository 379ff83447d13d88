//! The API server under test.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::Context as _;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use tempfile::TempDir;

use crate::real::{ADMIN_TOKEN, NODE_TOKEN, RealServer, START_DEADLINE};

/// An API server on loopback, over TLS; dropped, it ends.
#[derive(Debug)]
pub struct Server {
    real: RealServer,
    folder: TempDir,
}

impl Server {
    /// Starts the server that the environment asks for, and waits until it answers.
    ///
    /// # Errors
    ///
    /// The server did not start, with the end of its log.
    pub async fn start() -> anyhow::Result<Self> {
        let assets =
            std::env::var_os("KUBEBUILDER_ASSETS").context("KUBEBUILDER_ASSETS is not set")?;
        let mut server = Self {
            real: RealServer::start(&PathBuf::from(assets))?,
            folder: TempDir::with_prefix("larder-e2e-kubeconfig-")?,
        };
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// File for clients that may do everything.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn kubeconfig(&self) -> anyhow::Result<PathBuf> {
        self.write_kubeconfig("admin", ADMIN_TOKEN)
    }

    /// File for a client that is the node `n0`.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn node_kubeconfig(&self) -> anyhow::Result<PathBuf> {
        self.write_kubeconfig("node", NODE_TOKEN)
    }

    /// kube's own client with all rights: the second opinion of every test.
    ///
    /// # Errors
    ///
    /// No configuration could be made.
    pub async fn client(&self) -> anyhow::Result<Client> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig()?)?;
        let mut config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        // A test wants the first answer, not the one after a retry.
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }

    /// Kills the API server, as a crash would.
    pub fn kill(&mut self) {
        self.real.kill_apiserver();
    }

    /// Starts it again on the same address, with the same content.
    ///
    /// # Errors
    ///
    /// The server did not start.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.real.start_apiserver()?;
        self.wait_until_ready().await
    }

    fn write_kubeconfig(&self, user: &str, token: &str) -> anyhow::Result<PathBuf> {
        let path = self.folder.path().join(user);
        let content = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": user}}],
            "clusters": [{"name": "c", "cluster": {
                "server": self.real.url(),
                "certificate-authority": self.real.certificate(),
            }}],
            "users": [{"name": user, "user": {"token": token}}],
        });
        fs::write(&path, content.to_string())?;
        Ok(path)
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let deadline = tokio::time::Instant::now() + START_DEADLINE;
        loop {
            self.real.check_alive()?;
            // A process of its own: there is nothing to be notified by.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let answer = match self.client().await {
                Ok(client) => client
                    .request_text(http::Request::get("/readyz").body(Vec::new())?)
                    .await
                    .map_err(anyhow::Error::from),
                Err(error) => Err(error),
            };
            match answer {
                Ok(_) => return Ok(()),
                Err(error) if tokio::time::Instant::now() > deadline => {
                    return Err(error.context("the API server did not become ready"));
                }
                Err(_) => {}
            }
        }
    }
}
