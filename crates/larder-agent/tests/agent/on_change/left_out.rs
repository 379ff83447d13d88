//! Objects whose annotation leaves them out of what hooks react to (rule F10).

use std::time::Duration;

use larder_agent::config::CheckpointConfig;
use larder_apiserver::Fault;
use larder_checkpoint::KeySource;
use larder_objects::ON_CHANGE_ANNOTATION;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::harness::*;
use crate::harness::{Node, config_map, pod};

/// ConfigMap `b` with this text and this value of the annotation.
fn annotated(text: &str, value: &str) -> Value {
    let mut object = config_map("b", &[("f", text)]);
    object["metadata"]["annotations"] = json!({ON_CHANGE_ANNOTATION: value});
    object
}

/// A node with pod `web`, whose volumes `a` and `b` have an object each. The second one is left out.
async fn node_with_web() -> (Node, Rounds) {
    let mut node = Node::prepare();
    let rounds = with_hook(&mut node, immediate());
    node.follow_static_pods = false;
    let key = KeySource::File(node.static_pods.path().join("key"));
    node.checkpoint = Some(CheckpointConfig::new(vec![key]));
    node.run();
    node.apply(&config_map("a", &[("f", "0")]));
    node.apply(&annotated("0", "false"));
    let web = pod("web").config_map("a", "a").config_map("b", "b");
    node.apply(&web.build());
    delivered(&node, "web", "a", "0").await;
    delivered(&node, "web", "b", "0").await;
    (node, rounds)
}

// on-change 66, 67
#[tokio::test(start_paused = true)]
async fn changes_of_a_left_out_object_fire_nothing_also_across_restarts() {
    let (mut node, mut rounds) = node_with_web().await;
    node.apply(&annotated("1", "false"));
    delivered(&node, "web", "b", "1").await;
    rounds.none().await;
    let status = node.volume("web", "b").unwrap();
    assert_eq!(status.left_out, ["f"]);

    node.apply(&config_map("a", &[("f", "1")]));
    let change = rounds.succeed().await;
    let volumes: Vec<_> = change
        .changes
        .volumes
        .iter()
        .map(|one| &*one.name)
        .collect();
    assert_eq!(volumes, ["a"]);
    until_state(&node, "web", "Idle").await;

    node.kill().await;
    node.run();
    delivered(&node, "web", "b", "1").await;
    rounds.none().await;

    node.kill().await;
    node.apply(&annotated("2", "false"));
    node.run();
    delivered(&node, "web", "b", "2").await;
    rounds.none().await;
    // The checkpoint has it by then.
    sleep(Duration::from_secs(3)).await;

    node.kill().await;
    node.server.faults().inject(Fault::on_any().never_answer());
    node.run();
    node.wait("the copy of the checkpoint", |node| {
        node.volume("web", "b")?.stale_as_of
    })
    .await;
    delivered(&node, "web", "b", "2").await;
    rounds.none().await;
    node.stop().await;
}

// on-change 68
#[tokio::test(start_paused = true)]
async fn what_has_changed_counts_when_the_annotation_goes() {
    let (mut node, mut rounds) = node_with_web().await;
    node.apply(&config_map("b", &[("f", "0")]));
    node.wait("the annotation to be gone", |node| {
        node.volume("web", "b")?.left_out.is_empty().then_some(())
    })
    .await;
    rounds.none().await;

    node.apply(&annotated("1", "false"));
    delivered(&node, "web", "b", "1").await;
    rounds.none().await;
    node.apply(&config_map("b", &[("f", "1")]));
    assert_eq!(rounds.succeed().await.changes.volumes.len(), 1);
    until_state(&node, "web", "Idle").await;
    node.kill().await;
    node.run();
    delivered(&node, "web", "b", "1").await;
    rounds.none().await;

    // While no agent runs.
    node.apply(&annotated("2", "false"));
    delivered(&node, "web", "b", "2").await;
    rounds.none().await;
    node.kill().await;
    node.apply(&config_map("b", &[("f", "2")]));
    node.run();
    rounds.succeed().await;
    rounds.none().await;
    node.stop().await;
}

// on-change 69
#[tokio::test(start_paused = true)]
async fn another_value_is_a_problem_and_the_object_counts() {
    let (mut node, mut rounds) = node_with_web().await;
    node.apply(&annotated("1", "hunter2"));
    rounds.succeed().await;
    let problems = node.status().problems;
    let expected =
        "ConfigMap default/b: annotation larder.dev/on-change: not \"false\", so it is ignored";
    assert_eq!(problems, [expected]);
    node.apply(&annotated("1", "false"));
    node.wait("the problem to be gone", |node| {
        node.status().problems.is_empty().then_some(())
    })
    .await;
    rounds.none().await;
    node.stop().await;
}
