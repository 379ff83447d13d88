//! What the API server asks of a node: logs, and commands in containers, over HTTPS.

use std::{
    convert::Infallible, fs::File, future::pending, io::Read as _, net::SocketAddr, path::Path,
    sync::Arc, time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture, stream};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::{CONNECTION, UPGRADE},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::{RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
    task::JoinSet,
    time::sleep,
};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use crate::{
    container,
    registry::{ContainerKey, Registry},
    websocket,
};

/// Of `exec`: standard output, standard error, and the outcome.
const CHANNELS: [u8; 3] = [1, 2, 3];
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
/// Read of a log or an output at once.
const CHUNK: usize = 32 << 10;
/// How often a followed log is looked at.
const FOLLOW: Duration = Duration::from_millis(100);

type Body = UnsyncBoxBody<Bytes, std::io::Error>;
/// What a connection does after it was upgraded.
type Session = Mutex<Option<BoxFuture<'static, anyhow::Result<()>>>>;

/// Serves logs and `exec`.
pub(crate) struct Server {
    listener: TcpListener,
    /// `None` without a certificate: then nothing is served.
    tls: Option<TlsAcceptor>,
    registry: Arc<Registry>,
}

impl Server {
    /// `files` are certificate, key, and the authority of clients.
    pub(crate) async fn bind(
        address: SocketAddr,
        files: [Option<&Path>; 3],
        registry: Arc<Registry>,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await;
        let tls = match files {
            [Some(certificate), Some(key), Some(authority)] => {
                let mut roots = RootCertStore::empty();
                for authority in CertificateDer::pem_file_iter(authority)? {
                    roots.add(authority?)?;
                }
                let provider = Arc::new(rustls::crypto::ring::default_provider());
                let clients = WebPkiClientVerifier::builder_with_provider(
                    roots.into(),
                    Arc::clone(&provider),
                );
                let chain =
                    CertificateDer::pem_file_iter(certificate)?.collect::<Result<_, _>>()?;
                let config = ServerConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()?
                    .with_client_cert_verifier(clients.build()?)
                    .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
                Some(TlsAcceptor::from(Arc::new(config)))
            }
            _ => None,
        };
        let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
        Ok(Self {
            listener,
            tls,
            registry,
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.listener
            .local_addr()
            .map_or(0, |address| address.port())
    }

    /// Ends only when dropped.
    pub(crate) async fn run(self) {
        let Some(tls) = self.tls else {
            return pending().await;
        };
        let mut connections = JoinSet::new();
        loop {
            // Both arms are cancel-safe.
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                Some(_) = connections.join_next() => continue,
            };
            let Ok((stream, _)) = accepted else {
                // Too many files are open.
                sleep(FOLLOW).await;
                continue;
            };
            let (tls, registry) = (tls.clone(), Arc::clone(&self.registry));
            connections.spawn(async move {
                let served = async {
                    let stream = TokioIo::new(tls.accept(stream).await?);
                    let session = Mutex::new(None);
                    let service = service_fn(async |request| {
                        Ok::<_, Infallible>(answer(&registry, request, &session))
                    });
                    let mut http = http1::Builder::new();
                    let connection = http
                        .timer(TokioTimer::new())
                        .serve_connection(stream, service);
                    connection.with_upgrades().await?;
                    // The connection has become that of a command.
                    let session = session.lock().take();
                    match session {
                        Some(session) => session.await,
                        None => Ok(()),
                    }
                };
                if let Err(error) = served.await {
                    debug!(%error, "connection failed");
                }
            });
        }
    }
}

fn answer(
    registry: &Arc<Registry>,
    request: Request<Incoming>,
    session: &Session,
) -> Response<Body> {
    let words: Vec<_> = request
        .uri()
        .path()
        .split('/')
        .skip(1)
        .map(str::to_owned)
        .collect();
    let query = request.uri().query().unwrap_or_default().as_bytes();
    let query: Vec<(String, String)> = form_urlencoded::parse(query).into_owned().collect();
    let [what, namespace, pod, container] = words.as_slice() else {
        return plain(StatusCode::NOT_FOUND, "not found");
    };
    let key = (namespace.clone(), pod.clone(), container.clone());
    match what.as_str() {
        "containerLogs" => logs(registry, key, &query),
        "exec" => exec(registry, &key, &query, request, session),
        _ => plain(StatusCode::NOT_FOUND, "not found"),
    }
}

fn plain(code: StatusCode, text: &str) -> Response<Body> {
    let body = Full::new(Bytes::copy_from_slice(text.as_bytes())).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = code;
    response
}

/// `/containerLogs/NAMESPACE/POD/CONTAINER`: the last run, whole; with `follow`, until it ends.
fn logs(registry: &Arc<Registry>, key: ContainerKey, query: &[(String, String)]) -> Response<Body> {
    let Some(Ok(log)) = registry.get(&key).map(|entry| File::open(entry.log)) else {
        return plain(StatusCode::NOT_FOUND, "the container has no log");
    };
    let follows = query
        .iter()
        .any(|(name, value)| name == "follow" && value == "true");
    let registry = Arc::clone(registry);
    let chunks = stream::unfold(log, move |mut log| {
        let (registry, key) = (Arc::clone(&registry), key.clone());
        async move {
            loop {
                // Before the log: what is written until the container ends is read then.
                let goes_on = follows
                    && registry
                        .get(&key)
                        .is_some_and(|entry| entry.process.is_some());
                let mut chunk = vec![0; CHUNK];
                match log.read(&mut chunk) {
                    Ok(0) if goes_on => sleep(FOLLOW).await,
                    Ok(0) => return None,
                    Ok(length) => {
                        chunk.truncate(length);
                        return Some((Ok(Frame::data(chunk.into())), log));
                    }
                    Err(error) => return Some((Err(error), log)),
                }
            }
        }
    });
    Response::new(StreamBody::new(chunks).boxed_unsync())
}

/// `/exec/NAMESPACE/POD/CONTAINER`, over a WebSocket, without standard input and terminal.
fn exec(
    registry: &Registry,
    key: &ContainerKey,
    query: &[(String, String)],
    mut request: Request<Incoming>,
    session: &Session,
) -> Response<Body> {
    let header = |name: &str| {
        request
            .headers()
            .get(name)
            .map(|value| value.as_bytes().to_vec())
    };
    let offered = header("sec-websocket-protocol").unwrap_or_default();
    let offered = String::from_utf8_lossy(&offered).into_owned();
    let protocol = PROTOCOLS
        .into_iter()
        .find(|known| offered.split(',').any(|one| one.trim() == *known));
    let (Some(protocol), Some(websocket_key)) = (protocol, header("sec-websocket-key")) else {
        return plain(
            StatusCode::BAD_REQUEST,
            "expected a WebSocket with the protocol v5.channel.k8s.io",
        );
    };
    let Some((process, identity)) = registry.get(key).and_then(|entry| entry.process) else {
        return plain(StatusCode::NOT_FOUND, "the container does not run");
    };
    let words = query.iter().filter(|(name, _)| name == "command");
    let words: Vec<_> = words.map(|(_, word)| word.clone().into_bytes()).collect();
    let mut child = match container::exec(process, identity, words) {
        Ok(child) => child,
        Err(error) => return plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    };
    let upgrade = hyper::upgrade::on(&mut request);
    let copying = async move {
        let (client, mut writer) = tokio::io::split(TokioIo::new(upgrade.await?));
        let (sender, mut frames) = mpsc::channel::<Vec<u8>>(4);
        let copies = async {
            let stdout = copy(child.stdout.take(), CHANNELS[0], sender.clone());
            let stderr = copy(child.stderr.take(), CHANNELS[1], sender.clone());
            tokio::join!(stdout, stderr);
            let outcome = outcome(child.wait().await.ok().and_then(|status| status.code()));
            let _ = sender
                .send(websocket::frame(CHANNELS[2], outcome.as_bytes()))
                .await;
            drop(sender);
        };
        let sending = async {
            while let Some(frame) = frames.recv().await {
                writer.write_all(&frame).await?;
                writer.flush().await?;
            }
            writer.write_all(&websocket::close()).await?;
            writer.shutdown().await?;
            anyhow::Ok(())
        };
        let copying = async { tokio::join!(copies, sending).1 };
        // A client that closes ends the command.
        tokio::select! {
            ended = copying => ended,
            closed = websocket::drain(client) => Ok(closed?),
        }
    };
    *session.lock() = Some(copying.boxed());
    let response = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header("sec-websocket-accept", websocket::accept(&websocket_key))
        .header("sec-websocket-protocol", protocol);
    response
        .body(plain(StatusCode::OK, "").into_body())
        .expect("the headers are valid")
}

/// Copies the output of a command to frames of `channel`.
async fn copy(
    output: Option<impl tokio::io::AsyncRead + Unpin>,
    channel: u8,
    frames: mpsc::Sender<Vec<u8>>,
) {
    let Some(mut output) = output else {
        return;
    };
    let mut chunk = vec![0; CHUNK];
    while let Ok(length @ 1..) = output.read(&mut chunk).await {
        if frames
            .send(websocket::frame(channel, &chunk[..length]))
            .await
            .is_err()
        {
            return;
        }
    }
}

/// The `Status` that ends `exec`.
fn outcome(code: Option<i32>) -> String {
    let status = match code {
        Some(0) => json!({"metadata": {}, "status": "Success"}),
        code => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": "command terminated with a non-zero exit code",
            "details": {"causes": [{"reason": "ExitCode", "message": code.unwrap_or(137).to_string()}]},
        }),
    };
    status.to_string()
}
