//! A panic in any background task ends the agent with an error that names the task.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::DeleteParams};
use larder_agent::agent::PodDeletion;
use serde_json::{Value, json};

use crate::harness::{Node, config_map, pod, secret};

/// An agent in which the reader of each answer from `path` panics.
fn node(path: &'static str) -> Node {
    let mut node = Node::prepare();
    node.poisoned = Some(path);
    node.pod_deletion = PodDeletion::External;
    node
}

/// The agent of `node`, which serves `served`, fails because of `task`.
async fn check(mut node: Node, served: Value, task: &str) {
    node.run();
    node.apply(&served);
    let error = node.failure().await;
    assert_eq!(
        error.to_string(),
        format!("background task {task:?} panicked")
    );
}

fn projected(source: &Value) -> Value {
    let projected = json!({"projected": {"sources": [source]}});
    pod("web").volume("v", projected).build()
}

#[tokio::test(start_paused = true)]
async fn panic_in_the_facts_ends_the_agent() {
    check(node("/api/v1/services"), pod("web").build(), "facts").await;
}

#[tokio::test(start_paused = true)]
async fn panic_in_the_pod_source_ends_the_agent() {
    check(node("/api/v1/pods"), pod("web").build(), "pod source api").await;
}

#[tokio::test(start_paused = true)]
async fn panic_in_the_trust_bundles_ends_the_agent() {
    let source = json!({"clusterTrustBundle": {"name": "roots", "path": "ca.pem"}});
    let served = projected(&source);
    check(node("/clustertrustbundles"), served, "trust bundles").await;
}

#[tokio::test(start_paused = true)]
async fn panic_in_the_certificates_ends_the_agent() {
    let source = json!({"podCertificate": {
        "signerName": "example.com/test", "keyType": "ED25519", "credentialBundlePath": "bundle.pem",
    }});
    let served = projected(&source);
    check(node("/podcertificaterequests"), served, "pod certificates").await;
}

#[tokio::test(start_paused = true)]
async fn panic_in_the_events_ends_the_agent() {
    let served = pod("web").config_map("cfg", "missing").build();
    check(node("/events"), served, "events").await;
}

#[tokio::test(start_paused = true)]
async fn panic_in_the_mirror_pods_ends_the_agent() {
    let node = node("/namespaces/default/pods");
    node.static_pod(pod("static").build());
    check(node, config_map("any", &[]), "mirror pods").await;
}

#[tokio::test(start_paused = true)]
async fn panic_in_a_pod_worker_ends_the_agent() {
    let source = json!({"serviceAccountToken": {"path": "token"}});
    let node = node("/token");
    node.apply(
        &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}),
    );
    check(node, projected(&source), "pod worker").await;
}

#[tokio::test(start_paused = true)]
async fn panic_while_deleting_a_pod_ends_the_agent() {
    let mut node = node("/namespaces/default/pods/web");
    node.pod_deletion = PodDeletion::ByAgent;
    node.apply(&pod("web").build());
    let pods: Api<Pod> = Api::default_namespaced(Client::new(node.server.service(), "default"));
    pods.delete("web", &DeleteParams::default()).await.unwrap();
    check(node, config_map("any", &[]), "pod deletion").await;
}

#[tokio::test(start_paused = true)]
async fn panic_in_a_manager_ends_the_agent() {
    for (path, manager) in [
        ("/configmaps", "ConfigMap manager"),
        ("/secrets", "Secret manager"),
    ] {
        let mut node = node(path);
        node.apply(&config_map("app", &[("k", "v")]));
        node.apply(&secret("tls", &[("k", "v")]));
        node.apply(
            &pod("web")
                .config_map("cfg", "app")
                .secret("tls", "tls")
                .build(),
        );
        node.run();
        let error = node.failure().await;
        assert_eq!(
            error.to_string(),
            format!("background task {manager:?} ended unexpectedly")
        );
    }
}
