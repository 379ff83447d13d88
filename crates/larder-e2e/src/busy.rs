//! A server that answers every request with 429, like a kube-apiserver without free seats.
//!
//! A real one cannot be made to do so at will: a priority level without seats still serves one request at a time.

use std::{net::SocketAddr, path::Path, sync::Arc};

use anyhow::Context as _;
use larder_apiserver::{ApiServer, AuditLog, Fault, Options};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::NodeRequest;

/// Serves on loopback with the certificate of another server; dropped, it ends.
#[derive(Debug)]
pub(crate) struct BusyServer {
    pub(crate) address: SocketAddr,
    api: ApiServer,
    _serving: JoinSet<()>,
}

impl BusyServer {
    pub(crate) async fn start(certificate: &Path, key: &Path) -> anyhow::Result<Self> {
        let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)
            .context("the certificate cannot be used")?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let api = ApiServer::try_new(Options::default().audit(AuditLog::in_memory()))?;
        // As kube-apiserver 1.36 does it (`staging/src/k8s.io/apiserver/pkg/server/filters/maxinflight.go`).
        api.faults().inject(Fault::on_any().retry_after(429, 1));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, Arc::new(tls).into(), api.clone()));
        Ok(Self {
            address,
            api,
            _serving: serving,
        })
    }

    /// The requests so far.
    pub(crate) fn refused(&self) -> anyhow::Result<Vec<NodeRequest>> {
        let records = self.api.audit().records();
        records.iter().map(NodeRequest::of_record).collect()
    }
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, api: ApiServer) {
    let mut connections = JoinSet::new();
    loop {
        // Both arms are cancel-safe.
        tokio::select! {
            Ok((stream, _)) = listener.accept() => {
                let (tls, api) = (tls.clone(), api.clone());
                connections.spawn(async move {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    api.serve_connection(stream, None, CancellationToken::new()).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}
