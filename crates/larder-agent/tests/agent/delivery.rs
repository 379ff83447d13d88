//! Content of volumes: what reaches the files, and when it does not.

use std::{fs, time::Duration};

use larder::Strategy;
use larder_agent::status::Phase;
use larder_apiserver::{ApiKind, Fault};
use serde_json::json;

use crate::harness::{NODE, Node, config_map, pod, secret};

#[tokio::test(start_paused = true)]
async fn every_edit_of_an_object_reaches_the_files() {
    let mut node = Node::start();
    node.apply(&config_map("app", &[("a", "1"), ("b", "1")]));
    node.apply(&secret("tls", &[("key", "hunter2")]));
    node.apply(
        &pod("web")
            .config_map("cfg", "app")
            .secret("tls", "tls")
            .build(),
    );
    node.until("web", "cfg", &[("a", "1"), ("b", "1")]).await;
    node.until("web", "tls", &[("key", "hunter2")]).await;
    // An edit, a key that goes and one that comes.
    node.apply(&config_map("app", &[("a", "2"), ("c", "1")]));
    node.until("web", "cfg", &[("a", "2"), ("c", "1")]).await;
    let link = fs::read_link(node.path().join("by-name/default/web")).unwrap();
    assert!(
        link.to_str()
            .unwrap()
            .ends_with(&node.pod("web").unwrap().uid)
    );
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn missing_object_is_named_until_it_appears() {
    // projection 36
    let node = Node::start();
    node.apply(&config_map("there", &[("k", "v")]));
    node.apply(
        &pod("web")
            .config_map("cfg", "missing")
            .config_map("other", "there")
            .build(),
    );
    node.until_failing("web", "cfg", r#"configmap "missing" not found"#)
        .await;
    // The others continue.
    node.until("web", "other", &[("k", "v")]).await;
    assert_eq!(node.pod("web").unwrap().delivery.phase, Phase::Failing);
    node.apply(&config_map("missing", &[("k", "v")]));
    node.until("web", "cfg", &[("k", "v")]).await;
    let healed = node.wait("the pod to heal", |node| {
        node.pod("web")
            .filter(|pod| pod.delivery.phase == Phase::Delivered)
    });
    assert_eq!(healed.await.delivery.reason, "");
}

#[tokio::test(start_paused = true)]
async fn deleted_required_object_or_key_leaves_the_files_in_place() {
    // projection 36
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1"), ("b", "1")]));
    let items = json!({"configMap": {"name": "app", "items": [{"key": "a", "path": "x"}]}});
    node.apply(
        &pod("web")
            .volume("items", items)
            .config_map("all", "app")
            .build(),
    );
    node.until("web", "items", &[("x", "1")]).await;
    node.apply(&config_map("app", &[("b", "2")]));
    node.until_failing(
        "web",
        "items",
        "configmap references non-existent config key: a",
    )
    .await;
    node.until("web", "all", &[("b", "2")]).await;
    node.until("web", "items", &[("x", "1")]).await;
    node.delete(ApiKind::ConfigMap, "app");
    node.until_failing("web", "all", r#"configmap "app" not found"#)
        .await;
    node.until("web", "all", &[("b", "2")]).await;
}

#[tokio::test(start_paused = true)]
async fn optional_object_may_come_and_go() {
    let node = Node::start();
    let optional = json!({"secret": {"secretName": "maybe", "optional": true}});
    node.apply(&pod("web").volume("opt", optional).build());
    node.until("web", "opt", &[]).await;
    node.apply(&secret("maybe", &[("k", "v")]));
    node.until("web", "opt", &[("k", "v")]).await;
    node.delete(ApiKind::Secret, "maybe");
    node.until("web", "opt", &[]).await;
}

#[tokio::test(start_paused = true)]
async fn optional_volumes_follow_deletes_updates_and_creates() {
    // projection 35
    let node = Node::start();
    node.apply(&secret("deleted", &[("data-1", "value-1")]));
    node.apply(&secret("updated", &[("data-1", "value-1")]));
    let optional = |name: &str| json!({"secret": {"secretName": name, "optional": true}});
    node.apply(
        &pod("web")
            .volume("del", optional("deleted"))
            .volume("upd", optional("updated"))
            .volume("create", optional("created"))
            .build(),
    );
    node.until("web", "del", &[("data-1", "value-1")]).await;
    node.until("web", "upd", &[("data-1", "value-1")]).await;
    node.until("web", "create", &[]).await;
    node.delete(ApiKind::Secret, "deleted");
    node.apply(&secret("updated", &[("data-3", "value-3")]));
    node.apply(&secret("created", &[("data-1", "value-1")]));
    node.until("web", "del", &[]).await;
    node.until("web", "upd", &[("data-3", "value-3")]).await;
    node.until("web", "create", &[("data-1", "value-1")]).await;
}

#[tokio::test(start_paused = true)]
async fn optional_secret_may_be_missing_but_not_unknown() {
    // managers 82
    let node = Node::start();
    let optional = json!({"secretRef": {"name": "maybe", "optional": true}});
    node.apply(&pod("web").env_from(optional.clone()).build());
    node.wait("the environment", |node| node.environment("web", "main"))
        .await;

    let fault = Fault::on_any().resource("secrets").name("maybe");
    let silence = node.server.faults().inject(fault.never_answer());
    node.delete(ApiKind::Pod, "web");
    node.wait("the pod to go", |node| {
        node.pod("web").is_none().then_some(())
    })
    .await;
    node.apply(&pod("late").env_from(optional).build());
    node.until_environment_failing(
        "late",
        "failed to sync secret cache: timed out waiting for the condition",
    )
    .await;
    assert!(node.environment("late", "main").is_none());
    silence.lift();
    node.server.faults().close_connections();
}

#[tokio::test(start_paused = true)]
async fn pod_reads_its_own_namespace_only() {
    // projection 33
    let node = Node::start();
    node.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}));
    let mut other = secret("login", &[("k", "theirs")]);
    other["metadata"]["namespace"] = json!("other");
    node.apply(&other);
    node.apply(&pod("web").secret("login", "login").build());
    node.until_failing("web", "login", r#"secret "login" not found"#)
        .await;
    node.apply(&secret("login", &[("k", "ours")]));
    node.until("web", "login", &[("k", "ours")]).await;
    // Neither an edit nor the end of the other one is news.
    other["stringData"] = json!({"k": "edited"});
    node.apply(&other);
    node.server
        .delete(ApiKind::Secret, "other", "login")
        .unwrap();
    node.apply(&config_map("later", &[("k", "v")]));
    node.apply(&pod("later").config_map("cfg", "later").build());
    node.until("later", "cfg", &[("k", "v")]).await;
    node.until("web", "login", &[("k", "ours")]).await;
}

#[tokio::test(start_paused = true)]
async fn labels_reach_the_files_and_unchanged_volumes_stay() {
    // projection 48
    let node = Node::start();
    let items = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
    let mut web = pod("web")
        .volume("info", json!({"downwardAPI": {"items": items}}))
        .build();
    web["metadata"]["labels"] = json!({"l": "1"});
    node.apply(&web);
    node.until("web", "info", &[("labels", "l=\"1\"")]).await;
    let path = node.volume_path("web", "info").unwrap().join("..data");
    let set = fs::read_link(&path).unwrap();
    // An annotation makes the agent look again, and is in no file.
    web["metadata"]["annotations"] = json!({"a": "1"});
    node.apply(&web);
    node.apply(&pod("later").build());
    node.wait("a later pod", |node| node.environment("later", "main"))
        .await;
    assert_eq!(fs::read_link(&path).unwrap(), set);
    web["metadata"]["labels"] = json!({"l": "2"});
    node.apply(&web);
    node.until("web", "info", &[("labels", "l=\"2\"")]).await;
    assert_ne!(fs::read_link(&path).unwrap(), set);
}

#[tokio::test(start_paused = true)]
async fn burst_of_updates_costs_few_writes() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "0")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    node.until("web", "cfg", &[("a", "0")]).await;
    let data = node.volume_path("web", "cfg").unwrap().join("..data");
    let (mut sets, mut last) = (0, fs::read_link(&data).unwrap());
    for update in 1..=100 {
        node.apply(&config_map("app", &[("a", &update.to_string())]));
        tokio::task::yield_now().await;
        let set = fs::read_link(&data).unwrap();
        sets += usize::from(set != last);
        last = set;
    }
    node.until("web", "cfg", &[("a", "100")]).await;
    assert!(sets <= 30, "{sets} sets");
}

#[tokio::test(start_paused = true)]
async fn failing_pod_does_not_delay_another() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    node.apply(&pod("bad").config_map("cfg", "missing").build());
    node.apply(&pod("good").config_map("cfg", "app").build());
    node.until("good", "cfg", &[("a", "1")]).await;
    node.until_failing("bad", "cfg", r#"configmap "missing" not found"#)
        .await;
    node.settled().await;
}

#[tokio::test(start_paused = true)]
async fn invalid_paths_fail_their_volume_alone() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1"), ("b", "2")]));
    let items = |paths: [&str; 2]| {
        let [a, b] = paths.map(ToOwned::to_owned);
        json!({"configMap": {"name": "app", "items": [{"key": "a", "path": a}, {"key": "b", "path": b}]}})
    };
    // The API server already rejects a path that would leave the volume.
    let escape = pod("escape").volume("bad", items(["a", "../../escape"]));
    node.server.apply(&escape.build()).unwrap_err();
    // It accepts a contradictory one.
    node.apply(
        &pod("web")
            .volume("bad", items(["x", "x/y"]))
            .config_map("good", "app")
            .build(),
    );
    node.until_failing(
        "web",
        "bad",
        "invalid path: is both a file and a directory: x",
    )
    .await;
    node.until("web", "good", &[("a", "1"), ("b", "2")]).await;
    assert!(!node.volume_path("web", "bad").unwrap().exists());
}

#[tokio::test(start_paused = true)]
async fn without_a_watch_the_next_pass_brings_an_edit() {
    for strategy in [Strategy::Get, Strategy::Cache] {
        let mut node = Node::prepare();
        node.strategy = strategy;
        node.run();
        node.apply(&config_map("app", &[("a", "1")]));
        node.apply(
            &pod("web")
                .config_map("cfg", "app")
                .env_from(json!({"configMapRef": {"name": "app"}}))
                .build(),
        );
        node.until("web", "cfg", &[("a", "1")]).await;
        node.apply(&config_map("app", &[("a", "2")]));
        // Longer than a pass may be away (90 s) and an answer is kept (60 s).
        tokio::time::sleep(Duration::from_secs(200)).await;
        node.until("web", "cfg", &[("a", "2")]).await;
        node.wait("a=2", |node| {
            (node.environment("web", "main")?.remove("a")? == "2").then_some(())
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn node_annotation_sets_the_ttl_of_cached_objects() {
    let mut node = Node::prepare();
    node.strategy = Strategy::Cache;
    node.sync_frequency = Some(Duration::from_millis(20));
    node.apply(&json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NODE, "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
    }));
    node.apply(&config_map("app", &[("a", "1")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    node.run();
    node.until("web", "cfg", &[("a", "1")]).await;
    // The default of a minute is longer than this test waits.
    node.apply(&config_map("app", &[("a", "2")]));
    node.until("web", "cfg", &[("a", "2")]).await;
}
