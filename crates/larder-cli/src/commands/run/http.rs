//! The HTTP API of the agent, which a reload may move to another address.
//!
//! Invariant: on loopback, requests to a domain are not answered, so no name of a foreign site leads a browser here.

use std::{
    net::{IpAddr, SocketAddr},
    pin::pin,
};

use axum::{
    extract::Request,
    http::{StatusCode, header, uri::Authority},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
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
            let Some(listener) = current else {
                return stop.cancelled().await;
            };
            let mut router = router.clone();
            let limits = limits.clone();
            if let Ok(address) = listener.local_addr() {
                info!(%address, "listening");
                if address.ip().is_loopback() {
                    router = router.layer(middleware::from_fn(only_local_names));
                }
            }
            Acceptor::new(listener, limits)
                .serve(router, stop.clone())
                .await;
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

async fn only_local_names(request: Request, next: Next) -> Response {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return (StatusCode::BAD_REQUEST, "expected one Host\n").into_response();
    }
    let host = host.map(|host| host.to_str().unwrap_or_default());
    if host.is_none_or(is_local_name) {
        next.run(request).await
    } else {
        let text = "expected localhost or an IP address as Host, not a domain\n";
        (StatusCode::MISDIRECTED_REQUEST, text).into_response()
    }
}

/// Whether `host` is an IP address or a name without a domain, with or without a port.
fn is_local_name(host: &str) -> bool {
    let Ok(host) = host.parse::<Authority>() else {
        return false;
    };
    let host = host.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    !host.contains('.') || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_sites_are_not_local() {
        for host in [
            "localhost",
            "n1:10290",
            "127.0.0.1",
            "127.0.0.1:1",
            "[::1]:1",
        ] {
            assert!(is_local_name(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:10290",
            "127.0.0.1.example:1",
            "a b",
        ] {
            assert!(!is_local_name(host), "{host}");
        }
    }
}
