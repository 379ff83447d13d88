//! Servers that mean harm: floods of frames, answers against the protocol, certificates that do not hold.
//!
//! In [`faults`](crate::faults): headers without end, GOAWAY with a text, streams that are refused. `lying` of
//! `larder-e2e` has a server that invents what it sends.

use std::sync::Arc;

use rcgen::date_time_ymd;
use rustls::ServerConfig;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    join,
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use crate::{
    Client, Watch,
    certificates::Authority,
    chain, config,
    faults::{client, first_watch, plain, post, transport_error, watch},
    frames::{
        DATA, END_HEADERS, END_STREAM, HEADERS, Listener, NO_ERROR, PING, PRIORITY, Peer,
        RST_STREAM, SETTINGS, WINDOW_UPDATE, frame,
    },
    within,
};

/// Frames of a flood. Each is sent at once, and none waits for an answer.
const FLOOD: usize = 10_000;

/// Reads the watch up to `end`; an error if the stream broke.
async fn read_to(watch: &mut Watch, end: &[u8]) -> Result<usize, String> {
    let mut before = 0;
    loop {
        let data = watch.next().await?;
        if data.ends_with(end) {
            return Ok(before);
        }
        before += data.len();
    }
}

#[tokio::test]
async fn floods_of_frames_stop_no_stream() {
    let ping = frame(PING, 0, 0, b"flooding");
    let settings = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]);
    let window = frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]);
    let priority = frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1]);
    let unknown = frame(0xbe, 0xff, 1, b"what is this");
    for (name, flood) in [
        ("PING", ping),
        ("SETTINGS", settings),
        ("WINDOW_UPDATE", window),
        ("PRIORITY", priority),
        ("a frame of no kind", unknown),
    ] {
        let listener = Listener::start().await;
        let client = client(&listener, plain()).await;
        let (mut first, mut peer, stream) = first_watch(&client, &listener, 100).await;
        assert!(peer.flood(&flood, FLOOD).await, "{name}");
        peer.send(stream, b"whole\n").await;
        assert_eq!(read_to(&mut first, b"whole\n").await, Ok(0), "{name}");
        let (_second, _) = watch(&client, &mut peer).await;
        assert_eq!(client.streams(), [2], "{name}");
    }
}

#[tokio::test]
async fn endless_floods_end_the_connection() {
    // More than any socket holds, and than the bound allows.
    const ENDLESS: usize = 2_000_000;
    let early_hints = [&[0x08, 3][..], b"103"].concat();
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    for flood in [
        frame(PING, 0, 0, b"flooding"),
        frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
        frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
        frame(0xbe, 0xff, 1, b"what is this"),
    ] {
        let (mut first, mut peer, _) = first_watch(&client, &listener, 100).await;
        let (sent, read) = join!(peer.flood(&flood, ENDLESS), first.next());
        assert!(!sent);
        let error = read.unwrap_err();
        assert!(error.contains("frames without data"), "{error}");
    }
    let (response, sent) = join!(post(&client, "body"), async {
        let mut peer = listener.accept(100).await;
        let stream = peer.request().await;
        let flood = frame(HEADERS, END_HEADERS, stream, &early_hints);
        peer.flood(&flood, ENDLESS).await
    });
    assert!(!sent);
    transport_error(response.unwrap_err());
}

#[tokio::test]
async fn endless_interim_answers_end_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let client = Client::new(kube::Config::new(url.parse().unwrap()), config()).await;
    let (response, ()) = join!(post(&client, "body"), async {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        assert!(socket.read(&mut request).await.unwrap() > 0);
        let chunk = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000);
        while socket.write_all(chunk.as_bytes()).await.is_ok() {}
    });
    let error = chain(&transport_error(response.unwrap_err()));
    assert!(error.contains("interim answers without an end"), "{error}");
}

#[tokio::test]
async fn data_in_tiny_frames_arrives_whole_and_empty_frames_end_the_connection() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (mut first, mut peer, stream) = first_watch(&client, &listener, 100).await;
    let (read, ()) = join!(read_to(&mut first, b"whole\n"), async {
        assert!(peer.flood(&frame(DATA, 0, stream, b"x"), FLOOD).await);
        peer.send(stream, b"whole\n").await;
    });
    assert_eq!(read, Ok(FLOOD));
    let empty = frame(DATA, 0, stream, b"");
    let (read, sent) = join!(read_to(&mut first, b"whole\n"), peer.flood(&empty, FLOOD));
    assert!(read.is_err() && !sent, "{read:?}");
    first_watch(&client, &listener, 100).await;
}

#[tokio::test]
async fn resets_of_every_stream_end_only_their_requests() {
    const INTERNAL_ERROR: [u8; 4] = [0, 0, 0, 2];
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let mut accepted = None;
    for _ in 0..500 {
        let (response, ()) = join!(post(&client, "body"), async {
            let peer = match &mut accepted {
                Some(peer) => peer,
                none => none.insert(listener.accept(100).await),
            };
            let stream = peer.request().await;
            for _ in 0..3 {
                peer.write(RST_STREAM, 0, stream, &INTERNAL_ERROR).await;
            }
        });
        transport_error(response.unwrap_err());
    }
    let peer = accepted.as_mut().unwrap();
    let (response, ()) = join!(post(&client, "body"), async {
        let stream = peer.request().await;
        peer.answer(stream).await;
    });
    assert_eq!(response.unwrap().status(), 200);
    assert_eq!(client.metric("dials_total{outcome=\"connected\"}"), 1);
}

#[tokio::test]
async fn informational_answers_are_passed_over() {
    // A literal `:status: 103`, by its name's place in the static table.
    let early_hints = [&[0x08, 3][..], b"103"].concat();
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (response, ()) = join!(client.get("/object"), async {
        let mut peer = listener.accept(100).await;
        let stream = peer.request().await;
        let flood = frame(HEADERS, END_HEADERS, stream, &early_hints);
        assert!(peer.flood(&flood, FLOOD).await);
        peer.answer(stream).await;
        // A final answer is the last one.
        let (response, ()) = join!(client.get("/object"), async {
            let stream = peer.request().await;
            peer.open(stream).await;
            peer.write(HEADERS, END_HEADERS, stream, &early_hints).await;
        });
        let mut body = Watch::of(response.unwrap());
        read_to(&mut body, b"never").await.unwrap_err();
    });
    assert_eq!(response.unwrap().status(), 200);
}

#[tokio::test]
async fn headers_over_the_bound_end_only_their_request() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (response, mut peer) = join!(post(&client, "body"), async {
        let mut peer = listener.accept(100).await;
        let stream = peer.request().await;
        peer.long_headers(stream, 80 << 10).await;
        peer
    });
    transport_error(response.unwrap_err());
    let (response, ()) = join!(post(&client, "body"), async {
        let stream = peer.request().await;
        peer.long_headers(stream, 30 << 10).await;
    });
    assert_eq!(response.unwrap().status(), 200);
    assert_eq!(client.metric("dials_total{outcome=\"connected\"}"), 1);
}

#[tokio::test]
async fn trailers_end_a_stream_whatever_follows_them() {
    // A literal header `x: y`.
    let trailer = [0, 1, b'x', 1, b'y'];
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (mut first, mut peer, stream) = first_watch(&client, &listener, 100).await;
    peer.write(HEADERS, END_HEADERS | END_STREAM, stream, &trailer)
        .await;
    assert_eq!(first.next().await.unwrap(), "");
    assert_eq!(first.next().await.unwrap_err(), "end of stream");
    // Nobody reads the data that follows.
    peer.send(stream, b"late\n").await;
    let (mut second, stream) = watch(&client, &mut peer).await;
    // Trailers that are not the end are against the protocol.
    peer.write(HEADERS, END_HEADERS, stream, &trailer).await;
    second.next().await.unwrap_err();
    watch(&client, &mut peer).await;
}

#[tokio::test]
async fn server_that_says_goaway_to_every_request_is_given_up() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let request = client.get("/object");
    let serve = async {
        let mut peers = Vec::new();
        loop {
            let mut peer = listener.accept(100).await;
            peer.request().await;
            peer.go_away(0, NO_ERROR).await;
            peers.push(peer);
        }
    };
    let response = tokio::select! {
        response = request => response,
        () = serve => unreachable!("it has no end"),
    };
    let error = transport_error(response.unwrap_err());
    assert!(error.is_retryable(), "{error}");
    assert!(client.metric("dials_total{outcome=\"connected\"}") <= 6);
}

#[tokio::test]
async fn window_that_stays_closed_stops_only_its_request() {
    let listener = Listener::start().await;
    let client = client(&listener, plain()).await;
    let (response, mut peer) = join!(client.get("/object"), async {
        let mut peer = listener.accept(100).await;
        let stream = peer.request().await;
        // The initial window of streams.
        peer.write(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]).await;
        peer.fence().await;
        peer.answer(stream).await;
        peer
    });
    assert_eq!(response.unwrap().status(), 200);
    let waiting = post(&client, "body");
    let served = async {
        peer.request().await;
        for _ in 0..3 {
            let (response, ()) = join!(client.get("/object"), async {
                let stream = peer.request().await;
                peer.answer(stream).await;
            });
            assert_eq!(response.unwrap().status(), 200);
        }
    };
    tokio::select! {
        _ = waiting => panic!("it was not sent"),
        () = served => {}
    }
    // The request that was given up has released its stream.
    assert_eq!(client.streams(), [0]);
}

#[tokio::test]
async fn certificate_out_of_its_time_is_rejected_with_words() {
    let authority = Authority::new();
    for (from, to, words) in [
        (1990, 1991, "invalid peer certificate: certificate expired"),
        (
            4000,
            4001,
            "invalid peer certificate: certificate not valid yet",
        ),
    ] {
        let tls = authority.server_with(&["h2", "http/1.1"], |params| {
            params.not_before = date_time_ymd(from, 1, 1);
            params.not_after = date_time_ymd(to, 1, 1);
        });
        let server = crate::server::Server::start(Some(tls), 100).await;
        let client = Client::new(server.config(&authority), config()).await;
        let error = client.get("/object").await.unwrap_err();
        assert!(chain(&error).contains(words), "{}", chain(&error));
        assert!(server.requests().is_empty());
    }
}

/// Half of a list, which a body without a length would make a whole answer.
const HALF: &[u8] = b"{\"items\": [";

/// Answers the first request with [`HALF`], and ends the connection without a word of TLS.
async fn cut_in_a_list(listener: TcpListener, tls: Arc<ServerConfig>, is_http2: bool) {
    let (socket, _) = listener.accept().await.unwrap();
    let mut stream = TlsAcceptor::from(tls).accept(socket).await.unwrap();
    if is_http2 {
        let mut peer = Peer::greet(stream, 100).await;
        let request = peer.request().await;
        // 0x88 is `:status: 200` in the static table of HPACK.
        peer.write(HEADERS, END_HEADERS, request, &[0x88]).await;
        peer.send(request, HALF).await;
        stream = peer.into_inner();
    } else {
        let mut request = [0; 4096];
        let read = stream.read(&mut request).await.unwrap();
        assert!(request[..read].starts_with(b"GET /list"));
        let head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
        stream.write_all(&[head, HALF].concat()).await.unwrap();
        stream.flush().await.unwrap();
    }
    let (socket, _) = stream.into_inner();
    drop(socket);
}

#[tokio::test]
async fn list_that_ends_without_close_notify_is_broken_and_not_short() {
    for (protocol, is_http2) in [("http/1.1", false), ("h2", true)] {
        let authority = Authority::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let mut kube = kube::Config::new(url.parse().unwrap());
        kube.root_cert = Some(vec![authority.der()]);
        let client = Client::new(kube, config()).await;
        let cut = cut_in_a_list(listener, authority.server(&[protocol]), is_http2);
        let (response, ()) = join!(client.get("/list"), within(cut));
        let mut body = Watch::of(response.unwrap());
        assert_eq!(body.next().await.unwrap(), HALF, "{protocol}");
        let error = body.next().await.unwrap_err();
        assert!(
            error.contains("connection to 127.0.0.1"),
            "{protocol}: {error}"
        );
    }
}
