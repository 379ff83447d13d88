//! The HTTP API of the agent, which a reload may move to another address.

use std::{future::Future, net::SocketAddr, pin::pin};

use larder_agent::local_api::Router;
use larder_connections::{Acceptor, ConnectionLimits};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::runtime::listen;

/// Moves the HTTP API.
#[derive(Debug)]
pub(super) struct HttpApi {
    listeners: mpsc::Sender<Option<TcpListener>>,
}

impl HttpApi {
    /// The API on `listener`, or on none, and the future that serves it until `shutdown`.
    pub(super) fn new(
        listener: Option<TcpListener>,
        router: Router,
        limits: ConnectionLimits,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (listeners, moves) = mpsc::channel(1);
        let serving = serve(listener, moves, router, limits, shutdown);
        (Self { listeners }, serving)
    }

    /// Moves the API to `listener`, or ends it. Requests under way are finished.
    pub(super) async fn move_to(&self, listener: Option<TcpListener>) {
        // It ends only with the agent.
        let _ = self.listeners.send(listener).await;
    }
}

/// A listener on `address`.
///
/// # Errors
///
/// The address is in use, or not an address of this machine.
pub(super) async fn bind(address: Option<SocketAddr>) -> anyhow::Result<Option<TcpListener>> {
    match address {
        Some(address) => Ok(Some(listen(address).await?.0)),
        None => Ok(None),
    }
}

async fn serve(
    mut listener: Option<TcpListener>,
    mut moves: mpsc::Receiver<Option<TcpListener>>,
    router: Router,
    limits: ConnectionLimits,
    shutdown: CancellationToken,
) {
    loop {
        let stop = shutdown.child_token();
        let current = listener.take();
        let mut serving = pin!(async {
            match current {
                None => stop.cancelled().await,
                Some(listener) => {
                    if let Ok(address) = listener.local_addr() {
                        info!(%address, "listening");
                    }
                    let (router, limits) = (router.clone(), limits.clone());
                    let acceptor = Acceptor::new(listener, limits);
                    acceptor.serve(router, stop.clone()).await;
                }
            }
        });
        // Both arms are cancel-safe: the first is awaited again.
        let next = tokio::select! {
            () = &mut serving => return,
            Some(next) = moves.recv() => next,
        };
        stop.cancel();
        serving.await;
        listener = next;
    }
}
