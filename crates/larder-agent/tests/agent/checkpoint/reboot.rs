//! Reboots without the API server: restored content, and the changes after the server returns.

use std::{collections::BTreeSet, fs, time::Duration};

use larder_agent::status::Phase;
use larder_apiserver::{ApiKind, Fault, Verb};
use larder_e2e::pod_files;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::harness::*;
use crate::harness::{NODE, Node, config_map, pod, secret};

#[tokio::test(start_paused = true)]
async fn a_reboot_without_the_api_server_restores_everything() {
    // offline 1
    let mut node = node_with_web().await;
    let before = pod_files(node.path());
    assert!(before.len() >= 5, "{before:?}");
    let proven = checkpoint(&node).written.unwrap();
    reboot(&mut node).await;
    assert!(!node.path().join("pods").exists());

    node.server.faults().inject(Fault::on_any().never_answer());
    let start = Instant::now();
    node.run();
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    node.wait("the same tree", |node| {
        (pod_files(node.path()) == before).then_some(())
    })
    .await;
    let after = start.elapsed();
    assert!(
        after >= Duration::from_secs(1) && after < Duration::from_secs(2),
        "{after:?}"
    );
    let environment = node.environment("web", "main").unwrap();
    assert_eq!(environment["B"], "2");
    assert_eq!(environment["key"], CANARY);
    assert_eq!(environment["DB_SERVICE_HOST"], "10.96.0.7");

    let status = checkpoint(&node);
    let serving = status.serving.unwrap();
    assert_eq!(serving.pods, 1);
    assert!(serving.as_of >= proven);
    let stale: Vec<_> = ["cfg", "tls"]
        .map(|name| node.volume("web", name).unwrap().stale_as_of)
        .into();
    assert_eq!(stale, [Some(serving.as_of); 2]);
    assert_eq!(
        node.pod("web").unwrap().containers[0].stale_as_of,
        Some(serving.as_of)
    );
    assert_eq!(node.volume("web", "facts").unwrap().stale_as_of, None);
    assert!(
        node.status()
            .objects
            .iter()
            .all(|object| object.state == "stale")
    );
    assert!(
        node.metrics().contains("checkpoint_serving 1"),
        "{}",
        node.metrics()
    );
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_elsewhere_outlives_the_root_directory() {
    let disk = tempfile::tempdir().unwrap();
    let mut node = prepare();
    node.checkpoint_dir = Some(disk.path().join("sealed"));
    apply_web(&node);
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    assert_eq!(fs::read_dir(node.path()).unwrap().count(), 0);

    node.server.faults().inject(Fault::on_any().never_answer());
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    assert!(!node.path().join("checkpoint").exists());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_meanwhile_is_swapped_in_once_after_the_return() {
    // offline 2
    let mut node = rebooted_node_with_web().await;
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.apply(&config_map("app", &[("a", "changed")]));
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    let current = |node: &Node, volume: &str| {
        let path = node.volume_path("web", volume).unwrap().join("..data");
        fs::read_link(path).unwrap()
    };
    let (old, tls) = (current(&node, "cfg"), current(&node, "tls"));
    away.lift();
    let mut seen = BTreeSet::from([old.clone()]);
    node.wait("the marks to go", |node| {
        seen.insert(current(node, "cfg"));
        let pod = node.pod("web")?;
        let mut volumes = pod.volumes.iter();
        let proven = volumes.all(|volume| volume.stale_as_of.is_none());
        (proven && checkpoint(node).serving.is_none()).then_some(())
    })
    .await;
    seen.insert(current(&node, "cfg"));
    assert_eq!(seen.len(), 2, "one swap: {seen:?}");
    assert_eq!(
        current(&node, "tls"),
        tls,
        "what has not changed is not swapped"
    );
    node.until("web", "cfg", &[("a", "changed")]).await;
    assert!(
        node.status()
            .objects
            .iter()
            .all(|object| object.state == "synced")
    );
    // The environment of the next start needs the removed key.
    node.until_environment_failing("web", "couldn't find key b in ConfigMap default/app")
        .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_deleted_meanwhile_follows_the_rules_after_the_return() {
    // offline 3
    let mut node = prepare();
    apply_web(&node);
    let optional = json!({"configMap": {"name": "app", "optional": true}});
    node.apply(&pod("other").volume("opt", optional).build());
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.delete(ApiKind::ConfigMap, "app");
    node.run();
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    node.until("other", "opt", &[("a", "1"), ("b", "2")]).await;
    away.lift();
    node.until_failing("web", "cfg", r#"configmap "app" not found"#)
        .await;
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    node.until("other", "opt", &[]).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_meanwhile_is_torn_down_only_after_the_return() {
    // offline 4
    let mut node = prepare();
    apply_web(&node);
    node.apply(&pod("gone").config_map("cfg", "app").build());
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    let away = node
        .server
        .faults()
        .inject(Fault::on_any().drop_connection());
    node.delete(ApiKind::Pod, "gone");
    node.run();
    node.until("gone", "cfg", &[("a", "1"), ("b", "2")]).await;
    let path = node.volume_path("gone", "cfg").unwrap();
    sleep(Duration::from_mins(5)).await;
    assert!(
        path.exists(),
        "nothing is torn down while the API server is unreachable"
    );
    assert_eq!(
        checkpoint(&node).entries,
        6,
        "two pods, two objects, node and Services"
    );
    away.lift();
    node.wait("the pod to go", |node| {
        node.pod("gone").is_none().then_some(())
    })
    .await;
    assert!(!path.exists());
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(checkpoint(&node).entries, 5);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_api_server_replaces_the_copies() {
    // offline 7
    let mut node = rebooted_node_with_web().await;
    node.apply(&config_map("app", &[("a", "new"), ("b", "2")]));
    node.server
        .faults()
        .inject(Fault::on_any().delay(Duration::from_secs(3)));
    node.run();
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    let mut seen = BTreeSet::new();
    node.wait("the new state", |node| {
        let files = node
            .files("web", "cfg")
            .expect("the reader sees old or new, never neither");
        seen.insert(files["a"].clone());
        let proven = node.volume("web", "cfg")?.stale_as_of.is_none();
        (proven && files["a"] == "new").then_some(())
    })
    .await;
    assert_eq!(seen, BTreeSet::from(["1".to_owned(), "new".to_owned()]));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_answers_leaves_the_checkpoint_unused() {
    // offline 8
    let mut node = rebooted_node_with_web().await;
    node.run();
    let mut serving = false;
    node.wait("everything", |node| {
        let status = node.status();
        let mut volumes = status.pods.iter().flat_map(|pod| &pod.volumes);
        serving |= checkpoint(node).serving.is_some();
        serving |= volumes.any(|volume| volume.stale_as_of.is_some());
        (node.is_ready() && node.files("web", "tls").is_some()).then_some(())
    })
    .await;
    sleep(Duration::from_secs(5)).await;
    assert!(!serving && checkpoint(&node).serving.is_none());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_volume_shows_why_it_waits_and_the_others_are_delivered() {
    // offline 25
    let mut node = prepare();
    apply_web(&node);
    let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 600}});
    let volume = json!({"projected": {"sources": [token]}});
    node.apply(
        &pod("api")
            .volume("token", volume)
            .config_map("cfg", "app")
            .build(),
    );
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("api", "cfg", &[("a", "1"), ("b", "2")]).await;
    let reason = node.wait("the reason", |node| {
        let delivery = node.volume("api", "token")?.delivery;
        (delivery.phase == Phase::Failing).then_some(delivery.reason)
    });
    let reason = reason.await;
    assert!(reason.contains("token"), "{reason}");
    assert_eq!(node.files("api", "token"), None);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_absent_optional_object_stays_absent() {
    // offline 26
    let mut node = prepare();
    let optional = json!({"secret": {"secretName": "maybe", "optional": true}});
    node.apply(&pod("web").volume("opt", optional).build());
    node.run();
    recorded(&node).await;
    reboot(&mut node).await;
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("web", "opt", &[]).await;
    assert!(node.volume("web", "opt").unwrap().stale_as_of.is_some());
    node.apply(&secret("maybe", &[("k", "v")]));
    away.lift();
    node.until("web", "opt", &[("k", "v")]).await;
    node.stop().await;
}

#[tokio::test]
async fn static_pods_are_unaffected_and_read_copies_too() {
    // offline 31
    let (mut node, _key) = prepare_with_static_pods();
    apply_web(&node);
    node.static_pod(pod("static").config_map("cfg", "app").build());
    node.run();
    node.until(&format!("static-{NODE}"), "cfg", &[("a", "1"), ("b", "2")])
        .await;
    entries(&node, 5).await;
    reboot(&mut node).await;
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until(&format!("static-{NODE}"), "cfg", &[("a", "1"), ("b", "2")])
        .await;
    node.until("web", "tls", &[("key", CANARY)]).await;
    away.lift();
    node.wait("the marks to go", |node| {
        let pod = node.pod(&format!("static-{NODE}"))?;
        pod.volumes[0].stale_as_of.is_none().then_some(())
    })
    .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_watch_that_fails_later_serves_no_copies() {
    // O19: while the agent runs, served content stays served
    let mut node = node_with_web().await;
    let before = pod_files(node.path());
    node.server
        .faults()
        .inject(Fault::on(Verb::Watch).status(503));
    node.server
        .faults()
        .inject(Fault::on(Verb::List).status(503));
    node.server.end_watches();
    sleep(Duration::from_mins(10)).await;
    assert!(checkpoint(&node).serving.is_none());
    assert_eq!(pod_files(node.path()), before);
    node.stop().await;
}
