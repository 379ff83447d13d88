//! A well-behaved server: watches stay open, everything else is answered at once.

use std::{collections::HashMap, convert::Infallible, net::SocketAddr, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt as _, channel::mpsc};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::certificates::Authority;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct State {
    requests: Mutex<Vec<Seen>>,
    watches: Mutex<HashMap<String, mpsc::UnboundedSender<Bytes>>>,
}

/// One request as the server saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Number of the connection, from 0.
    pub(crate) connection: usize,
    pub(crate) path: String,
    pub(crate) user_agent: String,
    pub(crate) authorization: String,
    pub(crate) body: Bytes,
    pub(crate) client_certificate: Option<Vec<u8>>,
}

impl Server {
    /// Serves with TLS, if given, and `streams` per HTTP/2 connection.
    pub(crate) async fn start(tls: Option<Arc<ServerConfig>>, streams: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, tls, streams, Arc::clone(&state)));
        Self {
            address,
            state,
            _tasks: tasks,
        }
    }

    /// A typical API server: TLS with ALPN, 100 streams.
    pub(crate) async fn kube_like(authority: &Authority) -> Self {
        Self::start(Some(authority.server(&["h2", "http/1.1"])), 100).await
    }

    /// How a client reaches this server.
    pub(crate) fn config(&self, authority: &Authority) -> kube::Config {
        let mut config = kube::Config::new(format!("https://{}", self.address).parse().unwrap());
        config.root_cert = Some(vec![authority.der()]);
        config
    }

    pub(crate) fn plain_config(&self) -> kube::Config {
        kube::Config::new(format!("http://{}", self.address).parse().unwrap())
    }

    pub(crate) fn requests(&self) -> Vec<Seen> {
        self.state.requests.lock().clone()
    }

    pub(crate) fn last_request(&self) -> Seen {
        self.requests().pop().unwrap()
    }

    /// Sends `line` on the watch of `name`.
    pub(crate) fn send(&self, name: &str, line: impl Into<Bytes>) {
        let watches = self.state.watches.lock();
        watches[&format!("/{name}?watch=true")]
            .unbounded_send(line.into())
            .unwrap();
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    streams: u32,
    state: Arc<State>,
) {
    let mut connections = JoinSet::new();
    for number in 0.. {
        let (socket, _) = listener.accept().await.unwrap();
        socket.set_nodelay(true).unwrap();
        let (tls, state) = (tls.clone(), Arc::clone(&state));
        connections.spawn(async move {
            match tls {
                None => serve(socket, number, streams, state, None).await,
                Some(tls) => {
                    let Ok(stream) = TlsAcceptor::from(tls).accept(socket).await else {
                        return;
                    };
                    let client = stream.get_ref().1.peer_certificates();
                    let client = client.map(|chain| chain[0].to_vec());
                    serve(stream, number, streams, state, client).await;
                }
            }
        });
    }
}

async fn serve<T>(
    stream: T,
    number: usize,
    streams: u32,
    state: Arc<State>,
    client: Option<Vec<u8>>,
) where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| answer(request, number, Arc::clone(&state), client.clone()));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(streams);
    // Fails when the client hangs up, which the client's side of the test judges.
    let _ = builder
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(
    request: Request<Incoming>,
    connection: usize,
    state: Arc<State>,
    client_certificate: Option<Vec<u8>>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().unwrap().to_string();
    let header = |name| {
        let value = head.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap()).to_owned()
    };
    let seen = Seen {
        connection,
        path: path.clone(),
        user_agent: header("user-agent"),
        authorization: header("authorization"),
        body: body.collect().await.unwrap().to_bytes(),
        client_certificate,
    };
    state.requests.lock().push(seen);
    let status = if path == "/unauthorized" { 401 } else { 200 };
    let body = if path.ends_with("watch=true") {
        let (lines, stream) = mpsc::unbounded();
        lines.unbounded_send(Bytes::from_static(b"open\n")).unwrap();
        state.watches.lock().insert(path, lines);
        BodyExt::boxed(StreamBody::new(stream.map(|line| Ok(Frame::data(line)))))
    } else {
        BodyExt::boxed(Full::from("done"))
    };
    Ok(Response::builder().status(status).body(body).unwrap())
}
