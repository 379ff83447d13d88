//! The agent's API for other programs.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use axum::{body::Body, http::Request};
use http_body_util::BodyExt as _;
use larder_agent::local_api::Router;
use larder_apiserver::ApiKind;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tower::ServiceExt as _;

use crate::harness::{NODE, Node, config_map, pod};

pub(crate) async fn get(api: Router, path: &str) -> (u16, String) {
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

#[tokio::test(start_paused = true)]
async fn unread_answers_of_other_listeners_leave_the_socket_its_room() {
    let node = Node::start();
    let mut unread = Vec::new();
    loop {
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        // A listener of its own for each: they have one budget.
        let answer = node.http_api().oneshot(request).await.unwrap();
        if answer.status().as_u16() == 503 {
            break;
        }
        unread.push(answer);
        assert!(unread.len() < 100_000, "no budget");
    }
    assert_eq!(get(node.socket_api(), "/metrics").await.0, 200);
    drop(unread);
    // Documents are shared for a moment.
    sleep(Duration::from_secs(1)).await;
    assert_eq!(get(node.http_api(), "/metrics").await.0, 200);
}

/// What a client of the stream knows: the last line of each pod.
struct Follower {
    body: Body,
    pods: BTreeMap<String, Value>,
}

impl Follower {
    async fn start(node: &Node) -> Self {
        let list: Value =
            serde_json::from_str(&get(node.socket_api(), "/v1/pods").await.1).unwrap();
        let path = format!("/v1/changes?since={}", list["sequence"]);
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = node.socket_api().oneshot(request).await.unwrap();
        Self {
            body: answer.into_body(),
            pods: by_uid(&list),
        }
    }

    /// Reads on until it knows what a GET shows.
    async fn until_equal(&mut self, node: &Node) {
        loop {
            let list = get(node.socket_api(), "/v1/pods").await.1;
            if self.pods == by_uid(&serde_json::from_str(&list).unwrap()) {
                return;
            }
            let next = timeout(Duration::from_secs(20), self.body.frame()).await;
            let next = next.unwrap_or_else(|_| panic!("{:#?}\nGET shows {list}", self.pods));
            let data = next.unwrap().unwrap().into_data().unwrap();
            for line in data
                .split(|byte| *byte == b'\n')
                .filter(|line| !line.is_empty())
            {
                let line: Value = serde_json::from_slice(line).unwrap();
                let uid = line["uid"].as_str().unwrap_or_default().to_owned();
                match line["type"].as_str().unwrap() {
                    "Changed" => drop(self.pods.insert(uid, line["pod"].clone())),
                    "Removed" => drop(self.pods.remove(&uid)),
                    _ => {}
                }
            }
        }
    }
}

fn by_uid(list: &Value) -> BTreeMap<String, Value> {
    let pods = list["pods"].as_array().unwrap().iter();
    pods.map(|pod| (pod["uid"].as_str().unwrap().to_owned(), pod.clone()))
        .collect()
}

#[tokio::test]
async fn stream_of_changes_says_whatever_a_get_shows() {
    let node = Node::start();
    let mut follower = Follower::start(&node).await;
    node.apply(&config_map("app", &[("k", "v")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    follower.until_equal(&node).await;
    node.until("web", "cfg", &[("k", "v")]).await;
    follower.until_equal(&node).await;
    let file = node.static_pod(pod("static").config_map("cfg", "app").build());
    let name = format!("static-{NODE}");
    node.wait("the mirror pod", |node| node.pod(&name)?.mirror)
        .await;
    follower.until_equal(&node).await;
    // A real node's pod is marked as deleted, and goes on running.
    let mut deleted = pod("deleted").config_map("cfg", "app").build();
    deleted["metadata"]["finalizers"] = json!(["test/keep"]);
    node.apply(&deleted);
    node.until("deleted", "cfg", &[("k", "v")]).await;
    follower.until_equal(&node).await;
    node.delete(ApiKind::Pod, "deleted");
    node.wait("the deletion", |node| {
        node.pod("deleted")?.deletion_timestamp
    })
    .await;
    follower.until_equal(&node).await;
    std::fs::remove_file(file).unwrap();
    node.wait("the static pod to go", |node| {
        node.pod(&name).is_none().then_some(())
    })
    .await;
    follower.until_equal(&node).await;
}

#[tokio::test]
async fn stream_of_changes_equals_a_get_after_any_sequence_of_changes() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let node = Node::start();
        let mut follower = Follower::start(&node).await;
        let (mut maps, mut pods, mut files) = (BTreeSet::new(), Vec::new(), Vec::new());
        for step in 0..16 {
            let map = ["a", "b"][random.usize(..2)];
            let new = pod(&format!("pod-{step}")).config_map("cfg", map);
            match random.usize(..8) {
                0..3 => {
                    node.apply(&config_map(map, &[("k", &step.to_string())]));
                    maps.insert(map);
                }
                3 if maps.remove(map) => node.delete(ApiKind::ConfigMap, map),
                4 if !pods.is_empty() => {
                    let gone: String = pods.swap_remove(random.usize(..pods.len()));
                    node.delete(ApiKind::Pod, &gone);
                }
                5 => files.push(node.static_pod(new.build())),
                6 if !files.is_empty() => {
                    std::fs::remove_file(files.swap_remove(random.usize(..files.len()))).unwrap();
                }
                _ => {
                    let mut new = new.build();
                    // Some are marked as deleted, and go on running.
                    if random.bool() {
                        new["metadata"]["finalizers"] = json!(["test/keep"]);
                    }
                    node.apply(&new);
                    pods.push(format!("pod-{step}"));
                }
            }
            follower.until_equal(&node).await;
        }
        for name in &pods {
            node.wait("the pod", |node| node.pod(name)).await;
        }
        follower.until_equal(&node).await;
        assert!(follower.pods.len() >= pods.len());
    }
}

#[tokio::test(start_paused = true)]
async fn first_line_of_a_new_pod_names_its_parts_and_none_as_delivered() {
    let node = Node::start();
    let mut follower = Follower::start(&node).await;
    // Its object is missing, so nothing is delivered.
    node.apply(&pod("web").config_map("cfg", "missing").build());
    let frame = follower.body.frame().await.unwrap().unwrap();
    let line = frame.into_data().unwrap();
    let line = line.split(|byte| *byte == b'\n').next().unwrap();
    let line: Value = serde_json::from_slice(line).unwrap();
    assert_eq!(line["pod"]["volumes"][0]["name"], "cfg");
    // The line shows the pod as it is when it is read: the first attempt may have failed by then.
    let phase = line["pod"]["volumes"][0]["phase"].as_str().unwrap();
    assert!(["Waiting", "Failing"].contains(&phase), "{phase}");
    assert!(!line["pod"]["containers"].as_array().unwrap().is_empty());
}
