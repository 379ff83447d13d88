//! The HTTP API of the agent, which a reload may move to another address.

use std::{net::SocketAddr, pin::pin};

use futures::future::OptionFuture;
use larder_agent::local_api::Router;
use larder_connections::{Acceptor, ConnectionLimits};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::runtime::listen;

/// A listener on `address`.
///
/// # Errors
///
/// The address is in use, or not an address of this machine.
pub(super) async fn bind(address: Option<SocketAddr>) -> anyhow::Result<Option<TcpListener>> {
    let bound = OptionFuture::from(address.map(listen)).await.transpose()?;
    Ok(bound.map(|(listener, _)| listener))
}

/// Serves the API on `listener`, or on none, until `shutdown`. It moves to each of `moves`, or ends with none; requests
/// under way are finished.
pub(super) async fn serve(
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
