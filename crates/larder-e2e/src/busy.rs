//! A server that answers every request with 429, like a kube-apiserver without free seats.
//!
//! A real one cannot be made to do so at will: a priority level without seats still serves one request at a time.

use std::{convert::Infallible, net::SocketAddr, path::Path, sync::Arc};

use anyhow::Context as _;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Bytes, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::json;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::NodeRequest;

/// Serves on loopback with the certificate of another server; dropped, it ends.
#[derive(Debug)]
pub(crate) struct BusyServer {
    address: SocketAddr,
    refused: Arc<Mutex<Vec<NodeRequest>>>,
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
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let (address, refused) = (listener.local_addr()?, Arc::default());
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, Arc::new(tls).into(), Arc::clone(&refused)));
        Ok(Self {
            address,
            refused,
            _serving: serving,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The requests so far.
    pub(crate) fn refused(&self) -> Vec<NodeRequest> {
        self.refused.lock().clone()
    }
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, refused: Arc<Mutex<Vec<NodeRequest>>>) {
    let mut connections = JoinSet::new();
    // Both arms are cancel-safe.
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => {
                let (tls, refused) = (tls.clone(), Arc::clone(&refused));
                connections.spawn(async move {
                    // A client that disconnects ends its connection, as intended.
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let service = service_fn(move |request| {
                        let answer = refuse(&request, &refused);
                        async { Ok::<_, Infallible>(answer) }
                    });
                    let server = auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// As kube-apiserver 1.36 does it (`staging/src/k8s.io/apiserver/pkg/server/filters/maxinflight.go`).
fn refuse<B>(request: &Request<B>, refused: &Mutex<Vec<NodeRequest>>) -> Response<Full<Bytes>> {
    let watches = request
        .uri()
        .query()
        .unwrap_or_default()
        .contains("watch=true");
    #[expect(clippy::disallowed_methods, reason = "the one clock of this server")]
    let at = Timestamp::now();
    refused.lock().push(NodeRequest {
        at,
        verb: if watches { "watch" } else { "other" }.to_owned(),
        uri: request.uri().to_string(),
    });
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Too many requests, please try again later.",
        "reason": "TooManyRequests", "details": {"retryAfterSeconds": 1}, "code": 429,
    });
    let mut response = Response::new(Full::from(status.to_string()));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    headers.insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
    response
}
