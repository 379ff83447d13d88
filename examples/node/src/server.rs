//! What the API server asks of a node: logs, and commands in containers, over HTTPS.
//!
//! Invariants:
//! 1. Only the API server's identity is served: a certificate of the given authority with the given common name.
//!    Every node and user has a certificate of the same authority in many clusters.
//! 2. At most [`MAX_HANDSHAKES`] connections have an unfinished handshake. A new one replaces the oldest, so clients that
//!    send nothing keep no others out.

use std::{collections::VecDeque, io, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{
    Router,
    body::Body,
    extract::{Path, Query, Request, State},
    http::StatusCode,
    response::IntoResponse,
    routing::get,
    serve::Listener,
};
use futures::{Stream, StreamExt as _, future::ready, stream};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use larder_objects::x509::Certificate;
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::json;
use tokio::{
    fs::File,
    io::{AsyncRead, AsyncWriteExt as _, copy, sink},
    net::{TcpListener, TcpStream},
    process::Child,
    task::{AbortHandle, JoinSet},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::io::{ReaderStream, StreamReader};
use tracing::{debug, warn};

use crate::{
    container,
    node::{ContainerKey, Node},
    websocket,
};

/// Of `exec`: standard output, standard error, and the outcome.
const CHANNELS: [u8; 3] = [1, 2, 3];
/// How long a client may take for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Most unfinished handshakes. The API server needs a few milliseconds for one.
const MAX_HANDSHAKES: usize = 64;

/// Accepts connections of the API server.
pub(crate) struct TlsListener {
    pub(crate) socket: TcpListener,
    tls: TlsAcceptor,
    client: Arc<str>,
    handshakes: JoinSet<Option<TlsStream<TcpStream>>>,
    /// Those of `handshakes`, oldest first.
    unfinished: VecDeque<AbortHandle>,
}

impl TlsListener {
    /// At a free port, with certificate and key of the node, and the authority of its client and that one's name.
    pub(crate) async fn bind(
        ip: IpAddr,
        files: [&PathBuf; 3],
        client: &str,
    ) -> anyhow::Result<Self> {
        let [certificate, key, authority] = files;
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_file_iter(authority)? {
            roots.add(authority?)?;
        }
        let clients = WebPkiClientVerifier::builder(roots.into()).build()?;
        let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<_, _>>()?;
        let config = ServerConfig::builder()
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
        let socket = TcpListener::bind((ip, 0)).await;
        Ok(Self {
            socket: socket.context("cannot listen")?,
            tls: TlsAcceptor::from(Arc::new(config)),
            client: client.into(),
            handshakes: JoinSet::new(),
            unfinished: VecDeque::new(),
        })
    }

    fn begin(&mut self, stream: TcpStream) {
        self.unfinished.retain(|handshake| !handshake.is_finished());
        if self.unfinished.len() == MAX_HANDSHAKES
            && let Some(oldest) = self.unfinished.pop_front()
        {
            oldest.abort();
        }
        let (handshake, client) = (self.tls.accept(stream), Arc::clone(&self.client));
        self.unfinished.push_back(self.handshakes.spawn(async move {
            let stream = timeout(HANDSHAKE, handshake).await.ok()?.ok()?;
            let certificate = stream.get_ref().1.peer_certificates()?.first()?;
            let name = Certificate::parse(certificate)?.common_name;
            let is_client = name == Some(&*client);
            if !is_client {
                warn!(name, "rejected a client that is not the API server");
            }
            is_client.then_some(stream)
        }));
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, ()) {
        loop {
            // Both arms are cancel-safe.
            tokio::select! {
                (stream, _) = Listener::accept(&mut self.socket) => self.begin(stream),
                Some(done) = self.handshakes.join_next() => if let Ok(Some(stream)) = done {
                    return (stream, ());
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Serves logs and `exec`. Ends only when dropped.
pub(crate) async fn serve(listener: TlsListener, node: Arc<Node>) -> io::Result<()> {
    let router = Router::new()
        .route("/containerLogs/{namespace}/{pod}/{container}", get(logs))
        .route("/exec/{namespace}/{pod}/{container}", get(exec))
        .with_state(node);
    axum::serve(listener, router).await
}

type Shared = State<Arc<Node>>;
type Key = Path<ContainerKey>;
type Problem = (StatusCode, &'static str);

/// The log of the last run, as far as it is.
async fn logs(State(node): Shared, Path(key): Key) -> Result<Body, Problem> {
    let no_log = || (StatusCode::NOT_FOUND, "the container has no log");
    let entry = node.entries.lock().get(&key).cloned().ok_or_else(no_log)?;
    let log = File::open(entry.log).await.map_err(|_| no_log())?;
    Ok(Body::from_stream(ReaderStream::new(log)))
}

/// A command in a container, over a WebSocket, without standard input and terminal.
async fn exec(
    State(node): Shared,
    Path(key): Key,
    Query(query): Query<Vec<(String, String)>>,
    mut request: Request,
) -> Result<impl IntoResponse, Problem> {
    let accepted = websocket::accept(request.headers());
    let accepted = accepted.ok_or((StatusCode::BAD_REQUEST, "expected a WebSocket"))?;
    let entry = node.entries.lock().get(&key).cloned();
    let process = entry.and_then(|entry| entry.process);
    let (process, identity) =
        process.ok_or((StatusCode::NOT_FOUND, "the container does not run"))?;
    let words = query.into_iter().filter(|(name, _)| name == "command");
    let words = words.map(|(_, word)| word.into_bytes()).collect();
    let child = container::exec(process, identity, words);
    let child = child.map_err(|_| (StatusCode::INTERNAL_SERVER_ERROR, "cannot start a process"))?;
    let upgrade = hyper::upgrade::on(&mut request);
    node.commands.spawn(async move {
        if let Err(error) = converse(upgrade, child).await {
            debug!(%error, "connection of a command failed");
        }
    });
    Ok((StatusCode::SWITCHING_PROTOCOLS, accepted))
}

async fn converse(upgrade: OnUpgrade, child: Child) -> anyhow::Result<()> {
    let (mut client, mut writer) = tokio::io::split(TokioIo::new(upgrade.await?));
    let frames = frames(child).map(|frame| io::Result::Ok(io::Cursor::new(frame)));
    let (mut frames, mut dropped) = (std::pin::pin!(StreamReader::new(frames)), sink());
    let sending = async {
        copy(&mut frames, &mut writer).await?;
        writer.shutdown().await
    };
    // A client that leaves ends the command. What it sends is dropped: commands have no standard input here.
    tokio::select! {
        sent = sending => Ok(sent?),
        closed = copy(&mut client, &mut dropped) => Ok(closed.map(drop)?),
    }
}

/// The outputs of a command, and how it has ended.
fn frames(mut child: Child) -> impl Stream<Item = Vec<u8>> {
    let [stdout, stderr, end] = CHANNELS;
    let stdout = output(child.stdout.take(), stdout);
    let outputs = stream::select(stdout, output(child.stderr.take(), stderr));
    let end = async move {
        let code = child.wait().await.ok().and_then(|status| status.code());
        websocket::frame(end, outcome(code).as_bytes())
    };
    let close = stream::iter([websocket::CLOSE.to_vec()]);
    outputs.chain(stream::once(end)).chain(close)
}

fn output(output: Option<impl AsyncRead>, channel: u8) -> impl Stream<Item = Vec<u8>> {
    let chunks = stream::iter(output).flat_map(ReaderStream::new);
    let chunks = chunks.filter_map(|chunk| ready(chunk.ok()));
    chunks.map(move |chunk| websocket::frame(channel, &chunk))
}

/// The `Status` that ends `exec`.
fn outcome(code: Option<i32>) -> String {
    let code = code.unwrap_or(137).to_string();
    let success = json!({"metadata": {}, "status": "Success"});
    let failure = json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": "command terminated with a non-zero exit code",
        "details": {"causes": [{"reason": "ExitCode", "message": code}]},
    });
    let status = if code == "0" { success } else { failure };
    status.to_string()
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
    use rustls::{ClientConfig, pki_types::ServerName};
    use tokio::io::AsyncReadExt as _;
    use tokio_rustls::TlsConnector;

    use super::*;

    /// A listener, and what makes clients of its authority with a common name.
    async fn listener(folder: &std::path::Path) -> (TlsListener, impl Fn(&str) -> TlsConnector) {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority =
            CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let (ca, certificate, key) = (
            folder.join("ca.pem"),
            folder.join("node.pem"),
            folder.join("node.key"),
        );
        std::fs::write(&ca, authority.pem()).unwrap();
        let node_key = KeyPair::generate().unwrap();
        let node = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let node = node.signed_by(&node_key, &authority).unwrap();
        std::fs::write(&certificate, node.pem()).unwrap();
        std::fs::write(&key, node_key.serialize_pem()).unwrap();
        let files = [&certificate, &key, &ca];
        let listener = TlsListener::bind([127, 0, 0, 1].into(), files, "apiserver")
            .await
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let roots = Arc::new(roots);
        let client = move |name: &str| {
            let (mut params, key) = (CertificateParams::default(), KeyPair::generate().unwrap());
            params.distinguished_name.push(DnType::CommonName, name);
            let certificate = params.signed_by(&key, &authority).unwrap();
            let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            let config = ClientConfig::builder()
                .with_root_certificates(Arc::clone(&roots))
                .with_client_auth_cert(vec![certificate.der().clone()], key);
            TlsConnector::from(Arc::new(config.unwrap()))
        };
        (listener, client)
    }

    #[tokio::test]
    async fn only_the_api_server_is_served_and_silent_clients_do_not_keep_it_out() {
        let folder = tempfile::tempdir().unwrap();
        let (mut listener, client) = listener(folder.path()).await;
        let address = listener.socket.local_addr().unwrap();
        let connect = async |name: &str| {
            let stream = TcpStream::connect(address).await.unwrap();
            let name = client(name).connect(ServerName::try_from("localhost").unwrap(), stream);
            name.await.unwrap()
        };
        let mut silent = Vec::new();
        for _ in 0..=MAX_HANDSHAKES {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        // The handshake of a foreign client ends for it before its name is looked at.
        let accepting = async { listener.accept().await.0 };
        let foreign = async {
            let mut stream = connect("system:node:other").await;
            // Closed with or without a farewell.
            matches!(stream.read(&mut [0]).await, Ok(0) | Err(_)).then(|| connect("apiserver"))
        };
        let (mut accepted, mut apiserver) =
            tokio::join!(accepting, async { foreign.await.unwrap().await });
        apiserver.write_all(b"x").await.unwrap();
        apiserver.flush().await.unwrap();
        let mut byte = [0];
        accepted.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"x");
        // The oldest silent client made room.
        assert!(matches!(silent[0].read(&mut byte).await, Ok(0) | Err(_)));
    }
}
