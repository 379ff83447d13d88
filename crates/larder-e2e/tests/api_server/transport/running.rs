//! The embedded API server over TLS, which can be stopped and started again on its port.

use std::{net::SocketAddr, sync::Arc};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use larder_apiserver::ApiServer;
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

/// One run of the server; dropping it cuts every connection.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    /// Number of times that connections were asked to end gracefully.
    drained: watch::Sender<usize>,
    _tasks: JoinSet<()>,
}

impl Running {
    pub(crate) async fn start(api: &ApiServer, tls: Arc<ServerConfig>, address: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (drained, drains) = watch::channel(0);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(
            listener,
            TlsAcceptor::from(tls),
            api.clone(),
            drains,
        ));
        Self {
            address,
            drained,
            _tasks: tasks,
        }
    }

    /// Sends GOAWAY on every connection that exists.
    pub(crate) fn drain(&self) {
        self.drained.send_modify(|times| *times += 1);
    }
}

async fn accept(
    listener: TcpListener,
    tls: TlsAcceptor,
    api: ApiServer,
    drains: watch::Receiver<usize>,
) {
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        socket.set_nodelay(true).unwrap();
        connections.spawn(serve(socket, tls.clone(), api.clone(), drains.clone()));
    }
}

async fn serve(
    socket: TcpStream,
    tls: TlsAcceptor,
    api: ApiServer,
    mut drains: watch::Receiver<usize>,
) {
    drains.mark_unchanged();
    let Ok(stream) = tls.accept(socket).await else {
        return;
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(100);
    let service = TowerToHyperService::new(api.service());
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    loop {
        tokio::select! {
            // Fails when the client hangs up, which the client's side of the test judges.
            _ = connection.as_mut() => return,
            changed = drains.changed() => match changed {
                Ok(()) => connection.as_mut().graceful_shutdown(),
                Err(_) => return,
            },
        }
    }
}
