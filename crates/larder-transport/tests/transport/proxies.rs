//! The way through an HTTP proxy.

use std::{net::SocketAddr, time::Duration};

use larder_transport::{Config, ConnectError, Error};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
};

use crate::{Client, certificates::Authority, chain, config, server::Server, within};

/// The reaction of a proxy to a request for a tunnel.
#[derive(Clone, Copy)]
enum Behaviour {
    Tunnel,
    Answer(&'static str),
    Hang,
    Close,
}

/// A proxy on loopback, with the heads of the requests that it got.
struct Proxy {
    address: SocketAddr,
    heads: mpsc::UnboundedReceiver<String>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    async fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, heads) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, behaviour, sender.clone()));
            }
        });
        Self {
            address,
            heads,
            _tasks: tasks,
        }
    }

    fn url(&self, user: &str) -> http::Uri {
        format!("http://{user}{}", self.address).parse().unwrap()
    }
}

async fn serve(stream: TcpStream, behaviour: Behaviour, heads: mpsc::UnboundedSender<String>) {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.unwrap() == 0 {
            return;
        }
    }
    let target = head.split(' ').nth(1).unwrap().to_owned();
    heads.send(head).unwrap();
    match behaviour {
        Behaviour::Tunnel => {
            let mut server = TcpStream::connect(target).await.unwrap();
            let answer = b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n";
            stream.write_all(answer).await.unwrap();
            // Fails when one side hangs up, which the client's side of the test judges.
            let _ = copy_bidirectional(stream.get_mut(), &mut server).await;
        }
        Behaviour::Answer(answer) => stream.write_all(answer.as_bytes()).await.unwrap(),
        Behaviour::Hang => std::future::pending().await,
        Behaviour::Close => {}
    }
}

#[tokio::test]
async fn a_tunnel_carries_http2_and_watches_to_the_server_itself() {
    let authority = Authority::new();
    let server = Server::kube_like(&authority).await;
    let mut proxy = Proxy::start(Behaviour::Tunnel).await;
    let mut kube = server.config(&authority);
    kube.proxy_url = Some(proxy.url("user:p%40ss@"));
    let client = Client::new(kube, config()).await;
    client.get("/a").await.unwrap();
    let mut watch = client.watch("w").await;
    server.send("w", "event\n");
    assert_eq!(watch.next().await.unwrap(), "event\n");
    assert_eq!(client.streams(), [0, 1]);
    // One tunnel for each connection, to the server by its name, with the credentials of the URL.
    for _ in 0..2 {
        let head = within(proxy.heads.recv()).await.unwrap();
        let line = format!("CONNECT {} HTTP/1.1\r\n", server.address);
        assert!(head.starts_with(&line), "{head}");
        assert!(
            head.contains("\r\nProxy-Authorization: Basic dXNlcjpwQHNz\r\n"),
            "{head}"
        );
    }
    assert!(proxy.heads.try_recv().is_err());
}

/// The error of a request through such a proxy, with all its causes.
async fn error(behaviour: Behaviour, config: Config) -> (kube::Error, String) {
    let proxy = Proxy::start(behaviour).await;
    let mut kube = kube::Config::new("http://server.invalid:80".parse().unwrap());
    kube.proxy_url = Some(proxy.url("user:secret@"));
    let client = Client::new(kube, config).await;
    let error = client.get("/a").await.unwrap_err();
    let text = chain(&error);
    assert!(
        !text.contains("secret") && !format!("{error:?}").contains("secret"),
        "{text}"
    );
    (error, text)
}

#[tokio::test]
async fn a_refusal_of_the_proxy_is_reported_by_its_code() {
    // A proxy may repeat what it was sent.
    let answer = "HTTP/1.1 407 secret\r\nContent-Length: 0\r\n\r\n";
    let (_, text) = error(Behaviour::Answer(answer), config()).await;
    assert!(
        text.contains("refused the connection with status 407"),
        "{text}"
    );
    let (_, text) = error(Behaviour::Close, config()).await;
    assert!(text.contains("failed to open a tunnel"), "{text}");
}

#[tokio::test]
async fn a_hanging_proxy_times_out() {
    let impatient = config().connect_timeout(Duration::from_millis(50));
    let (error, text) = error(Behaviour::Hang, impatient).await;
    let kube::Error::Service(error) = error else {
        panic!("{text}")
    };
    let Some(Error::Connect { source, .. }) = error.downcast_ref::<Error>() else {
        panic!("{text}")
    };
    assert!(matches!(**source, ConnectError::Timeout { .. }), "{text}");
}
