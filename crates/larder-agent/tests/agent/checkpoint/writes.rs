//! When the checkpoint is written, and what its files show.

use std::{fs, time::Duration};

use larder_apiserver::{ApiKind, Fault};
use larder_checkpoint::{CheckpointDir, Store};
use tokio::time::sleep;

use super::harness::*;
use crate::harness::{NODE, Node, config_map};

#[tokio::test(start_paused = true)]
async fn a_full_disk_delays_no_delivery() {
    // offline 20, 21: the tests of the store cover the errors
    let mut node = prepare();
    apply_web(&node);
    fs::write(node.path().join("checkpoint"), "in the way").unwrap();
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    let problem = checkpoint(&node).problem;
    assert!(problem.starts_with("cannot open "), "{problem}");
    assert!(
        node.metrics().contains("checkpoint_failures_total"),
        "{}",
        node.metrics()
    );
    // It heals by itself.
    fs::remove_file(node.path().join("checkpoint")).unwrap();
    recorded(&node).await;
    assert_eq!(checkpoint(&node).problem, "");
    node.stop().await;
}

/// Writes of the checkpoint so far.
fn writes(node: &Node) -> u64 {
    let metrics = node.metrics();
    let line = metrics
        .lines()
        .find(|line| line.contains("checkpoint_writes_total"));
    line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_hundred_changes_in_a_second_cause_two_writes_at_most() {
    // offline 22
    let mut node = node_with_web().await;
    let before = writes(&node);
    for number in 0..100 {
        node.apply(&config_map("app", &[("a", &number.to_string())]));
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_secs(5)).await;
    let made = writes(&node) - before;
    assert!((1..=2).contains(&made), "{made} writes");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_node_writes_nothing_for_an_hour() {
    // offline 23
    let mut node = node_with_web().await;
    let before = writes(&node);
    let index = fs::metadata(node.path().join("checkpoint/index")).unwrap();
    for _ in 0..60 {
        sleep(Duration::from_mins(1)).await;
    }
    assert_eq!(writes(&node), before);
    let after = fs::metadata(node.path().join("checkpoint/index")).unwrap();
    assert_eq!(after.modified().unwrap(), index.modified().unwrap());
    // A restart that finds the same versions writes no copy: only the times of the freshness checks are written at the
    // shutdown.
    node.stop().await;
    node.run();
    recorded(&node).await;
    assert_eq!(writes(&node), 0);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_reference_removes_the_copy() {
    // offline 24
    let mut node = node_with_web().await;
    assert_eq!(checkpoint(&node).entries, 5);
    node.delete(ApiKind::Pod, "web");
    entries(&node, 2).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn no_secret_shows_in_checkpoint_status_or_metrics() {
    // offline 28: logs contain names only, as the canaries of `larder` check
    let mut node = node_with_web().await;
    let mut files = 0;
    for entry in fs::read_dir(node.path().join("checkpoint")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        files += 1;
        for canary in [CANARY.as_bytes(), b"default", b"tls", NODE.as_bytes()] {
            let shows = bytes.windows(canary.len()).any(|window| window == canary);
            // Three letters occur by chance in random bytes.
            assert!(
                !shows || canary == b"tls",
                "{} shows {canary:?}",
                path.display()
            );
        }
    }
    assert!(files >= 6, "{files}");
    let status = serde_json::to_string(&node.status()).unwrap();
    for text in [status, node.metrics()] {
        assert!(!text.contains(CANARY), "{text}");
    }
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_erased_checkpoint_comes_back_with_the_next_change() {
    // offline 32
    let mut node = node_with_web().await;
    assert!(Store::erase(&CheckpointDir::new(node.path().join("checkpoint"))).unwrap() > 5);
    assert_eq!(
        fs::read_dir(node.path().join("checkpoint"))
            .unwrap()
            .count(),
        0
    );
    node.apply(&config_map("app", &[("a", "2"), ("b", "2")]));
    node.until("web", "cfg", &[("a", "2"), ("b", "2")]).await;
    node.wait("the index", |node| {
        node.path().join("checkpoint/index").exists().then_some(())
    })
    .await;
    reboot(&mut node).await;
    node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("web", "cfg", &[("a", "2"), ("b", "2")]).await;
    node.until("web", "tls", &[("key", CANARY)]).await;
    node.stop().await;
}
