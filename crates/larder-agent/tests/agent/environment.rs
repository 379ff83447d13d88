//! Environments of containers on disk.

use std::{fs, path::Path};

use serde_json::json;

use crate::harness::{Node, config_map, pod};

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
