//! The server over TCP: HTTP/1.1 and HTTP/2, with TLS or without.

use std::{future::Future, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{ApiServer, ApiService, TlsError, User};

/// What connections speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TLS. Clients show a certificate that [`ApiServer::kubeconfig`] gave them; all others get 401.
    Tls,
    /// HTTP in the clear, and everybody may do everything: for tests.
    Plain,
}

/// Serving failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The listener has no address.
    #[error("cannot tell the listener's address")]
    Address {
        /// Why.
        source: io::Error,
    },
    /// TLS could not be set up.
    #[error("cannot serve TLS")]
    Tls {
        /// Why.
        #[from]
        source: TlsError,
    },
}

/// How long a client may take for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long requests may take to end at shutdown.
const DRAIN: Duration = Duration::from_secs(5);
/// Pause after a failed accept, which is mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the connections of a server are told.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    /// Counts the calls to go away.
    go_away: watch::Sender<u64>,
    /// Counts the calls to break off.
    close: watch::Sender<u64>,
}

impl Connections {
    pub(crate) fn new() -> Self {
        Self {
            go_away: watch::Sender::new(0),
            close: watch::Sender::new(0),
        }
    }

    pub(crate) fn go_away(&self) {
        self.go_away.send_modify(|calls| *calls += 1);
    }

    pub(crate) fn close(&self) {
        self.close.send_modify(|calls| *calls += 1);
    }
}

impl ApiServer {
    /// Serves connections of `listener` until `shutdown`; then ends the watches, lets other requests finish for up to 5 s, and
    /// returns. The server itself goes on: it may be served again, or used in process.
    ///
    /// # Errors
    ///
    /// TLS cannot be set up. Trouble with one connection ends that connection only.
    pub async fn serve(
        &self,
        listener: TcpListener,
        transport: Transport,
        shutdown: CancellationToken,
    ) -> Result<(), ServeError> {
        let address = listener
            .local_addr()
            .map_err(|source| ServeError::Address { source })?;
        let acceptor = match transport {
            Transport::Plain => None,
            Transport::Tls => {
                let config = self.authority().server_config(address.ip())?;
                Some(TlsAcceptor::from(Arc::new(config)))
            }
        };
        let mut connections = JoinSet::new();
        loop {
            // Both accept and join_next are cancel-safe.
            tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let server = self.clone();
                        connections.spawn(server.connection(stream, acceptor.clone(), shutdown.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "failed to accept a connection");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(ended) = connections.join_next() => resume_panic(ended),
            }
        }
        drop(listener);
        self.end_watches();
        let drained = timeout(DRAIN, async {
            while let Some(ended) = connections.join_next().await {
                resume_panic(ended);
            }
        });
        if drained.await.is_err() {
            tracing::warn!(
                left = connections.len(),
                "cut connections that did not end in time"
            );
        }
        Ok(())
    }

    /// A kubeconfig for a server that [`ApiServer::serve`] runs with TLS at `address`, with a certificate for `user` in it.
    ///
    /// # Errors
    ///
    /// The certificate cannot be made.
    pub fn kubeconfig(&self, address: SocketAddr, user: User) -> Result<String, TlsError> {
        self.authority()
            .kubeconfig(&format!("https://{address}"), user)
    }

    /// Makes the certificates that the user of this name has void, as if they had expired: connections from now on get 401. New ones
    /// from [`ApiServer::kubeconfig`] are valid.
    pub fn revoke(&self, user: &str) {
        self.authority().revoke(user);
    }

    async fn connection(
        self,
        stream: TcpStream,
        acceptor: Option<TlsAcceptor>,
        shutdown: CancellationToken,
    ) {
        // Small frames must not wait for each other: a change is one of them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "failed to set TCP_NODELAY");
        }
        let Some(acceptor) = acceptor else {
            return self
                .serve_connection(stream, Some(User::admin()), shutdown)
                .await;
        };
        let stream = match timeout(HANDSHAKE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "failed a TLS handshake"),
            Err(_) => return tracing::debug!("gave up a TLS handshake"),
        };
        let certificates = stream.get_ref().1.peer_certificates();
        let user = certificates
            .and_then(|certificates| certificates.first())
            .and_then(|certificate| self.authority().user(certificate));
        self.serve_connection(stream, user, shutdown).await;
    }

    /// Speaks HTTP with `user` over a stream that somebody else has accepted, until either side has enough; `None` gets 401.
    pub async fn serve_connection<I>(
        self,
        stream: I,
        user: Option<User>,
        shutdown: CancellationToken,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut go_away = self.connections().go_away.subscribe();
        let mut close = self.connections().close.subscribe();
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new());
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.options().max_concurrent_streams);
        let service = TowerToHyperService::new(ApiService::new(self, user));
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let mut leaving = false;
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "connection ended");
                    }
                    return;
                }
                () = first(shutdown.cancelled(), go_away.changed()), if !leaving => {
                    leaving = true;
                    connection.as_mut().graceful_shutdown();
                }
                _ = close.changed() => return,
            }
        }
    }
}

/// Waits for whichever comes first.
async fn first(one: impl Future, other: impl Future) {
    tokio::select! {
        _ = one => {}
        _ = other => {}
    }
}

fn resume_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        std::panic::resume_unwind(error.into_panic());
    }
}
