//! The local API under hostile clients.

mod openapi;

use std::{future::pending, net::SocketAddr};

use axum::routing::get;
use larder_connections::{Acceptor, ConnectionSlots};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::*;

const CONNECTIONS: usize = 4;

fn limits() -> ConnectionLimits {
    super::limits().max_connections(CONNECTIONS)
}

/// A server with a handler that answers, one that answers at length, one that never does, and one that panics.
async fn start(limits: ConnectionLimits) -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new()
        .route("/ok", get(async || "ok"))
        .route("/long", get(async || vec![b'x'; 64 << 20]))
        .route("/never", get(pending::<()>))
        .route("/panic", get(panicking));
    #[expect(clippy::disallowed_methods, reason = "owned by the handle")]
    let task =
        tokio::spawn(Acceptor::new(listener, limits).serve(router, CancellationToken::new()));
    (address, AbortOnDropHandle::new(task))
}

async fn panicking() {
    panic!("a handler");
}

async fn send(address: SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// What comes back until the server closes.
async fn answer(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn get_close(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
}

async fn check_served(address: SocketAddr) {
    let text = answer(send(address, &get_close("/ok")).await).await;
    assert!(text.ends_with("\r\n\r\nok"), "{text:?}");
}

/// Asks until the server answers: on a busy machine a short deadline may cut this client too.
async fn until_served(address: SocketAddr) {
    let served = async {
        while !answer(send(address, &get_close("/ok")).await)
            .await
            .ends_with("ok")
        {}
    };
    timeout(Duration::from_mins(1), served).await.unwrap();
}

#[tokio::test]
async fn half_sent_requests_do_not_lock_others_out() {
    let (address, _server) = start(limits()).await;
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(send(address, "GET /ok HTTP/1.1\r\nHost:").await);
    }
    check_served(address).await;
    // All but the limit were closed.
    for stream in idle.drain(..200 - CONNECTIONS) {
        assert_eq!(answer(stream).await, "");
    }
}

#[tokio::test]
async fn slow_readers_do_not_lock_others_out() {
    let limits = limits().response_timeout(Duration::from_millis(100));
    let (address, _server) = start(limits).await;
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = send(address, "GET /long HTTP/1.1\r\nHost: h\r\n\r\n").await;
        // Another slow reader may take its place before it has read anything.
        let _ = stream.read(&mut [0; 100]).await;
        slow.push(stream);
    }
    until_served(address).await;
}

/// 100 streams of HTTP/2 whose windows are closed would hold as many answers.
#[tokio::test]
async fn http2_client_without_a_window_gets_no_streams() {
    let (address, _server) = start(limits()).await;
    // SETTINGS_INITIAL_WINDOW_SIZE = 0, then GET /ok on stream 1.
    let request = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(),
        &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0],
        &[0, 0, 10, 1, 5, 0, 0, 0, 1],
        b"\x82\x86\x41\x01h\x04\x03/ok",
    ];
    for limits in [limits(), socket_limits().max_connections(CONNECTIONS)] {
        assert!(!limits.http2);
    }
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&request.concat()).await.unwrap();
    // Closed, without a frame of SETTINGS.
    let text = answer(stream).await;
    assert!(
        text.is_empty() || text.starts_with("HTTP/1.1 4"),
        "{text:?}"
    );
    check_served(address).await;
}

#[tokio::test]
async fn request_head_has_a_deadline() {
    let limits = limits().head_timeout(Duration::from_millis(10));
    let (address, _server) = start(limits).await;
    let text = answer(send(address, "GET /ok HTTP/1.1\r\nHost:").await).await;
    assert!(
        text.is_empty() || text.starts_with("HTTP/1.1 408"),
        "{text:?}"
    );
}

#[tokio::test]
async fn hostile_requests_cost_their_own_connection_only() {
    let (address, _server) = start(limits().head_timeout(Duration::from_secs(1))).await;
    for request in [
        format!(
            "GET /ok HTTP/1.1\r\nHost: h\r\nx: {}\r\n\r\n",
            "y".repeat(1 << 20)
        ),
        format!("GET /ok HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(10_000)),
        format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "y".repeat(1 << 20)),
        "\0".repeat(1 << 16),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        get_close("/panic"),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let (mut read, mut write) = stream.split();
        let mut text = Vec::new();
        // The server may close while the request is still being written.
        let (_, _) = tokio::join!(
            write.write_all(request.as_bytes()),
            read.read_to_end(&mut text)
        );
        assert!(
            !text.starts_with(b"HTTP/1.1 200"),
            "{:?}",
            String::from_utf8_lossy(&text)
        );
        until_served(address).await;
    }
}

/// A probe that asks less often than a request head may take.
#[tokio::test(start_paused = true)]
async fn first_request_after_a_quiet_time_is_answered() {
    let slot = ConnectionSlots::new(limits()).acquire().await;
    tokio::time::advance(HEAD_TIMEOUT * 2).await;
    let (mut client, server) = tokio::io::duplex(4096);
    let router = Router::new().route("/ok", get(async || "ok"));
    let serve = slot.serve(server, router, pending(), pending());
    let ask = async {
        client.write_all(get_close("/ok").as_bytes()).await.unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).await.unwrap();
        text
    };
    let ((), text) = tokio::join!(serve, ask);
    assert!(text.ends_with("\r\n\r\nok"), "{text:?}");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let (address, _server) = start(limits()).await;
    let one = "GET /ok HTTP/1.1\r\nHost: h\r\n\r\n";
    let stream = send(address, &(one.repeat(999) + &get_close("/ok"))).await;
    assert_eq!(answer(stream).await.matches("HTTP/1.1 200").count(), 1000);
}
