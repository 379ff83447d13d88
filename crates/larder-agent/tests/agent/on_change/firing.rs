//! When a hook fires (rules F1 to F9).

use std::{fs, time::Duration};

use larder_apiserver::ApiKind;
use serde_json::json;
use tokio::time::sleep;

use super::harness::*;
use crate::{
    certificates::{self, Signer},
    harness::{Node, config_map, pod, secret},
};

fn node(hook: larder_on_change::Hook) -> (Node, Rounds) {
    let mut node = Node::prepare();
    let rounds = with_hook(&mut node, hook);
    node.run();
    (node, rounds)
}

// on-change 14
#[tokio::test(start_paused = true)]
async fn first_deliveries_fire_nothing() {
    let (node, mut rounds) = node(immediate());
    node.apply(&config_map("a", &[("f", "1")]));
    node.apply(
        &pod("web")
            .config_map("a", "a")
            .config_map("b", "late")
            .build(),
    );
    delivered(&node, "web", "a", "1").await;
    rounds.none().await;
    // An object that appears later is a first delivery as well.
    node.apply(&config_map("late", &[("f", "1")]));
    node.until("web", "b", &[("f", "1")]).await;
    rounds.none().await;
    node.apply(&config_map("late", &[("f", "2")]));
    let change = rounds.succeed().await;
    assert_eq!(change.changes.summary(), "volume b changed");
    assert_eq!(change.changes.volumes[0].changed, ["f"]);
    assert_eq!(change.pod.name, "web");
    assert_eq!(
        change.changes.volumes[0].directory,
        node.volume_path("web", "b").unwrap()
    );
    rounds.none().await;
}

// on-change 15
#[tokio::test(start_paused = true)]
async fn metadata_versions_and_modes_are_no_change() {
    let (node, mut rounds) = node(immediate());
    node.apply(&config_map("a", &[("f", "1")]));
    let volume = |mode: u32| json!({"configMap": {"name": "a", "defaultMode": mode}});
    node.apply(&pod("web").volume("a", volume(0o644)).build());
    delivered(&node, "web", "a", "1").await;
    let mut labeled = config_map("a", &[("f", "1")]);
    labeled["metadata"]["labels"] = json!({"l": "1"});
    node.apply(&labeled);
    rounds.none().await;
    // A file that was tampered with is rewritten, with the right mode.
    let file = node.volume_path("web", "a").unwrap().join("f");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    rounds.none_within(Duration::from_mins(3)).await;
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&file).unwrap());
    assert_eq!(mode & 0o777, 0o644);
}

// on-change 16
#[tokio::test(start_paused = true)]
async fn there_and_back_within_the_quiet_period_is_no_change() {
    let (node, mut rounds) = node(hook("debounce: {min: 5s, max: 60s}"));
    node.apply(&config_map("a", &[("f", "1")]));
    node.apply(&pod("web").config_map("a", "a").build());
    delivered(&node, "web", "a", "1").await;
    node.apply(&config_map("a", &[("f", "2")]));
    node.until("web", "a", &[("f", "2")]).await;
    until_state(&node, "web", "Waiting").await;
    node.apply(&config_map("a", &[("f", "1")]));
    node.until("web", "a", &[("f", "1")]).await;
    until_state(&node, "web", "Idle").await;
    rounds.none().await;
}

// on-change 18
#[tokio::test(start_paused = true)]
async fn renewed_tokens_fire_nothing() {
    let (node, mut rounds) = node(immediate());
    node.apply(
        &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}),
    );
    node.apply(&config_map("a", &[("f", "1")]));
    let sources = json!([
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
        {"configMap": {"name": "a"}},
    ]);
    node.apply(
        &pod("web")
            .volume("api", json!({"projected": {"sources": sources}}))
            .build(),
    );
    let token = |node: &Node| node.files("web", "api")?.get("token").cloned();
    let first = node.wait("a token", |node| token(node)).await;
    node.set_clock_ahead(3600);
    node.wait("another token", |node| {
        token(node).filter(|token| *token != first)
    })
    .await;
    rounds.none().await;
    node.apply(&config_map("a", &[("f", "2")]));
    assert_eq!(rounds.succeed().await.changes.volumes[0].changed, ["f"]);
}

// on-change 18
#[tokio::test(start_paused = true)]
async fn renewed_certificates_fire() {
    let mut node = certificates::prepare_guarded();
    let mut rounds = with_hook(&mut node, immediate());
    node.run();
    node.apply(&certificates::web());
    let signer = Signer::new(&node);
    let chain = signer.issue(&signer.pending().await).await;
    certificates::until_chain(&node, &chain).await;
    rounds.none().await;
    // It is refreshed after an hour and up to five minutes.
    sleep(Duration::from_mins(66)).await;
    let chain = signer.issue(&signer.pending().await).await;
    certificates::until_chain(&node, &chain).await;
    let change = rounds.succeed().await;
    let changed = &change.changes.volumes[0].changed;
    assert_eq!(*changed, ["bundle.pem", "chain.pem", "key.pem"]);
    rounds.none().await;
}

// on-change 19
#[tokio::test(start_paused = true)]
async fn deletion_of_optional_objects_fires_and_of_required_ones_does_not() {
    let (node, mut rounds) = node(immediate());
    node.apply(&secret("maybe", &[("f", "1")]));
    node.apply(&config_map("needed", &[("f", "1")]));
    let optional = json!({"secret": {"secretName": "maybe", "optional": true}});
    node.apply(
        &pod("web")
            .volume("opt", optional)
            .config_map("req", "needed")
            .build(),
    );
    delivered(&node, "web", "opt", "1").await;
    delivered(&node, "web", "req", "1").await;
    node.delete(ApiKind::ConfigMap, "needed");
    rounds.none().await;
    node.delete(ApiKind::Secret, "maybe");
    let change = rounds.succeed().await;
    assert_eq!(change.changes.volumes[0].removed, ["f"]);
    node.apply(&secret("maybe", &[("f", "2")]));
    assert_eq!(rounds.succeed().await.changes.volumes[0].added, ["f"]);
}

// on-change 20
#[tokio::test(start_paused = true)]
async fn round_sees_every_volume_of_the_pass() {
    let (node, mut rounds) = node(immediate());
    node.apply(&config_map("a", &[("f", "1")]));
    node.apply(
        &pod("web")
            .config_map("one", "a")
            .config_map("two", "a")
            .build(),
    );
    delivered(&node, "web", "one", "1").await;
    delivered(&node, "web", "two", "1").await;
    for text in ["2", "3", "4"] {
        node.apply(&config_map("a", &[("f", text)]));
        let round = rounds.next().await;
        for volume in ["one", "two"] {
            assert_eq!(node.files("web", volume).unwrap()["f"], text);
        }
        assert_eq!(round.change.changes.summary(), "volumes one, two changed");
        round.answer.send(Ok(())).unwrap();
    }
    rounds.none().await;
}

// on-change 21
#[tokio::test(start_paused = true)]
async fn failed_volume_delays_no_other_volumes_hook() {
    let (node, mut rounds) = node(immediate());
    node.apply(&config_map("a", &[("f", "1"), ("g", "1")]));
    let items = json!({"configMap": {"name": "a", "items": [{"key": "g", "path": "g"}]}});
    node.apply(
        &pod("web")
            .config_map("good", "a")
            .volume("bad", items)
            .build(),
    );
    node.until("web", "bad", &[("g", "1")]).await;
    // The key that only one volume uses is missing.
    node.apply(&config_map("a", &[("f", "2")]));
    let change = rounds.succeed().await;
    assert_eq!(change.changes.summary(), "volume good changed");
    node.until("web", "bad", &[("g", "1")]).await;
    rounds.none().await;
}

// on-change 22
#[tokio::test(start_paused = true)]
async fn variables_count_as_the_container_gets_them() {
    let (node, mut rounds) = node(hook("environment: true, volumes: []"));
    node.apply(&config_map("a", &[("LEVEL", "1"), ("OVERRIDDEN", "1")]));
    node.apply(
        &pod("web")
            .env_from(json!({"configMapRef": {"name": "a"}}))
            .env(json!({"name": "OVERRIDDEN", "value": "own"}))
            .build(),
    );
    node.wait("the environment", |node| node.environment("web", "main"))
        .await;
    node.wait("the hook", |node| node.hook("web", HOOK)).await;
    node.apply(&config_map("a", &[("LEVEL", "1"), ("OVERRIDDEN", "2")]));
    rounds.none().await;
    node.apply(&config_map("a", &[("LEVEL", "2"), ("OVERRIDDEN", "2")]));
    let change = rounds.succeed().await;
    assert_eq!(change.changes.summary(), "variable LEVEL changed");
    // Invariant of rule R2: a program that restarts the container finds the new variables.
    assert_eq!(node.environment("web", "main").unwrap()["LEVEL"], "2");
}

// on-change 23
#[tokio::test(start_paused = true)]
async fn pod_that_is_being_deleted_fires_nothing() {
    let mut node = Node::prepare();
    node.pod_deletion = larder_agent::agent::PodDeletion::External;
    let mut rounds = with_hook(&mut node, hook("debounce: {min: 1s, max: 1s}"));
    node.run();
    node.apply(&config_map("a", &[("f", "1")]));
    let mut web = pod("web").config_map("a", "a").build();
    web["metadata"]["finalizers"] = json!(["test.larder.dev/wait"]);
    node.apply(&web);
    delivered(&node, "web", "a", "1").await;
    node.apply(&config_map("a", &[("f", "2")]));
    until_state(&node, "web", "Waiting").await;
    node.delete(ApiKind::Pod, "web");
    rounds.none().await;
    node.apply(&config_map("a", &[("f", "3")]));
    node.until("web", "a", &[("f", "3")]).await;
    rounds.none().await;
}

// on-change 24
#[tokio::test(start_paused = true)]
async fn sub_path_mount_fires_and_its_status_asks_for_a_restart() {
    let (node, mut rounds) = node(immediate());
    node.apply(&config_map("a", &[("f", "1")]));
    let mut web = pod("web").config_map("config", "a").build();
    web["spec"]["containers"][0]["volumeMounts"][0]["subPath"] = json!("f");
    node.apply(&web);
    delivered(&node, "web", "config", "1").await;
    let expected = "container main mounts config by subPath: only a restart shows it the new file";
    assert_eq!(node.hook("web", HOOK).unwrap().reason, expected);
    node.apply(&config_map("a", &[("f", "2")]));
    rounds.succeed().await;
}
