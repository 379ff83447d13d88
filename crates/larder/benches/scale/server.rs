//! The embedded API server over TLS, with kube-apiserver's limit of 100 streams for each connection.

use std::{io::Write as _, sync::Arc};

use anyhow::Result;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use larder_apiserver::{ApiServer, Options};
use rustls_pki_types::PrivateKeyDer;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;

/// Serves until standard input ends. Prints the name of a kubeconfig.
#[tokio::main]
pub(crate) async fn serve() -> Result<()> {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    let mut tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(
            vec![cert.der().clone()],
            PrivateKeyDer::Pkcs8(signing_key.serialize_der().into()),
        )?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await?;

    let directory = tempfile::tempdir()?;
    let authority = directory.path().join("ca.crt");
    std::fs::write(&authority, cert.pem())?;
    let kubeconfig = directory.path().join("kubeconfig");
    let address = listener.local_addr()?;
    let content = format!(
        "{{clusters: [{{name: c, cluster: {{server: 'https://{address}', certificate-authority: ca.crt}}}}],
          contexts: [{{name: c, context: {{cluster: c}}}}], current-context: c}}"
    );
    std::fs::write(&kubeconfig, content)?;
    writeln!(std::io::stdout(), "{}", kubeconfig.display())?;

    let server = ApiServer::new(Options::default());
    let parent =
        tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    tokio::select! {
        result = accept(listener, acceptor, server) => result,
        _ = parent => Ok(()),
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, server: ApiServer) -> Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let (acceptor, service) = (acceptor.clone(), server.service());
        connections.spawn(async move {
            let stream = acceptor.accept(socket).await?;
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder.http2().max_concurrent_streams(100);
            let serving =
                builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
            serving.await.map_err(anyhow::Error::from_boxed)
        });
    }
}
