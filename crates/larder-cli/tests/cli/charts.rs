//! What popular charts render, delivered without a cluster.

use std::{fs, process::Command};

use serde_json::Value;

use crate::{
    Desk,
    run::{Agent, until},
};

const CHARTS: &str = include_str!("charts.yaml");
const PODS: [&str; 7] = [
    "grafana",
    "jenkins-0",
    "loki-0",
    "node-exporter",
    "operator",
    "prometheus-server",
    "vector",
];

fn start<'a>(desk: &'a Desk, flags: &str) -> Agent<'a> {
    fs::create_dir_all(desk.path().join("m")).unwrap();
    fs::write(desk.path().join("m/charts.yaml"), CHARTS).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.env_clear();
    Agent::spawn(desk, command, &format!("--manifests m {flags}"))
}

fn pods(desk: &Desk) -> Vec<Value> {
    let run = desk.run("status -o json --root-dir root");
    let status: Value = serde_json::from_str(&run.stdout).unwrap_or_default();
    status["pods"].as_array().cloned().unwrap_or_default()
}

fn variable(desk: &Desk, pod: &str, container: &str, name: &str) -> Value {
    let path = format!("root/by-name/charts/{pod}/containers/{container}/env.json");
    let text = fs::read(desk.path().join(path)).unwrap();
    serde_json::from_slice::<Value>(&text).unwrap()[name].clone()
}

#[tokio::test]
async fn charts_are_delivered_with_an_address_for_their_pods() {
    let desk = Desk::with([]);
    let mut agent = start(&desk, "--node-name n1 --pod-address 10.1.2.3");
    agent.summary();
    let wait = desk.run("status --wait --timeout 60s --root-dir root");
    assert_eq!(wait.code, 0, "{wait:?}");
    let names: Vec<_> = pods(&desk).iter().map(|pod| pod["name"].clone()).collect();
    assert_eq!(names, PODS);
    assert_eq!(variable(&desk, "loki-0", "loki", "MY_POD_IPS"), "10.1.2.3");
    // In the network of the node, a pod has the node's.
    assert_eq!(
        variable(&desk, "node-exporter", "node-exporter", "HOST_IP"),
        "127.0.0.1"
    );
    assert_eq!(variable(&desk, "vector", "vector", "HOST_IPS"), "127.0.0.1");
    assert_eq!(
        variable(&desk, "vector", "vector", "VECTOR_SELF_NODE_NAME"),
        "n1"
    );
}

#[tokio::test]
async fn address_of_the_configuration_is_taken_too() {
    let desk = Desk::with([("agent.yaml", "podAddress: 10.1.2.3\n")]);
    let mut agent = start(&desk, "--node-name n1 --config agent.yaml");
    agent.summary();
    let wait = desk.run("status --wait --timeout 60s --root-dir root");
    assert_eq!(wait.code, 0, "{wait:?}");
    assert_eq!(variable(&desk, "loki-0", "loki", "MY_POD_IPS"), "10.1.2.3");
}

#[tokio::test]
async fn without_an_address_the_reason_names_the_flag() {
    let desk = Desk::with([]);
    let mut agent = start(&desk, "--node-name n1");
    agent.summary();
    let waiting = |pods: &[Value]| -> Vec<_> {
        let waiting = pods.iter().filter(|pod| pod["phase"] != "Delivered");
        let waiting = waiting.map(|pod| (pod["name"].clone(), pod["reason"].to_string()));
        waiting.collect()
    };
    until("the other pods", || waiting(&pods(&desk)).len() == 3).await;
    for ((name, reason), expected) in
        waiting(&pods(&desk))
            .into_iter()
            .zip(["grafana", "loki-0", "prometheus-server"])
    {
        assert_eq!(name, expected);
        for part in ["status.podIP", "--pod-address"] {
            assert!(reason.contains(part), "{name}: {reason}");
        }
    }
}
