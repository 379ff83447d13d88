//! Servers that reject, stall, lower limits, break and return.

use std::time::Duration;

use futures::future::join_all;
use http::{Method, Request, Response};
use kube::client::Body;
use larder_transport::{Config, ConnectionStatus, Error, Probing};
use tokio::{join, time::Instant};

use crate::{
    Client, Watch, chain, config,
    frames::{Listener, NO_ERROR, Peer},
    within,
};

/// HTTP/2 without TLS, with short pauses between attempts to connect.
pub(crate) fn plain() -> Config {
    config()
        .http2_prior_knowledge(true)
        .backoff_base(Duration::from_millis(1))
        .backoff_cap(Duration::from_millis(2))
}

pub(crate) async fn client(listener: &Listener, config: Config) -> Client {
    Client::new(listener.config(), config).await
}

/// Opens a watch that `peer` serves.
pub(crate) async fn watch(client: &Client, peer: &mut Peer) -> (Watch, u32) {
    join!(client.watch("w"), async {
        let stream = peer.request().await;
        peer.open(stream).await;
        stream
    })
}

/// Opens a watch that a new connection serves.
pub(crate) async fn first_watch(
    client: &Client,
    listener: &Listener,
    streams: u32,
) -> (Watch, Peer, u32) {
    let (watch, (peer, stream)) = join!(client.watch("w"), async {
        let mut peer = listener.accept(streams).await;
        let stream = peer.request().await;
        peer.open(stream).await;
        (peer, stream)
    });
    (watch, peer, stream)
}

pub(crate) async fn post(client: &Client, body: &str) -> Result<Response<Body>, kube::Error> {
    let request = Request::builder()
        .method(Method::POST)
        .uri("/objects")
        .body(Body::from(body.as_bytes().to_vec()))
        .unwrap();
    within(client.kube.send(request)).await
}

#[track_caller]
pub(crate) fn transport_error(error: kube::Error) -> Error {
    match error {
        kube::Error::Service(error) => *error.downcast().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn closing(connections: &[ConnectionStatus]) -> Vec<bool> {
    connections.iter().map(|c| c.closing).collect()
}

#[tokio::test]
async fn after_goaway_new_watches_move_and_old_ones_continue() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (mut old, mut first, stream) = first_watch(&client, &listener, 100).await;

    first.go_away(stream, NO_ERROR).await;
    first.fence().await;
    assert_eq!(closing(&client.transport.connections()), [true]);
    let (_new, _second, _) = first_watch(&client, &listener, 100).await;
    first.send(stream, b"event\n").await;
    assert_eq!(old.next().await.unwrap(), "event\n");
    assert_eq!(client.metric("go_aways_total"), 1);

    drop(old);
    first.closed().await;
    client.until(|all| all.len() == 1).await;
}

#[tokio::test]
async fn requests_left_unprocessed_by_goaway_are_sent_again() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (response, ()) = join!(post(&client, "once"), async {
        let mut first = listener.accept(100).await;
        assert_eq!(first.request_with_body().await.1, b"once");
        first.go_away(0, NO_ERROR).await;
        let mut second = listener.accept(100).await;
        let (stream, body) = second.request_with_body().await;
        assert_eq!(body, b"once");
        second.answer(stream).await;
        first.closed().await;
    });
    assert_eq!(response.unwrap().status(), 200);
    assert_eq!(client.metric("refused_streams_total"), 1);
}

#[tokio::test]
async fn a_refused_stream_is_sent_again_a_few_times() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let mut peer = None;
    let (response, ()) = join!(post(&client, "body"), async {
        let peer = peer.insert(listener.accept(100).await);
        let (stream, _) = peer.request_with_body().await;
        peer.refuse(stream).await;
        let (stream, body) = peer.request_with_body().await;
        assert_eq!(body, b"body");
        peer.answer(stream).await;
    });
    assert_eq!(response.unwrap().status(), 200);

    let peer = peer.as_mut().unwrap();
    let (response, ()) = join!(post(&client, "body"), async {
        for _ in 0..5 {
            let stream = peer.request().await;
            peer.refuse(stream).await;
        }
    });
    let error = transport_error(response.unwrap_err());
    assert!(
        matches!(error, Error::Refused { attempts: 5, .. }),
        "{error}"
    );
    assert!(error.is_retryable());
}

#[tokio::test]
async fn an_unsafe_request_is_never_repeated_on_suspicion() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (response, ()) = join!(post(&client, "body"), async {
        let mut peer = listener.accept(100).await;
        peer.request_with_body().await;
        peer.cut();
    });
    let error = transport_error(response.unwrap_err());
    assert!(matches!(error, Error::Broken { .. }), "{error}");

    // A safe request is sent again, once.
    let (response, ()) = join!(client.get("/object"), async {
        let mut peer = listener.accept(100).await;
        peer.request().await;
        peer.cut();
        let mut peer = listener.accept(100).await;
        let stream = peer.request().await;
        peer.answer(stream).await;
    });
    assert_eq!(response.unwrap().status(), 200);
    let (response, ()) = join!(client.get("/object"), async {
        // The connection of the last answer is gone too.
        for _ in 0..2 {
            let mut peer = listener.accept(100).await;
            peer.request().await;
            peer.cut();
        }
    });
    transport_error(response.unwrap_err());
}

#[tokio::test]
async fn a_lowered_limit_moves_new_watches_until_it_rises() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (mut kept, mut first, stream) = first_watch(&client, &listener, 100).await;
    let mut watches = Vec::new();
    for _ in 0..4 {
        watches.push(watch(&client, &mut first).await);
    }
    first.limit(2).await;
    first.fence().await;
    let (_elsewhere, _second, _) = first_watch(&client, &listener, 100).await;
    assert_eq!(client.streams(), [5, 1]);
    first.send(stream, b"event\n").await;
    assert_eq!(kept.next().await.unwrap(), "event\n");

    first.limit(100).await;
    first.fence().await;
    watches.push(watch(&client, &mut first).await);
    assert_eq!(client.streams(), [6, 1]);
}

#[tokio::test]
async fn a_limit_lowered_under_a_waiting_request_moves_it() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (_watch, mut first, _) = first_watch(&client, &listener, 2).await;
    // Whether the server still sees the stream or not is a race inside h2; in both cases no request waits for it.
    let (_second, ()) = join!(client.watch("v"), async {
        let stream = first.request().await;
        first.limit(1).await;
        assert_eq!(first.reset().await, stream);
        let mut second = listener.accept(100).await;
        let stream = second.request().await;
        second.open(stream).await;
    });
}

#[tokio::test]
async fn an_unanswered_ping_ends_the_connection() {
    let listener = Listener::start().await;
    let config = plain()
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20));
    let client = client(&listener, config).await;
    // From here on the peer neither reads nor writes, and the time passes at once.
    let (mut watch, _stalled, _) = first_watch(&client, &listener, 100).await;
    tokio::time::pause();
    let error = watch.next().await.unwrap_err();
    tokio::time::resume();
    assert!(
        error.contains("is dead: nothing received for 20s"),
        "{error}"
    );
    assert_eq!(client.metric("dead_peers_total"), 1);
    first_watch(&client, &listener, 100).await;
}

#[tokio::test]
async fn silent_connections_are_not_used_again() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (response, mut ordinary) = join!(client.get("/object"), async {
        let mut peer = listener.accept(100).await;
        let stream = peer.request().await;
        peer.answer(stream).await;
        peer
    });
    drop(response);
    ordinary.fence().await;
    let (mut first, mut peer, stream) = first_watch(&client, &listener, 100).await;
    let link = first.link.clone();
    assert_eq!(link.probing(), Probing::Ping);
    link.distrust();
    // Its watch goes on, for what it is worth.
    peer.send(stream, b"event\n").await;
    assert_eq!(first.next().await.unwrap(), "event\n");
    first_watch(&client, &listener, 100).await;
    // What was heard from even longer ago is not used either.
    let (response, ()) = join!(client.get("/object"), async {
        let mut peer = listener.accept(100).await;
        let stream = peer.request().await;
        peer.answer(stream).await;
    });
    assert_eq!(response.unwrap().status(), 200);
}

#[tokio::test]
async fn a_broken_connection_fails_its_watches_and_is_replaced() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    for fault in [
        "cut",
        "half-closed",
        "cut in mid-frame",
        "closed in mid-frame",
    ] {
        let (mut watch, mut peer, stream) = first_watch(&client, &listener, 100).await;
        peer.send(stream, b"whole\n").await;
        assert_eq!(watch.next().await.unwrap(), "whole\n", "{fault}");
        // Keeps the peer's side of the socket open to the end of the round.
        let mut half_closed = None;
        match fault {
            "cut" => peer.cut(),
            "half-closed" => {
                peer.half_close().await;
                half_closed = Some(peer);
            }
            "cut in mid-frame" => {
                peer.send_half(stream).await;
                peer.cut();
            }
            _ => {
                peer.send_half(stream).await;
                drop(peer);
            }
        }
        let error = watch.next().await.unwrap_err();
        assert!(
            error.contains("connection to 127.0.0.1"),
            "{fault}: {error}"
        );
        client.until(<[_]>::is_empty).await;
        if let Some(peer) = half_closed {
            peer.closed().await;
        }
    }
}

#[tokio::test]
async fn a_restarted_server_is_reached_again() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (mut watch, peer, _) = first_watch(&client, &listener, 100).await;
    let address = listener.address;
    drop((listener, peer));
    watch.next().await.unwrap_err();
    for _ in 0..3 {
        let error = client.get("/a?watch=1").await.unwrap_err();
        let text = chain(&error);
        assert!(text.contains("Connection refused"), "{text}");
        let error = transport_error(error);
        assert!(matches!(error, Error::Connect { .. }), "{error}");
    }
    assert_eq!(client.metric("dials_total{outcome=\"failed\"}"), 3);
    let listener = Listener::at(address).await;
    first_watch(&client, &listener, 100).await;
}

#[tokio::test]
async fn a_server_that_hangs_up_is_contacted_ever_less_often() {
    let listener = Listener::start().await;
    let config = plain()
        .backoff_base(Duration::from_millis(20))
        .backoff_cap(Duration::from_secs(5));
    let client = client(&listener, config).await;
    let start = Instant::now();
    for _ in 0..4 {
        let (response, ()) = join!(post(&client, "body"), async {
            let mut peer = listener.accept(100).await;
            peer.request().await;
            peer.cut();
        });
        transport_error(response.unwrap_err());
    }
    // Pauses of 20, 40 and 80 ms, less half of them for jitter.
    assert!(start.elapsed() >= Duration::from_millis(70));
}

#[tokio::test]
async fn requests_to_a_silent_server_share_one_attempt() {
    let listener = Listener::start().await;
    let config = plain().connect_timeout(Duration::from_secs(2));
    let client = client(&listener, config).await;
    let requests = (0..50).map(|i| client.get(if i % 2 == 0 { "/a" } else { "/a?watch=1" }));
    let (responses, _silent) = join!(join_all(requests), listener.accept_silently());
    for response in responses {
        let error = transport_error(response.unwrap_err());
        assert!(matches!(error, Error::Connect { .. }) && error.is_retryable());
        assert!(chain(&error).contains("no connection after 2s"), "{error}");
    }
    assert_eq!(client.metric("dials_total{outcome=\"timeout\"}"), 1);
}

#[tokio::test]
async fn requests_to_a_slow_server_share_the_first_connection() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let names: Vec<String> = (0..50).map(|i| format!("w{i}")).collect();
    let (watches, _peer) = join!(
        join_all(names.iter().map(|name| client.watch(name))),
        async {
            let mut peer = listener.accept(100).await;
            for _ in 0..50 {
                let stream = peer.request().await;
                peer.open(stream).await;
            }
            peer
        }
    );
    assert_eq!(watches.len(), 50);
    assert_eq!(client.metric("dials_total{outcome=\"connected\"}"), 1);
}

#[tokio::test]
async fn a_canceled_request_releases_its_stream() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (watch, mut peer, stream) = first_watch(&client, &listener, 1).await;
    drop(watch);
    assert_eq!(peer.reset().await, stream);
    let abandoned = client.get("/a?watch=1");
    let stream = tokio::select! {
        _ = abandoned => panic!("no answer was sent"),
        stream = peer.request() => stream,
    };
    assert_eq!(peer.reset().await, stream);
    assert_eq!(client.streams(), [0]);
    watch_again(&client, &mut peer).await;
}

/// The only stream of the connection is free.
async fn watch_again(client: &Client, peer: &mut Peer) {
    let (_watch, _) = watch(client, peer).await;
    assert_eq!(client.streams(), [1]);
}

#[tokio::test]
async fn what_a_peer_sends_with_goaway_reaches_no_error() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (mut watch, mut peer, _) = first_watch(&client, &listener, 100).await;
    // A peer knows the token of the client and may repeat it.
    peer.go_away_with(2, b"Bearer c4n4ry").await;
    drop(peer);
    let error = watch.next().await.unwrap_err();
    assert!(!error.contains("c4n4ry"), "{error}");
}

#[tokio::test]
async fn endless_headers_end_only_their_request() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (response, ()) = join!(post(&client, "body"), async {
        let mut peer = listener.accept(100).await;
        let stream = peer.request().await;
        peer.endless_headers(stream).await;
    });
    let error = transport_error(response.unwrap_err());
    assert!(matches!(error, Error::Broken { .. }), "{error}");

    let (response, ()) = join!(client.get("/object"), async {
        let mut peer = listener.accept(100).await;
        let stream = peer.request().await;
        peer.answer(stream).await;
    });
    assert_eq!(response.unwrap().status(), 200);
}
