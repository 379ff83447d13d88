//! Limits on connections: clients that send nothing, never read or never authenticate do not stop the server for
//! others.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use larder_apiserver::{ApiServer, Options, Protocol, User};
use larder_connections::{ConnectionLimits, raise_descriptor_limit};
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

const VERSION: &[u8] = b"GET /version HTTP/1.1\r\nhost: larder\r\n\r\n";
const HALF: &[u8] = b"GET /version HTTP/1.1\r\nhost: larder\r\nx: ";
const WATCH: &[u8] =
    b"GET /api/v1/namespaces/default/configmaps?watch=true HTTP/1.1\r\nhost: larder\r\n\r\n";
/// What a client sends first over HTTP/2: the preface and empty SETTINGS.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

fn server(limits: ConnectionLimits) -> ApiServer {
    ApiServer::new(Options::default().connections(limits))
}

/// Serves until the returned set is dropped.
async fn serve(server: &ApiServer, transport: Protocol) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (serving, mut tasks) = (server.clone(), JoinSet::new());
    tasks.spawn(async move {
        let shutdown = CancellationToken::new();
        serving.serve(listener, transport, shutdown).await.unwrap();
    });
    (address, tasks)
}

async fn connect(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// Reads until `text` has come.
async fn read_to(stream: &mut (impl AsyncRead + Unpin), text: &str) {
    let mut read = String::new();
    while !read.contains(text) {
        let mut buffer = [0; 4096];
        let length = stream.read(&mut buffer).await.unwrap();
        assert!(length > 0, "the connection ended after {read:?}");
        read += &String::from_utf8_lossy(&buffer[..length]);
    }
}

async fn connect_times(times: usize, address: SocketAddr, bytes: &[u8]) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..times {
        streams.push(connect(address, bytes).await);
    }
    streams
}

/// Checks that a new client is answered.
async fn check_served(address: SocketAddr) {
    read_to(&mut connect(address, VERSION).await, "gitVersion").await;
}

/// Reads until the server closes.
async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = [0; 4096];
    while stream
        .read(&mut buffer)
        .await
        .is_ok_and(|length| length > 0)
    {}
}

#[tokio::test]
async fn half_sent_requests_leave_room_for_others() {
    raise_descriptor_limit();
    let server = server(ConnectionLimits::default().max_connections(50));
    let (address, _tasks) = serve(&server, Protocol::Plain).await;
    let _streams = connect_times(1100, address, HALF).await;
    check_served(address).await;
}

#[tokio::test]
async fn half_done_handshakes_leave_room_for_others() {
    raise_descriptor_limit();
    let server = server(ConnectionLimits::default().max_connections(50));
    let (address, _tasks) = serve(&server, Protocol::Tls).await;
    // A handshake record of which only the first byte comes.
    let _streams = connect_times(1100, address, b"\x16\x03\x01\x02\x00\x01").await;
    let mut stream = tls(address).await;
    stream.write_all(VERSION).await.unwrap();
    read_to(&mut stream, "401 Unauthorized").await;
}

#[tokio::test]
async fn a_running_watch_is_never_replaced() {
    let server = server(ConnectionLimits::default().max_connections(4));
    let (address, _tasks) = serve(&server, Protocol::Plain).await;
    let mut watch = connect(address, WATCH).await;
    read_to(&mut watch, "200 OK").await;
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(connect(address, HALF).await);
        streams.push(connect(address, HTTP2).await);
    }
    // The last of them is answered only after all before it were accepted.
    check_served(address).await;
    put(&server, "1");
    read_to(&mut watch, "ADDED").await;
}

#[tokio::test]
async fn silent_connections_are_replaced_before_idle_ones() {
    let server = server(ConnectionLimits::default().max_connections(4));
    let (address, _tasks) = serve(&server, Protocol::Plain).await;
    let mut idle = connect(address, VERSION).await;
    read_to(&mut idle, "gitVersion").await;
    let _streams = connect_times(20, address, b"").await;
    check_served(address).await;
    idle.write_all(VERSION).await.unwrap();
    read_to(&mut idle, "gitVersion").await;
}

#[tokio::test]
async fn idle_connections_are_replaced_when_a_new_client_needs_room() {
    let server = server(ConnectionLimits::default().max_connections(8));
    let (address, _tasks) = serve(&server, Protocol::Plain).await;
    let mut streams = Vec::new();
    for _ in 0..20 {
        let mut stream = connect(address, VERSION).await;
        read_to(&mut stream, "gitVersion").await;
        streams.push(stream);
    }
    // So are those that connect at the same time, and send their request late.
    let mut late = [connect(address, b"").await, connect(address, b"").await];
    for stream in &mut late {
        stream.write_all(VERSION).await.unwrap();
        read_to(stream, "gitVersion").await;
    }
}

#[tokio::test]
async fn clients_that_got_401_hold_no_slot() {
    let server = server(ConnectionLimits::default().max_connections(4));
    let (address, _tasks) = serve(&server, Protocol::Tls).await;
    let mut streams = Vec::new();
    for _ in 0..20 {
        let mut stream = tls(address).await;
        // The window of its streams is 0, so that the answer cannot be sent.
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await
            .unwrap();
        stream
            .write_all(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00")
            .await
            .unwrap();
        // GET https://… / without authority, from HPACK's static table.
        stream
            .write_all(b"\x00\x00\x03\x01\x05\x00\x00\x00\x01\x82\x87\x84")
            .await
            .unwrap();
        let mut frame = [0; 9];
        stream.read_exact(&mut frame).await.unwrap();
        streams.push(stream);
    }
    let mut last = tls(address).await;
    last.write_all(VERSION).await.unwrap();
    read_to(&mut last, "401 Unauthorized").await;
}

fn put(server: &ApiServer, value: &str) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": value}});
    server.apply(&map).unwrap();
}

/// A connection over TLS without a client certificate, whatever the server's is.
async fn tls(address: SocketAddr) -> tokio_rustls::client::TlsStream<TcpStream> {
    let mut config = ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer))
        .with_no_client_auth();
    config.alpn_protocols = Vec::new();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("larder").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.unwrap()
}

#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ED25519,
            SignatureScheme::RSA_PSS_SHA256,
        ]
    }
}

/// A connection in memory, so that time can stand still.
fn in_memory(server: &ApiServer, tasks: &mut JoinSet<()>) -> DuplexStream {
    let (client, stream) = duplex(4096);
    let shutdown = CancellationToken::new();
    tasks.spawn(
        server
            .clone()
            .serve_connection(stream, Some(User::admin()), shutdown),
    );
    client
}

/// How long the connection of a client that sends `bytes` lasts, when it also reads an answer that contains `answer`.
async fn lasts(bytes: &[u8], answer: Option<&str>) -> Duration {
    let (server, mut tasks) = (ApiServer::new(Options::default()), JoinSet::new());
    let mut client = in_memory(&server, &mut tasks);
    let start = Instant::now();
    client.write_all(bytes).await.unwrap();
    if let Some(answer) = answer {
        read_to(&mut client, answer).await;
    }
    read_to_end(&mut client).await;
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn the_first_request_must_come_in_time() {
    for bytes in [b"".as_slice(), HALF, b"PRI * HT", HTTP2] {
        let lasted = lasts(bytes, None).await;
        let text = String::from_utf8_lossy(bytes);
        assert!(
            (32..=37).contains(&lasted.as_secs()),
            "{lasted:?} after {text:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_after_its_time() {
    let lasted = lasts(VERSION, Some("gitVersion")).await;
    assert!((90..=95).contains(&lasted.as_secs()), "{lasted:?}");
    let half_second = [VERSION, HALF].concat();
    let lasted = lasts(&half_second, Some("gitVersion")).await;
    assert!((90..=95).contains(&lasted.as_secs()), "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_must_come_in_time() {
    let head = b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: larder\r\ncontent-length: 9\r\n\r\n{";
    let (server, mut tasks) = (ApiServer::new(Options::default()), JoinSet::new());
    let mut client = in_memory(&server, &mut tasks);
    let start = Instant::now();
    client.write_all(head).await.unwrap();
    read_to(&mut client, "504 Gateway Timeout").await;
    assert_eq!(start.elapsed(), Duration::from_mins(1));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_is_cut() {
    let (server, mut tasks) = (ApiServer::new(Options::default()), JoinSet::new());
    let mut client = in_memory(&server, &mut tasks);
    client.write_all(WATCH).await.unwrap();
    read_to(&mut client, "200 OK").await;
    let start = Instant::now();
    for value in 0..50 {
        put(&server, &format!("{value}{}", "x".repeat(10_000)));
    }
    tasks.join_next().await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_mins(1));
    assert_eq!(server.open_watches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_window_that_stays_closed_ends_the_connection() {
    for path in [
        "/version",
        "/api/v1/namespaces/default/configmaps?watch=true",
    ] {
        let (server, mut tasks) = (ApiServer::new(Options::default()), JoinSet::new());
        put(&server, "1");
        let mut client = in_memory(&server, &mut tasks);
        // SETTINGS_INITIAL_WINDOW_SIZE = 0.
        let settings = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
        let length = u8::try_from(path.len()).unwrap();
        let headers = [
            b"\x82\x86\x41\x06larder\x04",
            &[length][..],
            path.as_bytes(),
        ]
        .concat();
        let request = [&HTTP2[..24], &settings, &frame(1, 5, 1, &headers)].concat();
        let start = Instant::now();
        client.write_all(&request).await.unwrap();
        tasks.join_next().await.unwrap().unwrap();
        assert_eq!(start.elapsed(), Duration::from_mins(1), "{path}");
        assert_eq!(server.open_watches(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_quiet_watch_lasts() {
    let (server, mut tasks) = (ApiServer::new(Options::default()), JoinSet::new());
    let mut client = in_memory(&server, &mut tasks);
    client.write_all(WATCH).await.unwrap();
    read_to(&mut client, "200 OK").await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    put(&server, "late");
    read_to(&mut client, "late").await;
}

/// A frame of HTTP/2 on stream `stream`.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

#[tokio::test]
async fn floods_of_frames_do_not_stop_the_server() {
    let server = server(ConnectionLimits::default());
    let (address, _tasks) = serve(&server, Protocol::Plain).await;
    let pings = frame(6, 0, 0, &[0; 8]).repeat(10_000);
    let settings = frame(4, 0, 0, &[]).repeat(10_000);
    // GET http:/// and a reset of the same stream, for one stream after another.
    let resets = (0..10_000).flat_map(|n| {
        let stream = 2 * n + 1;
        let reset = 8_u32.to_be_bytes();
        [
            frame(1, 5, stream, b"\x82\x86\x84"),
            frame(3, 0, stream, &reset),
        ]
        .concat()
    });
    let headers = frame(1, 1, 1, b"\x82\x86\x84");
    let continuations = frame(9, 0, 1, &[0x40; 16_000]).repeat(100);
    let continuations = [headers, continuations].concat();
    let mut clients = JoinSet::new();
    for flood in [pings, settings, resets.collect(), continuations] {
        let mut stream = connect(address, HTTP2).await;
        clients.spawn(async move {
            // It never reads; the server may cut it or stop reading.
            let _ = stream.write_all(&flood).await;
            stream
        });
    }
    for _ in 0..20 {
        check_served(address).await;
    }
}

#[tokio::test(start_paused = true)]
async fn lies_about_the_length_end_one_connection() {
    let (server, mut tasks) = (ApiServer::new(Options::default()), JoinSet::new());
    let post = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: larder\r\n";
    for (head, body) in [
        ("content-length: 100", "{}"),
        ("content-length: 1\r\ncontent-length: 2", "{}"),
        ("content-length: -1", "{}"),
        ("content-length: 99999999999999999999", "{}"),
        ("content-length: 18446744073709551615", "{}"),
        (
            "content-length: 2\r\ntransfer-encoding: chunked",
            "0\r\n\r\n",
        ),
        ("transfer-encoding: chunked", "fffffffffffffffff\r\n{}"),
        ("transfer-encoding: chunked", "-1\r\n{}"),
        ("transfer-encoding: chunked", "2;\r\n{}\r\n"),
        ("transfer-encoding: gzip", "{}"),
        ("expect: 100-continue\r\ncontent-length: 2", ""),
    ] {
        let mut client = in_memory(&server, &mut tasks);
        let request = format!("{post}{head}\r\n\r\n{body}");
        client.write_all(request.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        read_to_end(&mut client).await;
    }
    let endless = format!("{post}transfer-encoding: chunked\r\n\r\n");
    let mut client = in_memory(&server, &mut tasks);
    client.write_all(endless.as_bytes()).await.unwrap();
    // More than a body may have, in chunks: the server ends it.
    let chunks = format!("200\r\n{}\r\n", " ".repeat(0x200)).repeat(16);
    let (mut reader, mut writer) = tokio::io::split(client);
    let mut writers = JoinSet::new();
    writers.spawn(async move { while writer.write_all(chunks.as_bytes()).await.is_ok() {} });
    read_to(&mut reader, "413 Payload Too Large").await;
    let mut client = in_memory(&server, &mut tasks);
    client.write_all(VERSION).await.unwrap();
    read_to(&mut client, "gitVersion").await;
}
