//! The agent's report of its health.

use std::{collections::HashSet, fs, time::Duration};

use axum::{body::Body, http::Request};
use http_body_util::BodyExt as _;
use larder_agent::{config::CheckpointConfig, status::Phase};
use larder_checkpoint::KeySource;
use tokio::time::sleep;
use tower::ServiceExt as _;

use crate::harness::{Node, config_map, pod};

/// Status and text of `/healthz`.
async fn healthz(node: &Node) -> (u16, String) {
    let request = Request::get("/healthz").body(Body::empty()).unwrap();
    let answer = node.http_api().oneshot(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn check_served(node: &Node) {
    node.apply(&config_map("app", &[("k", "v")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    node.until("web", "cfg", &[("k", "v")]).await;
    assert_eq!(healthz(node).await, (200, "ok\n".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_hung_watch_makes_the_agent_unhealthy() {
    let mut node = Node::prepare();
    node.hung = Some("/api/v1/pods");
    node.run();
    check_served(&node).await;
    let mut unhealthy = Vec::new();
    // A watch lasts an hour at most.
    for _ in 0..62 * 12 {
        sleep(Duration::from_secs(5)).await;
        let (status, text) = healthz(&node).await;
        assert_eq!(status == 200, node.handle().health().is_healthy());
        if status == 200 {
            assert_eq!(text, "ok\n");
        } else {
            assert_eq!(status, 503);
            unhealthy.push(text);
        }
    }
    let [text, ..] = &*unhealthy else {
        panic!("the watch of the pods hangs");
    };
    assert!(
        text.starts_with("watch of kind Pod: no answer, event or bookmark for "),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
    // After that, the failure is known.
    assert!(!node.status().problems.is_empty());
    assert_eq!(healthz(&node).await.0, 200);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_stays_healthy_for_hours() {
    let mut node = Node::start();
    check_served(&node).await;
    for _ in 0..180 {
        sleep(Duration::from_mins(1)).await;
        assert_eq!(healthz(&node).await, (200, "ok\n".to_owned()));
    }
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_root_directory_that_was_moved_is_reported_until_it_is_back() {
    let mut node = Node::start();
    check_served(&node).await;
    let root = node.path().to_owned();
    let moved = root.with_extension("moved");
    fs::rename(&root, &moved).unwrap();
    // The agent looks at it from time to time.
    sleep(Duration::from_secs(6)).await;
    let why = format!(
        "the root directory {} was moved, and nothing is at its path",
        root.display()
    );
    assert_eq!(healthz(&node).await, (503, format!("{why}\n")));
    assert_eq!(node.status().problems, std::slice::from_ref(&why));
    let pod = node.pod("web").unwrap();
    let volume = node.volume("web", "cfg").unwrap();
    for delivery in [pod.delivery, volume.delivery] {
        assert_eq!(
            (delivery.phase, delivery.reason),
            (Phase::Failing, why.clone())
        );
    }
    let overview = node.handle().overview();
    assert_eq!(overview.pods[0].delivery.phase, Phase::Failing);
    // Something else at its path is not it.
    fs::create_dir(&root).unwrap();
    sleep(Duration::from_secs(6)).await;
    let (status, text) = healthz(&node).await;
    assert_eq!(status, 503);
    assert!(
        text.ends_with("and something else is at its path\n"),
        "{text}"
    );
    fs::remove_dir(&root).unwrap();
    let before = *node.handle().pod_changes().borrow();
    fs::rename(&moved, &root).unwrap();
    node.apply(&config_map("app", &[("k", "2")]));
    sleep(Duration::from_secs(6)).await;
    assert_eq!(healthz(&node).await, (200, "ok\n".to_owned()));
    assert!(node.status().problems.is_empty());
    assert!(*node.handle().pod_changes().borrow() > before);
    node.until("web", "cfg", &[("k", "2")]).await;
    assert_eq!(node.pod("web").unwrap().delivery.phase, Phase::Delivered);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_its_root_directory_ends_with_an_error() {
    let mut node = Node::start();
    check_served(&node).await;
    let path = node.path().to_owned();
    fs::remove_dir_all(&path).unwrap();
    let error = node.failure().await.to_string();
    assert!(error.contains("was removed"), "{error}");
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    // A new start creates it, and what was in it.
    node.run();
    node.until("web", "cfg", &[("k", "v")]).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn every_registered_metric_has_a_sample_before_anything_happens() {
    let mut node = Node::prepare();
    let key = KeySource::File(node.static_pods.path().join("key"));
    node.checkpoint = Some(CheckpointConfig::new(vec![key]));
    node.run();
    // A registry leaves metrics without a sample out of its answer. Its descriptors are in this text only.
    let handle = format!("{:?}", node.handle());
    let descriptors = handle.split("Descriptor { name: \"").skip(1);
    let names: Vec<_> = descriptors
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    assert!(names.len() >= 20, "{names:?}");
    let metrics = node.metrics();
    let words = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP "));
    let shown: HashSet<_> = words.filter_map(|line| line.split(' ').next()).collect();
    let is_shown = |name: &&&str| {
        ["", "checkpoint_"].iter().any(|prefix| {
            let name = format!("{prefix}{name}");
            shown.contains(&*name) || shown.contains(&*(name + "_seconds"))
        })
    };
    let missing: Vec<_> = names.iter().filter(|name| !is_shown(name)).collect();
    assert!(missing.is_empty(), "{missing:?}\n{metrics}");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn status_from_before_the_first_report_names_the_silent_source() {
    let mut node = Node::prepare();
    node.run();
    // No task has run yet.
    let status = node.status();
    assert_eq!(status.silent_sources, ["api"]);
    assert!(status.pods.is_empty());
    check_served(&node).await;
    assert!(node.status().silent_sources.is_empty());
    node.stop().await;
}
