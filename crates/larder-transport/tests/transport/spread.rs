//! Distribution of requests and watches over connections.

use bytes::Bytes;
use futures::future::join_all;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use kube::client::Body;
use larder_transport::{Lane, OwnRateLimit, Protocol, RateLimit};
use tokio::time::Duration;

use crate::{Client, certificates::Authority, config, server::Server, within};

#[tokio::test]
async fn watches_beyond_the_servers_limit_open_further_connections() {
    let authority = Authority::new();
    let server = Server::kube_like(&authority).await;
    let client = Client::new(server.config(&authority), config()).await;

    client.get("/a").await.unwrap();
    let names: Vec<String> = (0..250).map(|i| format!("w{i}")).collect();
    let mut watches = join_all(names.iter().map(|name| client.watch(name))).await;

    let connections = client.until(|all| all.len() == 4).await;
    assert!(connections.iter().all(|c| c.protocol == Protocol::Http2));
    let mut watching: Vec<usize> = connections
        .iter()
        .filter(|c| c.lane == Lane::Watch)
        .map(|c| c.streams)
        .collect();
    watching.sort_unstable();
    assert_eq!(watching.iter().sum::<usize>(), 250);
    assert!(watching.len() == 3 && watching[2] == 100, "{watching:?}");

    for (name, watch) in names.iter().zip(&mut watches) {
        server.send(name, name.clone());
        assert_eq!(watch.next().await.unwrap(), *name);
    }
    // Ordinary requests keep the connection that they had.
    client.get("/b").await.unwrap();
    assert_eq!(client.transport.connections().len(), 4);
    assert_eq!(
        server.last_request().connection,
        server.requests()[0].connection
    );
}

#[tokio::test]
async fn ordinary_requests_share_one_connection() {
    let authority = Authority::new();
    for (alpn, connections) in [("h2", 1), ("http/1.1", 8)] {
        let server = Server::start(Some(authority.server(&[alpn])), 100).await;
        let client = Client::new(server.config(&authority), config()).await;
        let requests = (0..300).map(|_| async {
            let response = client.get("/a").await.unwrap();
            response.into_body().collect_bytes().await.unwrap()
        });
        join_all(requests).await;
        assert_eq!(server.requests().len(), 300);
        let most = server.requests().iter().map(|seen| seen.connection).max();
        assert!(most.unwrap() < connections, "{most:?}");
    }
}

#[tokio::test]
async fn streams_of_ended_watches_are_reused() {
    let authority = Authority::new();
    let server = Server::start(Some(authority.server(&["h2"])), 2).await;
    let client = Client::new(server.config(&authority), config()).await;
    let mut watches = Vec::new();
    for round in 0..20 {
        watches.push(client.watch(&format!("w{round}")).await);
        if watches.len() > 2 {
            watches.remove(0);
        }
    }
    let connections = client.transport.connections();
    assert!(connections.len() <= 2, "{connections:?}");
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let authority = Authority::new();
    let server = Server::kube_like(&authority).await;
    let config = config().idle_timeout(Duration::from_millis(1));
    let client = Client::new(server.config(&authority), config).await;
    let watch = client.watch("a").await;
    client.get("/b").await.unwrap();
    client
        .until(|all| all.len() == 1 && all[0].lane == Lane::Watch)
        .await;
    drop(watch);
    client.until(<[_]>::is_empty).await;
    client.get("/c").await.unwrap();
}

#[tokio::test]
async fn http1_is_spoken_where_http2_is_not_offered() {
    let authority = Authority::new();
    for tls in [Some(authority.server(&["http/1.1"])), None] {
        let server = Server::start(tls.clone(), 100).await;
        let kube = match tls {
            Some(_) => server.config(&authority),
            None => server.plain_config(),
        };
        let client = Client::new(kube, config()).await;
        let names = ["a", "b", "c"];
        let mut watches = join_all(names.map(|name| client.watch(name))).await;
        for _ in 0..3 {
            client
                .get("/x")
                .await
                .unwrap()
                .into_body()
                .collect()
                .await
                .unwrap();
        }
        let connections = client.until(|all| all.len() == 4).await;
        assert!(
            connections
                .iter()
                .all(|c| c.protocol == Protocol::Http1 && c.limit == 1)
        );
        server.send("b", "event\n");
        assert_eq!(watches[1].next().await.unwrap(), "event\n");
        drop(watches);
        client
            .until(|all| all.iter().all(|c| c.lane == Lane::Request))
            .await;
    }
}

#[tokio::test]
async fn bodies_headers_and_large_answers_pass_through() {
    let authority = Authority::new();
    for alpn in ["h2", "http/1.1"] {
        let server = Server::start(Some(authority.server(&[alpn])), 100).await;
        let mut kube = server.config(&authority);
        kube.auth_info.token = Some("t0ken".to_owned().into());
        let client = Client::new(kube, config()).await;

        // Larger than any window.
        let body = Bytes::from(vec![b'x'; 3 << 20]);
        let request = Request::builder()
            .method(Method::POST)
            .uri("/big")
            .body(Body::from(body.to_vec()))
            .unwrap();
        let response = within(client.kube.send(request)).await.unwrap();
        assert_eq!(response.into_body().collect_bytes().await.unwrap(), "done");
        let seen = server.last_request();
        assert_eq!(seen.path, "/big");
        assert!(seen.body == body);
        assert_eq!(seen.authorization, "Bearer t0ken");
        assert!(
            seen.user_agent.starts_with("larder/"),
            "{}",
            seen.user_agent
        );

        let mut watch = client.watch("w").await;
        server.send("w", body.clone());
        let mut received = 0;
        while received < body.len() {
            received += watch.next().await.unwrap().len();
        }
        assert_eq!(received, body.len());
    }
}

#[tokio::test]
async fn an_unread_stream_stops_only_itself() {
    let authority = Authority::new();
    let server = Server::kube_like(&authority).await;
    let client = Client::new(server.config(&authority), config()).await;
    let mut slow = Vec::new();
    for i in 0..99 {
        let name = format!("slow{i}");
        slow.push(client.watch(&name).await);
        server.send(&name, vec![b'x'; 4 << 20]);
    }
    let mut read = client.watch("read").await;
    assert_eq!(client.streams(), [100]);
    for _ in 0..10 {
        server.send("read", vec![b'y'; 1 << 20]);
        let mut received = 0;
        while received < 1 << 20 {
            received += read.next().await.unwrap().len();
        }
    }
}

#[tokio::test]
async fn watches_do_not_consume_the_rate_limit() {
    let authority = Authority::new();
    let server = Server::kube_like(&authority).await;
    let config = config().rate_limit(RateLimit::from_kubelet(1, 1));
    let client = Client::new(server.config(&authority), config).await;
    client.get("/first").await.unwrap();
    let names: Vec<String> = (0..20).map(|i| format!("w{i}")).collect();
    let watches = join_all(names.iter().map(|name| client.watch(name))).await;
    assert_eq!(watches.len(), 20);
    assert_eq!(client.metric("throttled_requests_total"), 0);
}

#[tokio::test]
async fn requests_with_a_limit_of_their_own_do_not_consume_the_rate_limit() {
    let authority = Authority::new();
    let server = Server::kube_like(&authority).await;
    let config = config().rate_limit(RateLimit::from_kubelet(1, 1));
    let client = Client::new(server.config(&authority), config).await;
    for _ in 0..20 {
        let mut request = Request::get("/touch").body(Body::empty()).unwrap();
        request.extensions_mut().insert(OwnRateLimit);
        within(client.kube.send(request)).await.unwrap();
    }
    client.get("/first").await.unwrap();
    assert_eq!(client.metric("throttled_requests_total"), 0);
}

#[tokio::test]
async fn everything_ends_with_the_last_handle() {
    let authority = Authority::new();
    let server = Server::kube_like(&authority).await;
    let client = Client::new(server.config(&authority), config()).await;
    let mut watch = client.watch("w").await;
    drop(client);
    // The watch is a handle too.
    server.send("w", "still here\n");
    assert_eq!(watch.next().await.unwrap(), "still here\n");
}
