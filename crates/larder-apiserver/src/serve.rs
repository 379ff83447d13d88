//! The server over TCP: HTTP/1.1 and HTTP/2, with TLS or without.

#[cfg(not(feature = "faults"))]
use std::future::pending;
use std::{net::SocketAddr, sync::Arc, time::Duration};

use larder_connections::{Acceptor, ConnectionSlot, ConnectionSlots};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{ApiServer, ApiService, SetupError, User};

/// The protocol of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TLS. Clients show a certificate that [`ApiServer::kubeconfig`] gave them; all others get 401.
    Tls,
    /// HTTP in the clear, and every client is the administrator: for tests.
    Plain,
}

/// How long a client may take for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

impl ApiServer {
    /// Serves connections of `listener` until `shutdown`; then ends the watches, lets other requests finish for up to 5
    /// s, and returns. The server itself goes on: it may be served again, or used in process.
    ///
    /// # Errors
    ///
    /// TLS cannot be set up. Trouble with one connection ends that connection only.
    pub async fn serve(
        &self,
        listener: TcpListener,
        transport: Protocol,
        shutdown: CancellationToken,
    ) -> Result<(), SetupError> {
        let address = listener.local_addr().map_err(SetupError::Address)?;
        let tls = match transport {
            Protocol::Plain => None,
            Protocol::Tls => {
                let config = self.inner.authority.server_config(address.ip())?;
                Some(TlsAcceptor::from(Arc::new(config)))
            }
        };
        let connection = |stream, slot| {
            let server = self.clone();
            server.connection(stream, slot, tls.clone(), shutdown.clone())
        };
        let acceptor = Acceptor::new(listener, self.options().connections.clone());
        let serving = acceptor.serve_with(connection, &shutdown);
        let ending = async {
            shutdown.cancelled().await;
            self.end_watches();
        };
        // In this order: it stops accepting before the watches end.
        tokio::join!(biased; serving, ending);
        Ok(())
    }

    /// A kubeconfig for a server that [`ApiServer::serve`] runs with TLS at `address`, with a certificate for `user` in
    /// it.
    ///
    /// # Errors
    ///
    /// The certificate cannot be made.
    pub fn kubeconfig(&self, address: SocketAddr, user: User) -> Result<String, SetupError> {
        self.inner
            .authority
            .kubeconfig(&format!("https://{address}"), user)
    }

    /// Makes the certificates that the user of this name has void, as if they had expired: connections from now on get
    /// 401. New ones from [`ApiServer::kubeconfig`] are valid.
    pub fn revoke(&self, user: &str) {
        self.inner.authority.revoke(user);
    }

    async fn connection(
        self,
        stream: TcpStream,
        slot: ConnectionSlot,
        tls: Option<TlsAcceptor>,
        shutdown: CancellationToken,
    ) {
        let Some(tls) = tls else {
            return self
                .converse(stream, slot, Some(User::admin()), shutdown)
                .await;
        };
        let stream = match slot.handshake(timeout(HANDSHAKE, tls.accept(stream))).await {
            Some(Ok(Ok(stream))) => stream,
            Some(Ok(Err(error))) => return tracing::debug!(%error, "TLS handshake failed"),
            Some(Err(_)) | None => return tracing::debug!("TLS handshake took too long"),
        };
        let certificates = stream.get_ref().1.peer_certificates();
        let user = certificates
            .and_then(|certificates| certificates.first())
            .and_then(|certificate| self.inner.authority.user(certificate));
        self.converse(stream, slot, user, shutdown).await;
    }

    /// Speaks HTTP with `user` over a stream that the caller has accepted, until either side closes; `None` gets 401.
    pub async fn serve_connection(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        user: Option<User>,
        shutdown: CancellationToken,
    ) {
        let slots = ConnectionSlots::new(self.options().connections.clone());
        let slot = slots.acquire().await;
        self.converse(stream, slot, user, shutdown).await;
    }

    async fn converse(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        slot: ConnectionSlot,
        user: Option<User>,
        shutdown: CancellationToken,
    ) {
        #[cfg(feature = "faults")]
        let (go_away, cut) = self.faults().connections.signals();
        #[cfg(not(feature = "faults"))]
        let (go_away, cut) = (pending(), pending());
        let leave = async {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {}
                () = go_away => {}
            }
        };
        let service = ApiService::new(self.clone(), user);
        slot.serve(stream, service, leave, cut).await;
    }
}
