//! The agent's API for other programs.

use axum::{body::Body, http::Request};
use http_body_util::BodyExt as _;
use larder_agent::local_api::Router;
use serde_json::Value;
use tower::ServiceExt as _;

use crate::harness::{Node, config_map, pod};

async fn get(api: Router, path: &str) -> (u16, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let answer = api.oneshot(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn socket_shows_pods_and_http_does_not() {
    let node = Node::start();
    node.apply(&config_map("app", &[("k", "v")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    node.until("web", "cfg", &[("k", "v")]).await;
    let (status, text) = get(node.socket_api(), "/pods/default/web").await;
    assert_eq!(status, 200);
    let served: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(served["pod"]["metadata"]["name"], "web");
    assert_eq!(get(node.http_api(), "/pods/default/web").await.0, 404);
    assert_eq!(get(node.socket_api(), "/pods/default/none").await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn body_of_a_projection_is_bounded() {
    let node = Node::start();
    let body = Body::from(vec![b'x'; (16 << 20) + 1]);
    let request = Request::post("/v1/project").body(body).unwrap();
    let answer = node.socket_api().oneshot(request).await.unwrap();
    assert_eq!(answer.status().as_u16(), 413);
}
