//! A process without free file descriptors. Alone in its file, since it lowers the limit of its process.
use std::fs::File;

use larder_apiserver::{ApiServer, Options, Protocol};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn a_client_is_served_once_descriptors_are_free() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(96);
    setrlimit(Resource::Nofile, limit).unwrap();
    let server = ApiServer::new(Options::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let shutdown = CancellationToken::new();
        server
            .serve(listener, Protocol::Plain, shutdown)
            .await
            .unwrap();
    });
    let socket = TcpSocket::new_v4().unwrap();
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    // The kernel completes the connection; the server cannot accept it yet.
    let mut stream = socket.connect(address).await.unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nhost: larder\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(tasks.try_join_next().is_none(), "the server goes on");
    drop(files);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}
