//! Environments of containers on disk.

use std::{fs, path::Path};

use larder_agent::status::{ContainerStatus, Phase};
use serde_json::{Value, json};

use crate::harness::{NODE, Node, config_map, pod};

/// A variable with a field of the pod.
fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

/// The delivery of the environment of the container `main`.
fn main_of(node: &Node, pod: &str) -> Option<ContainerStatus> {
    let mut containers = node.pod(pod)?.containers.into_iter();
    containers.find(|container| container.name == "main")
}

async fn until_waiting(node: &Node, pod: &str, reason: &str) {
    node.wait(&format!("{pod} to wait: {reason}"), |node| {
        let delivery = main_of(node, pod)?.delivery;
        (delivery.phase == Phase::Waiting && delivery.reason == reason).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn environment_follows_its_objects() {
    let node = Node::start();
    node.apply(&config_map("app", &[("A", "1")]));
    node.apply(
        &pod("web")
            .env_from(json!({"configMapRef": {"name": "app"}}))
            .build(),
    );
    let value = |node: &Node, name: &str| node.environment("web", "main")?.remove(name);
    node.wait("A=1", |node| (value(node, "A")? == "1").then_some(()))
        .await;
    node.apply(&config_map("app", &[("A", "2")]));
    node.wait("A=2", |node| (value(node, "A")? == "2").then_some(()))
        .await;
    // Services are there when they are.
    node.apply(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "db"},
        "spec": {"clusterIP": "10.0.0.7", "ports": [{"port": 5432}]},
    }));
    node.wait("DB_SERVICE_HOST", |node| {
        (value(node, "DB_SERVICE_HOST")? == "10.0.0.7").then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn variables_come_from_files_of_other_containers() {
    // projection 61
    let node = Node::start();
    let variable = |name: &str, path: &str, optional: bool| {
        json!({"name": name, "valueFrom": {"fileKeyRef":
            {"volumeName": "scratch", "path": path, "key": "K", "optional": optional}}})
    };
    node.apply(
        &pod("web")
            .volume("scratch", json!({"emptyDir": {}}))
            .env(variable("A", "out/env", false))
            .env(variable("B", "never", true))
            .build(),
    );
    node.until_environment_failing(
        "web",
        "couldn't parse env file: failed to read out/env of volume scratch: no such file",
    )
    .await;
    let directory = Path::new(&node.pod("web").unwrap().path)
        .join("volumes/kubernetes.io~empty-dir/scratch/out");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("env"), "K='from a file'\n").unwrap();
    let environment = node.wait("the variable", |node| node.environment("web", "main"));
    let environment = environment.await;
    assert_eq!(environment["A"], "from a file");
    assert!(!environment.contains_key("B"));
}

#[tokio::test(start_paused = true)]
async fn environment_waits_for_the_address_of_the_pod() {
    let node = Node::start();
    node.apply(&config_map("app", &[("a", "1")]));
    let mut web = pod("web")
        .config_map("cfg", "app")
        .env(field("IP", "status.podIP"))
        .build();
    node.apply(&web);
    // The volume does not wait for it, and neither does the agent.
    node.until("web", "cfg", &[("a", "1")]).await;
    let reason = "waiting for status.podIP: the pod's status has no address yet";
    until_waiting(&node, "web", reason).await;
    node.settled().await;
    assert_eq!(node.environment("web", "main"), None);
    let metrics = node.metrics();
    assert!(!metrics.contains("outcome=\"failed\"} 1"), "{metrics}");

    web["status"] = json!({"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]});
    node.apply(&web);
    let environment = node.wait("the address", |node| node.environment("web", "main"));
    assert_eq!(environment.await["IP"], "10.0.0.9");
}

#[tokio::test(start_paused = true)]
async fn environment_waits_for_the_address_of_the_node() {
    let node = Node::start();
    node.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}));
    let mut web = pod("web").env(field("HOST", "status.hostIP")).build();
    web["spec"]["hostNetwork"] = json!(true);
    web["spec"]["containers"][0]["env"]
        .as_array_mut()
        .unwrap()
        .push(field("IP", "status.podIP"));
    node.apply(&web);
    let reason = "waiting for status.hostIP: the Node has no address yet";
    until_waiting(&node, "web", reason).await;
    node.apply(
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "status":
            {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}),
    );
    let environment = node.wait("the address", |node| node.environment("web", "main"));
    let environment = environment.await;
    // In the network of the node, the pod has the node's.
    assert_eq!(
        [&environment["HOST"], &environment["IP"]],
        ["10.0.0.1"; 2].map(|ip| ip)
    );
}

// projection 9.4.3
#[tokio::test(start_paused = true)]
async fn container_whose_mounts_are_wrong_is_not_delivered() {
    let node = Node::start();
    node.apply(&config_map("app", &[("A", "1")]));
    for (name, value, reason) in [
        ("empty", "", "missing value for E"),
        (
            "absolute",
            "/abs",
            "error SubPath `/abs` must not be an absolute path",
        ),
    ] {
        let web = pod(name).config_map("app", "app");
        let web = web.env(json!({"name": "E", "value": value}));
        let web = web.set(
            "/spec/containers/0/volumeMounts/0/subPathExpr",
            json!("$(E)"),
        );
        node.apply(&web.build());
        node.until_environment_failing(name, reason).await;
    }
}
