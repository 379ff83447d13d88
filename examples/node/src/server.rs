//! What the API server asks of a node: logs, and commands in containers, over HTTPS.

use std::{io, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

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
use futures::{
    FutureExt as _, Stream, StreamExt as _,
    future::{BoxFuture, ready},
    stream::{self, FuturesUnordered},
};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::json;
use tokio::{
    fs::File,
    io::{AsyncRead, AsyncWriteExt as _, copy, sink},
    net::{TcpListener, TcpStream},
    process::Child,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::io::{ReaderStream, StreamReader};
use tracing::debug;

use crate::{
    container,
    node::{ContainerKey, Node},
    websocket,
};

/// Of `exec`: standard output, standard error, and the outcome.
const CHANNELS: [u8; 3] = [1, 2, 3];
/// How long a client may take for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Accepts connections of clients with a certificate.
pub(crate) struct TlsListener {
    pub(crate) socket: TcpListener,
    tls: TlsAcceptor,
    handshakes: FuturesUnordered<BoxFuture<'static, Option<TlsStream<TcpStream>>>>,
}

impl TlsListener {
    /// At a free port, with certificate and key of the node, and the authority of its clients.
    pub(crate) async fn bind(ip: IpAddr, files: [&PathBuf; 3]) -> anyhow::Result<Self> {
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
            handshakes: FuturesUnordered::new(),
        })
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, ()) {
        loop {
            // Both arms are cancel-safe.
            tokio::select! {
                (stream, _) = Listener::accept(&mut self.socket) => {
                    let handshake = timeout(HANDSHAKE, self.tls.accept(stream));
                    self.handshakes.push(handshake.map(|done| done.ok()?.ok()).boxed());
                }
                Some(done) = self.handshakes.next() => if let Some(stream) = done {
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
