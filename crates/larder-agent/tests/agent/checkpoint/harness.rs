//! A node with a checkpoint, which a test reboots.

use std::time::Duration;

use larder_agent::{
    agent::PodDeletion,
    config::CheckpointConfig,
    status::{CheckpointStatus, Phase},
};
use larder_apiserver::Options;
use larder_checkpoint::KeySource;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::harness::{Node, config_map, pod, secret};

/// Text that no file of the checkpoint may contain.
pub(super) const CANARY: &str = "hunter2-canary";

/// A node with a checkpoint and without static pods, whose agent does not run yet. Its key is in `static_pods`, which
/// the reboot does not empty.
pub(super) fn prepare() -> Node {
    let mut node = Node::prepare_with(Options::default().fill_namespaces(true));
    node.follow_static_pods = false;
    node.pod_deletion = PodDeletion::External;
    let key = KeySource::File(node.static_pods.path().join("key"));
    node.checkpoint = Some(CheckpointConfig::new(vec![key]));
    node
}

/// The same with static pods, in real time. The key lies in the second directory.
pub(super) fn prepare_with_static_pods() -> (Node, TempDir) {
    let mut node = prepare();
    node.follow_static_pods = true;
    let key = tempfile::tempdir().unwrap();
    let key_file = KeySource::File(key.path().join("key"));
    let mut config = CheckpointConfig::new(vec![key_file]);
    config.after = Duration::from_millis(300);
    node.checkpoint = Some(config);
    (node, key)
}

/// A node whose checkpoint holds what [`apply_web`] makes. Its agent runs.
pub(super) async fn node_with_web() -> Node {
    let mut node = prepare();
    apply_web(&node);
    node.run();
    recorded(&node).await;
    node
}

/// The same after a reboot. Its agent does not run yet.
pub(super) async fn rebooted_node_with_web() -> Node {
    let mut node = node_with_web().await;
    reboot(&mut node).await;
    node
}

pub(super) fn checkpoint(node: &Node) -> CheckpointStatus {
    node.status().checkpoint.unwrap()
}

/// Waits until the checkpoint has the present objects of the API server.
pub(super) async fn recorded(node: &Node) {
    let expected = |node: &Node| {
        let status = node.status();
        let pods = status.pods.iter().filter(|pod| pod.source == "api").count();
        // The facts about the node and the Services, too.
        pods + status.objects.len() + 2
    };
    node.settled().await;
    // The changes of a second share a write.
    sleep(Duration::from_secs(3)).await;
    node.wait("the checkpoint", |node| {
        (checkpoint(node).entries == expected(node)).then_some(())
    })
    .await;
}

/// Waits until the checkpoint has this number of copies.
pub(super) async fn entries(node: &Node, number: usize) {
    node.wait("the checkpoint", |node| {
        (checkpoint(node).entries == number).then_some(())
    })
    .await;
}

/// Stops the agent and reboots the machine.
pub(super) async fn reboot(node: &mut Node) {
    node.stop().await;
    larder_e2e::reboot(node.path());
}

/// Waits until a volume fails for a reason that contains this text.
pub(super) async fn failing(node: &Node, pod: &str, volume: &str, words: &str) {
    node.wait(&format!("{pod}/{volume} to fail: {words}"), |node| {
        let delivery = node.volume(pod, volume)?.delivery;
        let is_failing = delivery.phase == Phase::Failing && delivery.reason.contains(words);
        is_failing.then_some(())
    })
    .await;
}

/// Objects of both kinds, and a pod that uses them as volumes and variables.
pub(super) fn apply_web(node: &Node) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "db"},
        "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 5432}]},
    });
    node.apply(&service);
    node.apply(&config_map("app", &[("a", "1"), ("b", "2")]));
    node.apply(&secret("tls", &[("key", CANARY)]));
    let mode = json!({"secret": {"secretName": "tls", "defaultMode": 0o400}});
    let limit = json!({"resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}, "path": "cpu"});
    let web = pod("web")
        .config_map("cfg", "app")
        .volume("tls", mode)
        .volume("facts", json!({"downwardAPI": {"items": [limit]}}))
        .env_from(json!({"secretRef": {"name": "tls"}}))
        .env(json!({"name": "B", "valueFrom": {"configMapKeyRef": {"name": "app", "key": "b"}}}));
    node.apply(&web.build());
}
