//! Another pod's edits beside a tenant that keeps the disk busy: six pods with one ConfigMap of 20,000 keys, edited every
//! second, so that their volumes are written without pause. The budget holds whatever the tenant does.

use std::{collections::BTreeMap, convert::Infallible, time::Duration};

use http::Method;
use larder_agent::status::Phase;
use larder_e2e::{Identity, NODE, Server, figures::Quantiles, pods::PodBuilder};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    node::{KEY, NAMESPACE, Node, namespaced},
    process::Agent,
    reader::Readers,
};

/// The tenant's pods.
const PODS: usize = 6;
/// Keys of the object that each of them mounts.
const KEYS: usize = 20_000;
/// Time between two edits of it.
const TENANT_EDITS: Duration = Duration::from_secs(1);
/// Edits of the other pod's object that are timed.
const EDITS: usize = 200;
/// Between two of them: at random from here to twice as long. A pod whose objects change more often than every 100 ms
/// waits for its own rate, and not for another's work.
const PAUSE: Duration = Duration::from_millis(110);
/// For 99 of 100 of them, in milliseconds.
const BUDGET: f64 = 100.0;

/// Prints one row for each load.
pub(crate) async fn run() -> anyhow::Result<()> {
    let server = Server::start().await?;
    let node = Node::empty(server.client().await?).await?;
    let kubeconfig = server.kubeconfig(Identity::Node)?.display().to_string();
    let config_maps = namespaced("configmaps");
    node.create(&config_maps, &object("large", keys(0))).await?;
    node.create(&config_maps, &object("app", value("0")))
        .await?;
    for index in 0..PODS {
        let pod = pod(&format!("tenant-{index}"), "large");
        node.create(&namespaced("pods"), &pod).await?;
    }
    node.create(&namespaced("pods"), &pod("other", "app"))
        .await?;

    let agent = Agent::start(&["--kubeconfig", &kubeconfig, "--node-name", NODE])?;
    agent.settled(PODS + 1, &[Phase::Delivered]).await?;
    let volume = agent.volume(NAMESPACE, "other", "configmap", "cfg");
    let readers = Readers::start(vec![(volume.clone(), KEY)])?;
    let edits = async |load: &str| {
        let mut took = Vec::new();
        for edit in 0..EDITS {
            sleep(PAUSE.mul_f64(1.0 + fastrand::f64())).await;
            let text = format!("{load} {edit} {}", fastrand::u64(..));
            let start = Instant::now();
            let path = format!("{config_maps}/app");
            node.send(Method::PUT, &path, &object("app", value(&text)))
                .await?;
            took.push(readers.read(&volume.join(KEY), &text).await? - start);
        }
        anyhow::Ok(Quantiles::of(took))
    };
    let idle = edits("idle").await?;
    let busy = tokio::select! {
        busy = edits("busy") => busy?,
        ended = keep_busy(&node) => match ended? {},
    };
    println!("| the tenant | edit to file p50 / p99 / max | budget of p99 | p99 / budget |");
    println!("| --- | --: | --: | --: |");
    for (load, took) in [("rests", idle), ("writes without pause", busy)] {
        let ratio = took.p99 / BUDGET;
        println!("| {load} | {took} | {BUDGET} ms | {ratio:.2} |");
    }
    Ok(())
}

/// Edits the tenant's object.
async fn keep_busy(node: &Node) -> anyhow::Result<Infallible> {
    let path = format!("{}/large", namespaced("configmaps"));
    for edit in 1.. {
        node.send(Method::PUT, &path, &object("large", keys(edit)))
            .await?;
        sleep(TENANT_EDITS).await;
    }
    unreachable!("there is no last number")
}

fn keys(edit: usize) -> BTreeMap<String, String> {
    let keys = (0..KEYS).map(|key| (format!("key-{key:05}"), edit.to_string()));
    keys.collect()
}

fn value(text: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(KEY.to_owned(), text.to_owned())])
}

fn object(name: &str, data: BTreeMap<String, String>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": NAMESPACE, "name": name},
        "data": data,
    })
}

fn pod(name: &str, config_map: &str) -> Value {
    let pod = PodBuilder::new(NODE, name).config_map("cfg", config_map);
    pod.set("/metadata/namespace", json!(NAMESPACE)).build()
}
