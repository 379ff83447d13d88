//! Volumes of a running pod, by the scenarios of Kubernetes' own end-to-end tests.

use std::fs;

use serde_json::json;

use larder_apiserver::ApiKind;

use crate::harness::{Node, config_map, pod, secret};

#[tokio::test(start_paused = true)]
async fn an_object_of_the_same_name_in_another_namespace_is_not_read() {
    // projection 33
    let mut node = Node::start();
    let mut other = secret("tls", &[("key", "theirs")]);
    other["metadata"]["namespace"] = "elsewhere".into();
    node.apply(&other);
    node.apply(&pod("web").secret("tls", "tls").build());
    node.until_failing("web", "tls", r#"secret "tls" not found"#)
        .await;
    node.apply(&secret("tls", &[("key", "ours")]));
    node.until("web", "tls", &[("key", "ours")]).await;
    // Nor does its change wake a worker.
    other["stringData"]["key"] = "theirs, changed".into();
    node.apply(&other);
    node.apply(&secret("tls", &[("key", "ours, changed")]));
    node.until("web", "tls", &[("key", "ours, changed")]).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn optional_volumes_follow_what_is_deleted_changed_and_created() {
    // projection 28, 35
    let optional = |kind: &str| {
        let (config_map, secret) = (
            |name: &str| json!({"configMap": {"name": name, "optional": true}}),
            |name: &str| json!({"secret": {"secretName": name, "optional": true}}),
        );
        let source = |name: &str| match kind {
            "configMap" => config_map(name),
            "secret" => secret(name),
            _ => {
                json!({"projected": {"sources": [{"configMap": {"name": name, "optional": true}}]}})
            }
        };
        pod(&kind.to_lowercase())
            .volume("deleted", source("deleted"))
            .volume("changed", source("changed"))
            .volume("created", source("created"))
            .build()
    };
    for kind in ["configMap", "secret", "projected"] {
        let mut node = Node::start();
        let (object, object_kind) = match kind {
            "secret" => (secret as fn(&str, &[_]) -> _, ApiKind::Secret),
            _ => (config_map as fn(&str, &[_]) -> _, ApiKind::ConfigMap),
        };
        node.apply(&object("deleted", &[("data-1", "1")]));
        node.apply(&object("changed", &[("data-1", "1")]));
        node.apply(&optional(kind));
        let name = kind.to_lowercase();
        node.until(&name, "deleted", &[("data-1", "1")]).await;
        node.until(&name, "changed", &[("data-1", "1")]).await;
        node.until(&name, "created", &[]).await;
        node.delete(object_kind, "deleted");
        node.delete(object_kind, "changed");
        node.apply(&object("changed", &[("data-3", "3")]));
        node.apply(&object("created", &[("data-1", "1")]));
        node.until(&name, "deleted", &[]).await;
        node.until(&name, "changed", &[("data-3", "3")]).await;
        node.until(&name, "created", &[("data-1", "1")]).await;
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_reaches_every_volume_that_shows_the_object() {
    // projection 34
    let mut node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    let item = json!({"configMap": {"name": "app", "items": [{"key": "a", "path": "b"}]}});
    node.apply(
        &pod("web")
            .config_map("whole", "app")
            .config_map("again", "app")
            .volume("item", item)
            .build(),
    );
    for content in ["1", "2"] {
        node.apply(&config_map("app", &[("a", content)]));
        node.until("web", "whole", &[("a", content)]).await;
        node.until("web", "again", &[("a", content)]).await;
        node.until("web", "item", &[("b", content)]).await;
    }
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn labels_and_annotations_of_a_running_pod_reach_its_files() {
    // projection 52
    let mut node = Node::start();
    let item = |path: &str, field: &str| json!({"path": path, "fieldRef": {"fieldPath": field}});
    let items = json!([
        item("labels", "metadata.labels"),
        item("note", "metadata.annotations['note']"),
    ]);
    let web = |label: &str, note: &str| {
        let volume = json!({"downwardAPI": {"items": items}});
        let mut pod = pod("web").volume("info", volume).build();
        pod["metadata"]["labels"] = json!({"a": label});
        pod["metadata"]["annotations"] = json!({"note": note});
        pod
    };
    node.apply(&web("1", "x"));
    node.until("web", "info", &[("labels", r#"a="1""#), ("note", "x")])
        .await;
    let uid = node.pod("web").unwrap().uid;
    node.apply(&web("2", "y"));
    node.until("web", "info", &[("labels", r#"a="2""#), ("note", "y")])
        .await;
    assert_eq!(node.pod("web").unwrap().uid, uid, "it is the same pod");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn key_whose_name_something_else_has_is_not_delivered() {
    let node = Node::start();
    node.apply(&secret("tls", &[("ca", "1")]));
    node.apply(&pod("web").secret("tls", "tls").build());
    node.until("web", "tls", &[("ca", "1")]).await;
    // A member of the pod's group may write there.
    let forged = node.volume_path("web", "tls").unwrap().join("key");
    fs::write(&forged, "forged").unwrap();
    node.apply(&secret("tls", &[("ca", "1"), ("key", "2")]));
    let reason = "something else in the volume has the name \"key\": it is not larder's";
    node.until_failing("web", "tls", reason).await;
    fs::remove_file(&forged).unwrap();
    node.until("web", "tls", &[("ca", "1"), ("key", "2")]).await;
}
