//! The server over sockets.

use std::net::SocketAddr;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use http::{Request, StatusCode, Version};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config,
    api::{ListParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use larder_apiserver::{ApiServer, Options, Protocol, User};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// A server that is running until it is stopped.
struct Running {
    server: ApiServer,
    address: SocketAddr,
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
}

async fn serve(server: &ApiServer, transport: Protocol, address: &str) -> Running {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let (serving, token) = (server.clone(), shutdown.clone());
    tasks.spawn(async move {
        serving.serve(listener, transport, token).await.unwrap();
    });
    Running {
        server: server.clone(),
        address,
        shutdown,
        tasks,
    }
}

impl Running {
    async fn stop(mut self) {
        self.shutdown.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }

    async fn kube(&self) -> Client {
        let kubeconfig = self.server.kubeconfig(self.address, User::admin()).unwrap();
        let kubeconfig = Kubeconfig::from_yaml(&kubeconfig).unwrap();
        let options = KubeConfigOptions::default();
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .unwrap();
        // Without this machine's proxy: the server is local.
        config.proxy_url = None;
        Client::try_from(config).unwrap()
    }

    /// One HTTP/2 connection in the clear.
    async fn http2(&mut self) -> SendRequest<Empty<Bytes>> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, connection) = handshake.await.unwrap();
        self.tasks.spawn(async move {
            // How it ends is what the tests are about; they see it at their requests.
            let _ = connection.await;
        });
        sender
    }
}

fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("http://larder{path}"))
        .body(Empty::new())
        .unwrap()
}

fn put(server: &ApiServer, value: &str) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": value}});
    server.apply(&map).unwrap();
}

const WATCH: &str =
    "/api/v1/namespaces/default/configmaps?watch=true&fieldSelector=metadata.name%3Da";

#[tokio::test]
async fn a_client_with_the_kubeconfig_lists_and_watches_over_tls() {
    let server = ApiServer::new(Options::default());
    let running = serve(&server, Protocol::Tls, "127.0.0.1:0").await;
    put(&server, "1");
    let maps: Api<ConfigMap> = Api::default_namespaced(running.kube().await);
    assert_eq!(
        maps.list(&ListParams::default()).await.unwrap().items.len(),
        1
    );
    let events = maps.watch(&WatchParams::default(), "0").await.unwrap();
    let mut events = events.boxed();
    assert!(matches!(
        events.try_next().await.unwrap(),
        Some(WatchEvent::Added(_))
    ));
    put(&server, "2");
    assert!(matches!(
        events.try_next().await.unwrap(),
        Some(WatchEvent::Modified(_))
    ));
    // Shutdown ends the watch in order, and serving with it.
    running.stop().await;
    assert!(events.try_next().await.unwrap().is_none());
    assert_eq!(server.open_watches(), 0);
}

#[tokio::test]
async fn a_server_that_comes_back_has_kept_everything() {
    let server = ApiServer::new(Options::default());
    let running = serve(&server, Protocol::Tls, "127.0.0.1:0").await;
    put(&server, "1");
    let client = running.kube().await;
    let address = running.address.to_string();
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let before = maps.get("a").await.unwrap();
    running.stop().await;
    assert!(maps.get("a").await.is_err(), "no server listens");
    let running = serve(&server, Protocol::Tls, &address).await;
    assert_eq!(maps.get("a").await.unwrap(), before);
    running.stop().await;
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_rejected() {
    let server = ApiServer::new(Options::default());
    let other = ApiServer::new(Options::default());
    let running = serve(&server, Protocol::Tls, "127.0.0.1:0").await;
    let strangers = other.kubeconfig(running.address, User::admin()).unwrap();
    let strangers = Kubeconfig::from_yaml(&strangers).unwrap();
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(strangers, &options)
        .await
        .unwrap();
    config.proxy_url = None;
    let maps: Api<ConfigMap> = Api::default_namespaced(Client::try_from(config).unwrap());
    assert!(!matches!(
        maps.list(&ListParams::default()).await.unwrap_err(),
        kube::Error::Api(_)
    ));
    running.stop().await;
}

#[tokio::test]
async fn go_away_lets_running_watches_continue() {
    let server = ApiServer::new(Options::default());
    let mut running = serve(&server, Protocol::Plain, "127.0.0.1:0").await;
    put(&server, "1");
    let mut sender = running.http2().await;
    let watch = sender.send_request(get(WATCH)).await.unwrap();
    assert_eq!(
        (watch.status(), watch.version()),
        (StatusCode::OK, Version::HTTP_2)
    );
    let mut body = watch.into_body();
    assert!(
        body.frame()
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap()
            .starts_with(b"{\"type\":\"ADDED\"")
    );
    server.faults().go_away();
    // The client learns of it when it reads; from then on it may send no more.
    while sender.ready().await.is_ok() && sender.send_request(get("/version")).await.is_ok() {}
    put(&server, "2");
    let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(
        frame.starts_with(b"{\"type\":\"MODIFIED\""),
        "the watch goes on"
    );
    drop(body);
    running.stop().await;
}

#[tokio::test]
async fn closed_connections_break_their_watches() {
    let server = ApiServer::new(Options::default());
    let mut running = serve(&server, Protocol::Plain, "127.0.0.1:0").await;
    put(&server, "1");
    let mut sender = running.http2().await;
    let mut body = sender.send_request(get(WATCH)).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    server.faults().close_connections();
    assert!(body.frame().await.unwrap().is_err());
    running.stop().await;
}

#[tokio::test]
async fn a_thousand_watches_share_ten_connections() {
    let server = ApiServer::new(Options::default());
    let mut running = serve(&server, Protocol::Plain, "127.0.0.1:0").await;
    put(&server, "1");
    let mut bodies = Vec::new();
    for _ in 0..10 {
        let mut sender = running.http2().await;
        for _ in 0..100 {
            bodies.push(sender.send_request(get(WATCH)).await.unwrap().into_body());
        }
    }
    assert_eq!(server.open_watches(), 1000);
    put(&server, "2");
    for body in &mut bodies {
        for opening in ["{\"type\":\"ADDED\"", "{\"type\":\"MODIFIED\""] {
            let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert!(frame.starts_with(opening.as_bytes()), "{frame:?}");
        }
    }
    drop(bodies);
    running.stop().await;
}
